"""Ready tools on captures and patches: logit lens, patching grid, ablation of heads.

    from stretto import inside

    print(inside.logit_lens(llm, "The capital of France is"))
    inside.patching_grid(llm, clean, corrupted, " Paris", " Rome").values     # float32[layers, tokens]

Each value of a grid is a request with a patch of its own: they run together, as other requests do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Batch
from stretto.engine.inside import Capture, Patch
from stretto.errors import InvalidRequest
from stretto.llm.prompts import prompt_ids

if TYPE_CHECKING:
    from stretto.llm import LLM

__all__ = ["Grid", "Lens", "ablate_heads", "logit_lens", "patching_grid"]

Floats = NDArray[np.float32]
TOGETHER = 16  # requests that run at a time


@dataclass(frozen=True)
class Lens:
    """What each layer would have said behind each token: `tokens` int32[layers, tokens, top], the best first.

    `logprobs` are their log-probabilities, and `texts` the texts of `tokens`.
    """

    prompt: list[str]
    tokens: NDArray[np.int32]
    logprobs: Floats
    texts: list[list[list[str]]]

    def __str__(self) -> str:
        rows = [["", *map(repr, self.prompt)]]
        rows += [[str(i), *(repr(best[0]) for best in row)] for i, row in enumerate(self.texts)]
        return _table(rows)


@dataclass(frozen=True)
class Grid:
    """A measure for each change: `values` float32[layers, columns], and what it is without any.

    `plain` is the measure of the run that was changed; in a patching grid `clean` is that of the other run.
    """

    values: Floats
    columns: list[str]
    plain: float
    clean: float | None = None

    @property
    def restored(self) -> Floats:
        """How much of the clean run's measure each patch restores: 0 nothing, 1 all."""
        if self.clean is None or self.clean == self.plain:
            raise InvalidRequest("there is nothing to restore: both runs have the same measure")
        restored: Floats = (self.values - np.float32(self.plain)) / np.float32(self.clean - self.plain)
        return restored

    def __str__(self) -> str:
        rows = [["", *map(repr, self.columns)]]
        rows += [
            [str(i), *("" if np.isnan(value) else f"{value:.2f}" for value in row)]
            for i, row in enumerate(self.values)
        ]
        return _table(rows)


def logit_lens(llm: LLM, text: str | Sequence[int], *, top: int = 5) -> Lens:
    """What the last norm and the output matrix make of the residual stream behind every layer.

    The stream of a layer is put in the place of the last one's, and the model's own code does the rest: one
    pass over the text for each layer.
    """
    if not isinstance(top, int) or not 1 <= top <= llm.spec.n_vocab:
        raise InvalidRequest(f"top must be from 1 to {llm.spec.n_vocab}, not {top!r}", param="top", value=top)
    ids = prompt_ids(llm._engine, text, param="text")
    streams = llm.activations(ids, list(range(llm.spec.n_layer)))
    last = llm.sites()[f"layers.{llm.spec.n_layer - 1}.residual"]
    tokens, logprobs = [], []
    for stream in streams:
        with llm.sequence() as sequence:
            batch = Batch()
            for position, token in enumerate(ids):
                batch.add(token, position, [sequence.id], logits=True)
            batch.tap(last, range(len(ids)), partial(_put, stream))
            rows = llm.forward(batch).astype(np.float64)
        rows -= np.logaddexp.reduce(rows, axis=1, keepdims=True)
        best = np.argsort(-rows, axis=1, kind="stable")[:, :top]
        tokens.append(best.astype(np.int32))
        logprobs.append(np.take_along_axis(rows, best, axis=1).astype(np.float32))
    found = np.stack(tokens)
    texts = [[[_text(llm, token) for token in best] for best in row] for row in found]
    return Lens([_text(llm, token) for token in ids], found, np.stack(logprobs), texts)


def patching_grid(
    llm: LLM,
    clean: str | Sequence[int],
    corrupted: str | Sequence[int],
    answer: str | int,
    against: str | int | None = None,
    *,
    part: str = "residual",
) -> Grid:
    """The measure of the corrupted text, with the clean one's values patched in: each layer at each token.

    It is the log-probability of the answer's first token, less that of `against` if it is given (then it is
    the difference of their logits). `part` is the end of a site's name: "residual", "attn.out", "mlp.out".
    """
    ids, other = (prompt_ids(llm._engine, text, param="text") for text in (corrupted, clean))
    if len(ids) != len(other):
        raise InvalidRequest(
            f"the clean text has {len(other)} tokens and the corrupted one {len(ids)}; patches go from token "
            "to token: give texts of the same length",
            param="clean",
        )
    measured = _answers(llm, answer, against)
    capture = Capture(*(f"layers.{i}.{part}" for i in _layers(llm, part)), tokens="prompt")
    captured = llm.generate(other, max_tokens=1, temperature=0, capture=capture).captured
    assert captured is not None
    patches = {
        (i, place): Patch(f"layers.{i}.{part}", captured[f"layers.{i}.{part}"][place], tokens=[place])
        for i in _layers(llm, part)
        for place in range(len(ids))
    }
    plain, whole = _measure(llm, ids, [None], measured)[0], _measure(llm, other, [None], measured)[0]
    values = np.full((llm.spec.n_layer, len(ids)), np.nan, np.float32)
    for at, value in zip(patches, _measure(llm, ids, patches.values(), measured), strict=True):
        values[at] = value
    return Grid(values, [_text(llm, token) for token in ids], plain, whole)


def ablate_heads(
    llm: LLM, text: str | Sequence[int], answer: str | int, against: str | int | None = None
) -> Grid:
    """The measure of a text without each of its heads: by layer and head, NaN where a layer has fewer.

    A head that is ablated gives 0 for every token of the text. The measure is that of `patching_grid`.
    """
    ids, measured = prompt_ids(llm._engine, text, param="text"), _answers(llm, answer, against)
    sites = llm.sites()
    patches = {
        (i, head): Patch(f"layers.{i}.attn.heads", 0.0, heads=[head])
        for i in _layers(llm, "attn.heads")
        for head in range(sites[f"layers.{i}.attn.heads"].heads)
    }
    most = max(head for _, head in patches) + 1
    values = np.full((llm.spec.n_layer, most), np.nan, np.float32)
    for at, value in zip(patches, _measure(llm, ids, patches.values(), measured), strict=True):
        values[at] = value
    return Grid(values, [f"head {head}" for head in range(most)], _measure(llm, ids, [None], measured)[0])


def _put(values: Floats, rows: Floats) -> None:
    rows[:] = values


def _layers(llm: LLM, part: str) -> list[int]:
    """The layers that have such a site."""
    found = [i for i in range(llm.spec.n_layer) if f"layers.{i}.{part}" in llm.sites()]
    if not found:
        raise InvalidRequest(
            f"no layer has a site {part!r}; llm.sites() lists those there are", param="part", value=part
        )
    return found


def _answers(llm: LLM, answer: str | int, against: str | int | None) -> list[int]:
    """The ids of the first tokens of the answers."""
    given = [answer] if against is None else [answer, against]
    found = [llm.tokenizer.encode(one)[:1] if isinstance(one, str) else [one] for one in given]
    if not all(found):
        raise InvalidRequest("an answer is empty; give a text of at least one token", param="answer")
    return [one[0] for one in found]


def _measure(llm: LLM, ids: list[int], patches: Iterable[Patch | None], measured: list[int]) -> list[float]:
    """For each patch the log-probability of the first answer, less that of the second."""
    waiting, found = list(patches), []
    options: dict[str, Any] = {"max_tokens": 1, "temperature": 0, "ignore_eos": True}
    options |= {"logprobs": 1, "logprob_tokens": measured}
    while waiting:
        now, waiting = waiting[:TOGETHER], waiting[TOGETHER:]
        streams = [llm.stream(ids, patch=() if one is None else one, **options) for one in now]
        for stream in streams:
            [event, *_] = stream.result.logprobs or []
            first, *second = [one.logprob for one in event.top]
            found.append(first - sum(second))
    return found


def _text(llm: LLM, token: int) -> str:
    return llm.tokenizer.decode([int(token)])


def _table(rows: list[list[str]]) -> str:
    """Rows of cells in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)

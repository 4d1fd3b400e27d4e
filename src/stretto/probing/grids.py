"""Grids of patched requests: activation patching, ablation of heads and of experts.

Each value of a grid is a request with a patch of its own: they run together, as other requests do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stretto.engine.inside import Capture, Patch
from stretto.errors import InvalidRequest
from stretto.llm.prompts import prompt_ids
from stretto.probing.common import TOGETHER, Floats, answer_ids, layers_with, table_of, text_of

if TYPE_CHECKING:
    from stretto.llm import LLM


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
        return table_of(rows)


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
    measured = answer_ids(llm, answer, against)
    layers = layers_with(llm, part)
    capture = Capture(*(f"layers.{i}.{part}" for i in layers), tokens="prompt")
    captured = llm.generate(other, max_tokens=1, temperature=0, capture=capture).captured
    assert captured is not None
    patches = {
        (i, place): Patch(f"layers.{i}.{part}", captured[f"layers.{i}.{part}"][place], tokens=[place])
        for i in layers
        for place in range(len(ids))
    }
    plain, whole = _measure(llm, ids, [None], measured)[0], _measure(llm, other, [None], measured)[0]
    values = np.full((llm.spec.n_layer, len(ids)), np.nan, np.float32)
    for at, value in zip(patches, _measure(llm, ids, patches.values(), measured), strict=True):
        values[at] = value
    return Grid(values, [text_of(llm, token) for token in ids], plain, whole)


def ablate_heads(
    llm: LLM, text: str | Sequence[int], answer: str | int, against: str | int | None = None
) -> Grid:
    """The measure of a text without each of its heads: by layer and head, NaN where a layer has fewer.

    A head that is ablated gives 0 for every token of the text. The measure is that of `patching_grid`.
    """
    ids, measured = prompt_ids(llm._engine, text, param="text"), answer_ids(llm, answer, against)
    sites = llm.sites()
    patches = {
        (i, head): Patch(f"layers.{i}.attn.heads", 0.0, heads=[head])
        for i in layers_with(llm, "attn.heads")
        for head in range(sites[f"layers.{i}.attn.heads"].heads)
    }
    most = max(head for _, head in patches) + 1
    values = np.full((llm.spec.n_layer, most), np.nan, np.float32)
    for at, value in zip(patches, _measure(llm, ids, patches.values(), measured), strict=True):
        values[at] = value
    return Grid(values, [f"head {head}" for head in range(most)], _measure(llm, ids, [None], measured)[0])


def ablate_experts(
    llm: LLM, text: str | Sequence[int], answer: str | int, against: str | int | None = None
) -> Grid:
    """The measure of a text without each of its experts: by layer and expert, NaN where no token chose it.

    The weight of an expert that is ablated is 0 for every token; those of the others stay as they are.
    """
    ids, measured = prompt_ids(llm._engine, text, param="text"), answer_ids(llm, answer, against)
    layers = layers_with(llm, "experts")
    capture = Capture(*(f"layers.{i}.experts" for i in layers), tokens="prompt")
    captured = llm.generate(ids, max_tokens=1, temperature=0, ignore_eos=True, capture=capture).captured
    assert captured is not None
    patches = {}
    for i in layers:
        chosen = captured[f"layers.{i}.experts"]
        for expert in np.unique(chosen).tolist():
            places = np.flatnonzero((chosen == expert).any(axis=1)).tolist()
            left = (chosen[places] != expert).astype(np.float32)
            patches[i, expert] = Patch(f"layers.{i}.experts.weights", left, tokens=places, how="scale")
    most = max(expert for _, expert in patches) + 1
    values = np.full((llm.spec.n_layer, most), np.nan, np.float32)
    for at, value in zip(patches, _measure(llm, ids, patches.values(), measured), strict=True):
        values[at] = value
    return Grid(values, [f"expert {i}" for i in range(most)], _measure(llm, ids, [None], measured)[0])


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

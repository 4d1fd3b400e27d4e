"""What layers say: logit lens and tuned lens, and what each part of a model adds to an answer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Batch
from stretto.engine.inside import Capture
from stretto.errors import InvalidRequest, Unsupported
from stretto.llm.prompts import prompt_ids
from stretto.models.spec import ModelSpec
from stretto.probing.common import ROWS, Floats, answer_ids, table_of, text_of

if TYPE_CHECKING:
    from stretto.llm import LLM


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
        return table_of(rows)


@dataclass(frozen=True)
class Attribution:
    """What each part of a model adds to an answer's logit: `values` float32[parts], and the `total`."""

    parts: list[str]
    values: Floats
    total: float

    def __str__(self) -> str:
        rows = [[part, f"{value:+.3f}"] for part, value in zip(self.parts, self.values, strict=True)]
        return table_of([*rows, ["total", f"{self.total:+.3f}"]])


SUM_TOLERANCE = 1e-3  # of the norm of a stream that is the sum of what parts add

Translators = Mapping[int, tuple[Floats, Floats]]


def logit_lens(
    llm: LLM, text: str | Sequence[int], *, top: int = 5, translators: Translators | None = None
) -> Lens:
    """What the last norm and the output matrix make of the residual stream behind every layer.

    With `translators` (`read_translators`) it is a tuned lens: the stream of a layer that has one is first
    what its matrix and bias make of it.
    """
    if type(top) is not int or not 1 <= top <= llm.spec.n_vocab:
        raise InvalidRequest(f"top must be from 1 to {llm.spec.n_vocab}, not {top!r}", param="top", value=top)
    ids = prompt_ids(llm._engine, text, param="text")
    tokens = np.zeros((llm.spec.n_layer, len(ids), top), np.int32)
    logprobs = np.zeros(tokens.shape, np.float32)
    for layer, stream in enumerate(llm.activations(ids, list(range(llm.spec.n_layer)))):
        given = stream if translators is None else _translated(translators, layer, stream)
        tokens[layer], logprobs[layer] = read_streams(llm, given, top)
    texts = [[[text_of(llm, token) for token in best] for best in row] for row in tokens]
    return Lens([text_of(llm, token) for token in ids], tokens, logprobs, texts)


def read_streams(llm: LLM, streams: Floats, top: int) -> tuple[NDArray[np.int32], Floats]:
    """What residual streams [n, n_embd] say: ids int32[n, top], the best first, with log-probabilities."""
    found = [_best(rows, top) for _, rows in _unembedded(llm, streams)]
    return np.concatenate([ids for ids, _ in found]), np.concatenate([logs for _, logs in found])


def _best(rows: Floats, top: int) -> tuple[NDArray[np.int32], Floats]:
    """The most probable tokens of each row, of equal ones the first, and how probable they are."""
    logs = rows.astype(np.float64)
    logs -= np.logaddexp.reduce(logs, axis=1, keepdims=True)
    best = np.argsort(-logs, axis=1, kind="stable")[:, :top]
    return best.astype(np.int32), np.take_along_axis(logs, best, axis=1).astype(np.float32)


def _unembedded(llm: LLM, states: Floats) -> Iterator[tuple[int, Floats]]:
    """The logits of residual streams as if they were the last layer's, some rows at a time.

    They are put in the place of the last layer's, and the model's own code does the rest.
    """
    last = llm.sites()[f"layers.{llm.spec.n_layer - 1}.residual"]
    for first in range(0, len(states), ROWS):
        some = states[first : first + ROWS]
        batch = Batch()
        with llm.sequence() as sequence:
            for position in range(len(some)):
                batch.add(0, position, [sequence.id], logits=True)
            batch.tap(last, range(len(some)), partial(_put, some))
            yield first, llm.forward(batch)


def _put(values: Floats, rows: Floats) -> None:
    rows[:] = values


def read_translators(path: str | os.PathLike[str]) -> Translators:
    """The translators of a tuned lens by their layers: of its folder, or of a safetensors file.

    The file has "0.weight" and "0.bias" for the stream behind layer 0, and so on: x + x @ weight.T + bias.
    """
    from stretto.weights.safetensors import read_floats

    file = Path(path)
    file = file / "params.safetensors" if file.is_dir() else file
    found = read_floats(file)
    layers = sorted({int(name.split(".")[0]) for name in found if name.split(".")[0].isdecimal()})
    try:
        return {layer: (found[f"{layer}.weight"], found[f"{layer}.bias"]) for layer in layers}
    except KeyError as error:
        raise InvalidRequest(f"{file} has no tensor {error}", param="path") from None


def _translated(translators: Translators, layer: int, stream: Floats) -> Floats:
    if layer not in translators:
        return stream
    weight, bias = translators[layer]
    n = stream.shape[1]
    if np.shape(weight) != (n, n) or np.shape(bias) != (n,):
        raise InvalidRequest(
            f"the translator of layer {layer} must have the shapes [{n}, {n}] and [{n}]", param="translators"
        )
    made: Floats = stream + stream @ np.asarray(weight, np.float32).T + np.asarray(bias, np.float32)
    return made


def attribute(
    llm: LLM, text: str | Sequence[int], answer: str | int, against: str | int | None = None
) -> Attribution:
    """What each attention and feed-forward adds to the logit of an answer behind a text (direct attribution).

    It is the answer's logit less that of `against`, or less the mean of all; the last norm is held at what it
    multiplies the whole stream with, and the last part is what its bias and that of the output add. Where a
    layer adds something else than these parts give (norms behind them, factors), layers are named as a whole.
    """
    spec, ids, measured = (
        llm.spec,
        prompt_ids(llm._engine, text, param="text"),
        answer_ids(llm, answer, against),
    )
    if spec.logit_cap:
        raise Unsupported("this model caps its logits, which are no sum of what its parts add then")
    names = [
        name for name in llm.sites() if name == "embedding" or name.split(".")[-1] in ("residual", "out")
    ]
    capture = Capture(*names, tokens=[-1])
    captured = llm.generate(ids, max_tokens=1, temperature=0, ignore_eos=True, capture=capture).captured
    assert captured is not None
    parts = [name for name in names if not name.endswith("residual")]
    stream = captured[f"layers.{spec.n_layer - 1}.residual"][0].astype(np.float64)
    rows = np.stack([captured[name][0] for name in parts])
    if np.linalg.norm(rows.sum(axis=0) - stream) > SUM_TOLERANCE * np.linalg.norm(stream):
        streams = np.stack([captured[name][0] for name in names if name.endswith(("embedding", "residual"))])
        rows, parts = np.diff(streams, axis=0, prepend=np.zeros_like(streams[:1])), ["embedding"]
        parts += [f"layers.{i}" for i in range(spec.n_layer)]
    made = [
        one for _, some in _unembedded(llm, np.stack([*rows, np.zeros_like(rows[0]), stream])) for one in some
    ]
    logits = np.array([_difference(one, measured) for one in made])
    *each, nothing, total = logits
    factors = np.array([_spread(spec, row) for row in rows]) / _spread(spec, stream)
    values = [*((np.array(each) - nothing) * factors), nothing]
    return Attribution([*parts, "bias"], np.array(values, np.float32), float(total))


def _difference(logits: Floats, measured: list[int]) -> float:
    first, *second = measured
    return float(logits[first]) - (
        float(logits[second[0]]) if second else float(logits.mean(dtype=np.float64))
    )


def _spread(spec: ModelSpec, row: Floats) -> float:
    """What the last norm divides a row by."""
    norm = spec.output_norm
    if norm is None:
        return 1.0
    numbers = row.astype(np.float64)
    numbers = numbers - numbers.mean() if norm.kind == "layer" else numbers
    return float(np.sqrt(np.mean(numbers**2) + norm.eps))

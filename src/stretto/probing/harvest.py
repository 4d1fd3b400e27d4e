"""Values of many texts, written to disk as they come; and what the tokens of one text attend to."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Batch
from stretto.engine.inside import Capture, Captured
from stretto.errors import InvalidRequest, wrong_value
from stretto.llm.prompts import prompt_ids
from stretto.probing.common import ROWS, TOGETHER, Floats
from stretto.weights.safetensors import read_arrays, write_arrays

if TYPE_CHECKING:
    from stretto.llm import LLM

PIECE_BYTES = 256 << 20  # of a file, about


def harvest(
    llm: LLM,
    texts: Iterable[str | Sequence[int]],
    sites: Sequence[str],
    folder: str | os.PathLike[str],
    *,
    tokens: Literal["all"] | Iterable[int] = "all",
    piece_bytes: int = PIECE_BYTES,
) -> int:
    """Write what texts have at sites into safetensors files, as they come; return how many tokens.

    `texts` may be a generator, of any length: no more than one file is in memory. Files are 00000.safetensors
    and so on, each with a row for each token in every site's tensor, and beside them `tokens` (ids), `places`
    (in the text) and `texts` (the number of the text). `tokens` may be places in each text instead: -1 is its
    last token. The folder must be new or empty.

    >>> inside.harvest(llm, lines, ["layers.9.residual"], "activations")
    """
    target = Path(folder)
    if isinstance(texts, str) or isinstance(sites, str):
        raise InvalidRequest("texts and sites are lists; for one of them, give [one]", param="texts")
    if type(piece_bytes) is not int or piece_bytes < 1:
        raise wrong_value("piece_bytes", piece_bytes, "a number from 1 on")
    capture = Capture(*sites, tokens="prompt" if isinstance(tokens, str) and tokens == "all" else tokens)
    target.mkdir(parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise InvalidRequest(f"{target} is not empty; give a new folder", param="folder", value=str(folder))
    pieces: list[tuple[int, Captured]] = []
    n_files = n_tokens = held = 0
    for number, captured in _captured(llm, texts, capture):
        pieces.append((number, captured))
        held += sum(array.nbytes for array in captured.values())
        n_tokens += len(captured.tokens)
        if held >= piece_bytes:
            _write(target / f"{n_files:05}.safetensors", pieces)
            pieces, held, n_files = [], 0, n_files + 1
    if pieces:
        _write(target / f"{n_files:05}.safetensors", pieces)
    return n_tokens


def _captured(
    llm: LLM, texts: Iterable[str | Sequence[int]], capture: Capture
) -> Iterator[tuple[int, Captured]]:
    """What each text has, in order; some run at a time, so that passes have tokens of several."""
    options: dict[str, Any] = {"max_tokens": 1, "temperature": 0, "ignore_eos": True, "capture": capture}
    waiting: list[Any] = []
    done = 0

    def first() -> tuple[int, Captured]:
        captured = waiting.pop(0).result.captured
        assert captured is not None
        return done, captured

    for text in texts:
        waiting.append(llm.stream(prompt_ids(llm._engine, text, param="texts"), **options))
        if len(waiting) == TOGETHER:
            yield first()
            done += 1
    while waiting:
        yield first()
        done += 1


def _write(path: Path, pieces: list[tuple[int, Captured]]) -> None:
    """Write a file with all of them, under its name once it is whole."""
    arrays: dict[str, NDArray[Any]] = {
        site: np.concatenate([captured[site] for _, captured in pieces]) for site in pieces[0][1]
    }
    arrays["tokens"] = np.concatenate([np.array(one.tokens, np.int32) for _, one in pieces])
    arrays["places"] = np.concatenate([np.array(one.places, np.int32) for _, one in pieces])
    arrays["texts"] = np.concatenate([np.full(len(one.tokens), number, np.int32) for number, one in pieces])
    part = path.with_suffix(".part")
    write_arrays(part, {}, arrays)
    part.replace(path)


def read_harvest(folder: str | os.PathLike[str]) -> Iterator[dict[str, NDArray[Any]]]:
    """The files of a harvest, one after the other: arrays by site, `tokens`, `places` and `texts`, mapped.

    >>> for part in inside.read_harvest("activations"): probe.fit(part["layers.9.residual"], …)
    """
    files = sorted(Path(folder).glob("[0-9]*.safetensors"))
    if not files:
        raise InvalidRequest(f"{folder} has no files of a harvest", param="folder", value=str(folder))
    for file in files:
        yield read_arrays(file)


def attention(llm: LLM, text: str | Sequence[int], layers: Sequence[int] | None = None) -> Floats:
    """float32[layers, heads, tokens, tokens]: what share each token's heads give to each token before it.

    Without `layers` all of the model's, of which those that have no attention are 0.

    >>> inside.attention(llm, "The cat sat on the mat", layers=[3])[0, 5]
    """
    llm.engine.backend.capabilities.require("attention", llm.engine.backend.name)
    ids, n_layer = prompt_ids(llm._engine, text, param="text"), llm.spec.n_layer
    chosen = range(n_layer) if layers is None else layers
    if not isinstance(chosen, Sequence) or not all(type(one) is int and 0 <= one < n_layer for one in chosen):
        raise wrong_value("layers", layers, f"a list of numbers from 0 to {n_layer - 1}")
    found = np.zeros((len(chosen), llm.spec.n_head, len(ids), len(ids)), np.float32)
    with llm.sequence() as sequence:
        for first in range(0, len(ids), ROWS):
            some = ids[first : first + ROWS]
            batch = Batch()
            batch.extend(some, first, [sequence.id])
            for row in range(len(some)):
                batch.watch(row)
            llm.forward(batch)
            for row, shares in enumerate(batch.attention, first):
                found[:, :, row, : shares.shape[-1]] = shares[list(chosen)]
    return found

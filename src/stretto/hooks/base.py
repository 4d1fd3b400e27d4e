"""`HookRow`, the argument of a hook's `batch` besides the logits, and checks that several hooks share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.errors import InvalidRequest
from stretto.sampling.params import check_integer

Row = NDArray[np.float32]  # float32[n_vocab], writable
Rows = NDArray[np.float32]  # float32[k, n_vocab], writable

MAX_TOKENS = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class HookRow:
    """The request of a row: `hook.batch(logits, rows)` gets one for each row of `logits`.

    `tokens` are the request's ids so far, prompt and answer: its own list, to be read only. `request` is a
    number that the request keeps to its end, and that no other request has.
    """

    tokens: list[int]
    request: int


def token_ids(name: str, tokens: Iterable[int]) -> list[int]:
    """The tokens as a list; `InvalidRequest` names the argument if they are not ids."""
    if isinstance(tokens, (str, bytes)) or not isinstance(tokens, Iterable):
        raise InvalidRequest(f"{name} must be a list of ids, not {tokens!r}", param=name, value=tokens)
    ids = list(tokens)
    for token in ids:
        check_integer(f"a token of {name}", token, 0, MAX_TOKENS, param=name)
    return [int(token) for token in ids]


def check_vocabulary(hook: str, highest: int, n_vocab: int) -> None:
    """Raise `InvalidRequest` if a hook names a token that the logits do not have."""
    if highest >= n_vocab:
        raise InvalidRequest(
            f"{hook} names token {highest}; the vocabulary ends at {n_vocab - 1}",
            param="hooks",
            value=highest,
        )

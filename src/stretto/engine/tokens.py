"""Token ids that come from callers."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from stretto.cache.items import Images, ImageToken
from stretto.engine.images import check_token
from stretto.errors import InvalidRequest


def checked_tokens(
    tokens: Iterable[int], n_vocab: int, images: Images | None, param: str = "tokens"
) -> list[int]:
    """The tokens as a list of ids that are in the vocabulary; those of images are for `images` to compute.

    `param` is the parameter that holds them, for errors.
    """
    if isinstance(tokens, (str, bytes)) or not isinstance(tokens, Iterable):
        raise InvalidRequest(f"{param} must be a list of ids, not {tokens!r}", param=param, value=tokens)
    several = list(tokens)
    if not several or (set(map(type, several)) == {int} and 0 <= min(several) <= max(several) < n_vocab):
        return several
    found = []
    for token in several:
        if isinstance(token, bool) or not isinstance(token, (int, np.integer)):
            raise InvalidRequest(f"a token id must be an integer, not {token!r}", param=param, value=token)
        if not 0 <= token < n_vocab:
            raise InvalidRequest(
                f"token {token} is not in the vocabulary (0 to {n_vocab - 1})", param=param, value=token
            )
        if isinstance(token, ImageToken):
            check_token(token, images)
        found.append(token if isinstance(token, ImageToken) else int(token))
    return found

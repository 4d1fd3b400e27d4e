"""Token ids that come from callers, and those of images, whose vectors go into batches."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

import numpy as np

from stretto.backends.base import Batch
from stretto.cache.items import Images, ImageToken
from stretto.errors import InvalidRequest, Unsupported, wrong_value

# Images in a sequence: their vectors go into batches, and images that are seen whole are never cut.

REMEDY = 'load the model with vision="mmproj.gguf"'


def check_token(token: ImageToken, images: Images | None) -> None:
    """Raise unless an image's token can be computed here."""
    if images is None:
        raise InvalidRequest(f"{token!r}, but this model sees no images; {REMEDY}")
    if token.image is None:
        raise InvalidRequest(f"{token!r} has no pixels any more; give the image again")
    if token.image.maker is not images:
        raise InvalidRequest(f"{token!r} was made by another model; give the image itself")


def uncut(tokens: list[int], index: int) -> int:
    """`index`, or the end of the whole image that it would cut in two."""
    token = tokens[index] if 0 < index < len(tokens) else None
    if isinstance(token, ImageToken) and token.whole and token.follows(tokens[index - 1]):
        return min(len(tokens), index + token.stop - token.index)
    return index


def refuse_cut(tokens: list[int], first: int, last: int) -> None:
    """Raise if taking tokens [first, last) away would leave a part of a whole image."""
    for index in (first, last):
        if (end := uncut(tokens, index)) != index:
            raise InvalidRequest(
                f"the tokens of an image see each other, so it is removed as a whole: token {index} lies in "
                f"one that ends at {end}"
            )


def add_vectors(batch: Batch, row: int, tokens: list[int]) -> None:
    """Give the rows of image tokens, which stand in the batch from `row` on, their vectors."""
    at = row
    for key, run in groupby(
        tokens, key=lambda token: token.digest if isinstance(token, ImageToken) else None
    ):
        several = list(run)
        if key is not None:
            _add_run(batch, at, [token for token in several if isinstance(token, ImageToken)])
        at += len(several)


def _add_run(batch: Batch, row: int, tokens: list[ImageToken]) -> None:
    picture = tokens[0].image
    if picture is None:
        raise Unsupported("the pixels of an image are gone; append the image again")
    vectors = picture.vectors()
    for offset, token in enumerate(tokens):
        ahead = token.stop - 1 - token.index if picture.whole else 0
        place = (token.index, token.columns) if token.columns else None
        batch.set_vector(row + offset, vectors[token.index], ahead, place)


def checked_tokens(
    tokens: Iterable[int], n_vocab: int, images: Images | None, param: str = "tokens"
) -> list[int]:
    """The tokens as a list of ids that are in the vocabulary; those of images are for `images` to compute.

    `param` is the parameter that holds them, for errors.
    """
    if isinstance(tokens, (str, bytes)) or not isinstance(tokens, Iterable):
        raise wrong_value(param, tokens, "a list of ids")
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

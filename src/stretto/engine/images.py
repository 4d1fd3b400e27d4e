"""Images in a sequence: their vectors go into batches, and images that are seen whole are never cut."""

from __future__ import annotations

from itertools import groupby

from stretto.backends.base import Batch
from stretto.cache.items import Images, ImageToken
from stretto.errors import InvalidRequest, Unsupported

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

"""Items of a sequence beside token ids: the tokens of an image, each known by its picture."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class Pixels(Protocol):
    """An image as its owner has it: `stretto.Image`."""

    pixels: NDArray[np.uint8]  # uint8[height, width, 3]


class Images(Protocol):
    """What turns images into tokens, and their pictures into vectors."""

    def tokens(self, image: Pixels) -> list[int]:
        """Its tokens, with those that stand around them in a prompt."""
        ...

    def work(self, wanted: Iterable[Picture], seconds: float, alone: bool) -> None:
        """Encode pictures for so long, about; those that are not wanted any more are given up.

        If nobody waits beside them (`alone`), it does not have to look at the clock often.
        """
        ...

    def close(self) -> None:
        """Free everything."""
        ...


class Vectors(Protocol):
    """The vectors of a picture's tokens, by their index."""

    def __getitem__(self, index: int, /) -> Floats: ...


class Picture(Protocol):
    """An image as a language model takes it."""

    digest: bytes  # of its pixels and of what encodes them
    whole: bool  # its tokens see each other, so that all of a run of them is computed at once
    maker: object  # the `Images` it belongs to
    error: Exception | None  # why it could not be encoded

    @property
    def ready(self) -> bool:
        """Whether its vectors are at hand, so that nobody waits for them."""
        ...

    def vectors(self) -> Vectors:
        """float32[n_embd] for each of its tokens; encoded now if they are not at hand."""
        ...

    def release(self) -> None:
        """Its vectors are not needed for now."""
        ...


class SavedPicture:
    """A picture that came with a saved sequence: no pixels, but the vectors of the tokens that are there."""

    ready = True

    def __init__(self, digest: bytes, whole: bool, maker: object) -> None:
        self.digest, self.whole, self.maker = digest, whole, maker
        self.error: Exception | None = None
        self.rows: dict[int, Floats] = {}

    def vectors(self) -> Vectors:
        """float32[n_embd] by the index of a token."""
        return self.rows

    def release(self) -> None:
        """They are all there is of it, and stay."""


class ImageToken(int):
    """One token of an image. As a number it is a stand-in; it equals only the same token of the same picture.

    Lists of tokens may hold it wherever they hold ids, so an image is found again in the cache as a text is.
    """

    digest: bytes
    index: int  # among the picture's tokens
    stop: int  # behind the last token of the run it belongs to, which is seen as one if the picture is whole
    picture: Picture | None  # None where only its identity is kept

    def __new__(
        cls, stand_in: int, picture: Picture | None, digest: bytes, index: int, stop: int
    ) -> ImageToken:
        """Token `index` of a picture."""
        token = int.__new__(cls, stand_in)
        token.digest, token.index, token.stop, token.picture = digest, index, stop, picture
        return token

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ImageToken) and self.index == other.index and self.digest == other.digest

    def __ne__(self, other: object) -> bool:  # int has one of its own
        return not self == other

    def __hash__(self) -> int:
        return hash((self.digest, self.index))

    def __repr__(self) -> str:
        return f"<token {self.index} of image {self.digest.hex()[:8]}>"

    @property
    def whole(self) -> bool:
        """Whether it sees all tokens of its run."""
        return self.picture is not None and self.picture.whole

    def follows(self, other: object) -> bool:
        """Whether it is the next token of the same run."""
        if not isinstance(other, ImageToken) or other.digest != self.digest:
            return False
        return other.stop == self.stop and other.index == self.index - 1

    def bare(self) -> ImageToken:
        """The same token without the picture's pixels, to be kept for long."""
        return (
            self if self.picture is None else ImageToken(int(self), None, self.digest, self.index, self.stop)
        )

    def __reduce__(self) -> tuple[object, ...]:
        return ImageToken, (int(self), None, self.digest, self.index, self.stop)


def bare(tokens: list[int]) -> list[int]:
    """Tokens as they are kept in the cache: without pixels."""
    return [token.bare() if isinstance(token, ImageToken) else token for token in tokens]

"""Items of a sequence other than token ids: the tokens of an image, identified by the image's digest.

A sound is to a sequence what an image is: tokens with a digest, and vectors that an encoder makes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


ImageLike = Any  # a `stretto.Image`, a `stretto.Audio`, or any of what `is_image` knows


def is_image(value: object) -> bool:
    """Whether a value is an image or a sound, and no text or ids.

    That is an Image, an Audio, a PIL image, an array, or bytes or the path of a file.
    """
    is_file = isinstance(value, (bytes, bytearray, memoryview, os.PathLike))
    return is_file or is_picture(value) or is_sound(value)


def is_sound(value: object) -> bool:
    """Whether a value is an Audio."""
    return hasattr(value, "samples")


def is_picture(value: object) -> bool:
    """Whether a value is an Image, a PIL image or an array of pixels."""
    if hasattr(value, "pixels"):
        return True
    pillow = sys.modules.get("PIL.Image")  # whoever has a PIL image has imported it
    return (isinstance(value, np.ndarray) and value.ndim > 1) or (
        pillow is not None and isinstance(value, pillow.Image)
    )


class Images(Protocol):
    """Turns images, or sounds, into tokens, and encodes them into vectors."""

    hears: bool  # it takes sounds
    placeholder: int | None  # the id that stands for an image's tokens in the table, if nothing else has it

    def tokens(self, image: ImageLike, salt: str | None = None) -> list[int]:
        """Tokens of an image, with the markers around them in a prompt; equal ones have the same salt."""
        ...

    def work(self, wanted: Iterable[ImageVectors], seconds: float, alone: bool) -> None:
        """Encode images for about `seconds`; images that are not wanted any more are dropped.

        If no other request runs (`alone`), slices are larger and the clock is read less often.
        """
        ...

    def close(self) -> None:
        """Free everything."""
        ...


class Vectors(Protocol):
    """The vectors of an image's tokens, by their index."""

    def __getitem__(self, index: int, /) -> Floats: ...


class ImageVectors(Protocol):
    """An image as a language model takes it: a vector for each of its tokens, encoded on demand."""

    digest: bytes  # of its pixels and its encoder
    whole: bool  # its tokens attend to each other, so a run of them is computed in one batch
    maker: object  # the `Images` it belongs to
    error: Exception | None  # why it could not be encoded

    @property
    def ready(self) -> bool:
        """Whether the image is encoded."""
        ...

    def vectors(self) -> Vectors:
        """float32[n_embd] for each of its tokens; encodes the image if that has not been done."""
        ...

    def release(self) -> None:
        """Free the vectors until they are asked for again."""
        ...


class SavedImage:
    """An image of a restored sequence: no pixels, but the vectors of the tokens in the sequence."""

    ready = True

    def __init__(self, digest: bytes, whole: bool, maker: object) -> None:
        self.digest, self.whole, self.maker = digest, whole, maker
        self.error: Exception | None = None
        self.rows: dict[int, Floats] = {}

    def vectors(self) -> Vectors:
        """float32[n_embd] by the index of a token."""
        return self.rows

    def release(self) -> None:
        """Keep the vectors: without pixels they cannot be computed again."""


class ImageToken(int):
    """One token of an image. As a number it is a placeholder; it equals only the same token of that image.

    Lists of tokens may hold it wherever they hold ids, so the prefix cache finds images as it finds text.
    """

    digest: bytes
    index: int  # among the image's tokens
    stop: int  # index after the last token of its run; the run attends to itself if the image is `whole`
    columns: int  # tokens in a row of the image, where rows and columns are positions (M-RoPE); else 0
    image: ImageVectors | None  # None where only its identity is kept

    def __new__(
        cls,
        placeholder: int,
        image: ImageVectors | None,
        digest: bytes,
        index: int,
        stop: int,
        columns: int = 0,
    ) -> ImageToken:
        """Token `index` of an image."""
        token = int.__new__(cls, placeholder)
        token.digest, token.index, token.stop, token.image = digest, index, stop, image
        token.columns = columns
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
        """Whether it attends to all tokens of its run."""
        return self.image is not None and self.image.whole

    def follows(self, other: object) -> bool:
        """Whether it is the next token of the same run."""
        if not isinstance(other, ImageToken) or other.digest != self.digest:
            return False
        return other.stop == self.stop and other.index == self.index - 1

    def bare(self) -> ImageToken:
        """The same token without pixels and vectors, for the prefix cache."""
        return self if self.image is None else ImageToken(*self._state())

    def __reduce__(self) -> tuple[object, ...]:
        return ImageToken, self._state()

    def _state(self) -> tuple[int, None, bytes, int, int, int]:
        return int(self), None, self.digest, self.index, self.stop, self.columns


def bare(tokens: list[int]) -> list[int]:
    """Tokens as the prefix cache keeps them: without pixels and vectors."""
    return [token.bare() if isinstance(token, ImageToken) else token for token in tokens]

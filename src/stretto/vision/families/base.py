"""What a family of models has of its own: keys and tensors of files, sizes of images, projector, markers.

A projector is written once, in terms of `Operations`, which each encoder offers with its own arithmetic,
and of what NumPy's arrays and torch's tensors have in common: they are the latter on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from stretto.errors import InvalidRequest
from stretto.models.common import positive
from stretto.vision.decode import Pixels
from stretto.vision.spec import Grid, VisionSpec
from stretto.weights.gguf import GGUF

MAX_RATIO = 200  # of an image's longer side to the shorter, where a family takes any shape

# Images as encoders take them, and the ways to resize and cut them that several families share.


@dataclass(frozen=True)
class Prepared:
    """An image as an encoder takes it: its tiles, in a grid; one that was not split has no rows.

    The tiles of a sound are windows of its spectrogram.
    """

    tiles: NDArray[Any]  # uint8[n, height, width, 3], or float32[n, frames, mels]
    rows: int = 0
    columns: int = 0
    margins: tuple[int, int] = (0, 0)  # patches at each end of columns and rows that show none of the image
    whole: Prepared | None = None  # all of the image once more, where tiles have another size

    def digest(self) -> bytes:
        """SHA-256 of the pixels and the grid."""
        head = f"{self.tiles.shape} {self.rows} {self.columns}".encode()
        return sha256(head + np.ascontiguousarray(self.tiles).tobytes()).digest()


def resize(pixels: Pixels, height: int, width: int, filter_name: str) -> Pixels:
    """An image in another size; `filter_name` is one of Pillow's."""
    from PIL import Image as Pillow

    if pixels.shape[:2] == (height, width):
        return pixels
    resample = Pillow.Resampling[filter_name.upper()]
    return np.asarray(Pillow.fromarray(pixels).resize((width, height), resample))


def check_ratio(height: int, width: int) -> None:
    """Raise for an image that is too long and narrow to be laid out in patches."""
    if max(height, width) > MAX_RATIO * min(height, width):
        raise InvalidRequest(
            f"an image of {width} × {height}: one side is over {MAX_RATIO} times the other; cut it",
            param="image",
        )


def fit(height: int, width: int, edge: int) -> tuple[int, int]:
    """A size of the same shape whose longest edge is `edge`."""
    if width >= height:
        return max(1, int(edge * height / width)), edge
    return edge, max(1, int(edge * width / height))


def centre(pixels: Pixels, height: int, width: int, colour: Sequence[int] = (0, 0, 0)) -> Pixels:
    """An image in the middle of a larger one of one colour."""
    ground = np.empty((height, width, 3), np.uint8)
    ground[:] = colour
    top, left = (height - pixels.shape[0]) // 2, (width - pixels.shape[1]) // 2
    ground[top : top + pixels.shape[0], left : left + pixels.shape[1]] = pixels
    return ground


def cut(pixels: Pixels, rows: int, columns: int) -> Pixels:
    """uint8[rows × columns, …]: the tiles of an image whose sides they divide, row by row."""
    height, width = pixels.shape[0] // rows, pixels.shape[1] // columns
    parts = pixels.reshape(rows, height, columns, width, 3).swapaxes(1, 2)
    return parts.reshape(-1, height, width, 3)


Floats = NDArray[np.float32]


class Operations(Protocol):
    """The arithmetic of an encoder, by the names of its tensors."""

    spec: VisionSpec

    def multiply(self, x: Floats, name: str, activation: str = "") -> Floats:
        """[n, m, columns] → [n, m, rows]: a matrix, its bias if it has one, and an activation."""
        ...

    def norm(self, x: Floats, name: str, eps: float | None = None) -> Floats:
        """Each row normalised: by the root of mean squares alone if there is no bias, without weights by "".

        `eps` is the spec's, unless it is given.
        """
        ...

    def vector(self, name: str) -> Floats | None:
        """A vector of the file, or None if it has none of that name."""
        ...

    def add(self, x: Floats, numbers: Floats) -> Floats:
        """[n, m, columns] and NumPy's [m, columns], added."""
        ...

    def attend(self, q: Floats, k: Floats, v: Floats, n_head: int) -> Floats:
        """[1, queries, columns] to [n, m, columns]: attention of heads side by side, without a mask."""
        ...


@dataclass(frozen=True)
class Text:
    """A text of a prompt, tokenized without special tokens."""

    text: str


@dataclass(frozen=True)
class Special:
    """A special token of a prompt."""

    text: str


@dataclass(frozen=True)
class Run:
    """Tokens [first, stop) of an image, side by side; `columns` of them are a row of the image."""

    first: int
    stop: int
    columns: int = 0
    of_whole: bool = False  # tokens of `Prepared.whole`


Part = Text | Special | Run


class Family:
    """One projector, with what belongs to it."""

    name: ClassVar[str]
    any_size: ClassVar[bool] = False  # images keep their shape and need not have `image_size`
    hears: ClassVar[bool] = False  # it encodes sounds

    def read(self, file: GGUF, spec: VisionSpec) -> VisionSpec:
        """The spec with what only this family's files say."""
        raise NotImplementedError

    def prepare(self, pixels: Any, spec: VisionSpec) -> Prepared:
        """An image, or the samples of a sound, as its encoder takes it, in tiles of one size."""
        raise NotImplementedError

    def embed(self, run: Operations, patches: Floats) -> Floats:
        """[n, patches, patch_numbers] → [n, patches, n_embd], without positions."""
        return run.multiply(patches, "v.patch_embd")

    def project(self, run: Operations, x: Floats, grid: Grid) -> Floats:
        """[n, patches, n_embd] → [n, tokens, n_out], behind the last norm."""
        raise NotImplementedError

    def parts(self, prepared: Prepared, spec: VisionSpec, grid: Grid) -> Iterable[Part]:
        """The image in a prompt: its tokens, and the markers that the model was trained with."""
        raise NotImplementedError


def squares(x: Floats, grid: Grid, merge: int) -> Floats:
    """[n, patches, n_embd] → [n, tokens, merge², n_embd]: the patches of each square, row by row."""
    n, _, width = x.shape
    rows, columns = grid[0] // merge, grid[1] // merge
    parts = x.reshape(n, rows, merge, columns, merge, width).swapaxes(2, 3)
    return parts.reshape(n, rows * columns, merge * merge, width)


def side_by_side(x: Floats, grid: Grid, merge: int) -> Floats:
    """[n, patches, n_embd] → [n, tokens, merge² × n_embd]: each square's patches in one row."""
    parts = squares(x, grid, merge)
    return parts.reshape(*parts.shape[:2], -1)


def read_merge(file: GGUF, key: str, spec: VisionSpec, usual: int, any_size: bool = False) -> int:
    """Patches along each side of a square, by a key of the file."""
    side = spec.image_size // spec.patch_size
    merge = positive(file, key, usual, most=side)
    if side % merge and not any_size:
        message = f"{side} patches along a side cannot be merged by {merge}"
        raise file.error(key, message)
    return merge


def read_pixels(file: GGUF, key: str, usual: int, spec: VisionSpec) -> int:
    """A number of tokens, where the file gives one of pixels."""
    area = (spec.patch_size * spec.merge) ** 2
    return usual if key not in file.metadata else max(1, positive(file, key, most=1 << 28) // area)


def read_outputs(file: GGUF, name: str, axis: int = 0) -> int:
    """The size of the projector's last matrix."""
    tensor = file.tensors.get(name)
    if tensor is None or len(tensor.shape) != 2:
        raise file.error(name, "the projector's matrix is missing")
    return tensor.shape[axis]


def optional(
    file: GGUF, shapes: dict[str, tuple[int, ...]], *names: str
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """A projector's tensors, without those of `names` that the file does not have."""
    return tuple((name, shape) for name, shape in shapes.items() if name in file.tensors or name not in names)

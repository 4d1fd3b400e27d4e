"""`Image`: pixels from a file, bytes, a URL, a PIL image or an array, under a limit on their number.

    stretto.Image.open("cat.jpg")
    stretto.Image.open(requests.get(url).content)          # of a file
    stretto.Image.open(array)                              # uint8[height, width, 3]
    stretto.Image.open("data:image/png;base64,iVBOR…")

Image files are not trusted: the size that one claims is compared with the limit before a pixel is decoded.
"""

from __future__ import annotations

import base64
import binascii
import os
from pathlib import Path
from stat import S_ISREG
from typing import Any
from urllib.parse import unquote_to_bytes

import numpy as np
from numpy.typing import NDArray

from stretto.errors import InvalidRequest
from stretto.vision.decode import Pixels, check_size, convert, decode, from_16_bits, from_floats

MAX_PIXELS = 64_000_000  # of one image
MAX_FILE_BYTES = 256 << 20  # of a file
MAX_URL_BYTES = 64 << 20  # of a data: URL
SOURCES = "a path, bytes of a file, a data: URL, a PIL image or an array of uint8[height, width, 3]"


class Image:
    """An image: `pixels` are uint8[height, width, 3], red, green, blue. Make one with `Image.open`."""

    def __init__(self, pixels: Pixels) -> None:
        is_array = isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.ndim == 3
        if not is_array or pixels.shape[2] != 3 or not pixels.size:
            raise InvalidRequest(
                "the pixels of an image are uint8[height, width, 3]; use Image.open", param="image"
            )
        self.pixels = pixels

    @classmethod
    def open(cls, source: Any, *, max_pixels: int = MAX_PIXELS) -> Image:
        """Open the image in a path, bytes, a `data:` URL, a PIL image or an array.

        The EXIF orientation is applied, and transparent pixels become white. Of an animation or a file of
        several pages the first image is taken, of a PIL image its current frame. Raises `InvalidRequest` for
        anything else.

        >>> stretto.Image.open("cat.jpg").size
        (640, 480)
        """
        if isinstance(source, Image):
            return source
        if isinstance(source, np.ndarray):
            return cls(_from_array(source, max_pixels))
        if isinstance(source, str) and source[:5].lower() == "data:":
            return cls(decode(decode_url(source), "in the data: URL", max_pixels))
        if isinstance(source, (bytes, bytearray, memoryview)):
            return cls(decode(_from_bytes(source), "in the bytes", max_pixels))
        if isinstance(source, (str, os.PathLike)):
            return cls(decode(_read(source), f"{os.fspath(source)!r}", max_pixels))
        from PIL import Image as Pillow

        if isinstance(source, Pillow.Image):
            return cls(convert(source, max_pixels))
        raise InvalidRequest(f"an image is {SOURCES}, not {type(source).__name__}", param="image")

    @property
    def width(self) -> int:
        """Pixels from left to right."""
        return int(self.pixels.shape[1])

    @property
    def height(self) -> int:
        """Pixels from top to bottom."""
        return int(self.pixels.shape[0])

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return self.width, self.height

    def __repr__(self) -> str:
        return f"<Image {self.width} × {self.height}>"


def _read(path: str | os.PathLike[str]) -> bytes:
    name = os.fspath(path)
    if not isinstance(name, str):
        raise InvalidRequest(f"image {name!r}: a path is a str or a pathlib.Path", param="image", value=name)
    if "://" in name[:16]:
        raise InvalidRequest(
            f"image {name[:80]!r}: nothing is fetched from the network; give {SOURCES}",
            param="image",
            value=name,
        )
    try:
        if not S_ISREG(Path(name).stat().st_mode):
            raise InvalidRequest(f"image {name!r} is no file; give {SOURCES}", param="image", value=name)
        with Path(name).open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise InvalidRequest(f"image {name!r}: no such file", param="image", value=name) from None
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"image {name!r} cannot be read: {error}", param="image", value=name) from None
    _check_bytes(f"image {name!r}", len(data))
    return data


def _from_bytes(data: bytes | bytearray | memoryview) -> bytes:
    _check_bytes("image in the bytes", data.nbytes if isinstance(data, memoryview) else len(data))
    return bytes(data)


def _check_bytes(name: str, n: int) -> None:
    if n > MAX_FILE_BYTES:
        raise InvalidRequest(
            f"{name} has more than {MAX_FILE_BYTES:,} bytes, which is all that is read", param="image"
        )


def decode_url(url: str) -> bytes:
    """The bytes in a `data:` URL."""
    if len(url) > 2 * MAX_URL_BYTES:
        raise InvalidRequest(
            f"a data: URL of {len(url):,} characters; at most {2 * MAX_URL_BYTES:,} are read", param="image"
        )
    head, comma, body = url.partition(",")
    if not comma:
        raise InvalidRequest("a data: URL is data:image/png;base64,…; the comma is missing", param="image")
    try:
        if head.lower().endswith(";base64"):
            return base64.b64decode(unquote_to_bytes(body), validate=True)
        return unquote_to_bytes(body)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"the data: URL is not base64: {error}", param="image") from None


def _from_array(array: NDArray[Any], max_pixels: int) -> Pixels:
    """uint8, uint16 or floats from 0 to 1; grey, RGB or RGBA."""
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4):
        raise InvalidRequest(
            f"an image's array is [height, width] or [height, width, 3], not {array.shape}", param="image"
        )
    check_size("in the array", array.shape[1], array.shape[0], max_pixels)
    if array.dtype == np.uint16:
        array = from_16_bits(array)
    elif array.dtype.kind == "f":
        array = from_floats(array, "in the array")
    elif array.dtype != np.uint8:
        raise InvalidRequest(
            f"an image's array holds uint8, uint16 or floats, not {array.dtype}", param="image"
        )
    if array.shape[2] == 1:
        array = np.repeat(array, 3, axis=2)
    if array.shape[2] == 4:
        from PIL import Image as Pillow

        return convert(Pillow.fromarray(np.ascontiguousarray(array)), max_pixels)
    return np.array(array)  # a copy: the caller may change theirs

"""A picture as pixels, from whatever it came in, and nothing larger than asked for.

    stretto.Image.open("cat.jpg")
    stretto.Image.open(requests.get(url).content)          # bytes of a file
    stretto.Image.open(array)                              # uint8[height, width, 3]
    stretto.Image.open("data:image/png;base64,iVBOR…")

An image file is somebody's claim: its size is compared with the limit before a pixel is decoded.
"""

from __future__ import annotations

import base64
import binascii
import io
import os
import warnings
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import numpy as np
from numpy.typing import NDArray

from stretto.errors import InvalidRequest

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

Pixels = NDArray[np.uint8]

MAX_PIXELS = 64_000_000  # of one image
MAX_FILE = 256 << 20  # bytes of a file
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
TAKEN = "a path, bytes of a file, a data: URL, a PIL image or an array of uint8[height, width, 3]"


class Image:
    """A picture: `pixels` are uint8[height, width, 3], red, green, blue. Make one with `Image.open`."""

    def __init__(self, pixels: Pixels) -> None:
        self.pixels = pixels

    @classmethod
    def open(cls, source: Any, *, max_pixels: int = MAX_PIXELS) -> Image:
        """The picture in a path, bytes, a `data:` URL, a PIL image or an array.

        It is turned upright as its EXIF data say, and shown on white where it is transparent. Of an
        animation the first frame is taken. `InvalidRequest` says what is wrong with anything else.

        >>> stretto.Image.open("cat.jpg").size
        (640, 480)
        """
        if isinstance(source, Image):
            return source
        if isinstance(source, np.ndarray):
            return cls(_from_array(source, max_pixels))
        if isinstance(source, str) and source[:5].lower() == "data:":
            return cls(_decoded(_from_url(source), "the data: URL", max_pixels))
        if isinstance(source, (bytes, bytearray, memoryview)):
            return cls(_decoded(bytes(source), "the bytes", max_pixels))
        if isinstance(source, (str, os.PathLike)):
            return cls(_decoded(_read(source), f"{os.fspath(source)!r}", max_pixels))
        from PIL import Image as Pillow

        if isinstance(source, Pillow.Image):
            return cls(_pixels(source, "the image", max_pixels))
        raise InvalidRequest(f"an image is {TAKEN}, not {type(source).__name__}")

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
    if isinstance(name, str) and "://" in name[:16]:
        raise InvalidRequest(f"image {name[:80]!r}: nothing is fetched from the network; give {TAKEN}")
    try:
        found = Path(path).stat()
        if not S_ISREG(found.st_mode):
            raise InvalidRequest(f"image {name!r} is no file; give {TAKEN}")
        if found.st_size > MAX_FILE:
            raise InvalidRequest(f"image {name!r} has {found.st_size:,} bytes; at most {MAX_FILE:,} are read")
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise InvalidRequest(f"image {name!r}: no such file") from None
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"image {name!r} cannot be read: {error}") from None


def _from_url(url: str) -> bytes:
    if len(url) > 2 * MAX_FILE:
        raise InvalidRequest(f"a data: URL of {len(url):,} characters; at most {2 * MAX_FILE:,} are read")
    head, comma, body = url.partition(",")
    if not comma:
        raise InvalidRequest("a data: URL is data:image/png;base64,…; the comma is missing")
    try:
        if head.lower().endswith(";base64"):
            return base64.b64decode(unquote_to_bytes(body), validate=True)
        return unquote_to_bytes(body)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"the data: URL is not base64: {error}") from None


def _decoded(data: bytes, name: str, max_pixels: int) -> Pixels:
    from PIL import Image as Pillow
    from PIL import UnidentifiedImageError

    if not data:
        raise InvalidRequest(f"image {name} is empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a size beyond Pillow's own limit is checked below, by ours
            with Pillow.open(io.BytesIO(data), formats=FORMATS) as image:
                return _pixels(image, name, max_pixels)
    except InvalidRequest:
        raise
    except UnidentifiedImageError:
        raise InvalidRequest(f"image {name} is none of {', '.join(FORMATS)}, or is damaged") from None
    except Exception as error:  # a decoder may raise anything on a damaged file
        raise InvalidRequest(f"image {name} cannot be decoded: {type(error).__name__}: {error}") from None


def _pixels(image: PillowImage, name: str, max_pixels: int) -> Pixels:
    """RGB, upright, on white; the size is checked first."""
    from PIL import Image as Pillow
    from PIL import ImageOps

    _check_size(name, *image.size, max_pixels)
    if getattr(image, "is_animated", False):
        image.seek(0)
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        numbers = np.asarray(image).astype(np.float64)  # converted by Pillow they would be cut, not scaled
        image = Pillow.fromarray(_to_bytes(numbers, 1.0 if image.mode == "F" else 65535.0))
    image = ImageOps.exif_transpose(image)
    if "A" in image.getbands() or "transparency" in image.info:
        layer = image.convert("RGBA")
        ground = Pillow.new("RGBA", layer.size, "white")
        image = Pillow.alpha_composite(ground, layer)
    return np.asarray(image.convert("RGB"))


def _from_array(array: NDArray[Any], max_pixels: int) -> Pixels:
    """uint8, uint16 or floats from 0 to 1; grey, RGB or RGBA."""
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4):
        raise InvalidRequest(f"an image's array is [height, width] or [height, width, 3], not {array.shape}")
    _check_size("the array", array.shape[1], array.shape[0], max_pixels)
    if array.dtype == np.uint16:
        array = _to_bytes(array.astype(np.float64), 65535.0)
    elif array.dtype.kind == "f":
        if not np.isfinite(array).all() or array.min() < 0 or array.max() > 1:
            raise InvalidRequest("an image's floats lie from 0 to 1; divide them by their largest value")
        array = _to_bytes(array.astype(np.float64), 1.0)
    elif array.dtype != np.uint8:
        raise InvalidRequest(f"an image's array holds uint8, uint16 or floats, not {array.dtype}")
    if array.shape[2] == 1:
        array = np.repeat(array, 3, axis=2)
    if array.shape[2] == 4:
        from PIL import Image as Pillow

        return _pixels(Pillow.fromarray(np.ascontiguousarray(array)), "the array", max_pixels)
    return np.array(array)  # a copy: what is ours does not change under our feet


def _to_bytes(numbers: NDArray[np.float64], most: float) -> Pixels:
    return np.rint(np.clip(numbers / most, 0.0, 1.0) * 255).astype(np.uint8)


def _check_size(name: str, width: int, height: int, max_pixels: int) -> None:
    if width < 1 or height < 1:
        raise InvalidRequest(f"image {name} has no pixels: {width} × {height}")
    if width * height > max_pixels:
        raise InvalidRequest(f"image {name} has {width} × {height} pixels; at most {max_pixels:,} are taken")

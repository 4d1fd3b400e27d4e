"""From an image file to pixels. The sizes that a file claims are checked before a pixel is decoded.

Only formats on the list are tried, by the bytes and not by the file name, so no decoder that starts a
program is ever used. Besides the size of the image, five claims cost memory or time:

    the tiles of a TIFF        may be far larger than the image they are cut to
    the canvas of a WebP       is allocated when the file is opened, before its size can be read
    the scans of a JPEG        go over the whole image each, for a few bytes in the file
    parts without content      are walked one by one (vision/decode.py)
    rare encodings             are decoded in Python, a pixel at a time: run lengths of BMP, depths of PPM

Here a server's images are decoded in processes of their own (vision/apart.py), with limits on time and
memory.
"""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stretto.errors import InvalidRequest

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage


# What an image file claims to have, counted before a decoder looks: some of them take long for every piece.
#
# Pillow walks the parts of a file in Python, so hundreds of thousands of empty ones take seconds. Bounds
# are far above what encoders write: they grow with the file, so that only files with next to nothing in
# each part are refused.

MAX_SEGMENTS = 1024  # of a JPEG, before its first scan
MAX_FILL_BYTES = 1 << 16  # between them
MAX_FIELDS = 1024  # of a TIFF
MAX_NUMBERS = 1 << 16  # in a field of a TIFF: strips, tiles
BASE_PARTS = 4096  # chunks of a PNG, blocks of a GIF; and more in a larger file
MIN_PART_BYTES = 256  # on the average then

_TIFF = {b"II*\0": "<", b"MM\0*": ">", b"II+\0": "<", b"MM\0+": ">"}
_WIDE = (3, 4, 5, 8, 9, 10, 11, 12, 13, 16, 17, 18)  # types of numbers, not of bytes and texts


def check_parts(data: bytes, name: str) -> None:
    """Raise `InvalidRequest` for a file of more parts than any encoder makes."""
    if data[:2] == b"\xff\xd8":
        n, kind, most = _segments(data), "segments", MAX_SEGMENTS
    elif data[:8] == b"\x89PNG\r\n\x1a\n":
        most = BASE_PARTS + len(data) // MIN_PART_BYTES
        n, kind = _chunks(data, most), "chunks"
    elif data[:4] == b"GIF8":
        most = BASE_PARTS + len(data) // MIN_PART_BYTES * 4
        n, kind = _blocks(data, most), "blocks"
    elif data[:4] in _TIFF:
        n, kind, most = _numbers(data), "strips, tiles or fields", MAX_NUMBERS
    else:
        return
    if n > most:
        raise InvalidRequest(
            f"image {name} consists of more than {most:,} {kind}; save it again as PNG", param="image"
        )


def _segments(data: bytes) -> int:
    """Segments of a JPEG up to its first scan, and far too many if it is filled with something else."""
    at, n, fill = 2, 0, 0
    while at + 4 <= len(data) and n <= MAX_SEGMENTS:
        if data[at] != 0xFF or data[at + 1] in (0x00, 0xFF):
            at, fill = at + 1, fill + 1
            if fill > MAX_FILL_BYTES:
                return MAX_SEGMENTS + 1
            continue
        marker = data[at + 1]
        if marker in (0xDA, 0xD9):
            break
        n += 1
        alone = marker == 0x01 or 0xD0 <= marker <= 0xD8  # markers without a length
        at += 2 if alone else 2 + max(2, int.from_bytes(data[at + 2 : at + 4], "big"))
    return n


def _chunks(data: bytes, most: int) -> int:
    at, n = 8, 0
    while at + 8 <= len(data) and n <= most:
        at += 12 + int.from_bytes(data[at : at + 4], "big")
        n += 1
    return n


def _blocks(data: bytes, most: int) -> int:
    """Blocks of a GIF's extensions, before its first image."""
    if len(data) < 13:
        return 0
    at, n = 13 + (3 << (data[10] & 7) + 1 if data[10] & 0x80 else 0), 0
    while at < len(data) and n <= most:
        n += 1
        if data[at] == 0x2C:  # an image
            break
        if data[at] != 0x21:  # Pillow goes on byte by byte
            at += 1
            continue
        at += 2
        while at < len(data) and data[at] and n <= most:
            at, n = at + 1 + data[at], n + 1
        at += 1
    return n


def _numbers(data: bytes) -> int:
    """The most numbers that a field of a TIFF's first directory has; far too many for too many fields."""
    order, is_big = _TIFF[data[:4]], data[2] == 43 or data[3] == 43
    try:
        at: int = (
            struct.unpack_from(order + "Q", data, 8)[0]
            if is_big
            else struct.unpack_from(order + "I", data, 4)[0]
        )
        count, entry, size = ("Q", "HHQ", 20) if is_big else ("H", "HHI", 12)
        (n,) = struct.unpack_from(order + count, data, at)
        at += struct.calcsize(order + count)
        if n > MAX_FIELDS:
            return MAX_NUMBERS + 1
        most = 0
        for i in range(n):
            _, kind, numbers = struct.unpack_from(order + entry, data, at + i * size)
            most = max(most, numbers if kind in _WIDE else 0)
    except struct.error:  # it is cut off; the decoder says so
        return 0
    return most


Pixels = NDArray[np.uint8]

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
SVG_HEAD_BYTES = 4096  # where its first tag is looked for
MAX_SCANS = 100  # of a JPEG; usual ones have ten
SCANS_PER_PIXEL = 12  # of as many pixels as are taken
MAX_SLOW_PIXELS = 1_000_000  # decoded in Python
PLAIN = (b"P1", b"P2", b"P3")  # numbers as text, which Pillow reads one by one
TILE_WIDTH, TILE_LENGTH, ORIENTATION = 322, 323, 274  # tags of TIFF and EXIF


class _Silence:
    """Within it nothing warns. Filters are those of all threads, so the last to leave restores them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._n = 0
        self._before = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            if not self._n:
                self._before = warnings.catch_warnings()
                self._before.__enter__()
                warnings.simplefilter("ignore")
            self._n += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._n -= 1
            if not self._n:
                self._before.__exit__(None, None, None)


_SILENCE = _Silence()


def decode(data: bytes, name: str, max_pixels: int) -> Pixels:
    """uint8[height, width, 3] of a file's bytes; `InvalidRequest` if they are no image, or too large."""
    from PIL import Image as Pillow

    if not data:
        raise InvalidRequest(f"image {name} is empty; give a file of {_listed()}", param="image")
    if data[:2] in PLAIN:
        raise InvalidRequest(f"image {name} is a PPM file in plain text; save it as PNG", param="image")
    if _is_svg(data):
        raise InvalidRequest(
            f"image {name} is an SVG: a drawing, without pixels; save it as PNG", param="image"
        )
    if (size := _webp_size(data)) is not None:
        check_size(name, *size, max_pixels)
    check_parts(data, name)
    with _refusing(name, max_pixels), Pillow.open(io.BytesIO(data), formats=FORMATS) as image:
        _check_claims(image, data, name, max_pixels)
        return read_pixels(image, name, max_pixels)


def _is_svg(data: bytes) -> bool:
    """Whether this is XML that begins a drawing."""
    head = data[:SVG_HEAD_BYTES].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    return head.startswith(b"<svg") or (
        head.startswith((b"<?xml", b"<!doctype svg", b"<!--")) and b"<svg" in head
    )


def convert(image: PillowImage, max_pixels: int) -> Pixels:
    """uint8[height, width, 3] of the current frame of a PIL image."""
    with _refusing("from Pillow", max_pixels):
        return read_pixels(image, "from Pillow", max_pixels)


def check_size(name: str, width: int, height: int, max_pixels: int) -> None:
    """Raise for an image without pixels, and for one with too many."""
    if width < 1 or height < 1:
        raise InvalidRequest(f"image {name} has no pixels: {width} × {height}", param="image")
    if width * height > max_pixels:
        raise InvalidRequest(
            f"image {name} has {width} × {height} pixels; at most {max_pixels:,} are taken: make it smaller",
            param="image",
        )


def from_16_bits(numbers: NDArray[np.uint16]) -> Pixels:
    """0 to 65535 as 0 to 255, rounded."""
    return ((numbers.astype(np.uint32) + 128) // 257).astype(np.uint8)


def from_floats(numbers: NDArray[np.floating], name: str) -> Pixels:
    """0 to 1 as 0 to 255, rounded."""
    if not (np.isfinite(numbers).all() and numbers.min() >= 0 and numbers.max() <= 1):
        raise InvalidRequest(
            f"image {name}: floats lie from 0 to 1; divide them by their largest value", param="image"
        )
    scaled: Pixels = np.rint(numbers * 255).astype(np.uint8)
    return scaled


@contextmanager
def _refusing(name: str, max_pixels: int) -> Iterator[None]:
    """Suppress Pillow's warnings, and raise its errors as `InvalidRequest`."""
    from PIL import Image as Pillow
    from PIL import UnidentifiedImageError

    try:
        with _SILENCE:
            yield
    except InvalidRequest:
        raise
    except UnidentifiedImageError:
        raise InvalidRequest(
            f"image {name} is none of {_listed()}, or its header is damaged", param="image"
        ) from None
    except Pillow.DecompressionBombError:
        raise InvalidRequest(
            f"image {name} claims far more than the {max_pixels:,} pixels that are taken; make it smaller",
            param="image",
        ) from None
    except MemoryError:
        raise InvalidRequest(
            f"image {name} needs more memory than there is; make it smaller", param="image"
        ) from None
    except Exception as error:  # a decoder may raise anything on a damaged file
        raise InvalidRequest(
            f"image {name} cannot be decoded: {type(error).__name__}: {error}; save it again as PNG",
            param="image",
        ) from None


def _listed() -> str:
    return ", ".join(FORMATS)


def _webp_size(data: bytes) -> tuple[int, int] | None:
    """The canvas size in the header of a WebP file, or None for other files."""
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP" or len(data) < 30:
        return None
    kind = data[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    width, height = struct.unpack("<HH", data[26:30])
    return width & 0x3FFF, height & 0x3FFF


def _check_claims(image: PillowImage, data: bytes, name: str, max_pixels: int) -> None:
    """Raise for a JPEG with too many scans, a TIFF with too large tiles, and encodings that take too long."""
    from PIL import Image as Pillow

    scans = 0
    if image.format in ("JPEG", "MPO") and (scans := data.count(b"\xff\xda")) > MAX_SCANS:
        raise InvalidRequest(
            f"image {name} is a JPEG of {scans} scans; at most {MAX_SCANS} are read: save it again",
            param="image",
        )
    n_pixels = image.size[0] * image.size[1]
    if image.format in ("JPEG", "MPO") and scans * n_pixels > SCANS_PER_PIXEL * max_pixels:
        raise InvalidRequest(
            f"image {name} is a JPEG of {n_pixels:,} pixels in {scans} scans; save it again with fewer",
            param="image",
        )
    slow = [tile[0] for tile in getattr(image, "tile", ()) if tile[0] in Pillow.DECODERS]
    if slow and n_pixels > MAX_SLOW_PIXELS:
        raise InvalidRequest(
            f"image {name} has {n_pixels:,} pixels in a rare encoding ({slow[0]}), of which at most "
            f"{MAX_SLOW_PIXELS:,} are decoded; save it as PNG",
            param="image",
        )
    tags = getattr(image, "tag_v2", {}) if image.format == "TIFF" else {}
    tile = [tags.get(tag, 1) for tag in (TILE_WIDTH, TILE_LENGTH)]
    if not all(isinstance(edge, int) for edge in tile) or tile[0] * tile[1] > max_pixels:
        raise InvalidRequest(
            f"image {name} has tiles of {tile[0]} × {tile[1]} pixels; at most {max_pixels:,} are taken",
            param="image",
        )


def read_pixels(image: PillowImage, name: str, max_pixels: int) -> Pixels:
    """RGB, upright, on white; the size is checked first."""
    from PIL import Image as Pillow

    check_size(name, *image.size, max_pixels)
    image.load()
    check_size(name, *image.size, max_pixels)  # a decoder may find that it is larger than its header says
    image = _upright(image)
    if image.mode.startswith("I") or image.mode == "F":
        image = _eight_bits(image, name)
    if {"A", "a"} & set(image.getbands()) or "transparency" in image.info:
        layer = image.convert("RGBA")
        ground = Pillow.new("RGBA", layer.size, "white")
        image = Pillow.alpha_composite(ground, layer)
    return np.array(image.convert("RGB"))


def _eight_bits(image: PillowImage, name: str) -> PillowImage:
    """Scale 16 bits to 8; Pillow's conversion would cut them off."""
    from PIL import Image as Pillow

    numbers = np.asarray(image)
    if image.mode == "F":
        return Pillow.fromarray(from_floats(numbers, name))
    if numbers.min() < 0 or numbers.max() > 65535:
        raise InvalidRequest(
            f"image {name} has numbers beyond 16 bits; save it with 8 or 16 bits a channel", param="image"
        )
    grey = Pillow.fromarray(from_16_bits(numbers.astype(np.uint16)))
    clear = image.info.get("transparency")
    if isinstance(clear, int):  # the grey that is transparent
        grey.putalpha(Pillow.fromarray(np.where(numbers == clear, 0, 255).astype(np.uint8)))
    return grey


def _upright(image: PillowImage) -> PillowImage:
    """Apply the EXIF orientation; damaged EXIF data are ignored."""
    from PIL import Image as Pillow

    transpose = Pillow.Transpose
    methods = (
        *(transpose.FLIP_LEFT_RIGHT, transpose.ROTATE_180, transpose.FLIP_TOP_BOTTOM, transpose.TRANSPOSE),
        *(transpose.ROTATE_270, transpose.TRANSVERSE, transpose.ROTATE_90),
    )
    try:
        orientation = image.getexif().get(ORIENTATION)
    except Exception:  # as a decoder, a reader of tags may raise anything
        return image
    if not isinstance(orientation, int) or not 2 <= orientation <= 8:
        return image
    upright = image.transpose(methods[orientation - 2])
    upright.info = dict(image.info)
    return upright

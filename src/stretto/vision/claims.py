"""What an image file claims to have, counted before a decoder looks: some of them take long for every piece.

Pillow walks the parts of a file in Python, so hundreds of thousands of empty ones take seconds. Bounds are
far above what encoders write: they grow with the file, so that only files with next to nothing in each part
are refused.
"""

from __future__ import annotations

import struct

from stretto.errors import InvalidRequest

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

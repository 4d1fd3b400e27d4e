"""The normalisation table of a SentencePiece model (`precompiled_charsmap`), checked before it is used.

The layout: the size of a trie in bytes (uint32, little-endian), the trie as a double array of uint32 units,
then the replacements, UTF-8 texts that each end with a zero byte. Libraries walk the trie without looking
whether a step stays inside it, so that is made sure of here, for all steps at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import ModelError

MAX_BYTES = 16 << 20  # those of real models have 0.3 MB
_VALUE = np.uint32(1 << 31)  # marks a unit that is a value: where a replacement begins
_LEAF = np.uint32(1 << 8)  # the next unit is a value
_BLOCK = 256  # a step goes anywhere in the block of 256 units that it leads to


def read_charsmap(array: NDArray[Any], field: str) -> bytes:
    """The table as bytes; `ModelError` where a walk over it could leave it."""
    if array.dtype.itemsize != 1 or array.dtype.kind not in "iu" or array.size > MAX_BYTES:
        raise ModelError(
            f"must be an array of at most {MAX_BYTES} bytes, found {array.size} of {array.dtype}", field=field
        )
    return check_charsmap(array.tobytes(), field)


def check_charsmap(data: bytes, field: str) -> bytes:
    """The same table, if every walk over it stays inside; none if it is empty."""
    if not data:
        return data
    size = int.from_bytes(data[:4], "little")
    if len(data) < 8 or size % 4 or not 4 * _BLOCK <= size <= len(data) - 4 or size % (4 * _BLOCK):
        raise ModelError(
            f"a trie of {size} bytes in a table of {len(data)}; the file is damaged", field=field
        )
    units = np.frombuffer(data, "<u4", size // 4, 4)
    texts = data[4 + size :]
    try:
        texts.decode()
    except UnicodeDecodeError as error:
        raise ModelError(f"its replacements are not UTF-8: {error}", field=field) from None
    steps = (units & _VALUE) == 0
    wide = (units >> np.uint32(9) & np.uint32(1)) << np.uint32(3)  # bit 9: the offset is in units of 256
    target = np.arange(len(units), dtype=np.uint32) ^ (units >> np.uint32(10) << wide)
    if (target[steps] >= len(units)).any():
        raise ModelError("a step of its trie leads out of it; the file is damaged", field=field)
    leaves = target[steps & ((units & _LEAF) != 0)]
    starts = units[leaves] & ~_VALUE
    if (starts >= len(texts)).any() or not texts.endswith(b"\0"):
        raise ModelError("a replacement lies outside the table; the file is damaged", field=field)
    if (np.frombuffer(texts, np.uint8)[starts] & 0xC0 == 0x80).any():
        raise ModelError("a replacement begins inside a character; the file is damaged", field=field)
    return data

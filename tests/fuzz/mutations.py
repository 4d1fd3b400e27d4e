"""Mutations of seeds: bytes flipped, numbers set to limits, parts cut and spliced."""

import random
import struct

INTERESTING = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    1 << 40,
    (1 << 63) - 1,
)
TOKENS = (
    b"\0" * 8,
    b"\xff" * 8,
    b"{{",
    b"}}",
    b"[" * 40,
    b'"',
    b"\\u0000",
    b"%s",
    b"\r\n\r\n",
    b"1e999",
    b"-1",
    b"null",
)


def mutate(data: bytes, rng: random.Random, seeds: list[bytes], most: int = 1 << 20) -> bytes:
    """Another input, one to a few changes away from `data`."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        rng.choice(CHANGES)(changed, rng, seeds)
    return bytes(changed[:most])


def flip(data: bytearray, rng: random.Random, seeds: list[bytes]) -> None:
    if data:
        data[_place(data, rng)] ^= 1 << rng.randrange(8)


def set_byte(data: bytearray, rng: random.Random, seeds: list[bytes]) -> None:
    if data:
        data[_place(data, rng)] = rng.randrange(256)


def set_number(data: bytearray, rng: random.Random, seeds: list[bytes]) -> None:
    kind = rng.choice(("<H", "<I", "<Q", ">H", ">I"))
    size = struct.calcsize(kind)
    if len(data) >= size:
        at = min(_place(data, rng), len(data) - size)
        data[at : at + size] = struct.pack(kind, rng.choice(INTERESTING) & ((1 << 8 * size) - 1))


def cut(data: bytearray, rng: random.Random, seeds: list[bytes]) -> None:
    if data:
        at = _place(data, rng)
        del data[at : at + rng.choice((1, 4, 16, len(data)))]


def repeat(data: bytearray, rng: random.Random, seeds: list[bytes]) -> None:
    if data:
        at = _place(data, rng)
        data[at:at] = bytes(data[at : at + rng.choice((1, 8, 64))]) * rng.choice((1, 2, 50))


def insert(data: bytearray, rng: random.Random, seeds: list[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.choice(TOKENS)


def splice(data: bytearray, rng: random.Random, seeds: list[bytes]) -> None:
    other = rng.choice(seeds)
    if other and data:
        data[_place(data, rng) :] = other[rng.randrange(len(other)) :]


CHANGES = (flip, flip, set_byte, set_number, set_number, cut, repeat, insert, splice)


def _place(data: bytearray, rng: random.Random) -> int:
    """More often near the beginning, where heads are."""
    return min(rng.randrange(len(data)), rng.randrange(len(data)) if rng.random() < 0.5 else len(data) - 1)

"""The process that decodes images for a server: bytes in, pixels out, within limits.

A request is its length and the most pixels (two uint64), then the bytes of the file. The answer is a status,
two numbers and a length (four uint64): pixels with their width and height, or a message. Nothing else is
read, nothing unpickled.
"""

from __future__ import annotations

import math
import os
import struct
import sys
import time
from contextlib import suppress
from typing import BinaryIO

import numpy as np

from stretto.errors import InvalidRequest
from stretto.vision.decode import decode

REQUEST, ANSWER = struct.Struct("<QQ"), struct.Struct("<QQQQ")
PIXELS, REFUSED = 0, 1  # status
CPU_SECONDS = 5.0  # of an image
BASE_BYTES = 2 << 30  # of address space: the interpreter and its libraries
BYTES_PER_PIXEL = 32  # and this for an image
NICENESS = 5  # more than the server's: on a busy core, a third of what a thread of the server gets


def main(reader: BinaryIO, writer: BinaryIO) -> None:
    """Answer requests until there are no more."""
    _limit("RLIMIT_CORE", 0)
    _limit("RLIMIT_NOFILE", 32)
    with suppress(AttributeError, OSError):  # not every system has it
        os.nice(NICENESS)
    while len(head := reader.read(REQUEST.size)) == REQUEST.size:
        nbytes, max_pixels = REQUEST.unpack(head)
        _limit("RLIMIT_AS", BASE_BYTES + BYTES_PER_PIXEL * max_pixels)
        _limit("RLIMIT_CPU", math.ceil(time.process_time() + CPU_SECONDS))
        _answer(reader.read(nbytes), max_pixels, writer)


def _answer(data: bytes, max_pixels: int, writer: BinaryIO) -> None:
    try:
        pixels = decode(data, "in the request", max_pixels)
    except InvalidRequest as error:
        message = str(error).encode()
        writer.write(ANSWER.pack(REFUSED, 0, 0, len(message)) + message)
    else:
        height, width, _ = pixels.shape
        writer.write(ANSWER.pack(PIXELS, width, height, pixels.nbytes))
        writer.write(np.ascontiguousarray(pixels).reshape(-1).data)
    writer.flush()


def _limit(name: str, value: int) -> None:
    """Set a limit of the system, where it has that; the hard limit stays, so that it can be raised again."""
    try:
        import resource
    except ImportError:
        return
    kind = getattr(resource, name, None)
    if kind is not None:
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)

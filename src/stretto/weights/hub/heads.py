"""The head of a file on the network, as a file here: its first bytes, and nothing in the place of the rest.

    with GGUF(write_head(web, remote, folder / "model.gguf", wait)) as file:
        file.metadata["general.architecture"], file.nbytes

The file here has the size of the whole one and takes no more room than its head (it is sparse), so whatever
reads metadata, shapes and formats reads them from it. Tensors behind the head are zeros.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from stretto.errors import ModelError, PullError
from stretto.weights.formats import Format
from stretto.weights.hub.links import RemoteFile, Wait, Web, read_range, retrying
from stretto.weights.metadata import Strings
from stretto.weights.parser import MAGIC, Parser
from stretto.weights.safetensors import MAX_HEAD_BYTES
from stretto.weights.tensor import Tensor

FIRST_BYTES = 1 << 20
MAX_GGUF_HEAD_BYTES = 256 << 20


class MoreNeeded(Exception):
    """The head goes on behind the bytes that are here."""


def write_head(web: Web, remote: RemoteFile, target: Path, wait: Wait) -> Path:
    """Write the head of a file whose size is known to `target`."""
    size, data, wanted = remote.nbytes or 0, b"", FIRST_BYTES
    if size == 0:
        raise PullError(f"{remote.path}: the file is empty")
    while True:
        count = min(wanted, size) - len(data)
        data += retrying(partial(read_range, web, remote, len(data), count), wait)
        wanted = _missing(data, remote)
        if wanted <= len(data):
            break
        if len(data) >= size:
            raise PullError(f"{remote.path}: its head ends behind the end of the file: cut off or damaged")
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        file.write(data)
        file.truncate(size)
    return target


def _missing(data: bytes, remote: RemoteFile) -> int:
    """How many bytes of the file are needed; no more than there are, if these hold the head."""
    if remote.path.endswith(".safetensors"):
        needed = 8 + int.from_bytes(data[:8], "little")
        if needed > MAX_HEAD_BYTES or len(data) < 8:
            raise PullError(f"{remote.path}: a head of {needed} bytes: damaged, or no safetensors file")
        return needed
    try:
        _Walk(memoryview(data), Path(remote.path)).parse()
    except MoreNeeded:
        if len(data) >= MAX_GGUF_HEAD_BYTES:
            raise PullError(f"{remote.path}: its head has more than {len(data)} bytes") from None
        return len(data) * 4
    except ModelError as error:
        raise PullError(str(error)) from None
    return len(data)


class _Walk(Parser):
    """A parser that stops where the bytes end, and leaves the tensors' data alone."""

    def _read_header(self) -> tuple[int, int]:
        if len(self.buffer) < 24 and bytes(self.buffer[:4]) == MAGIC[: len(self.buffer)]:
            raise MoreNeeded
        return super()._read_header()

    def _take(self, nbytes: int) -> int:
        if nbytes > self.size - self.offset:
            raise MoreNeeded
        return super()._take(nbytes)

    def _count(self, number: int, limit: int, least: int, what: str) -> int:
        if number <= limit and number * least > self.size - self.offset:
            raise MoreNeeded
        return super()._count(number, limit, least, what)

    def _string_array(self, count: int) -> Strings:
        allowed = self.strings_left
        try:
            return super()._string_array(count)
        except ModelError:
            if count > allowed:
                raise
            raise MoreNeeded from None

    def _locate(self, infos: list[tuple[str, tuple[int, ...], Format, int]], start: int) -> dict[str, Tensor]:
        return {}

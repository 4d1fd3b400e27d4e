"""The fingerprint of an ONNX model, without reading its gigabytes."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from struct import pack

from stretto.weights.onnx.model import OnnxFile

WHOLE_BYTES = 16 << 20  # files up to this size are read as they are
STRIDE_BYTES, SAMPLE_BYTES = 1 << 20, 4096  # of larger ones, a sample in each so many bytes


def fingerprint(file: OnnxFile) -> str:
    """64 hexadecimal digits: a hash of the model's file, and of samples of the files beside it."""
    digest = sha256()
    for path in (file.path, *sorted(set(file.external))):
        _add(digest, path)
    return digest.hexdigest()


def _add(digest: object, path: Path) -> None:
    size = path.stat().st_size
    update = digest.update  # type: ignore[attr-defined]
    update(pack("<Q", size))
    with path.open("rb") as stream:
        if size <= WHOLE_BYTES:
            update(stream.read(WHOLE_BYTES))
            return
        for at in (*range(0, size, STRIDE_BYTES), size - SAMPLE_BYTES):
            stream.seek(at)
            update(stream.read(SAMPLE_BYTES))

"""Matrices of the native decoder that the processes of a machine share (`repack="shared"`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from stretto import _native
from stretto.weights.gguf import GGUF
from stretto.weights.hub.store import Store
from stretto.weights.packed_file import PackedMatrix, packed_file

FOLDER = "packed"  # under the folder of all models


def shared_matrices(
    file: GGUF, make: Callable[[], Iterable[tuple[str, PackedMatrix]]]
) -> dict[str, PackedMatrix]:
    """The packed matrices of a model by name, mapped; packed now if no process has done it before."""
    model, changed = file.files[0], 0
    with suppress(OSError):  # the path may be gone, and the model is still mapped
        changed = model.stat().st_mtime_ns
    key = f"{_native.packed_version} {file.fingerprint()()} {changed} {file.quantised_as}"
    return packed_file(Store.default().home / FOLDER, key, model, file.quantised_as, make).matrices

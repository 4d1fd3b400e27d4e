"""Reads GGUF files: memory-mapped, checked before use, copied only on request.

    with GGUF("model.gguf") as file:
        file.metadata["general.architecture"]
        file.tensors["token_embd.weight"].dequantize()   # float32[n_vocab, n_embd]

Opening costs one walk over the head of the file (parser.py), not one over its gigabytes. A split model
(`model-00001-of-00003.gguf`, any of its parts) is read as if it were one file.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from stretto.errors import ModelError
from stretto.weights.files import MAX_PARTS, part_name
from stretto.weights.formats import Format
from stretto.weights.mapped import Fingerprint
from stretto.weights.metadata import Metadata
from stretto.weights.part import Part
from stretto.weights.tensor import Kept, Tensor, WidenedTensor

__all__ = ["GGUF", "Tensor"]


# The files of one model: a single file, or all parts of a split one, whichever of them is given.
#
# Every part has three keys: `split.no` (from 0 on), `split.count` and `split.tensors.count` (in all parts
# together). All other metadata is in the first part. The parts are found by their names
# (`model-00001-of-00003.gguf`) in one folder.

NUMBER = "split.no"
COUNT = "split.count"
TENSORS = "split.tensors.count"


def open_parts(path: Path) -> list[Part]:
    """Open a model's files in order; `ModelError` names the file and the field that do not fit."""
    given = Part(path)
    count = given.metadata.integer(COUNT, 0)
    if count <= 1:
        return [given]
    if count > MAX_PARTS:
        raise ModelError(f"{count} parts, but at most {MAX_PARTS} are read", path=path, field=COUNT)
    name = part_name(path.name)
    if name is None:
        ending = f"-{given.metadata.integer(NUMBER) + 1:05d}-of-{count:05d}.gguf"
        raise ModelError(
            f"it is one of {count} parts of a model, and the others are found by its name, which has to end "
            f"with {ending}; rename it, or join the parts with llama-gguf-split --merge",
            path=path,
            field=COUNT,
        )
    if name.count != count:
        raise ModelError(f"{count} parts, but its name says {name.count}", path=path, field=COUNT)
    parts = [
        given if number == name.number else _open(path.with_name(name.file(number)), number, count)
        for number in range(1, count + 1)
    ]
    _check(parts)
    return parts


def _open(path: Path, number: int, count: int) -> Part:
    if not path.exists():
        raise ModelError(
            f"part {number} of {count} is missing; fetch it into the folder of the others",
            path=path,
            field=COUNT,
        )
    return Part(path)


def _check(parts: list[Part]) -> None:
    """Raise unless the parts are those of one model, in order, with all its tensors."""
    for index, part in enumerate(parts):
        _expect(part, COUNT, len(parts), "the number of parts")
        _expect(part, NUMBER, index, "by its name")
    total = sum(len(part.tensors) for part in parts)
    homes: dict[str, Path] = {}
    for part in parts:
        _expect(part, TENSORS, total, "the number of tensors in all parts")
        for name in part.tensors:
            if name in homes:
                raise ModelError(
                    f"the tensor is in {homes[name].name} too", path=part.path, field=f"tensor {name!r}"
                )
            homes[name] = part.path


def _expect(part: Part, key: str, expected: int, meaning: str) -> None:
    found = part.metadata.integer(key)
    if found != expected:
        raise ModelError(
            f"it is {found}, not {expected}, {meaning}; are all parts from the same model?",
            path=part.path,
            field=key,
        )


class GGUF:
    """An open GGUF file: `metadata`, `tensors`, `version`, `alignment`, `nbytes`, `files`.

    Tensors and arrays are views into the mapped file; they stay valid after `close` for as long as they
    are referenced. A file that is cut in place while it is open reads as zeros from there on, and `check`
    raises `ModelError` then (weights/files.py): replace files, as `stretto pull` does.
    The metadata, the version and the path of a split model are those of its first part.
    """

    quantised_as: str = ""  # the mix that its tensors are quantised to while they are read

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._parts = open_parts(Path(path))
        first = self._parts[0]
        self.path: Path = first.path
        self.version: int = first.version
        self.alignment: int = first.alignment
        self.metadata: Metadata = first.metadata
        self.tensors: dict[str, Tensor] = {}
        self._homes: dict[str, int] = {}  # the part of each tensor
        kept = Kept()
        for index, part in enumerate(self._parts):
            for tensor in part.tensors.values():
                is_wide = tensor.format is not Format.Q2_0
                self.tensors[tensor.name] = tensor if is_wide else WidenedTensor(tensor, kept)
            self._homes |= dict.fromkeys(part.tensors, index)

    @property
    def files(self) -> tuple[Path, ...]:
        """The paths of all parts, in order; a single one unless the model is split."""
        return tuple(part.path for part in self._parts)

    @property
    def nbytes(self) -> int:
        """The size of the file, or of all parts together."""
        return sum(part.buffer.nbytes for part in self._parts)

    def error(self, field: str, reason: str) -> ModelError:
        """The error about a key or tensor of the file."""
        return ModelError(reason, path=self.path, field=field)

    def find_file(self, tensor: Tensor) -> Path:
        """The path of the file that holds a tensor, where its `offset` counts."""
        return self._parts[self._homes[tensor.name]].path

    def forget(self, tensor: Tensor | None = None, end: int | None = None) -> None:
        """Let the system evict the pages of a tensor, up to byte `end` of it, or of the whole file.

        Reading brings them back. What stands around a tensor goes too: the system may map as much as a huge
        page when one byte is read.
        """
        if tensor is not None:
            self._parts[self._homes[tensor.name]].forget(tensor, end)
            return
        for part in self._parts:
            part.forget()

    def read_ahead(self, wanted: bool) -> None:
        """Let the system read pages before they are asked for, as it does by itself, or only then."""
        for part in self._parts:
            part.read_ahead(wanted)

    def fingerprint(self) -> Fingerprint:
        """The file's fingerprint, read now: call it for the text, also after `close`."""
        found = Fingerprint([(part.buffer, part.tensors.values()) for part in self._parts])
        found()
        for part in self._parts:
            part.forget()  # it read pages all over the file
        return found

    def check(self) -> None:
        """Raise `ModelError` if a file was cut since it was opened."""
        for part in self._parts:
            part.check()

    def close(self) -> None:
        """Close the file; views that are still referenced keep their mapping, and read it again."""
        for part in self._parts:
            part.close()
        self.tensors = {}

    def __enter__(self) -> GGUF:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        parts = f", {len(self._parts)} parts" if len(self._parts) > 1 else ""
        return f"<GGUF {str(self.path)!r}: {len(self.metadata)} keys, {len(self.tensors)} tensors{parts}>"

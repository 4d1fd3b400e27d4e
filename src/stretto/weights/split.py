"""The files of one model: a single file, or all parts of a split one, whichever of them is given.

Every part has three keys: `split.no` (from 0 on), `split.count` and `split.tensors.count` (in all parts
together). All other metadata is in the first part. The parts are found by their names
(`model-00001-of-00003.gguf`) in one folder.
"""

from __future__ import annotations

from pathlib import Path

from stretto.errors import ModelError
from stretto.weights.part import Part
from stretto.weights.part_names import MAX_PARTS, part_name

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

"""The tensors of a folder's files, under names without the prefix of the class they were saved from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stretto.errors import ModelError
from stretto.weights.files import MAX_PARTS
from stretto.weights.folders import quantised
from stretto.weights.formats import Format
from stretto.weights.json_file import read_object
from stretto.weights.safetensors import Shard, Stored
from stretto.weights.tensor import Kept, MadeTensor, Op, Tensor

MAX_DIMENSIONS = 5  # of a kernel over two frames
FORMATS = {"F32": Format.F32, "F16": Format.F16, "BF16": Format.BF16}
_COPY = Op(lambda array: array, lambda shape: shape, whole_rows=True)


class Sources:
    """Tensors by their names. `prefixes` are tried in order: the first that a name has is left out.

    The parts of a matrix that `packing` describes are one tensor.
    """

    def __init__(
        self, shards: Iterable[Shard], prefixes: Iterable[str], packing: quantised.Packing | None = None
    ) -> None:
        self.kept = Kept()
        self._packing = packing
        self._stored: dict[str, Stored] = {}
        self._homes: dict[str, Path] = {}
        for shard in shards:
            for name, stored in shard.stored.items():
                short = next((name.removeprefix(p) for p in prefixes if name.startswith(p)), name)
                if short in self._stored:
                    raise ModelError(
                        f"it is there twice, as {self._stored[short].name!r} too",
                        path=shard.path,
                        field=f"tensor {name!r}",
                    )
                self._stored[short] = stored
                self._homes[short] = shard.path
        self.used: dict[str, Stored] = {}  # by the names that they have in the result

    def __contains__(self, name: str) -> bool:
        return name in self._stored or self._packed(name) is not None

    def _packed(self, name: str) -> dict[str, str] | None:
        return None if self._packing is None else quantised.packed_names(self._stored, name)

    def drop_empty_biases(self) -> None:
        """Leave out biases of zeros beside packed matrices: some tools write them where a model has none."""
        for name in list(self._stored):
            stem, _, kind = name.rpartition(".")
            if kind == "bias" and self._packed(f"{stem}.weight") and not self._stored[name].data.any():
                del self._stored[name]

    def names(self) -> Iterator[str]:
        """All names, but those of scales and other parts, which belong to other tensors."""
        scales = {quantised.scale_name(name, self._stored) for name in self._stored}
        for name in self._stored:
            stem, _, kind = name.rpartition(".")
            if kind in quantised.PARTS and self._packed(f"{stem}.weight"):
                if kind == quantised.WEIGHTS:
                    yield f"{stem}.weight"
            elif name not in scales:
                yield name

    def tensor(self, name: str) -> Tensor:
        """A tensor as the file has it."""
        if (parts := self._packed(name)) is not None and self._packing is not None:
            found = {part: self._stored[place] for part, place in parts.items()}
            return quantised.Int4Tensor(
                name, found, self._packing, self.kept, self._homes[parts[quantised.WEIGHTS]]
            )
        stored = self._stored[name]
        shape = stored.shape or (1,)
        if 0 in shape or len(shape) > MAX_DIMENSIONS:
            raise self._error(name, f"the shape {stored.shape} is not possible")
        if stored.type.startswith("F8_E"):
            scale = quantised.scale_name(name, self._stored)
            if scale is None or stored.type == "F8_E8M0":
                raise self._error(name, f"numbers of type {stored.type} without scales are not supported")
            return quantised.Float8Tensor(name, stored, self._stored[scale], self.kept, self._homes[name])
        if stored.type not in FORMATS:
            raise self._error(
                name, f"numbers of type {stored.type} are not supported, only {', '.join(FORMATS)} and FP8"
            )
        fmt = FORMATS[stored.type]
        data = stored.data if stored.is_aligned else np.copy(stored.data)
        return Tensor(name, shape, fmt, stored.offset, data.reshape(*shape[:-1], shape[-1] * fmt.size))

    def integers(self, name: str) -> NDArray[np.int64]:
        """The numbers of a tensor of integers."""
        stored = self._stored[name]
        if stored.type not in ("I64", "I32"):
            raise self._error(name, f"numbers of type {stored.type} where integers are needed")
        read = np.frombuffer(np.copy(stored.data), "<i8" if stored.type == "I64" else "<i4")
        return read.astype(np.int64).reshape(stored.shape)

    def mxfp4(self, target: str, blocks: str, scales: str, rows: slice) -> Tensor:
        """Rows of experts in MXFP4."""
        if scales not in self._stored:
            raise self._error(blocks, "its scales are missing; is the folder complete?")
        stored = self._stored[blocks], self._stored[scales]
        return quantised.MXFP4Tensor(target, *stored, rows, self.kept, self._homes[blocks])

    def renamed(self, tensor: Tensor, name: str) -> Tensor:
        """The same tensor under another name."""
        if isinstance(tensor, (quantised.Float8Tensor, quantised.Int4Tensor)):
            return tensor.renamed(name)
        if isinstance(tensor, MadeTensor):
            return MadeTensor(name, _COPY, [tensor], self.kept)
        self.used[name] = self._stored[tensor.name]
        return Tensor(name, tensor.shape, tensor.format, tensor.offset, tensor.data)

    def homes(self) -> Mapping[str, Path]:
        """The file of each tensor."""
        return self._homes

    def _error(self, name: str, message: str) -> ModelError:
        return ModelError(message, path=self._homes[name], field=f"tensor {self._stored[name].name!r}")


# The safetensors files of a folder: one, or those that an index names.

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_INDEX_BYTES = 64 << 20
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def open_shards(folder: Path) -> list[Shard]:
    """Open a folder's files; `ModelError` names what is missing or does not fit."""
    if (folder / INDEX).exists():
        return _by_index(folder)
    if (folder / SINGLE).exists():
        return [Shard(folder / SINGLE)]
    raise ModelError(_nothing(folder), path=folder)


def _by_index(folder: Path) -> list[Shard]:
    path = folder / INDEX
    places = read_object(path, MAX_INDEX_BYTES).object("weight_map")
    names = sorted(set(map(str, places.values())))
    if not 1 <= len(names) <= MAX_PARTS:
        raise ModelError(f"{len(names)} files; 1 to {MAX_PARTS} are possible", path=path, field="weight_map")
    shards: dict[str, Shard] = {}
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelError(
                f"{name!r} is no safetensors file in the same folder", path=path, field="weight_map"
            )
        if not (folder / name).exists():
            raise ModelError(
                f"one of {len(names)} files is missing; fetch it into the folder of the others",
                path=folder / name,
            )
        shards[name] = Shard(folder / name)
    for tensor, name in places.items():
        if tensor not in shards[str(name)].stored:
            raise ModelError(
                f"the index says that it has tensor {tensor!r}, which it has not; are all files from the "
                "same model?",
                path=folder / str(name),
            )
    return list(shards.values())


def _nothing(folder: Path) -> str:
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        return (
            f"its weights are pickle files ({pickles[0]}), which may run code when they are read and are not "
            "opened; save them as safetensors with transformers: "
            "AutoModel.from_pretrained(folder).save_pretrained(folder)"
        )
    if (folder / "adapter_config.json").exists():
        return (
            "an adapter, the changes to a model and not the model; load its base model and this with "
            "llm.load_adapter"
        )
    if any(folder.glob("*.onnx")) or any(folder.glob("onnx/*.onnx")):
        return "its weights are ONNX files; load it with backend='onnx'"
    ggufs = sorted(path.name for path in folder.glob("*.gguf"))
    if ggufs:
        return f"is a folder; give the path of a file in it, such as {ggufs[0]}"
    return f"has no weights: neither {SINGLE} nor {INDEX}"

"""The safetensors files of a folder: one, or those that an index names."""

from __future__ import annotations

from pathlib import Path

from stretto.errors import ModelError
from stretto.weights.json_file import read_object
from stretto.weights.part_names import MAX_PARTS
from stretto.weights.safetensors_file import Shard

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

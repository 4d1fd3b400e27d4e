"""One folder on its way to the form of a GGUF file: metadata under llama.cpp's keys, tensors under its names.

A converter (one for each kind of model) fills `keys` and takes tensors; what it has not taken in the end is
refused by name, so that no part of a model is lost in silence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import ModelError
from stretto.weights.folders.stored import Sources
from stretto.weights.formats import Format
from stretto.weights.json_file import Fields
from stretto.weights.safetensors import Stored
from stretto.weights.tensor import Array, ConstantTensor, Kept, MadeTensor, Op, Shape, Tensor

MAX_LAYERS = 1024
MAX_EXPERTS = 4096
# Tensors that are computed from the configuration, or that belong to parts that are not run.
UNUSED = (
    r"rotary_emb\..*|rotary_pos_emb\..*|.*\.rotary_emb\.inv_freq|.*\.masked_bias|.*position_ids|"
    r"mtp\..*|(?:model\.)?image_newline|.*\.(?:k|v|input|output|q)_scale|"
    r"(?:model\.)?(?:vision_tower|vision_model|visual|multi_modal_projector|connector)\..*|"
    r"(?:model\.)?(?:embed_vision|embed_audio|audio_tower)\..*"
)
KINDS = ("weight", "bias")

_TABLES: dict[str, dict[str, dict[str, Any]]] = json.loads(
    Path(__file__).with_name("tables.json").read_bytes()
)
MODULES = _TABLES["modules"]  # the tensors that modules of a layer become, for each family
DEFAULTS = _TABLES["defaults"]  # of settings that configurations leave out


class Conversion:
    """The metadata and the tensors of one model. `config` is that of its language model.

    `keys` get the architecture in front of their names; `tables` say which modules of a layer become what.
    Tensors whose names match `unused` may be left over.
    """

    def __init__(
        self, arch: str, config: Fields, sources: Sources, folder: Path, unused: str = UNUSED
    ) -> None:
        self.arch = arch
        self.config = config
        self.folder = folder
        self.keys: dict[str, Any] = {}
        self.bare_keys: dict[str, Any] = {}  # that have no architecture in front
        self.tensors: dict[str, Tensor] = {}
        self._sources = sources
        self._taken: set[str] = set()
        self._ignored: list[str] = [unused]

    # -- the source --

    def has(self, source: str) -> bool:
        """Whether the folder has a tensor."""
        return source in self._sources

    def ignore(self, pattern: str) -> None:
        """Leave tensors out whose names match a pattern, because nothing is computed with them."""
        self._ignored.append(pattern)

    @property
    def n_layer(self) -> int:
        """The number of layers."""
        return self.config.integer("num_hidden_layers", least=1, most=MAX_LAYERS)

    @property
    def used(self) -> Mapping[str, Stored]:
        """The tensors that are used as a file has them, by their names in the result."""
        return self._sources.used

    @property
    def kept(self) -> Kept:
        """The data of the made tensor that was read last."""
        return self._sources.kept

    def shape(self, source: str) -> tuple[int, ...]:
        """The shape of a tensor of the folder."""
        return self._sources.tensor(source).shape

    # -- the result --

    def take(self, target: str, *sources: str, op: Op | None = None) -> None:
        """Make a tensor of one or several of the folder."""
        for source in sources:
            if source not in self._sources:
                raise ModelError(
                    f"the tensor is missing, for {target!r}; is the folder complete?",
                    path=self.folder,
                    field=f"tensor {source!r}",
                )
        self._taken.update(sources)
        tensors = [self._sources.tensor(source) for source in sources]
        if op is None:
            self.tensors[target] = self._sources.renamed(tensors[0], target)
            return
        try:
            self.tensors[target] = MadeTensor(target, op, tensors, self._sources.kept)
        except (ValueError, IndexError, TypeError) as error:
            raise ModelError(
                f"cannot become {target!r}: {error}", path=self.folder, field=f"tensor {sources[0]!r}"
            ) from None

    def take_mxfp4(self, target: str, source: str, rows: slice) -> None:
        """Take rows of experts in MXFP4, which are two tensors: blocks and scales."""
        names = f"{source}_blocks", f"{source}_scales"
        self._taken.update(names)
        self.tensors[target] = self._sources.mxfp4(target, *names, rows)

    def take_module(
        self, target: str, source: str, op: Op | None = None, weight_op: Op | None = None
    ) -> bool:
        """Take the weight and the bias of a module, those that there are; whether there was one.

        `weight_op` is for the weight only.
        """
        found = False
        for kind in KINDS:
            if self.has(f"{source}.{kind}"):
                self.take(
                    f"{target}.{kind}", f"{source}.{kind}", op=(weight_op if kind == "weight" else None) or op
                )
                found = True
        return found

    def take_layers(
        self,
        names: Mapping[str, str],
        ops: Mapping[str, Op] | None = None,
        layer: str = "layers.{}.",
        count: int | None = None,
        weight_ops: Mapping[str, Op] | None = None,
        prefix: str = "blk.",
    ) -> None:
        """Take the modules of all layers: `names` maps those of the folder to those of a GGUF file."""
        for i in range(self.n_layer if count is None else count):
            for source, target in names.items():
                op, weight_op = (ops or {}).get(target), (weight_ops or {}).get(target)
                self.take_module(f"{prefix}{i}.{target}", layer.format(i) + source, op, weight_op)

    def number(self, source: str) -> float:
        """The only number of a tensor of the folder, for a key of the metadata."""
        self.take(source, source)
        numbers = self.tensors.pop(source).dequantize()
        if numbers.size != 1:
            raise ModelError(
                f"{numbers.size} numbers where 1 is needed", path=self.folder, field=f"tensor {source!r}"
            )
        return float(numbers.reshape(-1)[0])

    def integers(self, source: str) -> NDArray[np.int64]:
        """The integers of a tensor of the folder."""
        self._taken.add(source)
        return self._sources.integers(source)

    def keep_integers(self, target: str, numbers: NDArray[np.int64]) -> None:
        """Add a tensor of integers."""
        self.tensors[target] = Tensor(target, numbers.shape, Format.I64, 0, numbers.view(np.uint8))

    def constant(self, target: str, numbers: Any) -> None:
        """Add a tensor of numbers from the configuration."""
        self.tensors[target] = ConstantTensor(target, numbers)

    def finish(self) -> None:
        """Raise for tensors of the folder that nothing was made of."""
        ignored = re.compile("|".join(self._ignored))
        left = [
            name for name in self._sources.names() if name not in self._taken and not ignored.fullmatch(name)
        ]
        if left:
            more = f" (and {len(left) - 1} others)" if len(left) > 1 else ""
            raise ModelError(
                f"the tensor has no place in a {self.arch} model{more}; this kind of it is not supported",
                path=self.folder,
                field=f"tensor {left[0]!r}",
            )

    def refuse(self, name: str, what: str, harmless: Iterable[Any] = (None, False, 0)) -> None:
        """Raise for a setting that would be ignored otherwise."""
        value = self.config.get(name)
        if value not in tuple(harmless):
            raise self.config.error(name, f"{what} ({value!r}) is not supported")


# How tensors of a GGUF file are made of those of a Hugging Face folder.


def _same(shape: Shape) -> Shape:
    return shape


def adjacent(head_size: int, n_head: int | None = None) -> Op:
    """Rows reordered within each head: transformers rotates (i, i + d/2), llama.cpp's files (2i, 2i + 1)."""

    def apply(array: Array) -> Array:
        halves = array.reshape(-1, 2, head_size // 2, *array.shape[1:])
        return halves.swapaxes(1, 2).reshape(array.shape)

    def shape(given: Shape) -> Shape:
        if given[0] % head_size or head_size % 2:
            raise ValueError(f"{given[0]} rows are no whole heads of {head_size}")
        return given

    return Op(apply, shape, whole_rows=True)


def plus(number: float) -> Op:
    """A number added to all: norms that a model adds one to have it in the file."""
    return Op(lambda array: array + np.float32(number), _same, computes=True)


def times(factor: float | Array) -> Op:
    """All numbers, or all rows, multiplied."""
    factors = np.asarray(factor, np.float32)
    factors = factors[:, None] if factors.ndim else factors
    return Op(lambda array: array * factors, _same, computes=True)


def of_unit_length(axis: int) -> Op:
    """Numbers divided by the root of the sum of squares along one axis."""

    def apply(array: Array) -> Array:
        out: Array = array / (np.sqrt(np.square(array).sum(axis, keepdims=True)) + np.float32(1e-7))
        return out

    return Op(apply, _same, computes=True)


def _ternary(array: Array) -> Array:
    scale = np.maximum(np.abs(array).mean(dtype=np.float32), np.float32(1e-5))
    rounded: Array = np.clip(np.rint(array / scale), -1, 1) * scale
    return rounded


# Each number as −1, 0 or 1 times the mean of all magnitudes, as BitNet rounds its weights.
TERNARY = Op(_ternary, _same, computes=True)
NEGATIVE_EXP = Op(lambda array: -np.exp(array), _same, computes=True)


def rows(first: int, last: int, axis: int = 0) -> Op:
    """A range along one axis."""
    at = (slice(None),) * axis + (slice(first, last),)

    def shape(given: Shape) -> Shape:
        if not 0 <= first < last <= given[axis]:
            raise ValueError(f"{given[axis]} rows where {last} are needed")
        return (*given[:axis], last - first, *given[axis + 1 :])

    return Op(lambda array: array[at], shape, whole_rows=axis == 0)


def half(which: int, axis: int) -> Op:
    """The first or the second half along one axis, such as gate and up in one matrix."""

    def bounds(size: int) -> slice:
        return slice(which * (size // 2), (which + 1) * (size // 2))

    def shape(given: Shape) -> Shape:
        if given[axis] % 2:
            raise ValueError(f"{given[axis]} rows are no two halves")
        return (*given[:axis], given[axis] // 2, *given[axis + 1 :])

    return Op(
        lambda array: array[(slice(None),) * axis + (bounds(array.shape[axis]),)],
        shape,
        whole_rows=axis == 0,
    )


def every_other(which: int, axis: int) -> Op:
    """Every other entry along one axis, from the first or from the second."""

    def shape(given: Shape) -> Shape:
        if given[axis] % 2:
            raise ValueError(f"{given[axis]} entries do not come in pairs")
        return (*given[:axis], given[axis] // 2, *given[axis + 1 :])

    return Op(lambda array: array[(slice(None),) * axis + (slice(which, None, 2),)], shape)


def turned(one: int, other: int) -> Op:
    """Two axes exchanged."""

    def shape(given: Shape) -> Shape:
        axes = list(given)
        axes[one], axes[other] = axes[other], axes[one]
        return tuple(axes)

    return Op(lambda array: array.swapaxes(one, other), shape)


def shaped(*sizes: int) -> Op:
    """The same numbers in another shape; one size may be −1."""

    def shape(given: Shape) -> Shape:
        return np.broadcast_to(np.int8(0), given).reshape(sizes).shape if 0 not in given else given

    return Op(lambda array: array.reshape(sizes), shape)


def without_axis(axis: int) -> Op:
    """An axis of one left out."""

    def shape(given: Shape) -> Shape:
        if given[axis] != 1:
            raise ValueError(f"{given[axis]} where 1 is needed")
        return (*given[:axis], *given[axis + 1 :])

    return Op(lambda array: array.reshape(shape(array.shape)), shape)


COLUMN = Op(lambda array: array[:, None], lambda given: (*given, 1))


def _stacked(*given: Shape) -> Shape:
    if len(set(given)) != 1:
        raise ValueError(f"tensors of different shapes: {sorted(set(given))}")
    return (len(given), *given[0])


STACK = Op(lambda *arrays: np.stack(arrays), _stacked, whole_rows=True)


def _joined(*given: Shape) -> Shape:
    if len({shape[1:] for shape in given}) != 1:
        raise ValueError(f"tensors of different widths: {sorted(set(given))}")
    return (sum(shape[0] for shape in given), *given[0][1:])


JOIN = Op(lambda *arrays: np.concatenate(arrays), _joined, whole_rows=True)


def unmixed(which: str, n_kv_head: int, group: int, size: int) -> Op:
    """The rows of some of q, k and v, one after the other, of a matrix that has them head by head.

    It has, for each K/V head, its queries, then its key, then its value.
    """
    parts = {"q": slice(0, group), "k": slice(group, group + 1), "v": slice(group + 1, group + 2)}

    def shape(given: Shape) -> Shape:
        if given[0] != n_kv_head * (group + 2) * size:
            raise ValueError(f"{given[0]} rows are not {n_kv_head} groups of {group + 2} heads of {size}")
        return (n_kv_head * size * sum(group if part == "q" else 1 for part in which), *given[1:])

    def apply(array: Array) -> Array:
        groups = array.reshape(n_kv_head, group + 2, size, *array.shape[1:])
        return np.concatenate([groups[:, parts[part]].reshape(-1, *array.shape[1:]) for part in which])

    return Op(apply, shape)


def rename(conversion: Conversion, names: Mapping[str, str]) -> None:
    """Give settings their usual names, where those are not there."""
    config = conversion.config
    values = dict(config)
    for name, usual in names.items():
        if values.get(name) is not None and values.get(usual) is None:
            values[usual] = values[name]
    conversion.config = Fields(values, config.path, config.prefix)

"""One folder on its way to the form of a GGUF file: metadata under llama.cpp's keys, tensors under its names.

A converter (one for each kind of model) fills `keys` and takes tensors; what it has not taken in the end is
refused by name, so that no part of a model is lost in silence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stretto.errors import ModelError
from stretto.weights.folders.stored import Sources
from stretto.weights.json_file import Fields
from stretto.weights.made_tensor import ConstantTensor, Kept, MadeTensor, Op
from stretto.weights.safetensors_file import Stored
from stretto.weights.tensor import Tensor

MAX_LAYERS = 1024
MAX_EXPERTS = 4096
# Tensors that are computed from the configuration, or that belong to parts that are not run.
UNUSED = (
    r"rotary_emb\..*|rotary_pos_emb\..*|.*\.rotary_emb\.inv_freq|.*\.masked_bias|.*position_ids|"
    r"mtp\..*|.*\.(?:k|v|input|output|q)_scale|"
    r"(?:model\.)?(?:vision_tower|vision_model|visual|multi_modal_projector|embed_vision|embed_audio|audio_tower)\..*"
)
KINDS = ("weight", "bias")


class Conversion:
    """The metadata and the tensors of one model. `config` is that of its language model.

    `keys` get the architecture in front of their names; `tables` say which modules of a layer become what.
    """

    def __init__(self, arch: str, config: Fields, sources: Sources, folder: Path) -> None:
        self.arch = arch
        self.config = config
        self.folder = folder
        self.keys: dict[str, Any] = {}
        self.tensors: dict[str, Tensor] = {}
        self._sources = sources
        self._taken: set[str] = set()
        self._ignored: list[str] = [UNUSED]

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

    def take_module(self, target: str, source: str, op: Op | None = None) -> bool:
        """Take the weight and the bias of a module, those that there are; whether there was one."""
        found = False
        for kind in KINDS:
            if self.has(f"{source}.{kind}"):
                self.take(f"{target}.{kind}", f"{source}.{kind}", op=op)
                found = True
        return found

    def take_layers(
        self,
        names: Mapping[str, str],
        ops: Mapping[str, Op] | None = None,
        layer: str = "layers.{}.",
        count: int | None = None,
    ) -> None:
        """Take the modules of all layers: `names` maps those of the folder to those of a GGUF file."""
        for i in range(self.n_layer if count is None else count):
            for source, target in names.items():
                op = (ops or {}).get(target)
                self.take_module(f"blk.{i}.{target}", layer.format(i) + source, op)

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

"""Which experts of a model larger than the GPU the CPU computes, planned from bytes before it is loaded.

    sizes = Sizes.of(file, spec, kv="f16")
    plan = plan_placement(sizes, "auto", cells=8192, gpu_free=12 << 30)
    print(plan)

Experts are most of the bytes of a mixture, and a token reads few of them, so they are what a GPU can spare: a
layer's experts are on one side as a whole, all else is on the GPU. The plan is fixed while the model is open.
Nothing here imports torch or asks a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from stretto.backends.torch.memory import Need, device_bytes, size
from stretto.errors import InvalidRequest, ModelError
from stretto.models.feed_forward import Experts
from stretto.models.spec import ModelSpec
from stretto.weights.gguf import GGUF
from stretto.weights.memory import packed_bytes

HOP_SECONDS = 40e-6  # of a layer whose experts are on the CPU: a small copy each way, and waking its threads
AUTO, CPU = "auto", "cpu"
Choice = str | int | Sequence[str]


@dataclass(frozen=True)
class LayerExperts:
    """The experts of a layer: tensors, what they take on either side, and the share that a token reads."""

    layer: int
    tensors: tuple[str, ...]
    gpu_bytes: int
    cpu_bytes: int
    share: float


@dataclass(frozen=True)
class Speeds:
    """Bytes a second that each side reads, measured or given; 0: not known."""

    gpu: float = 0.0
    cpu: float = 0.0


@dataclass(frozen=True)
class Sizes:
    """What a model takes: `need` with all weights on the GPU, and its experts layer by layer.

    `looked_up` are bytes of weights of which a token reads a row only.
    """

    need: Need
    layers: tuple[LayerExperts, ...]
    names: tuple[str, ...] = ()  # of all tensors
    looked_up: int = 0

    @classmethod
    def of(
        cls, file: GGUF, spec: ModelSpec, *, kv: str = "f16", wide: bool = False, n_slots: int = 0
    ) -> Sizes:
        """The sizes of a file, from its head; arguments as of `Need.of`."""
        need = Need.of(file, spec, kv=kv, wide=wide, n_slots=n_slots)
        layers = []
        for i, names in spec.expert_tensors().items():
            tensors = [file.tensors[name] for name in names if name in file.tensors]
            ffn = spec.layers[i].ffn
            assert isinstance(ffn, Experts)
            layers.append(
                LayerExperts(
                    i,
                    names,
                    sum(device_bytes(each, wide) for each in tensors),
                    sum(packed_bytes(each.format.name, each.nbytes) for each in tensors),
                    ffn.routing.n_used / ffn.n_expert,
                )
            )
        embeddings = file.tensors.get("token_embd.weight")
        looked_up = 0 if spec.tied or embeddings is None else device_bytes(embeddings, wide)
        return cls(need, tuple(layers), tuple(spec.tensors()), looked_up)


@dataclass(frozen=True)
class DevicePlan:
    """Where the experts of each layer are, and what that takes; `cpu_layers` are those on the CPU.

    >>> llm.route.placement.cpu_layers
    (0, 1, 2, 3)
    """

    sizes: Sizes
    cpu_layers: tuple[int, ...]
    cells: int
    gpu_free: int
    speeds: Speeds = Speeds()

    @property
    def need(self) -> Need:
        """What the GPU needs, by its kinds."""
        return replace(self.sizes.need, weights=self.sizes.need.weights - self._cpu_share("gpu_bytes"))

    @property
    def cpu_bytes(self) -> int:
        """Bytes of memory that the experts on the CPU take."""
        return self._cpu_share("cpu_bytes")

    @property
    def fits(self) -> bool:
        """Whether the GPU has room for its part and the cells."""
        need = self.need
        return need.fixed + self.cells * need.cell <= self.gpu_free

    @property
    def gpu_read(self) -> float:
        """Bytes of weights that the GPU reads for a token."""
        kept = [each for each in self.sizes.layers if each.layer not in self.cpu_layers]
        idle = sum(each.gpu_bytes * (1 - each.share) for each in kept)
        return self.need.weights - self.sizes.looked_up - idle

    @property
    def cpu_read(self) -> float:
        """Bytes of weights that the CPU reads for a token."""
        return sum(each.cpu_bytes * each.share for each in self.sizes.layers if each.layer in self.cpu_layers)

    @property
    def most_tokens_per_second(self) -> float | None:
        """What the bandwidths of both sides allow one sequence at an empty context; None if not known."""
        speeds = self.speeds
        if not speeds.gpu or (self.cpu_layers and not speeds.cpu):
            return None
        seconds = self.gpu_read / speeds.gpu + HOP_SECONDS * len(self.cpu_layers)
        return 1 / (seconds + (self.cpu_read / speeds.cpu if self.cpu_layers else 0.0))

    def as_data(self) -> dict[str, object]:
        """The plan as plain data, for JSON."""
        need = self.need
        return {
            "cpu_layers": list(self.cpu_layers),
            "expert_layers": [each.layer for each in self.sizes.layers],
            "cells": self.cells,
            "gpu": {
                "free": self.gpu_free,
                "weights": need.weights,
                "cells": self.cells * need.cell,
                "work": need.states + need.work,
                "read_per_token": int(self.gpu_read),
                "bytes_per_second": self.speeds.gpu or None,
            },
            "cpu": {
                "weights": self.cpu_bytes,
                "read_per_token": int(self.cpu_read),
                "bytes_per_second": self.speeds.cpu or None,
            },
            "most_tokens_per_second": self.most_tokens_per_second,
        }

    @property
    def rows(self) -> list[tuple[str, str, int, int | None]]:
        """What is where: its bytes, and those of weights that a token reads there."""
        need, layers = self.need, self.sizes.layers
        kept = [each for each in layers if each.layer not in self.cpu_layers]
        found: list[tuple[str, str, int, int | None]] = []
        mine, read = sum(each.gpu_bytes for each in kept), sum(each.gpu_bytes * each.share for each in kept)
        rest = "weights" if not layers else "weights beside experts"
        found.append((rest, "GPU", need.weights - mine, int(self.gpu_read - read)))
        if kept:
            found.append((_named(kept), "GPU", mine, int(read)))
        if self.cpu_layers:
            moved = [each for each in layers if each.layer in self.cpu_layers]
            found.append((_named(moved), "CPU", self.cpu_bytes, int(self.cpu_read)))
        found.append((f"KV cache of {self.cells:,} cells", "GPU", self.cells * need.cell, None))
        found.append(("working memory", "GPU", need.states + need.work, None))
        return found

    @property
    def summary(self) -> str:
        """What the GPU needs of what is free, and what the bandwidths allow, where they are known."""
        need, most = self.need, self.most_tokens_per_second
        taken = size(need.fixed + self.cells * need.cell)
        words = f"{taken} of {size(self.gpu_free)} of GPU memory"
        if not self.fits:
            return f"{words}: it does not fit"
        if most is None:
            return words
        sides = [f"GPU {self.speeds.gpu / 1e9:,.0f} GB/s"]
        sides += [f"CPU {self.speeds.cpu / 1e9:,.0f} GB/s"] if self.cpu_layers else []
        return f"{words}; at most {most:,.1f} tokens a second by bandwidth ({', '.join(sides)})"

    def __str__(self) -> str:
        lines = [
            f"{where}: {what}, {size(nbytes)}"
            + ("" if read is None else f", of which a token reads {size(read)}")
            for what, where, nbytes, read in self.rows
        ]
        return "\n".join([*lines, self.summary])

    def _cpu_share(self, side: str) -> int:
        return sum(getattr(each, side) for each in self.sizes.layers if each.layer in self.cpu_layers)


def plan_placement(
    sizes: Sizes, choice: Choice | None, cells: int, gpu_free: int, speeds: Speeds | None = None
) -> DevicePlan:
    """The plan for so many cells and bytes that are free on the GPU; raises where it cannot be.

    `choice` is the option `experts`: "auto" puts those of as few layers on the CPU as will do, the first;
    None puts none there, "cpu" all, a number those of so many layers, and patterns those whose tensors they
    name. What the GPU cannot hold even so is refused with the numbers, before anything is loaded.
    """
    plan = DevicePlan(sizes, (), cells, gpu_free, speeds or Speeds())
    if choice is None:
        return plan
    if not sizes.layers:
        raise InvalidRequest(
            "experts= places a model's experts, and this one has none; a GPU takes it as a whole, or "
            "device='cpu' runs it",
            param="experts",
            value=choice,
        )
    if choice != AUTO:
        return _check_fits(replace(plan, cpu_layers=_chosen(sizes, choice)), choice)
    found = plan
    for each in sizes.layers:
        if found.fits:
            return found
        found = replace(found, cpu_layers=(*found.cpu_layers, each.layer))
    return _check_fits(found, choice)


def _chosen(sizes: Sizes, choice: Choice) -> tuple[int, ...]:
    """The layers whose experts a caller wants on the CPU."""
    layers = tuple(each.layer for each in sizes.layers)
    if choice == CPU:
        return layers
    if isinstance(choice, int):
        if choice > len(layers):
            raise InvalidRequest(
                f"experts={choice}: {len(layers)} layers of this model have experts",
                param="experts",
                value=choice,
            )
        return layers[:choice]
    patterns = [choice] if isinstance(choice, str) else list(choice)
    found: set[int] = set()
    for pattern in patterns:
        mine = {each.layer for each in sizes.layers if any(fnmatchcase(n, pattern) for n in each.tensors)}
        if not mine:
            is_other = any(fnmatchcase(name, pattern) for name in sizes.names)
            why = "names tensors that stay on the GPU" if is_other else "names no tensor of this model"
            raise InvalidRequest(
                f"the pattern {pattern!r:.100} of experts= {why}; experts are {sizes.layers[0].tensors[0]!r} "
                f"and the like, in {len(layers)} layers",
                param="experts",
                value=choice,
            )
        found |= mine
    return tuple(sorted(found))


def _check_fits(plan: DevicePlan, choice: Choice) -> DevicePlan:
    if plan.fits:
        return plan
    need, more = plan.need, len(plan.sizes.layers) - len(plan.cpu_layers)
    remedy = "; ask for fewer cells or kv='q8', or for device='cpu'"
    if more:
        remedy = f"; the experts of {more} more layers could be on the CPU: experts='auto'"
    raise ModelError(
        f"with the experts of {len(plan.cpu_layers)} of {len(plan.sizes.layers)} layers on the CPU "
        f"({size(plan.cpu_bytes)}), the GPU has to hold {size(need.weights)} of weights, "
        f"{size(plan.cells * need.cell)} for {plan.cells:,} cells and "
        f"{size(need.states + need.work)} to work with, and {size(plan.gpu_free)} are free{remedy}",
        path=need.path,
    )


def _named(layers: Sequence[LayerExperts]) -> str:
    return f"experts of layer{'s' * (len(layers) > 1)} {_ranges([each.layer for each in layers])}"


def _ranges(numbers: Sequence[int]) -> str:
    """As "0-3, 7"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)

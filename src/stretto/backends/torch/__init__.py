"""Models on GPUs: weights and cells on the device, kernels in Triton, products in one order of sums."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from stretto.errors import wrong_value
from stretto.hardware.gpus import cuda_devices

if TYPE_CHECKING:
    from stretto.backends.base import BackendOptions
    from stretto.backends.placement import Speeds
    from stretto.backends.torch.backend import TorchBackend
    from stretto.models.spec import ModelSpec
    from stretto.weights.gguf import GGUF


def open_torch(file: GGUF, spec: ModelSpec, options: BackendOptions) -> TorchBackend:
    """A model on a GPU, or for tests on the CPU; imports torch."""
    from stretto.backends.placement import Sizes, plan_placement
    from stretto.backends.torch.device import check_cache_type, open_device
    from stretto.backends.torch.planes import KINDS
    from stretto.models import read_spec

    device = open_device(options.device)
    if options.kv not in KINDS:
        raise wrong_value("kv", options.kv, f"one of {', '.join(KINDS)}")
    check_cache_type(options.kv, device)
    # Cells of encoders stay for one pass: float32 would save nothing, and its products are slow.
    kv = "f16" if spec.is_encoder and options.precision == "standard" else options.kv
    from stretto.backends.torch.backend import TorchBackend
    from stretto.backends.torch.host_experts import open_host_experts
    from stretto.backends.torch.memory import choose_cells, device_memory, find_room, is_wide

    cells, n_slots = options.cells, options.n_slots(4 * spec.state_floats)
    placement = None
    if options.device != "cpu" or options.places:
        wide = is_wide(file, options.precision, options.device)
        sizes = Sizes.of(file, spec, kv=kv, wide=wide, n_slots=n_slots)
        free = find_room(options.device, options.beside, options.gpu_memory)
        placement = plan_placement(sizes, options.experts, cells, free, find_speeds(options))
        cells = choose_cells("auto" if options.auto_cells else cells, placement.need, free)
        placement = replace(placement, cells=cells)
    if options.auto_cells:  # some models scale positions by the length that there is room for
        spec = read_spec(file, cells)
    what = f"loading {file.path.name} with {cells:,} cells"
    with device_memory(what, options.device), ExitStack() as opened:
        experts = None
        if placement is not None and placement.cpu_layers:
            experts = open_host_experts(file, spec, placement.cpu_layers, device, options)
            opened.callback(experts.close)
        backend = TorchBackend(
            file,
            spec,
            cells,
            options.device,
            kv,
            options.precision,
            n_slots,
            options.exact,
            placement if options.places else None,
            experts,
        )
        opened.pop_all()
        return backend


def find_speeds(options: BackendOptions) -> Speeds:
    """What both sides read a second, as far as it is known without measuring."""
    from stretto.backends.placement import Speeds

    devices = cuda_devices() if options.device != "cpu" else ()
    return Speeds(devices[0].bandwidth if devices else 0.0, options.cpu_speed)

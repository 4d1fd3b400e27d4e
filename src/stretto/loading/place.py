"""`plan_file`: what would be on a GPU and what on the CPU, before a model is loaded."""

from __future__ import annotations

from stretto.backends.placement import DevicePlan, Sizes, Speeds, plan_placement
from stretto.errors import InvalidRequest
from stretto.hardware.gpus import cuda_devices, find
from stretto.loading.open import make_setup, read_cpu_speed
from stretto.models.spec import ModelSpec
from stretto.options.loading import LoadOptions
from stretto.weights.gguf import GGUF

__all__ = ["DevicePlan", "plan_file"]


def plan_file(
    file: GGUF, spec: ModelSpec, options: LoadOptions, gpu_bandwidth: float = 0.0, cpu_bandwidth: float = 0.0
) -> DevicePlan:
    """The plan for an open file. Bandwidths are in bytes a second; those that are 0 are found here.

    Without a GPU, `options.gpu_memory` says how large it would be. Experts of as few layers as will do are on
    the CPU, unless `options.experts` says which.
    """
    devices, known = cuda_devices(), find()
    free = known[0].memory_free if known else None
    if free is None and options.gpu_memory is None:
        raise InvalidRequest(
            "no GPU is visible here; say with gpu_memory how much memory it would have", param="gpu_memory"
        )
    room = min(each for each in (free, options.gpu_memory) if each is not None)
    n_slots = make_setup(options, "cuda").n_slots(4 * spec.state_floats)
    sizes = Sizes.of(file, spec, kv=options.kv, n_slots=n_slots)
    choice = options.chosen_experts
    if choice is None and sizes.layers:
        choice = "auto"
    gpu = gpu_bandwidth or (devices[0].bandwidth if devices else 0.0)
    cpu = cpu_bandwidth or read_cpu_speed(measure=True)
    return plan_placement(sizes, choice, options.n_cells, room, Speeds(gpu, cpu))

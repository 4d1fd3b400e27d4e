"""Models on GPUs: weights and cells on the device, kernels in Triton, products in one order of sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stretto.errors import InvalidRequest

if TYPE_CHECKING:
    from stretto.backends.registry import BackendOptions
    from stretto.backends.torch.backend import TorchBackend
    from stretto.models.spec import ModelSpec
    from stretto.weights.gguf import GGUF


def open_torch(file: GGUF, spec: ModelSpec, options: BackendOptions) -> TorchBackend:
    """A model on a GPU, or for tests on the CPU; imports torch."""
    from stretto.backends.torch.device import open_device
    from stretto.backends.torch.planes import KINDS

    open_device(options.device)
    if options.kv not in KINDS:
        raise InvalidRequest(
            f"kv must be one of {', '.join(KINDS)}, not {options.kv!r}", param="kv", value=options.kv
        )
    from stretto.backends.torch.backend import TorchBackend

    return TorchBackend(
        file,
        spec,
        options.cells,
        options.device,
        options.kv,
        options.precision,
        options.n_slots(4 * spec.state_floats),
        options.exact,
    )

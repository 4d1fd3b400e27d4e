"""Models on GPUs: weights and cells on the device, kernels in Triton, products in one order of sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stretto.errors import wrong_value

if TYPE_CHECKING:
    from stretto.backends.base import BackendOptions
    from stretto.backends.torch.backend import TorchBackend
    from stretto.models.spec import ModelSpec
    from stretto.weights.gguf import GGUF


def open_torch(file: GGUF, spec: ModelSpec, options: BackendOptions) -> TorchBackend:
    """A model on a GPU, or for tests on the CPU; imports torch."""
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
    from stretto.backends.torch.memory import Need, device_memory, fit_cells, is_wide

    cells, n_slots = options.cells, options.n_slots(4 * spec.state_floats)
    if options.device != "cpu":
        wide = is_wide(file, options.precision, options.device)
        need = Need.of(file, spec, kv=kv, wide=wide, n_slots=n_slots)
        cells = fit_cells("auto" if options.auto_cells else cells, need, options.device, options.beside)
    if options.auto_cells:  # some models scale positions by the length that there is room for
        spec = read_spec(file, cells)
    with device_memory(f"loading {file.path.name} with {cells:,} cells", options.device):
        return TorchBackend(file, spec, cells, options.device, kv, options.precision, n_slots, options.exact)

"""The options that a backend opens a model with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# Devices with ONNX Runtime's execution providers, and the packages that have these.
PROVIDERS: Mapping[str, tuple[str, str]] = {
    "cpu": ("CPUExecutionProvider", "onnxruntime"),
    "cuda": ("CUDAExecutionProvider", "onnxruntime-gpu"),
    "tensorrt": ("TensorrtExecutionProvider", "onnxruntime-gpu, with TensorRT's own libraries"),
    "tensorrt-rtx": ("NvTensorRTRTXExecutionProvider", "onnxruntime-trt-rtx"),
    "migraphx": ("MIGraphXExecutionProvider", "onnxruntime-migraphx"),
    "openvino": ("OpenVINOExecutionProvider", "onnxruntime-openvino"),
    "coreml": ("CoreMLExecutionProvider", "onnxruntime on macOS"),
    "directml": ("DmlExecutionProvider", "onnxruntime-directml on Windows"),
    "qnn": ("QNNExecutionProvider", "onnxruntime-qnn"),
    "webgpu": ("WebGpuExecutionProvider", "onnxruntime-webgpu"),
    "cann": ("CANNExecutionProvider", "onnxruntime-cann"),
    "vitisai": ("VitisAIExecutionProvider", "onnxruntime-vitisai"),
    "dnnl": ("DnnlExecutionProvider", "an onnxruntime built with --use_dnnl"),
    "xnnpack": ("XnnpackExecutionProvider", "an onnxruntime built with --use_xnnpack"),
}
AUTOMATIC = ("cuda", "cpu")  # of them that "auto" tries, in order; the others round differently or are rare


@dataclass(frozen=True)
class BackendOptions:
    """The checked options of `stretto.load`; a factory raises `Unsupported` for those it lacks."""

    device: str  # one of those that the backend serves
    cells: int
    threads: int
    kv: str = "f16"
    precision: str = "standard"
    repack: bool | str = "auto"  # whether weights are packed in memory; "auto": if there is enough of it
    sequences: int = 80  # of a model with recurrent layers, that have a state at the same time
    checkpoint_bytes: int = 512 << 20  # of states beside those
    exact: bool = True  # same bits whatever the batch; False: the fastest kernels of a GPU
    memory: int | None = field(default=None, compare=False)  # bytes that are free, where that is known
    auto_cells: bool = False  # a GPU has as many cells as fit, and others `cells`
    beside: int = 0  # bytes that an image encoder will take on the same GPU

    def n_slots(self, slot_bytes: int) -> int:
        """How many slots a model with recurrent layers gets, whose states take so many bytes each.

        >>> BackendOptions("cpu", 8192, 2).n_slots(19 << 20)
        106
        """
        return self.sequences + self.checkpoint_bytes // slot_bytes if slot_bytes else 0

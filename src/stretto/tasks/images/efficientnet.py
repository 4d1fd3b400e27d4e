"""EfficientNet-Lite0: 1,000 classes of ImageNet, from a checkpoint of PyTorch.

The graph is built here from the architecture's table, with the batch normalisations folded into the
convolutions before them. Images are prepared as the model was trained: bicubic, 256 pixels for the shorter
edge, the middle 224 × 224, (value − 127) ÷ 128.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import ModelError
from stretto.tasks.images.base import Classifier
from stretto.tasks.images.graph import GraphBuilder, open_graph
from stretto.tasks.images.prepare import Preparation
from stretto.tasks.model import Source, TaskModel
from stretto.weights.torch_file import read_torch

EDGE = 224
EPSILON = 1e-3
# Stages: repeats, kernel, stride, expansion, channels in and out.
STAGES = (
    (1, 3, 1, 1, 32, 16),
    (2, 3, 2, 6, 16, 24),
    (2, 5, 2, 6, 24, 40),
    (3, 3, 2, 6, 40, 80),
    (3, 5, 1, 6, 80, 112),
    (4, 5, 2, 6, 112, 192),
    (1, 3, 1, 6, 192, 320),
)
PREPARATION = Preparation(
    width=EDGE,
    height=EDGE,
    fit="crop",
    edge=256,
    filter="bicubic",
    scale=1.0,
    mean=(127.0, 127.0, 127.0),
    std=(128.0, 128.0, 128.0),
)

Weights = Mapping[str, NDArray[Any]]


def open_task(source: Source, device: str, threads: int | None) -> TaskModel:
    """The model from its checkpoint and the names of its classes."""
    files = source.files
    graph = build(read_torch(files["efficientnet-lite0.pth"]), files["efficientnet-lite0.pth"])
    labels = read_labels(files["synsets.txt"], files["lemmas.txt"])
    session = open_graph(graph, device, threads)
    return Classifier(source, session, PREPARATION, labels)


def read_labels(synsets: Path, lemmas: Path) -> list[str]:
    """The classes' names in their order: WordNet's words for each synset."""
    words = dict(line.split("\t", 1) for line in lemmas.read_text("utf-8").splitlines())
    numbers = synsets.read_text("utf-8").split()
    names = [words[number] for number in numbers]
    # Two classes are both a crane, a bird and a machine.
    return [
        f"{name} ({number})" if names.count(name) > 1 else name
        for name, number in zip(names, numbers, strict=True)
    ]


def build(weights: Weights, path: Path) -> bytes:
    """The model in ONNX format."""
    network = _Network(weights, path)
    made = network.convolution("pixels", "_conv_stem", "_bn0", stride=2)
    number = 0
    for repeats, _, stride, expansion, channels, out in STAGES:
        for repeat in range(repeats):
            made = network.block(
                made,
                f"_blocks.{number}.",
                stride=stride if repeat == 0 else 1,
                expanded=(channels if repeat == 0 else out) * expansion if expansion > 1 else None,
                channels=channels if repeat == 0 else out,
                skip=repeat > 0,
            )
            number += 1
    made = network.convolution(made, "_conv_head", "_bn1")
    graph = network.graph
    flat = graph.add("Flatten", graph.add("GlobalAveragePool", made))
    classes = [graph.constant(network.tensor(name), name) for name in ("_fc.weight", "_fc.bias")]
    graph.add("Softmax", graph.add("Gemm", flat, *classes, transB=1), output="scores", axis=-1)
    return graph.build({"pixels": ["n", 3, EDGE, EDGE]}, {"scores": ["n", len(network.tensor("_fc.bias"))]})


class _Network:
    """Adds convolutions to a graph, by the names of their tensors in the checkpoint."""

    def __init__(self, weights: Weights, path: Path) -> None:
        self._weights = weights
        self._path = path
        self.graph = GraphBuilder("efficientnet-lite0", opset=17)

    def tensor(self, name: str) -> NDArray[np.float32]:
        found = self._weights.get(name)
        if found is None:
            raise ModelError("lacks this tensor; it is no EfficientNet-Lite0", path=self._path, field=name)
        return found.astype(np.float32)

    def block(
        self, made: str, prefix: str, *, stride: int, expanded: int | None, channels: int, skip: bool
    ) -> str:
        """Expand, filter each channel by itself, project; with what came in added, where it is."""
        inner = made
        if expanded is not None:
            inner = self.convolution(inner, f"{prefix}_expand_conv", f"{prefix}_bn0")
        inner = self.convolution(
            inner, f"{prefix}_depthwise_conv", f"{prefix}_bn1", stride=stride, groups=expanded or channels
        )
        inner = self.convolution(inner, f"{prefix}_project_conv", f"{prefix}_bn2", clip=False)
        return self.graph.add("Add", made, inner) if skip else inner

    def convolution(
        self, made: str, name: str, norm: str, *, stride: int = 1, groups: int = 1, clip: bool = True
    ) -> str:
        """A convolution with its batch normalisation folded in, clipped from 0 to 6."""
        kernel = self.tensor(f"{name}.weight")
        gain = self.tensor(f"{norm}.weight") / np.sqrt(self.tensor(f"{norm}.running_var") + EPSILON)
        bias = self.tensor(f"{norm}.bias") - self.tensor(f"{norm}.running_mean") * gain
        graph = self.graph
        filtered = graph.add(
            "Conv",
            made,
            graph.constant(kernel * gain[:, None, None, None], f"{name}.weight"),
            graph.constant(bias, f"{name}.bias"),
            strides=[stride, stride],
            group=groups,
            auto_pad="SAME_UPPER",
            kernel_shape=list(kernel.shape[2:]),
        )
        return graph.clip(filtered) if clip else filtered

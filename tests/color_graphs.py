"""Small ONNX graphs that see colours: classifiers, masks, and detectors with the heads of the YOLO family.

A cell of a detector is as sure of a colour as its pixels have of it on average, halved for the smaller
cells, so that a square of one colour that fills a cell of 32 × 32 pixels is found once.
"""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

STRIDES = (8, 16, 32)
COLORS = ("red", "green", "blue")
NAMES = "{0: 'red', 1: 'green', 2: 'blue'}"


class Graph:
    def __init__(self):
        self.nodes, self.constants = [], []

    def constant(self, values, kind=np.float32):
        name = f"constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, kind), name))
        return name

    def add(self, operator, *inputs, output=None, **attributes):
        output = output or f"value{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def save(self, path, inputs, outputs, metadata=None, made=TensorProto.FLOAT):
        graph = helper.make_graph(
            self.nodes,
            "colors",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
            [helper.make_tensor_value_info(name, made, shape) for name, shape in outputs.items()],
            self.constants,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        helper.set_model_props(model, metadata or {})
        path.write_bytes(model.SerializeToString())
        return path


def cells(width, height):
    """Corners and sizes of the cells, as [n, 2] and [n, 1]."""
    grids = [
        np.stack(np.meshgrid(np.arange(0, width, step), np.arange(0, height, step)), -1).reshape(-1, 2)
        for step in STRIDES
    ]
    return np.concatenate(grids), np.concatenate(
        [np.full((len(g), 1), s) for g, s in zip(grids, STRIDES, strict=True)]
    )


def shares(graph, width, height, scale):
    """[1, n, 3]: the colours of each cell, from 0 to 1; those of smaller cells halved."""
    pooled = []
    for step in STRIDES:
        mean = graph.add("AveragePool", "images", kernel_shape=[step, step], strides=[step, step])
        pooled.append(graph.add("Reshape", mean, graph.constant([0, 3, -1], np.int64)))
    rows = graph.add("Transpose", graph.add("Concat", *pooled, axis=2), perm=[0, 2, 1])
    sizes = cells(width, height)[1]
    return graph.add("Mul", rows, graph.constant(np.where(sizes == 32, scale, scale / 2)))


def detector(path, head, width=320, height=320, *, metadata=None, dynamic=False, boxes=None):
    """A detector with one of the heads; `metadata` names its classes unless it says otherwise."""
    graph = Graph()
    corners, sizes = cells(width, height)
    n = len(corners)
    centres = np.concatenate((corners + sizes / 2, sizes, sizes), axis=1)
    if head == "yolov8":
        scores = shares(graph, width, height, 1)
        # As many times as there are images.
        count = graph.add(
            "Slice", graph.add("Shape", scores), graph.constant([0], np.int64), graph.constant([1], np.int64)
        )
        tiled = graph.add(
            "Tile",
            graph.constant(centres[None]),
            graph.add("Concat", count, graph.constant([1, 1], np.int64), axis=0),
        )
        rows = graph.add("Concat", tiled, scores, axis=2)
        graph.add("Transpose", rows, output="output0", perm=[0, 2, 1])
        shape = [1, 7, n]
    elif head == "yolox":
        raw = np.concatenate((np.full((n, 2), 0.5), np.zeros((n, 2)), np.ones((n, 1))), axis=1)
        raw[:, :4] = raw[:, :4] if boxes is None else boxes
        scores = shares(graph, width, height, 1 / 255)
        graph.add("Concat", graph.constant(raw[None]), scores, axis=2, output="output0")
        shape = [1, n, 8]
    else:  # yolov5: three boxes for each cell, of which the first is the best
        scores = shares(graph, width, height, 1)
        parts = []
        for sure in (1.0, 0.9, 0.8):
            rows = np.concatenate((centres, np.full((n, 1), sure)), axis=1)
            parts.append(graph.add("Concat", graph.constant(rows[None]), scores, axis=2))
        graph.add("Concat", *parts, axis=1, output="output0")
        shape = [1, 3 * n, 8]
    size = ["n", 3, "height", "width"] if dynamic else [1, 3, height, width]
    names = {"names": NAMES} if metadata is None else metadata
    return graph.save(path, {"images": size}, {"output0": ["n", "a", "b"] if dynamic else shape}, names)


def constants(path, outputs, *, width=320, height=320, metadata=None):
    """A detector that finds the same in every image."""
    graph = Graph()
    shapes = {}
    for name, values in outputs.items():
        array = np.asarray(values, np.float32)
        graph.add("Identity", graph.constant(array), output=name)
        shapes[name] = list(array.shape)
    return graph.save(path, {"images": [1, 3, height, width]}, shapes, metadata)


def classifier(path, batch="n", size=(8, 8)):
    """The mean of each channel."""
    graph = Graph()
    graph.add("Flatten", graph.add("GlobalAveragePool", "images"), output="means")
    return graph.save(path, {"images": [batch, 3, *size]}, {"means": [batch, 3]})


def mask(path, size=16):
    """The first channel."""
    graph = Graph()
    first = [graph.constant([value], np.int64) for value in (0, 1, 1)]
    graph.add("Slice", "images", *first, output="mask")
    return graph.save(path, {"images": [1, 3, size, size]}, {"mask": [1, 1, size, size]})


def square(width, height, box, color):
    """A black image with a square of one colour."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[box[1] : box[3], box[0] : box[2], COLORS.index(color)] = 255
    return pixels

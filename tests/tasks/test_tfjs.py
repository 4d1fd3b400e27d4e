"""Graph models of TensorFlow.js become ONNX graphs that compute the same."""

import base64
import json

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from stretto.errors import ModelError
from stretto.tasks.images.graph import open_graph
from stretto.tasks.images.tfjs import convert

RNG = np.random.default_rng(5)


def text(value):
    return {"s": base64.b64encode(value.encode()).decode()}


def integers(*values):
    return {"list": {"i": [str(value) for value in values]}}


class Model:
    """Nodes and weights in the form of TensorFlow.js."""

    def __init__(self, height=9, width=8, channels=3):
        sizes = [{"size": str(size)} for size in (-1, height, width, channels)]
        self.nodes = [{"name": "x", "op": "Placeholder", "attr": {"shape": {"shape": {"dim": sizes}}}}]
        self.weights, self.data = [], b""

    def constant(self, name, values, quantization=None):
        array = np.asarray(values)
        kind = {"f": "float32", "i": "int32"}[array.dtype.kind]
        entry = {"name": name, "shape": list(array.shape), "dtype": kind}
        if quantization == "float16":
            entry["quantization"], array = {"dtype": "float16", "original_dtype": kind}, array.astype("<f2")
        elif quantization == "uint8":
            low, scale = float(array.min()), float(np.ptp(array)) / 255
            entry["quantization"] = {"dtype": "uint8", "min": low, "scale": scale}
            array = np.rint((array - low) / scale).astype(np.uint8)
        else:
            array = array.astype({"float32": "<f4", "int32": "<i4"}[kind])
        self.nodes.append({"name": name, "op": "Const"})
        self.weights.append(entry)
        self.data += array.tobytes()

    def add(self, name, operator, *inputs, **attributes):
        self.nodes.append({"name": name, "op": operator, "input": list(inputs), "attr": attributes})

    def save(self, folder):
        topology, weights = folder / "m.json", folder / "m.bin"
        made = {"modelTopology": {"node": self.nodes}, "weightsManifest": [{"weights": self.weights}]}
        topology.write_text(json.dumps(made))
        weights.write_bytes(self.data)
        return topology, weights

    def run(self, folder, x, output):
        session = open_graph(convert(*self.save(folder), [output]), "cpu", 1)
        return session.run({"x": x[None].astype(np.float32)})[output][0]


def slow_convolution(x, kernel, stride, same):
    """The definition; kernel [height, width, in, out]."""
    rows, columns = kernel.shape[:2]
    if same:
        height, width = -(-x.shape[0] // stride), -(-x.shape[1] // stride)
        down = max((height - 1) * stride + rows - x.shape[0], 0)
        across = max((width - 1) * stride + columns - x.shape[1], 0)
        x = np.pad(x, ((down // 2, down - down // 2), (across // 2, across - across // 2), (0, 0)))
    else:
        height, width = (x.shape[0] - rows) // stride + 1, (x.shape[1] - columns) // stride + 1
    made = np.empty((height, width, kernel.shape[3]))
    for i in range(height):
        for j in range(width):
            part = x[i * stride : i * stride + rows, j * stride : j * stride + columns]
            made[i, j] = np.einsum("abc,abcd->d", part, kernel)
    return made


@pytest.mark.parametrize(("padding", "stride"), [("SAME", 1), ("SAME", 2), ("VALID", 2)])
def test_convolutions(tmp_path, padding, stride):
    x, kernel, bias = RNG.normal(size=(9, 8, 3)), RNG.normal(size=(3, 3, 3, 5)), RNG.normal(size=5)
    model = Model()
    model.constant("w", kernel)
    model.constant("b", bias)
    settings = {"strides": integers(1, stride, stride, 1), "padding": text(padding)}
    fused = {"fused_ops": {"list": {"s": [text(name)["s"] for name in ("BiasAdd", "Relu6")]}}}
    model.add("y", "_FusedConv2D", "x", "w", "b", **settings, **fused)
    wanted = np.clip(slow_convolution(x, kernel, stride, padding == "SAME") + bias, 0, 6)
    assert model.run(tmp_path, x, "y") == pytest.approx(wanted, abs=1e-4)


def test_convolutions_of_each_channel(tmp_path):
    x, kernel = RNG.normal(size=(9, 8, 3)), RNG.normal(size=(3, 3, 3, 1))
    model = Model()
    model.constant("w", kernel)
    settings = {"strides": integers(1, 1, 1, 1), "padding": text("SAME"), "dilations": integers(1, 1, 1, 1)}
    model.add("y", "DepthwiseConv2dNative", "x", "w", **settings)
    wanted = [slow_convolution(x[:, :, k : k + 1], kernel[:, :, k : k + 1], 1, True) for k in range(3)]
    assert model.run(tmp_path, x, "y") == pytest.approx(np.concatenate(wanted, axis=2), abs=1e-4)


def test_other_operators(tmp_path):
    x = RNG.normal(size=(9, 8, 3))
    model = Model()
    model.constant("axes", np.array([1, 2]))
    model.constant("axis", np.array(3))
    model.constant("half", np.full(3, 0.5), "float16")
    model.constant("size", np.array([18, 16]))
    model.add("m", "Mean", "x", "axes", keep_dims={"b": True})
    model.add("s", "Sub", "x", "m")
    model.add("a", "AddV2", "s:0", "half", "^x")
    model.add("r", "Relu", "a")
    model.add("c", "ConcatV2", "r", "x", "axis")
    model.add(
        "p", "MaxPool", "c", ksize=integers(1, 3, 3, 1), strides=integers(1, 1, 1, 1), padding=text("SAME")
    )
    model.add("z", "ResizeBilinear", "p", "size")
    model.add("unknown", "TopKV2", "z", "size")  # no output needs it
    made = np.concatenate((np.maximum(x - x.mean((0, 1)) + 0.5, 0), x), axis=2)
    padded = np.pad(made, ((1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    pooled = np.max([padded[i : i + 9, j : j + 8] for i in range(3) for j in range(3)], axis=0)
    result = model.run(tmp_path, x, "z")
    assert result.shape == (18, 16, 6)
    assert result[::2, ::2] == pytest.approx(pooled, abs=1e-3)


def test_weights_of_eight_bits(tmp_path):
    values = RNG.normal(size=3)
    model = Model()
    model.constant("w", values, "uint8")
    model.add("y", "Mul", "x", "w")
    x = np.ones((9, 8, 3))
    assert model.run(tmp_path, x, "y")[0, 0] == pytest.approx(values, abs=0.01)


def broken(tmp_path, change):
    model = Model()
    model.constant("w", np.ones(3))
    model.add("y", "Mul", "x", "w")
    change(model)
    with pytest.raises(ModelError) as error:
        convert(*model.save(tmp_path), ["y"])
    return str(error.value)


def test_damaged_models_are_refused(tmp_path):
    assert "reaches beyond the file" in broken(tmp_path, lambda model: setattr(model, "data", b"12"))
    assert "'Magic' is not known" in broken(tmp_path, lambda model: model.nodes[-1].update(op="Magic"))
    assert "needs itself" in broken(tmp_path, lambda model: model.nodes[-1].update(input=["x", "y"]))
    assert "no graph model" in broken(tmp_path, lambda model: model.nodes[-1].update(input=["x", "none"]))
    assert "no graph model" in broken(tmp_path, lambda model: model.weights[0].update(shape=[-1, 3]))
    assert "no graph model" in broken(tmp_path, lambda model: model.weights[0].update(dtype="object"))
    (tmp_path / "m.json").write_text("{")
    with pytest.raises(ModelError, match="no graph model"):
        convert(tmp_path / "m.json", tmp_path / "m.bin", ["y"])

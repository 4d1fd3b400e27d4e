"""A BERT folder as an ONNX graph, float32 with standard operators, or matrices in blocks of 8 bits."""

import json
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper
from safetensors.numpy import load_file

KINDS = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "uint8": TensorProto.UINT8}
BLOCK = 32
INPUTS = "input_ids", "attention_mask", "token_type_ids"


class Graph:
    """Nodes and constants; each method adds one and returns its name."""

    def __init__(self, weights, eps, is_quantized):
        self.weights, self.eps, self.is_quantized = weights, eps, is_quantized
        self.nodes, self.constants = [], []

    def constant(self, name, array):
        kind = KINDS[array.dtype.name]
        raw = np.ascontiguousarray(array).tobytes()
        self.constants.append(TensorProto(name=name, data_type=kind, dims=array.shape, raw_data=raw))
        return name

    def add(self, kind, inputs, name, **attributes):
        self.nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def linear(self, x, name):
        bias = self.constant(f"{name}.bias", self.weights[f"{name}.bias"])
        return self.add("Add", [self.product(x, name), bias], f"{name}.out")

    def product(self, x, name):
        matrix, out = self.weights[f"{name}.weight"], f"{name}.product"
        if not self.is_quantized:
            return self.add("MatMul", [x, self.constant(f"{name}.matrix", matrix.T)], out)
        rows, columns = matrix.shape
        blocks = matrix.reshape(rows, -1, BLOCK)
        scales = np.abs(blocks).max(-1) / 127
        quants = (np.rint(blocks / np.maximum(scales, 1e-12)[..., None]) + 128).astype(np.uint8)
        constants = self.constant(f"{name}.quants", quants), self.constant(f"{name}.scales", scales)
        sizes = {"K": columns, "N": rows, "bits": 8, "block_size": BLOCK, "accuracy_level": 4}
        return self.add("MatMulNBits", [x, *constants], out, domain="com.microsoft", **sizes)

    def norm(self, x, name, out):
        parts = [
            self.constant(f"{name}.{kind}", self.weights[f"{name}.{kind}"]) for kind in ("weight", "bias")
        ]
        return self.add("LayerNormalization", [x, *parts], out, axis=-1, epsilon=self.eps)

    def table(self, name):
        return self.constant(name, self.weights[f"embeddings.{name}_embeddings.weight"])


def build(folder, is_quantized=False):
    """The graph, serialised: last_hidden_state of input_ids, attention_mask and token_type_ids."""
    config = json.loads((Path(folder) / "config.json").read_text())
    weights = load_file(Path(folder) / "model.safetensors")
    weights = {name.removeprefix("bert."): array.astype(np.float32) for name, array in weights.items()}
    g = Graph(weights, config["layer_norm_eps"], is_quantized)
    zero, one, two = (g.constant(f"number{i}", np.array([i])) for i in range(3))
    g.add("Shape", ["input_ids"], "shape")
    length = g.add("Slice", ["shape", one, two], "length")
    words = g.add("Gather", [g.table("word"), "input_ids"], "words")
    types = g.add("Gather", [g.table("token_type"), "token_type_ids"], "types")
    places = g.add("Slice", [g.table("position"), zero, length, zero], "places")
    x = g.add("Add", [g.add("Add", [words, types], "words_types"), places], "embedded")
    x = g.norm(x, "embeddings.LayerNorm", "normed")
    seen = g.add("Cast", ["attention_mask"], "seen", to=TensorProto.BOOL)
    seen = g.add("Unsqueeze", [seen, g.constant("axes", np.array([1, 2]))], "seen_wide")
    n_texts = g.add("Slice", ["shape", zero, one], "n_texts")
    mask = g.add("Expand", [seen, g.add("Concat", [n_texts, one, length, length], "sizes", axis=0)], "mask")
    heads = config["num_attention_heads"]
    for i in range(config["num_hidden_layers"]):
        name = f"encoder.layer.{i}"
        q, k, v = (g.linear(x, f"{name}.attention.self.{part}") for part in ("query", "key", "value"))
        mixed = g.add("Attention", [q, k, v, mask], f"{name}.mixed", q_num_heads=heads, kv_num_heads=heads)
        added = g.add("Add", [x, g.linear(mixed, f"{name}.attention.output.dense")], f"{name}.sum")
        x = g.norm(added, f"{name}.attention.output.LayerNorm", f"{name}.middle")
        wide = g.add("Gelu", [g.linear(x, f"{name}.intermediate.dense")], f"{name}.wide")
        added = g.add("Add", [x, g.linear(wide, f"{name}.output.dense")], f"{name}.second")
        last = i == config["num_hidden_layers"] - 1
        x = g.norm(added, f"{name}.output.LayerNorm", "last_hidden_state" if last else f"{name}.out")
    sizes = ["texts", "tokens"]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, sizes) for name in INPUTS]
    result = helper.make_tensor_value_info(x, TensorProto.FLOAT, [*sizes, config["hidden_size"]])
    graph = helper.make_graph(g.nodes, "bert", inputs, [result], g.constants)
    sets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=sets, ir_version=11)
    return model.SerializeToString()

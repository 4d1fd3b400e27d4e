"""Decoders as other tools lay them out: merged branches, few logits, other types; and other graphs."""

import json
import shutil

import numpy as np
import pytest

from stretto.backends.base import BackendOptions
from stretto.backends.batch import Batch
from stretto.cache.cells import Cells
from stretto.errors import ModelError, Unsupported

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

import onnx
from onnx import TensorProto, helper

from onnx_decoders import DATA, GENAI, expected
from stretto.backends.onnx import open_onnx
from stretto.backends.onnx_session import MERGED, import_runtime, runtime_version
from stretto.weights.onnx.folder import find_folder


@pytest.fixture
def variant(tmp_path):
    """Opens the tiny Llama with its graph changed by a function."""

    def opened(change, **config):
        model = onnx.load(str(DATA / "llama" / "model.onnx"))
        model = change(model) or model
        onnx.save(model, str(tmp_path / "model.onnx"))
        given = json.loads((DATA / "llama" / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**given, **config}))
        return open_onnx(find_folder(tmp_path), BackendOptions("cpu", 64, 1))

    return opened


def far_from_torch(model, chunks=(11, 1, 12), every=True):
    """The largest difference of logits from torch's, of all tokens or of the last of each chunk."""
    want, cells, at, worst = expected("llama"), Cells(64), 0, 0.0
    for n in chunks:
        batch = Batch()
        for i in range(at, at + n):
            batch.add(int(want["tokens"][i]), i, [0], logits=every or i == at + n - 1)
        batch.place(cells)
        rows = want["logits"][at : at + n] if every else want["logits"][at + n - 1 : at + n]
        worst = max(worst, float(np.abs(model.forward(batch) - rows).max()))
        at += n
    return worst


def pasts(graph):
    return [value for value in graph.input if value.name.startswith("past")]


def merge_branches(model):
    """Two branches, with and without a past, as older Optimum merges two decoders."""
    graph = model.graph
    inner = list(graph.node)

    def branch(tag, extra=()):
        nodes = [*extra]
        local = {name: f"{tag}.{name}" for node in inner for name in node.output}
        for value in pasts(graph) if extra else ():
            local[value.name] = f"{tag}.{value.name}"
        for number, node in enumerate(inner):
            copied = onnx.NodeProto()
            copied.CopyFrom(node)
            copied.name = f"{tag}{number}"
            copied.input[:] = [local.get(name, name) for name in node.input]
            copied.output[:] = [local[name] for name in node.output]
            nodes.append(copied)
        outputs = [helper.make_empty_tensor_value_info(local[value.name]) for value in graph.output]
        for info, value in zip(outputs, graph.output, strict=True):
            info.type.tensor_type.elem_type = value.type.tensor_type.elem_type
        return helper.make_graph(nodes, tag, [], outputs)

    empties = []
    for i, value in enumerate(pasts(graph)):
        dims = value.type.tensor_type.shape.dim
        shape = helper.make_tensor("s", TensorProto.INT64, [4], [1, dims[1].dim_value, 0, dims[3].dim_value])
        empties += [
            helper.make_node("Constant", [], [f"shape{i}"], f"c{i}", value=shape),
            helper.make_node("ConstantOfShape", [f"shape{i}"], [f"first.{value.name}"], f"e{i}"),
        ]
    both = helper.make_node(
        "If",
        ["use_cache_branch"],
        [value.name for value in graph.output],
        "merged",
        then_branch=branch("later"),
        else_branch=branch("first", empties),
    )
    del graph.node[:]
    graph.node.append(both)
    graph.input.append(helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1]))


def test_merged_decoders_take_the_branch_of_their_past(variant):
    if runtime_version(import_runtime()) < MERGED:  # which would end the process
        with pytest.raises(Unsupported, match="is a merged decoder"):
            variant(merge_branches)
        return
    model = variant(merge_branches)
    assert model.graph.branch == "use_cache_branch"
    assert far_from_torch(model) <= 1e-5


def keep_few(model):
    graph = model.graph
    for node in graph.node:
        node.output[:] = ["all_logits" if name == "logits" else name for name in node.output]
    graph.input.append(helper.make_tensor_value_info("num_logits_to_keep", TensorProto.INT64, []))
    axis = helper.make_tensor("axis", TensorProto.INT64, [1], [0])
    one = helper.make_tensor("one", TensorProto.INT64, [1], [1])
    end = helper.make_tensor("end", TensorProto.INT64, [1], [1 << 40])
    graph.initializer.extend([axis, one, end])
    graph.node.extend(
        [
            helper.make_node("Neg", ["num_logits_to_keep"], ["negative"], "neg"),
            helper.make_node("Unsqueeze", ["negative", "axis"], ["start"], "unsqueeze"),
            helper.make_node("Slice", ["all_logits", "start", "end", "one"], ["logits"], "slice"),
        ]
    )


def test_graphs_that_keep_few_logits_are_told_how_many(variant):
    model = variant(keep_few)
    assert model.graph.keep == "num_logits_to_keep"
    assert far_from_torch(model) <= 1e-5
    assert far_from_torch(model, every=False) <= 1e-5


def take_int32(model):
    graph = model.graph
    for name in ("input_ids", "attention_mask", "position_ids"):
        (value,) = (each for each in graph.input if each.name == name)
        value.type.tensor_type.elem_type = TensorProto.INT32
        for node in graph.node:
            node.input[:] = [f"{each}.64" if each == name else each for each in node.input]
        cast = helper.make_node("Cast", [name], [f"{name}.64"], f"cast.{name}", to=TensorProto.INT64)
        graph.node.insert(0, cast)


def test_integers_have_the_type_that_the_graph_says(variant):
    assert far_from_torch(variant(take_int32)) <= 1e-5


def with_input(name, kind=TensorProto.FLOAT, shape=("batch", 4)):
    def change(model):
        model.graph.input.append(helper.make_tensor_value_info(name, kind, shape))

    return change


def without_past(model):
    names = [value.name for value in pasts(model.graph)]
    for value in pasts(model.graph):
        model.graph.input.remove(value)
    for name in names:
        constant = helper.make_tensor("c", TensorProto.FLOAT, [1, 2, 0, 6], [])
        model.graph.node.insert(0, helper.make_node("Constant", [], [name], f"no.{name}", value=constant))


def of_fixed_length(model):
    pasts(model.graph)[0].type.tensor_type.shape.dim[2].dim_value = 128


def without_output(model):
    (value,) = (each for each in model.graph.output if each.name == "present.1.key")
    model.graph.output.remove(value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_input("inputs_embeds"), "it takes vectors"),
        (with_input("pixel_values"), "it takes images"),
        (with_input("encoder_hidden_states"), "encoder-decoder"),
        (with_input("past_conv.0"), "is a state that is not K or V"),
        (with_input("token_type_ids", TensorProto.INT64), "'token_type_ids' are not those of a decoder"),
        (without_past, "text-generation-with-past"),
        (of_fixed_length, "dynamic axes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_graphs_that_are_no_decoders_are_unsupported_by_name(variant, change, words):
    with pytest.raises(Unsupported, match=words):
        variant(change)


def test_broken_decoders_are_refused(variant, tmp_path):
    with pytest.raises(ModelError, match="no output belongs to it"):
        variant(without_output)
    with pytest.raises(ModelError, match=r"rope_scaling\.factor"):
        variant(lambda model: None, rope_scaling={"rope_type": "linear", "factor": -1})


def test_a_wrong_head_size_in_a_genai_config_is_found_at_the_first_token(tmp_path):
    root = tmp_path / "genai"
    shutil.copytree(DATA / GENAI, root)
    config = json.loads((root / "genai_config.json").read_text())
    config["model"]["decoder"]["head_size"] = 32
    (root / "genai_config.json").write_text(json.dumps(config))
    model = open_onnx(find_folder(root), BackendOptions("cpu", 64, 1))
    batch = Batch()
    batch.add(1, 0, [0], logits=True)
    batch.place(Cells(64))
    with pytest.raises(ModelError, match="cannot compute it"):
        model.forward(batch)


def of_unknown_width(model):
    (value,) = (each for each in model.graph.output if each.name == "logits")
    value.type.tensor_type.shape.dim[2].dim_param = "vocabulary"


def test_a_wrong_vocabulary_in_config_is_found_at_the_first_token(variant):
    assert far_from_torch(variant(of_unknown_width)) <= 1e-5
    for size in (257, 300):
        with pytest.raises(ModelError, match="cannot compute it"):
            far_from_torch(variant(of_unknown_width, vocab_size=size))


@pytest.mark.parametrize(
    ("config", "windows", "shift"),
    [
        ({}, (), True),
        ({"sliding_window": 8}, (8,), True),
        ({"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]}, (8,), True),
        ({"sliding_window": 8, "use_sliding_window": False}, (), True),
        ({"sliding_window": "8"}, None, True),
        ({"attention_chunk_size": 8}, None, True),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, (), False),
        ({"rope_theta": None, "rope_scaling": None}, (), False),
        ({"model_type": "gptj"}, (), False),
        ({"model_type": "smollm3"}, (), False),
    ],
)
def test_config_says_what_the_graph_cannot(variant, config, windows, shift):
    model = variant(lambda model: None, **config)
    assert model.decoder.windows == windows
    assert model.capabilities.shift is shift

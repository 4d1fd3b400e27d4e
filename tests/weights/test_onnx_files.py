"""The reader of ONNX files: what it finds in good ones, and what it refuses before a runtime sees it."""

import os
import random
from itertools import pairwise
from pathlib import Path
from struct import pack

import pytest

import onnx_files as made
from stretto.errors import ModelError
from stretto.weights.onnx import OnnxLimits, parse, read_onnx


@pytest.fixture
def save(tmp_path):
    def write(data, name="model.onnx"):
        path = tmp_path / "model" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    return write


def refusal(path, limits=None):
    with pytest.raises(ModelError) as caught:
        read_onnx(path, *([limits] if limits else []))
    return str(caught.value)


def test_inputs_outputs_metadata_and_operators_are_found(save):
    file = read_onnx(
        save(made.adder(metadata=[("names", "{0: 'cat'}")], opsets=[("", 18), ("com.microsoft", 1)]))
    )
    assert file.inputs["x"].shape == ("n", 2)
    assert file.inputs["x"].type == "float32"
    assert list(file.outputs) == ["y"]
    assert file.metadata == {"names": "{0: 'cat'}"}
    assert file.opsets == {"ai.onnx": 18, "com.microsoft": 1}
    assert file.operators == {"ai.onnx": {"Add": 1}}
    assert file.initializers["w"].nbytes == file.weight_bytes == 8


def test_initializers_are_no_inputs(save):
    main = made.graph(
        [made.node("Add", ["x", "w"], ["y"])],
        [made.tensor("w", [1], b"\0\0\0\0")],
        [made.value("x", [1]), made.value("w", [1])],
    )
    assert list(read_onnx(save(made.model(main))).inputs) == ["x"]


def test_a_size_of_minus_one_is_not_fixed(save):
    main = made.graph(inputs=[made.value("x", [-1, 3, None, "w"])])
    assert read_onnx(save(made.model(main))).inputs["x"].shape == (None, 3, None, "w")


def test_numbers_in_typed_lists_are_counted_packed_or_not(save):
    packed = made.message((1, [3]), (2, made.INT64), (7, b"\x01\x80\x01\x05"), (8, "w"))
    loose = made.message((1, [3]), (2, made.INT64), (7, [1, 128, 5]), (8, "w"))
    for data in (packed, loose):
        assert read_onnx(save(made.adder(data))).initializers["w"].values == (1, 128, 5)
    short = made.message((1, [4]), (2, made.INT64), (7, b"\x01\x80\x01\x05"), (8, "w"))
    assert "3 numbers, but int64[4] takes 4" in refusal(save(made.adder(short)))


def test_external_data_in_the_folder_is_found(save):
    save(bytes(40), "weights/w.bin")
    data = made.external("w", [2, 4], location="weights/w.bin", offset=8, length=32)
    file = read_onnx(save(made.adder(data)))
    place = file.initializers["w"].external
    assert (place.path.name, place.offset, place.length) == ("w.bin", 8, 32)
    assert file.external == (place.path,)


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("/etc/passwd", "the absolute path"),
        ("C:\\Windows\\win.ini", "the absolute path"),
        ("\\\\host\\share\\w", "the absolute path"),
        ("../w.bin", "leads out of the model's folder"),
        ("weights/../../w.bin", "leads out of the model's folder"),
        ("weights\\..\\..\\w.bin", "leads out of the model's folder"),
        ("", "no path"),
        ("a\0b", "no path"),
        ("x" * 5000, "no path"),
        ("*/_ORT_MEM_ADDR_/*", "is not a path of a file"),
        ("missing.bin", "is not beside the model"),
        ("weights", "a file is needed"),
    ],
)
def test_external_data_elsewhere_is_refused(save, tmp_path, location, reason):
    (tmp_path / "w.bin").write_bytes(bytes(8))
    save(bytes(8), "weights/w.bin")
    save(bytes(8), "*/_ORT_MEM_ADDR_/*")  # a folder may have a file of any name
    text = refusal(save(made.adder(made.external("w", [2], location=location))))
    assert reason in text
    assert "tensor 'w'" in text


def test_links_that_lead_out_of_the_folder_are_refused(save, tmp_path):
    (tmp_path / "secret").write_bytes(bytes(8))
    path = save(made.adder(made.external("w", [2], location="w.bin")))
    (path.parent / "w.bin").symlink_to(tmp_path / "secret")
    assert "out of the model's folder" in refusal(path)
    (path.parent / "w.bin").unlink()
    (path.parent / "w.bin").symlink_to(path.parent / "w.bin")
    assert "is not beside the model" in refusal(path)


def test_links_into_the_folder_of_the_models_own_file_are_allowed(save, tmp_path):
    blobs = tmp_path / "blobs"  # as the cache of a hub lays them out
    blobs.mkdir()
    (blobs / "1").write_bytes(made.adder(made.external("w", [2], location="w.bin")))
    (blobs / "2").write_bytes(bytes(8))
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "model.onnx").symlink_to(blobs / "1")
    (snapshot / "w.bin").symlink_to(blobs / "2")
    assert read_onnx(snapshot / "model.onnx").initializers["w"].nbytes == 8


def test_a_pipe_is_refused_and_not_opened(save):
    path = save(made.adder(made.external("w", [2], location="w.bin")))
    os.mkfifo(path.parent / "w.bin")
    assert "a file is needed" in refusal(path)
    os.mkfifo(path.parent / "pipe.onnx")
    assert "a pipe" in refusal(path.parent / "pipe.onnx")


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"offset": 1}, "bytes 1 to 9, but w.bin has 8"),
        ({"offset": 2**63}, "but w.bin has 8"),
        ({"offset": -1}, "'-1' is not a number of bytes"),
        ({"offset": "1e1"}, "is not a number of bytes"),
        ({"offset": "9" * 30}, "is not a number of bytes"),
        ({"length": 4}, "4 bytes, but its shape and type take 8"),
        ({"length": 2**62}, "but its shape and type take 8"),
        ({"basepath": "/"}, "a base path"),
        ({"else": "1"}, "unknown entries"),
    ],
)
def test_wrong_entries_of_external_data_are_refused(save, entries, reason):
    save(bytes(8), "w.bin")
    assert reason in refusal(save(made.adder(made.external("w", [2], location="w.bin", **entries))))


def test_an_entry_that_is_there_twice_is_refused(save):
    save(bytes(8), "w.bin")
    pairs = [made.message((1, "location"), (2, name)) for name in ("w.bin", "/etc/passwd")]
    data = made.tensor("w", [2], more=[(13, pairs), (14, 1)])
    assert "is there twice" in refusal(save(made.adder(data)))


@pytest.mark.parametrize(
    ("dims", "raw", "reason"),
    [
        ([3], bytes(8), "8 bytes, but float32[3] takes 12"),
        ([-2], bytes(8), "negative size"),
        ([2**40, 2**40], bytes(8), "8 bytes, but"),
        ([2**62, 4], bytes(8), "8 bytes, but"),
        ([2] * 40, bytes(8), "more than 32 numbers"),
        ([2], None, "0 numbers, but float32[2] takes 2"),
    ],
)
def test_shapes_that_do_not_match_the_bytes_are_refused(save, dims, raw, reason):
    text = refusal(save(made.adder(made.tensor("w", dims, raw))))
    assert reason in text
    assert "tensor 'w'" in text


def test_huge_and_negative_shapes_of_values_are_refused(save):
    for dims, reason in (([2**40, 2**40], "more than the limit"), ([-7], "a size of -7")):
        assert reason in refusal(save(made.model(made.graph(inputs=[made.value("x", dims)]))))


def test_one_file_cannot_be_all_of_many_tensors(save):
    save(bytes(1 << 16), "w.bin")
    tensors = [made.external(f"w{i}", [1 << 14], location="w.bin") for i in range(100)]
    path = save(made.adder(*tensors))
    assert read_onnx(path).weight_bytes == 100 << 16
    assert "more than the limit of 1000000" in refusal(path, OnnxLimits(weight_bytes=1_000_000))


def test_sparse_tensors_count_as_dense_ones(save):
    values = made.tensor("w", [1], bytes(4))
    sparse = made.message((1, values), (2, made.tensor("i", [1], bytes(8), made.INT64)), (3, [2**40]))
    main = made.graph(more=[(15, [sparse])])
    assert "more than the limit" in refusal(save(made.model(main)))


def test_unknown_types_parts_and_training_graphs_are_refused(save):
    assert "data type 99" in refusal(save(made.adder(made.tensor("w", [2], bytes(8), kind=99))))
    assert "a part of a tensor" in refusal(save(made.adder(made.tensor("w", [2], bytes(8), more=[(3, b"")]))))
    assert "for training" in refusal(save(made.adder(more=[(20, b"")])))


def test_operators_of_our_own_are_refused_wherever_a_file_names_them(save):
    product = made.node("Product", ["x"], ["y"], "ai.stretto", [made.attribute("matrix", i=1)])
    path = save(made.adder(nodes=[product]))
    assert "an operator of domain 'ai.stretto', which no file may have" in refusal(path)
    with pytest.raises(ModelError, match="which no file may have"):
        read_onnx(path, OnnxLimits(domains=("ai.stretto",)))
    assert "Stretto's own" in refusal(save(made.adder(opsets=[("", 18), ("ai.stretto", 1)])))
    inside = made.node("Identity", ["a"], ["b"])
    function = made.message((1, "Product"), (4, ["a"]), (5, ["b"]), (7, [inside]), (10, "ai.stretto"))
    assert "Stretto's own" in refusal(save(made.adder(more=[(25, function)])))


@pytest.mark.parametrize("domain", ["my.ops", "ai.onnx.training", "com.microsoft.extensions", "trt.plugins"])
def test_custom_operators_are_refused_unless_they_are_named(save, domain):
    path = save(made.adder(nodes=[made.node("Add", ["x", "w"], ["y"], domain)]))
    assert f"a custom operator of domain {domain!r}" in refusal(path)
    assert read_onnx(path, OnnxLimits(domains=(domain,))).operators[domain] == {"Add": 1}


def test_operators_that_load_files_or_run_code_are_refused(save):
    for op in ("EPContext", "PythonOp"):
        assert f"in {op} node" in refusal(
            save(made.adder(nodes=[made.node(op, ["x"], ["y"], "com.microsoft")]))
        )


@pytest.mark.parametrize("op", ["Loop", "Scan", "SequenceMap"])
def test_loops_are_refused_unless_they_are_allowed(save, op):
    body = made.attribute("body", g=made.graph([made.node("Identity", ["a"], ["b"])]))
    path = save(made.adder(nodes=[made.node(op, ["x"], ["y"], attributes=[body])]))
    assert "a loop may never end" in refusal(path)
    assert read_onnx(path, OnnxLimits(loops=True)).operators["ai.onnx"] == {op: 1, "Identity": 1}


def branches(depth):
    inner = [made.node("Identity", ["x"], ["y"])]
    for _ in range(depth):
        inner = [
            made.node("If", ["c"], ["y"], attributes=[made.attribute("then_branch", g=made.graph(inner))])
        ]
    return made.adder(nodes=inner)


def test_branches_are_allowed_to_a_depth(save):
    assert read_onnx(save(branches(4))).operators["ai.onnx"]["If"] == 4
    assert "nested more than 4 deep" in refusal(save(branches(5)))
    assert "nested more than 4 deep" in refusal(save(branches(3000)))


def test_tensors_and_operators_within_branches_are_checked(save):
    inner = made.graph([made.node("Evil", [], ["y"], "evil")])
    hidden = made.node("If", ["c"], ["y"], attributes=[made.attribute("else_branch", g=inner)])
    assert "custom operator" in refusal(save(made.adder(nodes=[hidden])))
    inner = made.graph([], [made.external("v", [2], location="/etc/passwd")])
    hidden = made.node("If", ["c"], ["y"], attributes=[made.attribute("else_branch", g=inner)])
    assert "absolute path" in refusal(save(made.adder(nodes=[hidden])))


def test_tensors_of_attributes_are_checked(save):
    constant = made.attribute("value", t=made.external("v", [2], location="../w"))
    assert "leads out" in refusal(
        save(made.adder(nodes=[made.node("Constant", [], ["y"], attributes=[constant])]))
    )


def test_other_operators_have_no_subgraphs(save):
    inner = made.attribute("decoder", g=made.graph())
    assert "with a subgraph" in refusal(
        save(made.adder(nodes=[made.node("Add", [], [], attributes=[inner])]))
    )


def test_too_many_nodes_tensors_and_fields_are_refused(save):
    path = save(made.adder(nodes=[made.node("Add", ["x", "w"], ["y"])] * 50))
    assert "more than 49 nodes" in refusal(path, OnnxLimits(nodes=49))
    assert "more fields" in refusal(path, OnnxLimits(fields=100))
    assert "names and metadata are larger" in refusal(path, OnnxLimits(text_bytes=100))
    tensors = [made.tensor(f"w{i}", [1], bytes(4)) for i in range(20)]
    assert "more than 19 tensors" in refusal(save(made.adder(*tensors)), OnnxLimits(tensors=19))


def test_nodes_and_tensors_are_counted_before_any_is_read(save, monkeypatch):
    monkeypatch.setattr(parse.Parser, "_node", lambda *_: pytest.fail("a node was read"))
    monkeypatch.setattr(parse.TensorReader, "read", lambda *_: pytest.fail("a tensor was read"))
    nodes = made.adder(nodes=[made.node("Add", ["x", "w"], ["y"])] * 50)
    assert "more than 49 nodes" in refusal(save(nodes), OnnxLimits(nodes=49))
    tensors = made.adder(*(made.tensor(f"w{i}", [1], bytes(4)) for i in range(20)))
    assert "more than 19 tensors" in refusal(save(tensors), OnnxLimits(tensors=19))


def function(name, nodes):
    return made.message((1, name), (7, list(nodes)), (10, "mine"))


def test_functions_of_the_model_are_operators_that_are_checked(save):
    call = [made.node("F", ["x"], ["y"], "mine")]
    good = function("F", [made.node("Relu", ["a"], ["b"])])
    assert read_onnx(save(made.adder(nodes=call, more=[(25, [good])]))).operators["mine"] == {"F": 1}
    evil = function("F", [made.node("Evil", ["a"], ["b"], "evil")])
    assert "custom operator" in refusal(save(made.adder(nodes=call, more=[(25, [evil])])))
    endless = function("F", call)
    assert "it calls itself" in refusal(save(made.adder(nodes=call, more=[(25, [endless])])))
    shadow = made.message((1, "Add"), (7, [made.node("Relu", ["a"], ["b"])]), (10, "ai.onnx"))
    assert "in place of a built-in" in refusal(save(made.adder(more=[(25, [shadow])])))


def test_functions_that_grow_exponentially_are_refused(save):
    names = [f"F{i}" for i in range(20)]
    functions = [
        function(name, [made.node(after, ["a"], ["b"], "mine")] * 10) for name, after in pairwise(names)
    ]
    functions.append(function(names[-1], [made.node("Relu", ["a"], ["b"])]))
    path = save(made.adder(nodes=[made.node("F0", ["x"], ["y"], "mine")], more=[(25, functions)]))
    assert "nodes, more than 200000" in refusal(path)


@pytest.mark.parametrize("op", ["ConstantOfShape", "Expand", "Tile"])
def test_constants_that_make_huge_tensors_are_refused(save, op):
    shape = made.tensor("s", [2], pack("<2q", 1 << 20, 1 << 20), made.INT64)
    inputs = ["s"] if op == "ConstantOfShape" else ["x", "s"]
    assert "it makes a tensor of shape" in refusal(
        save(made.adder(shape, nodes=[made.node(op, inputs, ["y"])]))
    )


def test_fields_that_may_be_there_once_are_refused_twice(save):
    twice = made.adder() + made.field(7, made.graph([made.node("Evil", [], [], "evil")]))
    assert "the field is there twice" in refusal(save(twice))
    location = made.external("w", [2], location="/etc/passwd") + made.field(14, 0) + made.field(9, bytes(8))
    assert "twice" in refusal(save(made.adder(location)))


def test_files_that_are_no_models_are_refused(save, tmp_path):
    assert "empty" in refusal(save(b""))
    assert "no such file" in refusal(tmp_path / "none.onnx")
    assert "folder" in refusal(tmp_path)
    assert "no graph" in refusal(save(made.message((1, 9))))
    assert "wire type" in refusal(save(b"GGUF" + bytes(100)))
    assert "protobuf takes less than 10" in refusal(save(made.adder()), OnnxLimits(protobuf_bytes=10))
    huge = save(b"")
    os.truncate(huge, 3 << 30)  # a file with a hole: it takes no space
    assert "external data" in refusal(huge)


def test_damaged_files_end_in_a_model_error_or_a_model(save):
    save(bytes(40), "w.bin")
    whole = made.adder(
        made.external("w", [2], location="w.bin", length=8),
        made.tensor("v", [2], bytes(16), made.INT64),
        metadata=[("a", "b")],
        nodes=[made.node("If", ["x"], ["y"], attributes=[made.attribute("then_branch", g=made.graph())])],
    )
    rng, kinds = random.Random(1), set()
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        if rng.random() < 0.2:
            data = data[: rng.randrange(1, len(data))]
        path = save(bytes(data))
        try:
            file = read_onnx(path)
            kinds.add("read")
            assert all(Path(place).is_relative_to(path.parent) for place in file.external)
        except ModelError:
            kinds.add("refused")
    assert kinds == {"read", "refused"}

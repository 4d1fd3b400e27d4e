"""Quantised products of ONNX graphs by the native kernels: the same numbers, and nothing else is touched."""

import ctypes
import sys
from functools import cache

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

import onnx

from stretto import _native
from stretto.backends.base import BackendOptions
from stretto.backends.batch import Batch
from stretto.backends.onnx import open_onnx, packing
from stretto.backends.onnx.packing import find_products, open_packed
from stretto.backends.onnx_session import Replacement, open_session
from stretto.cache.cells import Cells
from stretto.errors import ModelError, RouteWarning, Unsupported
from stretto.export.decoder import build
from stretto.export.graph import DataFile, Graph
from stretto.export.products import Products, read_blocks
from stretto.hardware import kernel_sets
from stretto.weights import formats
from stretto.weights.formats import Format
from stretto.weights.onnx import read_onnx
from stretto.weights.onnx.folder import find_folder
from tiny_models import tiny_file, tiny_spec

COLUMNS, ROWS = 96, 70  # rows that are not whole panels
FORMATS = (Format.Q4_0, Format.Q4_1, Format.Q8_0)
N_CELLS = 64


def random_rows(fmt, rows=ROWS, seed=0):
    """A matrix in bytes, uint8[rows, bytes of a row]."""
    random = np.random.default_rng(seed)
    data = random.integers(0, 256, (rows, COLUMNS // fmt.block, fmt.size), dtype=np.uint8)
    for at in (0, 2) if fmt is Format.Q4_1 else (0,):
        halves = random.uniform(0.01, 0.02, data.shape[:2]).astype(np.float16)
        data[..., at : at + 2] = (halves if at == 0 else -8 * halves)[..., None].view(np.uint8)
    return data.reshape(rows, -1)


def random_x(n, seed=1):
    return np.random.default_rng(seed).normal(size=(1, n, COLUMNS)).astype(np.float32)


class Made:
    """A graph that multiplies x by matrices, in a file."""

    def __init__(self, path, matrices, data=None):
        self.path, self.graph = path, Graph(data)
        x = self.graph.input("x", "float32", ["batch", "n", COLUMNS])
        products = Products(self.graph, "int4", plain=False)
        for i, (data_rows, fmt) in enumerate(matrices):
            y = products.product(x, f"w{i}", read_blocks(data_rows, fmt))
            self.graph.output(
                self.graph.op("Identity", [y], output=f"y{i}"), "float32", ["batch", "n", "rows"]
            )
        self.model = self.graph.model("test", opset=21)

    def save(self):
        self.path.write_bytes(self.model.SerializeToString())
        return read_onnx(self.path)

    def node(self, op):
        return next(node for node in self.model.graph.node if node.op_type == op)


@pytest.fixture
def make(tmp_path):
    def made(*matrices):
        return Made(tmp_path / "model.onnx", matrices)

    return made


def run(session, x):
    return list(session.run({"x": x}).values())


@pytest.mark.parametrize("n", [1, 3, 40])
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_products_have_the_bits_of_the_native_kernels(make, fmt, n):
    data, x = random_rows(fmt), random_x(n)
    file = make((data, fmt)).save()
    wanted = _native.ops.matmul(int(fmt), data.reshape(-1), ROWS, COLUMNS, x[0])
    for threads in (1, 2, 3):
        session, packed = open_packed(file, "cpu", threads)
        assert (packed.packed, packed.found, packed.kernels) == (1, 1, kernel_sets.select())
        (y,) = run(session, x)
        assert y.shape == (1, n, ROWS)
        assert (y[0] == wanted).all()
    exact = x[0] @ formats.dequantize(data, fmt).reshape(ROWS, COLUMNS).T
    assert np.abs(y[0] - exact).max() < 0.02 * np.abs(exact).max()


def test_plain_and_native_products_are_near(make):
    file = make(*((random_rows(fmt), fmt) for fmt in FORMATS)).save()
    (plain, unpacked), (native, packed) = (open_packed(file, "cpu", 2, repack) for repack in (False, True))
    assert str(unpacked) == "0 of 3 quantised products by the native kernels; repack=False"
    assert str(packed) == f"3 of 3 quantised products by the native kernels ({kernel_sets.select()})"
    x = random_x(5)
    for a, b in zip(run(plain, x), run(native, x), strict=True):
        assert np.abs(a - b).max() < 0.02 * np.abs(a).max()


def test_each_product_has_its_own_matrix(make):
    first, second = random_rows(Format.Q4_1), random_rows(Format.Q4_1, seed=7)
    session, packed = open_packed(make((first, Format.Q4_1), (second, Format.Q4_1)).save(), "cpu", 2)
    x = random_x(1)
    assert packed.packed == 2
    for data, y in zip((first, second), run(session, x), strict=True):
        assert (y[0] == _native.ops.matmul(3, data.reshape(-1), ROWS, COLUMNS, x[0])).all()


def test_rows_are_the_same_bits_in_any_batch(make):
    session, _ = open_packed(make((random_rows(Format.Q4_1), Format.Q4_1)).save(), "cpu", 2)
    x = random_x(40)
    (together,) = run(session, x)
    for first, last in ((0, 1), (1, 8), (8, 40)):
        (part,) = run(session, x[:, first:last])
        assert (part == together[:, first:last]).all()
    (batched,) = run(session, x.reshape(4, 10, COLUMNS))
    assert (batched.reshape(1, 40, ROWS) == together).all()


def test_the_portable_kernels_can_be_asked_for(make, monkeypatch):
    data, x = random_rows(Format.Q4_1), random_x(2)
    monkeypatch.setenv(kernel_sets.ENVIRONMENT_VARIABLE, "portable")
    session, packed = open_packed(make((data, Format.Q4_1)).save(), "cpu", 2)
    wanted = _native.ops.matmul(int(Format.Q4_1), data.reshape(-1), ROWS, COLUMNS, x[0], kernels="portable")
    assert packed.kernels == "portable"
    assert (run(session, x)[0] == wanted).all()


def rewritten(file):
    return onnx.load_from_string(packing.rewrite(file, find_products(file), 1).replacement.model)


def test_packed_matrices_leave_the_graph(make):
    made = make((random_rows(Format.Q4_1), Format.Q4_1), (random_rows(Format.Q8_0), Format.Q8_0))
    graph = rewritten(made.save()).graph
    assert [node.op_type for node in graph.node] == ["Product", "Identity", "Product", "Identity"]
    assert not graph.initializer


def test_tensors_and_means_that_others_use_stay(make):
    made = make((random_rows(Format.Q4_1), Format.Q4_1), (random_rows(Format.Q8_0), Format.Q8_0))
    graph = made.model.graph
    means = made.node("AveragePool").output[0]
    for name, kind in ((means, 1), ("w1.blocks", 2)):
        graph.node.append(onnx.helper.make_node("Identity", [name], [f"{name}.out"]))
        graph.output.append(onnx.helper.make_tensor_value_info(f"{name}.out", kind, None))
    file = made.save()
    result = rewritten(file).graph
    assert [tensor.name for tensor in result.initializer] == ["w1.blocks"]
    assert "AveragePool" in {node.op_type for node in result.node}
    session, packed = open_packed(file, "cpu", 1)
    assert packed.packed == 2
    assert run(session, random_x(1))[2].shape == (1, 1, COLUMNS // 32)


def test_initializers_that_are_inputs_too_leave_both(make):
    made = make((random_rows(Format.Q4_0), Format.Q4_0))  # as files before IR version 4 have them
    for tensor in made.model.graph.initializer:
        value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        made.model.graph.input.append(value)
    session, packed = open_packed(made.save(), "cpu", 1)
    assert packed.packed == 1
    assert run(session, random_x(2))[0].shape == (1, 2, ROWS)


def test_tensors_may_lie_beside_the_model(tmp_path):
    data = random_rows(Format.Q4_1, 512)
    with (tmp_path / "model.data").open("wb") as file:
        inside = DataFile(file, "model.data")
        made = Made(tmp_path / "model.onnx", [(data, Format.Q4_1), (data, Format.Q4_1)], inside)
        made.graph.op("Add", ["y0", made.graph.constant("more", np.ones(512, np.float32))], output="z")
        made.graph.output("z", "float32", ["batch", "n", 512])
        made.model = made.graph.model("test", opset=21)
    session, packed = open_packed(made.save(), "cpu", 2)
    assert packed.packed == 2
    x = random_x(1)
    y, _, z = run(session, x)
    assert (y[0] == _native.ops.matmul(3, data.reshape(-1), 512, COLUMNS, x[0])).all()
    assert (z == y + 1).all()


def set_attribute(made, name, value):
    node = made.node("MatMulNBits")
    kept = [each for each in node.attribute if each.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, *([] if value is None else [onnx.helper.make_attribute(name, value)])])


@pytest.mark.parametrize(
    ("name", "value"), [("accuracy_level", 0), ("accuracy_level", None), ("accuracy_level", 1), ("other", 1)]
)
def test_products_that_ask_for_something_else_are_left(make, name, value):
    made = make((random_rows(Format.Q4_1), Format.Q4_1))
    set_attribute(made, name, value)
    assert not find_products(made.save())


def test_products_with_zero_points_are_left(make):
    made = make((random_rows(Format.Q4_1), Format.Q4_1))
    zeros = np.full((ROWS, 2), 0x77, np.uint8)
    made.model.graph.initializer.append(onnx.numpy_helper.from_array(zeros, "zeros"))
    made.node("MatMulNBits").input.append("zeros")
    session, packed = open_packed(made.save(), "cpu", 1)
    assert (packed.packed, packed.found, packed.reason) == (0, 1, packing.OTHER_FORM)
    assert run(session, random_x(1))[0].shape == (1, 1, ROWS)


def test_numbers_that_would_be_rounded_are_left(make):
    made = make((random_rows(Format.Q4_1), Format.Q4_1), (random_rows(Format.Q4_1), Format.Q4_1))
    for tensor in made.model.graph.initializer:
        if tensor.name == "w0.scale":
            tensor.raw_data = (onnx.numpy_helper.to_array(tensor) * np.float32(1.001)).tobytes()
    file = made.save()
    session, packed = open_packed(file, "cpu", 1)
    assert (packed.packed, packed.found, packed.reason) == (1, 2, packing.OTHER_FORM)
    x = random_x(2)
    assert (run(session, x)[0] == run(open_session(file, "cpu", 1), x)[0]).all()


@pytest.mark.parametrize("place", ["offset", "infinite"])
def test_offsets_and_scales_of_no_format_are_left(make, place):
    made = make((random_rows(Format.Q4_1), Format.Q4_1))
    for tensor in made.model.graph.initializer:
        numbers = onnx.numpy_helper.to_array(tensor).copy()
        if tensor.name == "w0.offset" and place == "offset":
            tensor.raw_data = (numbers * np.float32(1.001)).tobytes()
        if tensor.name == "w0.scale" and place == "infinite":
            numbers[0, 0] = np.inf
            tensor.raw_data = numbers.tobytes()
    assert open_packed(made.save(), "cpu", 1)[1].packed == 0


def test_an_addition_of_something_else_stays(make):
    made = make((random_rows(Format.Q4_1), Format.Q4_1))
    made.node("AveragePool").attribute.append(onnx.helper.make_attribute("ceil_mode", 1))
    file = made.save()
    assert [product.offset for product in find_products(file)] == [""]
    ops = [node.op_type for node in rewritten(file).graph.node]
    assert sorted(ops) == ["Add", "AveragePool", "Identity", "MatMul", "Product"]
    (plain,), (native,) = (run(open_packed(file, "cpu", 1, r)[0], random_x(2)) for r in (False, True))
    assert np.abs(plain - native).max() < 0.02 * np.abs(plain).max()


def test_a_graph_without_such_products_is_untouched(make, monkeypatch):
    monkeypatch.setattr(packing, "rewrite", None)
    made = make()
    made.graph.output(made.graph.op("Identity", ["x"], output="y"), "float32", ["batch", "n", COLUMNS])
    made.model = made.graph.model("test", opset=21)
    session, packed = open_packed(made.save(), "cpu", 1)
    assert packed == packing.Packing()
    assert (run(session, random_x(1))[0] == random_x(1)).all()


def test_what_is_shared_with_no_other_process_is_said(make):
    file = make((random_rows(Format.Q4_1), Format.Q4_1)).save()
    with pytest.warns(RouteWarning, match="packed for this process alone; repack='auto' says the same"):
        _, packed = open_packed(file, "cpu", 1, repack="shared")
    assert packed.packed == 1


def test_falling_back_is_never_silent(make, monkeypatch):
    file = make((random_rows(Format.Q4_1), Format.Q4_1)).save()
    monkeypatch.setattr(packing._native, "__file__", "no/such/library.so")
    with pytest.warns(RouteWarning, match="ONNX Runtime cannot load our operators"):
        session, packed = open_packed(file, "cpu", 1)
    assert packed.packed == 0
    assert "cannot load our operators" in packed.reason
    assert run(session, random_x(1))[0].shape == (1, 1, ROWS)
    with pytest.raises(Unsupported, match="repack='auto' does without") as caught:
        open_packed(file, "cpu", 1, repack=True)
    assert (caught.value.param, caught.value.value) == ("repack", True)


@pytest.mark.parametrize("first", [1, None])
def test_an_older_runtime_is_told_so(first):
    """A runtime that lacks what we need, and knows the first version of its interface, or not even that."""
    messages = []
    pointer = ctypes.c_void_p

    @ctypes.CFUNCTYPE(pointer, ctypes.c_int, ctypes.c_char_p)
    def create_status(code, message):
        messages.append(message.decode())
        return 1234

    table = (pointer * 300)(ctypes.cast(create_status, pointer))

    @ctypes.CFUNCTYPE(pointer, ctypes.c_uint32)
    def get_api(version):
        return ctypes.addressof(table) if version == first else None

    register = ctypes.CDLL(_native.__file__).RegisterCustomOps
    register.restype, register.argtypes = pointer, [pointer, pointer]
    status = register(None, (pointer * 2)(ctypes.cast(get_api, pointer)))
    assert status == (None if first is None else 1234)
    assert messages == ([] if first is None else ["ONNX Runtime is older than 1.17"])


def test_without_onnx_the_runtime_computes_products(make, monkeypatch):
    file = make((random_rows(Format.Q4_1), Format.Q4_1)).save()
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.warns(RouteWarning, match="onnx"):
        assert open_packed(file, "cpu", 1)[1].packed == 0


def test_a_file_that_changes_meanwhile_is_refused(make):
    made = make((random_rows(Format.Q4_1), Format.Q4_1))
    file = made.save()
    made.model.doc_string = "another"
    made.save()
    with pytest.warns(RouteWarning, match="changed"), pytest.raises(ModelError, match="changed"):
        open_packed(file, "cpu", 1)


def test_a_matrix_that_is_not_registered_is_an_error(make):
    file = make((random_rows(Format.Q4_1), Format.Q4_1)).save()
    result = packing.rewrite(file, find_products(file), 1)
    model = result.replacement.model
    del result
    with pytest.raises(ModelError, match="there is no matrix of that number"):
        open_session(file, "cpu", 1, replacement=Replacement(model, _native.__file__))


def test_inputs_of_other_shapes_are_errors_and_empty_ones_are_not(make):
    made = make((random_rows(Format.Q4_1), Format.Q4_1))
    made.model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "columns"
    session, packed = open_packed(made.save(), "cpu", 2)
    assert packed.packed == 1
    with pytest.raises(ModelError, match="do not fit the matrix"):
        session.run({"x": np.zeros((1, 1, COLUMNS + 32), np.float32)})
    (empty,) = run(session, random_x(0))
    assert empty.shape == (1, 0, ROWS)


@pytest.mark.parametrize(
    ("code", "n_bytes", "rows", "columns", "threads"),
    [
        (3, 60, 1, 96, 0),
        (3, 59, 1, 96, 1),
        (3, 60, 1, 64, 1),
        (0, 384, 1, 96, 1),
        (99, 60, 1, 96, 1),
        (3, 0, 0, 96, 1),
    ],
)
def test_matrices_are_checked(code, n_bytes, rows, columns, threads):
    with pytest.raises(ValueError, match=r"shape|quantised|threads|not known"):
        _native.OnnxMatrix(code, np.zeros(n_bytes, np.uint8), rows, columns, threads)


# -- decoders --


@pytest.fixture(scope="module")
def decoders(tmp_path_factory):
    @cache
    def opened(form, repack):
        folder = tmp_path_factory.mktemp(form)
        model = build(tiny_file("llama"), tiny_spec("llama", N_CELLS), "int4", form)
        (folder / "model.onnx").write_bytes(model.SerializeToString())
        return open_onnx(find_folder(folder), BackendOptions("cpu", N_CELLS, 2, repack=repack))

    return opened


def compute_logits(backend):
    """A prompt in two chunks, a fork, and steps of both."""
    cells, random, rows = Cells(N_CELLS), np.random.default_rng(2), []
    for batch_rows in (
        [(i, [0]) for i in range(9)],
        [(i, [0]) for i in range(9, 12)],
        [(12, [0]), (12, [1])],
        [(13, [0]), (13, [1])],
    ):
        if len(batch_rows) == 2 and batch_rows[0][0] == 12:
            cells.copy(0, 1)
        batch = Batch()
        for position, sequences in batch_rows:
            batch.add(int(random.integers(0, backend.spec.n_vocab)), position, sequences, logits=True)
        batch.place(cells)
        rows.append(backend.forward(batch))
    return np.concatenate(rows)


@pytest.mark.parametrize("form", ["gqa", "cells"])
def test_decoders_have_near_logits(decoders, form):
    native, plain = decoders(form, "auto"), decoders(form, False)
    assert native.packing.packed == native.packing.found > 0
    assert plain.packing.packed == 0
    a, b = compute_logits(native), compute_logits(plain)
    assert np.corrcoef(a.reshape(-1), b.reshape(-1))[0, 1] > 0.995

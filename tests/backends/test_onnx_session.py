"""Sessions of ONNX Runtime: what is asked for is what runs, or an error says what is missing."""

import sys
from struct import pack
from types import SimpleNamespace

import numpy as np
import pytest

import onnx_files as made
from stretto.backends import onnx_session
from stretto.backends.onnx_session import available_devices, import_runtime, open_compiled, open_session
from stretto.errors import InvalidRequest, ModelError, RouteWarning, Unsupported

pytest.importorskip("onnxruntime")


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(made.adder())
    return path


def test_a_session_computes_outputs_by_name(path):
    session = open_session(path, "cpu", threads=1)
    assert session.run({"x": np.zeros((3, 2), np.float32)})["y"].tolist() == [[1, 2]] * 3
    assert session.device == "cpu"
    assert session.providers == ("CPUExecutionProvider",)
    assert list(session.file.inputs) == ["x"]


def test_a_file_of_the_runtime_s_own_format(path):
    runtime = import_runtime()
    settings = runtime.SessionOptions()
    settings.optimized_model_filepath = str(path.with_suffix(".ort"))
    runtime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    session = open_compiled(path.with_suffix(".ort"))
    assert session.run({"x": np.zeros((3, 2), np.float32)})["y"].tolist() == [[1, 2]] * 3
    assert (session.device, session.providers) == ("cpu", ("CPUExecutionProvider",))
    assert session.file.inputs["x"].shape == open_session(path, "cpu").file.inputs["x"].shape
    path.with_suffix(".ort").write_bytes(b"\0" * 100)
    with pytest.raises(ModelError, match="ONNX Runtime cannot open it"):
        open_compiled(path.with_suffix(".ort"))


def test_external_data_is_read_by_relative_path(tmp_path, monkeypatch):
    (tmp_path / "w.bin").write_bytes(pack("<4f", 9, 9, 1, 2))
    path = tmp_path / "model.onnx"
    path.write_bytes(made.adder(made.external("w", [2], location="w.bin", offset=8)))
    monkeypatch.chdir(tmp_path.parent)
    assert open_session(path, "cpu").run({"x": np.zeros((1, 2), np.float32)})["y"].tolist() == [[1, 2]]


def test_files_are_checked_before_the_runtime_sees_them(path, monkeypatch):
    runtime = SimpleNamespace(InferenceSession=None)  # nothing of it may be called
    monkeypatch.setattr(onnx_session, "import_runtime", lambda: runtime)
    path.write_bytes(made.adder(nodes=[made.node("Add", ["x", "w"], ["y"], "evil")]))
    with pytest.raises(ModelError, match="custom operator"):
        open_session(path, "cpu")


def test_a_missing_device_names_its_package(path):
    missing = [name for name in onnx_session.PROVIDERS if name not in available_devices()]
    assert missing
    for device in missing:
        provider, package = onnx_session.PROVIDERS[device]
        with pytest.raises(Unsupported, match=provider) as caught:
            open_session(path, device)
        assert package in str(caught.value)
        assert (caught.value.param, caught.value.value) == ("device", device)


@pytest.mark.parametrize("device", ["gpu", "cpu:1", "cuda:x", "cuda:99999", "", None])
def test_unknown_devices_are_refused(path, device):
    with pytest.raises(InvalidRequest, match="device must be one of 'auto', 'cpu'"):
        open_session(path, device)


@pytest.mark.parametrize("kind", ["CPU", "GPU", "NPU"])
def test_a_device_of_openvino_is_passed_on(path, monkeypatch, kind):
    wanted = []

    class Runtime:
        __version__ = "1.24.1"
        SessionOptions = import_runtime().SessionOptions

        @staticmethod
        def get_available_providers():
            return ["OpenVINOExecutionProvider", "CPUExecutionProvider"]

        class InferenceSession:
            def __init__(self, source, settings, providers):
                wanted.extend(providers)

            def disable_fallback(self):
                pass

            def get_providers(self):
                return [name for name, _ in wanted]

    monkeypatch.setattr(onnx_session, "import_runtime", lambda: Runtime)
    assert open_session(path, f"openvino:{kind}").device == f"openvino:{kind}"
    assert wanted[0] == ("OpenVINOExecutionProvider", {"device_type": kind})
    with pytest.raises(InvalidRequest, match="device must be one of"):
        open_session(path, "openvino:FPGA")


@pytest.mark.parametrize("version", ["1.20.1", "1.22.0"])
def test_a_runtime_that_is_too_old_is_refused_by_name(path, monkeypatch, version):
    monkeypatch.setattr(import_runtime(), "__version__", version)
    with pytest.raises(Unsupported, match=rf"ONNX Runtime {version} .*1\.23 and later"):
        open_session(path, "cpu")


def test_a_runtime_newer_than_those_tested_warns(path, monkeypatch):
    monkeypatch.setattr(import_runtime(), "__version__", "1.99.0")
    with pytest.warns(RouteWarning, match=r"1\.99\.0 is newer than"):
        open_session(path, "cpu").close()


def test_a_merged_decoder_is_refused_where_the_runtime_would_end_the_process(path, monkeypatch):
    monkeypatch.setattr(import_runtime(), "__version__", "1.23.2")
    with pytest.raises(Unsupported, match=r"merged decoder.*1\.24"):
        onnx_session.require_merged(onnx_session.read_onnx(path))


N_HEAD, SIZE, N_TOKENS = 2, 16, 6


def attention(*, window=None, cap=0.0):
    """The bytes of a graph of one attention over N_TOKENS, by GroupQueryAttention if it has a window."""
    onnx = pytest.importorskip("onnx")
    width = N_HEAD * SIZE

    def value(name, kind="FLOAT", shape=(1, N_TOKENS, width)):
        return onnx.helper.make_tensor_value_info(name, getattr(onnx.TensorProto, kind), shape)

    inputs = [value(name) for name in "qkv"]
    if window is None:
        inputs.append(value("mask", "BOOL", (N_TOKENS, N_TOKENS)))
        heads = {"q_num_heads": N_HEAD, "kv_num_heads": N_HEAD}
        node = onnx.helper.make_node("Attention", ["q", "k", "v", "mask"], ["y"], softcap=cap, **heads)
    else:
        past = [value(name, shape=(1, N_HEAD, 0, SIZE)) for name in ("past_k", "past_v")]
        inputs += [*past, value("last", "INT32", (1,)), value("total", "INT32", ())]
        node = onnx.helper.make_node(
            "GroupQueryAttention",
            [each.name for each in inputs],
            ["y", "new_k", "new_v"],
            domain="com.microsoft",
            num_heads=N_HEAD,
            kv_num_heads=N_HEAD,
            local_window_size=window,
        )
    graph = onnx.helper.make_graph([node], "attention", inputs, [value("y")])
    versions = [onnx.helper.make_opsetid("", 23), onnx.helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(graph, ir_version=11, opset_imports=versions).SerializeToString()


def attend(path, window=N_TOKENS, cap=0.0):
    """What a session answers, and what NumPy does: float32[N_TOKENS, N_HEAD, SIZE] each."""
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, N_TOKENS, N_HEAD, SIZE)).astype(np.float32)
    back = np.arange(N_TOKENS)[:, None] - np.arange(N_TOKENS)
    visible = (back >= 0) & (back < window)
    feeds = {name: x.reshape(1, N_TOKENS, -1) for name, x in zip("qkv", (q, k, v), strict=True)}
    past = np.zeros((1, N_HEAD, 0, SIZE), np.float32)
    last, total = np.array([N_TOKENS - 1], np.int32), np.array(N_TOKENS, np.int32)
    feeds |= {"mask": visible, "past_k": past, "past_v": past, "last": last, "total": total}
    session = open_session(path, "cpu", 1)
    found = session.run({name: feeds[name] for name in session.file.inputs}, ["y"])["y"]
    scores = np.einsum("qhd,khd->hqk", q, k) / SIZE**0.5
    scores = cap * np.tanh(scores / cap) if cap else scores
    weights = np.exp(np.where(visible, scores, -np.inf))
    expected = np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v)
    return found.reshape(expected.shape), expected


@pytest.mark.parametrize("window", [1, 3])
def test_windows_have_as_many_tokens_as_the_file_says(path, window):
    path.write_bytes(attention(window=window))
    found, expected = attend(path, window)
    assert np.abs(found - expected).max() < 1e-5


def test_windows_are_given_one_token_less_to_a_runtime_that_adds_one(path, monkeypatch):
    def answer(window, version):
        path.write_bytes(attention(window=window))
        monkeypatch.setattr(import_runtime(), "__version__", version)
        return attend(path)[0]

    assert np.array_equal(answer(4, "1.23.2"), answer(3, "1.24.4"))
    assert not np.array_equal(answer(4, "1.23.2"), answer(4, "1.24.4"))


@pytest.mark.parametrize("open_window", [False, True])
def test_windows_in_functions_are_given_one_token_less_or_refused(path, monkeypatch, open_window):
    onnx = pytest.importorskip("onnx")
    model = onnx.ModelProto.FromString(attention(window=4))
    node = model.graph.node[0]
    inside = onnx.NodeProto.FromString(node.SerializeToString())
    attribute = next(each for each in inside.attribute if each.name == "local_window_size")
    if open_window:
        attribute.ref_attr_name = "window"
        attribute.ClearField("i")
    function = onnx.helper.make_function(
        "own", "Windowed", node.input, node.output, [inside], model.opset_import, ["window"]
    )
    del node.attribute[:]
    node.op_type, node.domain = "Windowed", "own"
    node.attribute.append(onnx.helper.make_attribute("window", 4))
    model.opset_import.append(onnx.helper.make_opsetid("own", 1))
    model.functions.append(function)
    path.write_bytes(model.SerializeToString())
    monkeypatch.setattr(import_runtime(), "__version__", "1.23.2")
    if open_window:
        with pytest.raises(Unsupported, match=r"local_window_size in a function, .* install 1\.24"):
            open_session(path, "cpu")
        return
    found, _ = attend(path)
    path.write_bytes(attention(window=3))
    monkeypatch.setattr(import_runtime(), "__version__", "1.24.4")
    assert np.array_equal(found, attend(path)[0])


def test_capped_scores_are_right_or_refused_by_name(path):
    path.write_bytes(attention(cap=2.0))
    if onnx_session.runtime_version(import_runtime()) < onnx_session.RIGHT_CAPS:
        with pytest.raises(Unsupported, match="Attention with softcap"):
            attend(path)
        return
    found, expected = attend(path, cap=2.0)
    assert np.abs(found - expected).max() < 1e-5


@pytest.mark.parametrize("version", ["1.23.2", "1.24.1", "1.26.0"])
def test_capped_scores_are_refused_where_the_runtime_computes_them_wrongly(path, monkeypatch, version):
    path.write_bytes(attention(cap=2.0))
    monkeypatch.setattr(import_runtime(), "__version__", version)
    with pytest.raises(
        Unsupported, match=rf"softcap, which ONNX Runtime {version} computes wrongly; install 1\.27"
    ):
        open_session(path, "cpu")


def test_scores_without_a_cap_are_right_on_every_runtime(path):
    path.write_bytes(attention())
    found, expected = attend(path)
    assert np.abs(found - expected).max() < 1e-5


class FallingBack:
    """A runtime that lists CUDA, and gives sessions without it, as with a missing driver."""

    def __init__(self, real):
        self.real = real

    def __getattr__(self, name):
        return getattr(self.real, name)

    def get_available_providers(self):
        return ["CUDAExecutionProvider", "CPUExecutionProvider"]

    def InferenceSession(self, path, settings, providers):  # noqa: N802
        return self.real.InferenceSession(path, settings, providers=["CPUExecutionProvider"])


def test_falling_back_is_never_silent(path, monkeypatch):
    runtime = FallingBack(onnx_session.import_runtime())
    monkeypatch.setattr(onnx_session, "import_runtime", lambda: runtime)
    with pytest.raises(Unsupported, match="would use CPUExecutionProvider instead"):
        open_session(path, "cuda")
    session = open_session(path, "auto")
    assert session.device == "cpu"
    assert "does not work here" in session.skipped["cuda"]


def test_memory_is_limited(tmp_path):
    path = tmp_path / "model.onnx"
    nodes = [made.node("ConstantOfShape", ["s"], ["o"]), made.node("ReduceSum", ["o"], ["y"], name="sum")]
    inputs, outputs = [made.value("s", ["n"], made.INT64)], [made.value("y", [1])]
    path.write_bytes(made.model(made.graph(nodes, inputs=inputs, outputs=outputs)))
    small = open_session(path, "cpu", threads=1, memory=8 << 20)
    assert small.run({"s": np.array([1000])}, ["y"])["y"].size == 1
    with pytest.raises(ModelError, match="cannot compute"):
        small.run({"s": np.array([1 << 40])})
    with pytest.raises(ModelError, match="cannot compute"):
        small.run({"s": np.array([4 << 20])})
    large = open_session(path, "cpu", threads=1, memory=64 << 20)  # a limit is of one session
    assert large.run({"s": np.array([4 << 20])})["y"].size == 1


def test_wrong_inputs_are_an_error_that_names_the_file(path):
    session = open_session(path, "cpu", threads=1)
    for feeds in ({}, {"x": np.zeros((3, 5), np.float32)}, {"x": np.zeros((1, 2), np.int32)}):
        with pytest.raises(ModelError, match=r"model\.onnx.*cannot compute"):
            session.run(feeds)


def test_a_model_that_the_runtime_refuses_is_a_model_error(path):
    path.write_bytes(made.adder(nodes=[made.node("NoSuchOperator", ["x", "w"], ["y"])]))
    with pytest.raises(ModelError, match="cannot open it"):
        open_session(path, "cpu")


def test_threads_are_checked(path):
    for threads in (0, -1, True, "2"):
        with pytest.raises(InvalidRequest, match="threads"):
            open_session(path, "cpu", threads)


def test_a_missing_runtime_names_the_extra(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(Unsupported, match=r"pip install 'stretto\[onnx\]'"):
        open_session(path)


def test_a_file_that_changes_while_it_is_opened_is_refused(path, monkeypatch):
    file = onnx_session.read_onnx(path)
    path.write_bytes(made.adder(metadata=[("a", "b")]))
    with pytest.raises(ModelError, match="changed while it was opened"):
        open_session(file, "cpu")

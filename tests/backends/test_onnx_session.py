"""Sessions of ONNX Runtime: what is asked for is what runs, or an error says what is missing."""

import sys
from struct import pack
from types import SimpleNamespace

import numpy as np
import pytest

import onnx_files as made
from stretto.backends import onnx_session
from stretto.backends.onnx_session import available_devices, import_runtime, open_session
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

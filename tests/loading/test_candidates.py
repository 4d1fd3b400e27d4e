"""Candidates of real files: what can run them, and why not; nothing is opened to find out."""

from types import SimpleNamespace

import pytest

from strange_models import deci
from stretto.backends import llama_library
from stretto.backends.base import BackendOptions
from stretto.backends.registry import serving
from stretto.loading import choose
from stretto.loading.choose import gguf_candidates, route_by_tier
from stretto.loading.open import list_alternatives
from stretto.models.missing import bare_spec
from stretto.models.spec import ModelSpec
from stretto.weights.gguf import GGUF
from tiny_models import tiny_file, tiny_spec

OPTIONS = BackendOptions("cpu", 64, 1, memory=1 << 40)


@pytest.fixture(autouse=True)
def with_package(monkeypatch):
    monkeypatch.setattr(llama_library, "find_spec", lambda name: object())


def refusals(file, spec, problem=None, pairs=None, options=OPTIONS):
    found = gguf_candidates(file, spec, problem, pairs or serving(), options)
    return {each.backend: each.refusal for each in found if each.asked and each.device == "cpu"}


def test_all_backends_can_run_a_model_that_is_supported():
    assert refusals(tiny_file("llama"), tiny_spec("llama")) == {"native": "", "reference": "", "llamacpp": ""}


def test_a_format_that_only_llama_cpp_reads(monkeypatch):
    monkeypatch.setattr(choose, "_READABLE_NAMES", {"F32"})
    found = refusals(tiny_file("llama"), tiny_spec("llama"))
    assert found["native"] == found["reference"] == "tensors in F16 are not supported"
    assert found["llamacpp"] == ""


def test_memory_that_is_too_small_for_one():
    found = refusals(
        tiny_file("llama"), tiny_spec("llama"), options=BackendOptions("cpu", 64, 1, memory=1000)
    )
    assert "of memory are free" in found["reference"]
    assert found["native"] == ""  # it says so itself, and can leave weights in the file


def test_llama_cpp_takes_neither_encoders_nor_folders(tmp_path):
    file, spec = tiny_file("llama"), tiny_spec("llama")
    llamacpp = next(entry for entry, _ in serving() if entry.name == "llamacpp")
    assert llamacpp.refuses(file, spec) == ""
    assert "folder" in llamacpp.refuses(SimpleNamespace(path=tmp_path), spec)
    assert "encoder" in llamacpp.refuses(file, SimpleNamespace(is_encoder=True))


def test_a_route_by_tiers_alone_is_not_measured():
    found = gguf_candidates(tiny_file("llama"), tiny_spec("llama"), None, serving(), OPTIONS)
    route = route_by_tier(found)
    assert (route.backend, route.chosen.tokens_per_second) == ("native", None)
    assert {each.name for each in route.others} == {"reference on cpu", "llamacpp on cpu", "torch on cuda"}


def test_a_backend_that_was_not_asked_for_is_listed_and_not_chosen():
    found = gguf_candidates(tiny_file("llama"), tiny_spec("llama"), None, serving("reference"), OPTIONS)
    assert [(each.backend, each.asked) for each in found] == [
        ("reference", True),
        ("native", False),
        ("llamacpp", False),
        ("torch", False),
    ]


@pytest.mark.parametrize("make", [deci])
def test_an_architecture_of_others_has_a_bare_spec(make, tmp_path):
    path = make(tmp_path / "model.gguf")
    with GGUF(path) as file:
        spec = bare_spec(file)
    assert isinstance(spec, ModelSpec)
    assert (spec.architecture, spec.n_layer, spec.n_embd, spec.context_length) == (make.__name__, 2, 64, 512)
    assert {each.backend: each.state for each in list_alternatives(path)} == {
        "native": "refused",
        "reference": "refused",
        "llamacpp": "possible",
        "torch": "refused",
    }
    reason = list_alternatives(path)[0].reason
    assert reason.startswith(f"the architecture '{make.__name__}' is not supported yet: it would need")
    assert str(tmp_path) not in reason

"""What `stretto.load` takes, and who serves it."""

import re
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

import stretto
from stretto import _native
from stretto.backends import registry
from stretto.backends.reference import ReferenceBackend
from stretto.backends.registry import BackendEntry
from stretto.errors import InvalidRequest, ModelError, Unsupported
from stretto.hardware import usable_cores
from stretto.loading import choose, probe
from stretto.loading.choose import BAR
from stretto.loading.open import open_model, survey
from stretto.options.loading import GPU_CACHE_TYPES, CacheType, LoadOptions
from tiny_models import FOLDER

WRONG = {
    "backend": (["cuda", "Native", "", None, 3, ["native"]], ["'auto'", "'native'", "'reference'"]),
    "device": (["gpu", "cpu:0", "", None, 0], ["'auto'", "'cpu'"]),
    "kv": (["f64", "q4", "F16", "", None, 8], ["'f16'", "'q8'"]),
    "threads": ([0, -1, 1025, 1 << 40, 1.5, "2", True, [2]], ["1", "1024"]),
    "cells": ([0, -1, (1 << 24) + 1, 8.0, "8192", None, True], ["1", str(1 << 24)]),
    "repack": ([None, 1, "yes"], ["True", "False"]),
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param(name, value, id=f"{name}={value!r}")
        for name, (values, _) in WRONG.items()
        for value in values
    ],
)
def test_wrong_values_are_named_with_what_is_allowed(name, value):
    # Before any file is looked for: the model does not exist.
    with pytest.raises(InvalidRequest) as raised:
        stretto.load("no-such-model.gguf", **{name: value})
    message = str(raised.value)
    assert message.startswith(name)
    assert repr(value) in message
    assert all(allowed in message for allowed in WRONG[name][1])
    assert (raised.value.param, raised.value.value) == (name, value)


def test_unknown_arguments_raise():
    with pytest.raises(InvalidRequest, match="gpu_layers"):
        stretto.load("no-such-model.gguf", gpu_layers=3)


def test_what_a_backend_does_not_take(smollm2_path):
    with pytest.raises(Unsupported, match=r"reference backend keeps K and V as float32.*backend='native'"):
        stretto.load(smollm2_path, backend="reference", kv="q8")


def test_a_model_without_a_tokenizer_cannot_be_loaded():
    with pytest.raises(ModelError, match="the key is missing") as raised:
        stretto.load(FOLDER / "llama.gguf")
    assert raised.value.field == "tokenizer.ggml.model"


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ModelError, match=re.escape(str(tmp_path))):
        stretto.load(tmp_path / "nothing.gguf")


def test_the_native_backend_is_the_default(smollm2_path, monkeypatch):
    monkeypatch.delenv("STRETTO_KERNELS", raising=False)
    with stretto.load(smollm2_path, cells=16) as llm:
        assert llm.backend.name == "native"
        assert llm.backend.threads == usable_cores()
        assert llm.backend.kernels == _native.kernels()
        assert llm.backend.n_cells == llm.context_length == 16


def test_the_route_says_what_else_was_possible(smollm2_path):
    with stretto.load(smollm2_path, cells=16) as llm:
        assert (llm.route.backend, llm.route.device) == ("native", "cpu")
        others = {option.backend: option for option in llm.route.others}
        assert others["reference"].state == "possible"
        assert "comparisons" in others["reference"].reason
        assert llm.route.chosen.tokens_per_second is None  # nothing was measured
    with stretto.load(smollm2_path, cells=16, backend="reference") as llm:
        assert (llm.route.backend, llm.route.reason) == ("reference", "it was asked for")
        assert {option.backend for option in llm.route.others} >= {"native"}


def test_candidates_that_compete_are_measured_once(smollm2_path, monkeypatch, store_home):
    opened = []

    def rival(file, spec, options):
        opened.append(options.device)
        return ReferenceBackend(file, spec, options.cells)

    def measure(backend, tokens, seconds):
        """Real rows, and speeds that do not depend on what else the machine does."""
        sample = probe.measure(backend, tokens, seconds)
        assert sample.tokens_per_second > 0
        return replace(sample, tokens_per_second=100.0 if backend.name == "native" else 10.0)

    entries = (BackendEntry("slow", ("cpu", "beads"), rival, missing=lambda d: "no beads" * (d == "beads")),)
    monkeypatch.setattr(registry, "BUILT_IN", (registry.BUILT_IN[0], *entries))
    monkeypatch.setattr(choose, "measure", measure)
    for count in (1, 0):
        opened.clear()
        with stretto.load(smollm2_path, cells=64) as llm:
            assert llm.route.backend == "native"
            assert (llm.route.others[0].tokens_per_second, llm.route.chosen.tokens_per_second) == (10, 100)
            # The reference is the more exact one; the native kernels are near enough to it.
            assert 0 < llm.route.chosen.distance < BAR
            assert (llm.route.others[1].device, llm.route.others[1].reason) == ("beads", "no beads")
        assert len(opened) == count
    assert [path.name for path in store_home.iterdir()] == ["routes.json"]


def test_a_survey_measures_what_can_run(smollm2_path):
    route = survey(smollm2_path, threads=1, cells=128)
    assert route.backend == "native"
    assert route.chosen.tokens_per_second > 1
    assert route.chosen.distance == 0
    assert next(each for each in route.others if each.backend == "reference").tokens_per_second is None


@pytest.mark.parametrize("kv", [kv for kv in get_args(CacheType) if kv not in GPU_CACHE_TYPES])
@pytest.mark.parametrize("threads", [1, 3])
def test_what_is_asked_for_is_what_runs(smollm2_path, kv, threads):
    opened = open_model(
        smollm2_path,
        LoadOptions(backend="native", device="cpu", threads=threads, cells=100, kv=kv, repack=False),
    )
    try:
        assert opened.backend.threads == threads
        assert opened.backend.n_cells == 100
        per_head = {"f16": 2 * 64, "q8": 2 * 34, "f32": 4 * 64}[kv]
        assert opened.backend.decoder.cache_bytes == 30 * 2 * 3 * 100 * per_head
        assert opened.backend.decoder.weight_bytes == 0  # they stay in the file
        assert opened.tokenizer.n_vocab == opened.backend.spec.n_vocab
        assert opened.template is not None
    finally:
        opened.backend.close()


def test_backends_agree(smollm2_path):
    found = {}
    for name in ("native", "reference"):
        with stretto.load(smollm2_path, backend=name, cells=16) as llm:
            assert llm.backend.name == name
            with llm.sequence("The capital of France is") as sequence:
                found[name] = sequence.logits.copy()
    assert found["native"].shape == found["reference"].shape
    assert found["native"].argmax() == found["reference"].argmax()
    # Activations of 8 bits show; by far less than what a logit varies.
    difference = found["native"] - found["reference"]
    assert 0 < np.sqrt(np.mean(difference**2)) < 0.1 * found["reference"].std()


def test_a_kernel_set_that_cannot_run_here(smollm2_path, monkeypatch):
    monkeypatch.setenv("STRETTO_KERNELS", "abacus")
    with pytest.raises(InvalidRequest, match=r"STRETTO_KERNELS='abacus'.*portable"):
        stretto.load(smollm2_path)
    with stretto.load(smollm2_path, backend="reference", cells=16) as llm:  # has no use for it
        assert llm.backend.name == "reference"


def test_a_closed_model_says_so(smollm2_path):
    llm = stretto.load(smollm2_path, cells=16)
    sequence = llm.sequence("Hello")
    stream = llm.stream("Hello", max_tokens=4)
    llm.close()
    llm.close()
    batch = stretto.Batch()
    batch.add(1, 0, [0], logits=True)
    for call in (
        lambda: llm.generate("Hello"),
        lambda: llm.score("Hello world"),
        lambda: llm.forward(batch),
        lambda: sequence.logits,
        lambda: sequence.append(1),
    ):
        with pytest.raises(InvalidRequest, match="the model is closed; load it again"):
            call()
    assert [token.finish_reason for token in stream][-1:] in ([], ["cancelled"])


def test_auto_cells_are_those_of_a_cpu_here(smollm2_path):
    with stretto.load(smollm2_path, cells="auto", backend="native") as llm:
        assert llm.backend.n_cells == 8192
    with pytest.raises(InvalidRequest, match="an integer from 1 to 16777216 or 'auto'") as caught:
        stretto.load(smollm2_path, cells="many")
    assert caught.value.param == "cells"

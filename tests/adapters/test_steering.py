"""Steering vectors and activations: what is added at the end of a layer, and what is read there."""

import numpy as np
import pytest

from stretto.backends.native import NativeBackend
from stretto.backends.reference import ReferenceBackend
from stretto.errors import InvalidRequest, ModelError, Unsupported
from stretto.llm import LLM
from stretto.testing import byte_tokenizer, mock_llm
from stretto.weights.writer import write_gguf
from tiny_models import N_CELLS, tiny_file, tiny_spec

PROMPT = [5, 17, 9, 33, 2, 40, 11, 3]
GREEDY = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}


def new_llm(kind=NativeBackend, name="llama"):
    options = {"threads": 2, "kv": "f32", "n_slots": 8} if kind is NativeBackend else {"n_slots": 8}
    backend = kind(tiny_file(name), tiny_spec(name), N_CELLS, **options)
    return LLM(backend, byte_tokenizer(), fingerprint=lambda: "tiny")


def vector(llm, seed=0):
    return np.random.default_rng(seed).standard_normal(llm.spec.n_embd).astype(np.float32)


@pytest.fixture
def llm():
    with new_llm() as found:
        yield found


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "qwen35", "mixtral"])
def test_activations_are_the_oracles(name):
    with new_llm(name=name) as ours, new_llm(ReferenceBackend, name) as oracle:
        layers = list(range(ours.spec.n_layer))
        found, expected = ours.activations(PROMPT, layers), oracle.activations(PROMPT, layers)
    assert found.shape == (len(layers), len(PROMPT), ours.spec.n_embd)
    assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()


def test_a_vector_is_added_at_the_end_of_its_layer(llm):
    added = vector(llm)
    llm.load_steering("up", {0: added})
    before, after = llm.activations(PROMPT, [0]), llm.activations(PROMPT, [0], adapter={"up": 0.5})
    assert np.allclose(after - before, 0.5 * added, atol=1e-5)


def test_both_backends_steer_alike():
    rows = []
    for kind in (NativeBackend, ReferenceBackend):
        with new_llm(kind) as llm:
            llm.load_steering("up", {0: vector(llm), 1: vector(llm, 1)})
            with llm.sequence(PROMPT, adapter={"up": 2.0}) as sequence:
                rows.append(sequence.logits.copy())
    assert np.abs(rows[0] - rows[1]).max() < 0.01 * np.abs(rows[1]).max()


def test_steered_requests_leave_their_neighbours_alone(llm):
    llm.load_steering("up", {1: 3 * vector(llm)})
    plain = llm.generate(PROMPT, **GREEDY).tokens
    both = [llm.sequence(PROMPT), llm.sequence(PROMPT, adapter="up")]
    rows = llm.logits(both)
    with new_llm() as fresh:
        fresh.load_steering("up", {1: 3 * vector(fresh)})
        for row, adapter in zip(rows, (None, "up"), strict=True):
            with fresh.sequence(PROMPT, adapter=adapter) as sequence:
                assert np.array_equal(row, sequence.logits)
    assert llm.generate(both[1], **GREEDY).tokens != plain
    for sequence in both:
        sequence.close()


def test_vectors_are_saved_and_read_as_adapters(llm, tmp_path):
    made = {0: vector(llm), 1: vector(llm, 1)}
    llm.save_steering(tmp_path / "up.gguf", made)
    info = llm.load_adapter("file", tmp_path / "up.gguf")
    assert info.layers == (0, 1)
    assert info.fingerprint == llm.load_steering("memory", made).fingerprint
    with llm.sequence(PROMPT, adapter="file") as sequence:
        sequence.save(tmp_path / "s.safetensors")
    with llm.restore(tmp_path / "s.safetensors") as restored:
        expected = llm.generate(PROMPT, **GREEDY, adapter="memory").tokens
        assert llm.generate(restored, **GREEDY).tokens == expected


@pytest.mark.parametrize(
    ("head", "tensors", "message"),
    [
        ({"controlvector.model_hint": "qwen3"}, {"direction.0": 64}, "architecture 'qwen3'"),
        ({}, {"direction.99": 64}, "no vector of a layer"),
        ({}, {"other": 64}, "no vector of a layer"),
        ({}, {"direction.0": 7}, "have .* numbers; are the vectors for another model"),
    ],
)
def test_vectors_of_another_model_are_refused_by_name(llm, head, tensors, message, tmp_path):
    sizes = {name: np.ones(llm.spec.n_embd if n == 64 else n, np.float32) for name, n in tensors.items()}
    write_gguf(tmp_path / "v.gguf", {"general.architecture": "controlvector", **head}, sizes)
    with pytest.raises(ModelError, match=message):
        llm.load_adapter("v", tmp_path / "v.gguf")


@pytest.mark.parametrize("wrong", [{}, {99: [0.0]}, {"a": [0.0]}, {0: [1.0, 2.0]}, {0: [float("nan")] * 32}])
def test_wrong_vectors_are_refused(llm, wrong):
    with pytest.raises(InvalidRequest) as error:
        llm.load_steering("v", wrong)
    assert error.value.param == "vectors"


@pytest.mark.parametrize(("text", "layers"), [([], [0]), (PROMPT, []), (PROMPT, [99]), (PROMPT, ["0"])])
def test_wrong_activations_are_refused(llm, text, layers):
    with pytest.raises(InvalidRequest):
        llm.activations(text, layers)


def test_activations_leave_no_cells_behind(llm):
    free = llm.cache.stats().free
    llm.activations(PROMPT, [0])
    assert llm.cache.stats().free == free


def test_models_and_backends_that_cannot_say_so():
    with mock_llm("Hi") as llm, pytest.raises(Unsupported, match="does not show activations"):
        llm.activations([1, 2], [0])
    with new_llm(name="gemma3n") as llm, pytest.raises(Unsupported, match="several streams"):
        llm.load_steering("v", {0: vector(llm)})

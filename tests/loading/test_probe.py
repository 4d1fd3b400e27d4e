"""Probes of real backends: they leave nothing behind, and see a coarser kernel."""

import time

import numpy as np
import pytest

from stretto.backends.base import BackendOptions
from stretto.loading.choose import BAR, make_comparison
from stretto.loading.describe import describe_file, open_tokenizer
from stretto.loading.probe import DEVICE_WARM_STEPS, distance, measure
from stretto.testing import MockBackend
from stretto.weights.gguf import GGUF
from stretto.weights.writer import write_gguf
from tiny_encoders import native, reference
from tiny_models import tiny_backend, tiny_file, tiny_spec


def test_a_probe_counts_its_best_step():
    sample = measure(MockBackend(lambda tokens: 1, 8, n_cells=64), [1, 2, 3], 0.01)
    assert sample.tokens_per_second > 0
    assert sample.logits.shape == (3, 8)
    assert sample.exactness == 2  # the mock says that it is exact


def test_a_probe_ends_in_a_small_cache():
    backend = MockBackend(lambda tokens: 1, 8, n_cells=4)
    sample = measure(backend, range(100), 5.0)
    assert len(backend.batches[0]) == 2
    assert len(backend.batches) == 3
    assert sample.tokens_per_second > 0


@pytest.mark.parametrize("name", ["llama", "lfm2"])
def test_a_model_is_as_new_after_a_probe(name):
    backend, again = tiny_backend(name), tiny_backend(name)
    first, second = (measure(each, [1, 2, 3, 4], 0.05).logits for each in (backend, again))
    assert np.array_equal(first, second)
    assert np.array_equal(measure(backend, [1, 2, 3, 4], 0.05).logits, first)


def test_distances_are_of_probabilities():
    logits = np.random.default_rng(0).normal(0, 3, (4, 100)).astype(np.float32)
    assert distance(logits, logits) == 0
    assert distance(logits, logits + 5) < 1e-5  # a common shift changes no probability
    noise = np.random.default_rng(1).normal(0, 0.3, logits.shape).astype(np.float32)
    assert 0.01 < distance(logits, logits + 0.1 * noise) < BAR < distance(logits, logits + noise)
    assert distance(logits, np.full_like(logits, np.nan)) == np.inf
    assert distance(logits, logits[:2]) == np.inf


class DeviceLike(MockBackend):
    """Gives rows that stay on a device; its first decode steps are slow, as if kernels were compiled."""

    def forward(self, batch):
        rows = [Row(row) for row in super().forward(batch)]
        if 1 < len(self.batches) <= 1 + DEVICE_WARM_STEPS:
            time.sleep(0.05)
        return rows


class Row:
    host_copies = 0

    def __init__(self, logits):
        self.logits = logits

    def numpy(self):
        Row.host_copies += 1
        return self.logits

    def sample(self, params, tokens, n_prompt, uniform, mask):
        assert params.temperature == 0
        return int(self.logits.argmax())


def test_rows_of_a_device_are_sampled_there_and_compiling_is_not_timed():
    Row.host_copies = 0
    backend = DeviceLike(lambda tokens: 1, 8, n_cells=64)
    sample = measure(backend, [1, 2, 3], 0.02)
    assert sample.tokens_per_second > 1 / 0.05
    assert Row.host_copies == 3  # of the text's rows, which are compared; none of a step
    assert len(backend.batches) > 1 + DEVICE_WARM_STEPS


@pytest.mark.parametrize("name", ["bert", "nomic-bert"])
def test_an_encoder_is_measured_by_whole_texts(name):
    backends = native(name), reference(name)
    samples = [measure(backend, range(1, 20), 0.01) for backend in backends]
    assert all(sample.tokens_per_second > 0 for sample in samples)
    assert samples[0].logits.shape == (19, backends[0].spec.n_embd)
    assert distance(samples[1].logits, samples[0].logits) < BAR
    assert distance(samples[1].logits, samples[0].logits[:, ::-1]) > BAR
    backends[0].close()


def test_a_vocabulary_without_the_letters_of_the_text_has_other_tokens(tmp_path):
    tokens = ["a", "b", "ab", *(f"[{token}]" for token in range(3, tiny_spec("llama").n_vocab))]
    words = {"model": "gpt2", "tokens": tokens, "merges": ["a b"]}
    file = tiny_file("llama")
    path = tmp_path / "few.gguf"
    words = {f"tokenizer.ggml.{key}": value for key, value in words.items()}
    write_gguf(path, {**file.metadata, **words}, file.tensors)
    with GGUF(path) as opened:
        setup = BackendOptions("cpu", 64, 1)
        tokens = make_comparison(describe_file(opened), lambda: open_tokenizer(path), setup).tokens()
    assert len(tokens) > 20
    assert set(tokens) <= set(range(tiny_spec("llama").n_vocab))

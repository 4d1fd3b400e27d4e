"""Tiny random encoders against transformers, in the reference and in the native backend."""

from dataclasses import replace

import numpy as np
import pytest

from stretto import _native
from stretto.backends.batch import Batch
from stretto.backends.native import NativeBackend
from stretto.backends.reference import ReferenceBackend
from stretto.cache.cells import Cells
from stretto.models.parts import Stretch
from stretto.models.rope import plain_frequencies
from tiny_encoders import NAMES, TEXTS, answers, file_of, hidden_of, native, reference, spec_of, text_of

pytestmark = pytest.mark.golden

TOLERANCE = 2e-5
NATIVE = {"f16": 0.03, "f32": 1e-3}  # K and V as half floats or in float32


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", NAMES)
def test_the_reference_is_transformers(name, text):
    expected = answers(name)[f"hidden.{text}"]
    assert 0.5 < expected.std() < 2
    assert np.abs(hidden_of(reference(name), text_of(name, text)) - expected).max() < TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_is_near_llamacpp(name):
    """It has GELU's tanh form from a table of half floats, where most of these models have the exact one."""
    rows, backend = answers(name)["llamacpp.0"], reference(name)
    found = hidden_of(backend, text_of(name, 0))
    if "vector.0" in answers(name):  # its states are behind the pooling
        found = found.mean(0)[None]
        for projection in spec_of(name).embedder.projections:
            found = backend.project(projection.name, found)
    assert np.abs(found[-len(rows) :] - rows).max() < 1e-2


@pytest.mark.parametrize("kernels", _native.kernel_names())
@pytest.mark.parametrize("kv", NATIVE)
@pytest.mark.parametrize("name", NAMES)
def test_native_is_near(name, kv, kernels, monkeypatch):
    monkeypatch.setenv("STRETTO_KERNELS", kernels)
    for text in TEXTS:
        found = hidden_of(native(name, kv=kv), text_of(name, text))
        assert np.abs(found - answers(name)[f"hidden.{text}"]).max() < NATIVE[kv]


@pytest.mark.parametrize("kernels", _native.kernel_names())
@pytest.mark.parametrize("name", NAMES)
def test_the_same_bits_in_any_batch_with_any_threads(name, kernels, monkeypatch):
    monkeypatch.setenv("STRETTO_KERNELS", kernels)
    first, second = (text_of(name, text) for text in TEXTS)
    alone = hidden_of(native(name, 1), first)
    for threads in (2, 3):
        both = hidden_of(native(name, threads), second, first, (second[0][:1], [0]))
        assert (both[len(second[0]) : -1] == alone).all()
        assert (hidden_of(native(name, threads, repack=False), first) == alone).all()


@pytest.mark.parametrize("make", [reference, native])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", [name for name in NAMES if "scores.0" in answers(name)])
def test_class_heads(name, text, make):
    backend, head = make(name), spec_of(name).classifier
    rows = hidden_of(backend, text_of(name, text))
    pooled = rows.mean(0) if head.pooling == "mean" else rows[0]
    made = pooled[None]
    for projection in head.projections:
        made = backend.project(projection.name, made)
    assert np.abs(made[0] - answers(name)[f"scores.{text}"]).max() < 1e-3
    assert head.labels == ("no", "maybe", "yes")


@pytest.mark.parametrize("make", [reference, native])
def test_matrices_behind_the_mean(make):
    backend = make("gemma-embedding")
    made = hidden_of(backend, text_of("gemma-embedding", 0)).mean(0)[None]
    for projection in spec_of("gemma-embedding").embedder.projections:
        made = backend.project(projection.name, made)
    assert np.abs(made[0] - answers("gemma-embedding")["vector.0"]).max() < 1e-3


def test_a_decode_step_of_an_encoder_is_refused():
    decoder = native("bert").decoder
    one, view = [0], [np.zeros(1, np.int32)]
    with pytest.raises(ValueError, match="both directions"):
        decoder.decode(one, one, one, view, [1], np.zeros(128, np.int32))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", ["gemma-embedding", "jina-bert-v2", "modern-bert", "nomic-bert"])
def test_long_texts_span_several_pieces_of_the_cache(name, threads):
    """Windows on both sides, slopes and whole views, beyond what attention takes at a time."""
    n = 530
    tokens = np.random.default_rng(3).integers(1, 96, n).tolist()
    backends = (
        ReferenceBackend(file_of(name), spec_of(name), n),
        NativeBackend(file_of(name), spec_of(name), n, threads, "f32"),
    )
    found = []
    for backend in backends:
        batch = Batch()
        batch.add_text(tokens, 0)
        batch.place(Cells(n))
        found.append(backend.hidden(batch))
    assert np.abs(found[0] - found[1]).max() < 2e-3


def with_rope(spec, **changes):
    """The spec with another rope in every layer."""
    mixer = spec.layers[0].attention
    mixer = replace(mixer, rope=replace(mixer.rope, **changes))
    return replace(spec, layers=tuple(replace(layer, mixer=mixer) for layer in spec.layers))


@pytest.mark.parametrize("make", [reference, native])
def test_a_rope_stretches_with_each_text_that_is_longer_than_trained(make):
    """Its frequencies are those of a base that grows with the text (dynamic NTK); others stay as they are."""
    plain, size, trained = spec_of("nomic-bert"), 8, 20
    base = 500.0 * (3.0 * 40 / trained - 2.0) ** (size / (size - 2))
    by_hand = with_rope(plain, frequencies=tuple(plain_frequencies(base, size).tolist()))
    stretching = with_rope(plain, stretch=Stretch(trained, 3.0))
    rng = np.random.default_rng(7)
    short, edge, long = ((rng.integers(1, 96, n).tolist(), [0] * n) for n in (5, trained, 40))
    found = hidden_of(make("nomic-bert", spec=stretching), short, long, edge)
    assert np.abs(found[5:45] - hidden_of(make("nomic-bert", spec=by_hand), long)).max() < 1e-5
    assert np.abs(found[5:45] - hidden_of(make("nomic-bert"), long)).max() > 1e-2
    for text, rows in ((short, found[:5]), (edge, found[45:])):
        assert np.abs(rows - hidden_of(make("nomic-bert"), text)).max() < 1e-5

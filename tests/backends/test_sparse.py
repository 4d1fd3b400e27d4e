"""Sparse latent attention: which tokens an indexer chooses, and that nothing but them is attended to."""

from dataclasses import replace

import numpy as np
import pytest

from stretto.backends.native import NativeBackend
from stretto.backends.reference import ReferenceBackend
from stretto.cache.cells import Cells
from stretto.errors import Unsupported
from stretto.models import read_spec
from stretto.weights.gguf import GGUF
from stretto.weights.writer import write_gguf
from tiny_models import answer, text_batch, text_logits, tiny_backend, tiny_file, tiny_spec, with_mixers

NAMES = ["deepseek32", "glm-dsa"]
TOP_K = 11  # of both models


def native(name, spec=None, n_cells=64, threads=2, kv="f32", file=None):
    file = file or tiny_file(name)
    return NativeBackend(file, spec or tiny_spec(name), n_cells, threads, kv)


def with_indexers(spec, **changes):
    """The spec with the same changes to all its indexers."""
    layers = []
    for layer in spec.layers:
        if layer.mixer.indexer is not None:
            indexer = replace(layer.mixer.indexer, **changes)
            layer = replace(layer, mixer=replace(layer.mixer, indexer=indexer))
        layers.append(layer)
    return replace(spec, layers=tuple(layers))


def dense(spec):
    """The same model without sparse attention."""
    return with_mixers(spec, indexer=None, chosen_by=None)


def text(n, seed=3):
    return np.random.default_rng(seed).integers(3, 96, n).tolist()


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.mark.parametrize("kv", ["f16", "f32", "q8"])
def test_prompts_no_longer_than_the_choice_have_the_bits_of_dense_attention(name, kv):
    tokens = text(40)
    for spec in (tiny_spec(name), with_indexers(tiny_spec(name), top_k=40)):
        n = spec.layers[0].mixer.indexer.top_k
        expected = text_logits(native(name, dense(spec), kv=kv), tokens[:n])
        assert (text_logits(native(name, spec, kv=kv), tokens[:n]) == expected).all()
        exact = [text_logits(tiny_backend(name, spec=each), tokens[:n]) for each in (spec, dense(spec))]
        assert (exact[0] == exact[1]).all()


def test_rows_beyond_the_choice_differ_from_dense_attention(name):
    tokens = text(40)
    found, other = (
        text_logits(native(name, spec), tokens) for spec in (tiny_spec(name), dense(tiny_spec(name)))
    )
    gaps = np.abs(found - other).max(axis=1)
    assert (gaps[:TOP_K] == 0).all()
    assert np.median(gaps[TOP_K:]) > 0.05


def other_pairs(spec):
    pairs = {"halves": "adjacent", "adjacent": "halves"}[spec.layers[0].mixer.indexer.rope.pairs]
    return with_indexers(spec, rope=replace(spec.layers[0].mixer.rope, pairs=pairs))


def rms_norm(spec):
    return with_indexers(spec, k_norm=replace(spec.layers[0].mixer.indexer.k_norm, kind="rms", bias=False))


def one_more(spec):
    return with_indexers(spec, top_k=TOP_K + 1)


@pytest.mark.golden
@pytest.mark.parametrize("change", [dense, one_more, other_pairs, rms_norm])
def test_errors_of_an_indexer_are_seen(name, change):
    logits = text_logits(tiny_backend(name, spec=change(tiny_spec(name))), answer(name, "tokens.0"))
    assert np.abs(logits - answer(name, "logits.0")).max() > 0.01


def test_layers_take_the_choice_of_the_right_layer():
    spec = tiny_spec("glm-dsa")
    assert [layer.mixer.chosen_by for layer in spec.layers] == [None, 0, None, 2]
    wrong = list(spec.layers)
    wrong[3] = replace(wrong[3], mixer=replace(wrong[3].mixer, chosen_by=0))
    spec = replace(spec, layers=tuple(wrong))
    logits = text_logits(tiny_backend("glm-dsa", spec=spec), answer("glm-dsa", "tokens.0"))
    assert np.abs(logits - answer("glm-dsa", "logits.0")).max() > 0.01
    with pytest.raises(Unsupported, match="takes the choice of the last one before it"):
        native("glm-dsa", spec)


def watched(backend, tokens):
    """float32[n_layer, n_head, n]: what the last row attends to."""
    batch = text_batch(tokens)
    batch.watch(len(tokens) - 1)
    batch.place(Cells(backend.n_cells))
    backend.forward(batch)
    return batch.attention[0]


def test_attention_weights_are_of_the_chosen_tokens(name):
    tokens = text(40)
    exact, found = watched(tiny_backend(name), tokens), watched(native(name), tokens)
    assert ((exact > 0).sum(axis=2) == TOP_K).all()
    assert ((found > 0) == (exact > 0)).all()
    np.testing.assert_allclose(found, exact, atol=1e-4)


def test_probes_get_what_chosen_tokens_get(name):
    tokens, received = text(40), []
    for backend in (tiny_backend(name), native(name)):
        batch = text_batch(tokens)
        batch.place(cells := Cells(64))
        batch.probes = np.asarray(cells.view(0)[5:15], np.int32)
        backend.forward(batch)
        received.append(batch.received)
    assert (received[0][-1] == 0).any()
    assert ((received[0] == 0) == (received[1] == 0)).all()
    np.testing.assert_allclose(received[1], received[0], atol=1e-4)


def test_of_equal_scores_the_first_are_chosen(name, tmp_path):
    file = tiny_file(name)
    tensors = {
        key: np.zeros(tensor.shape, np.float32) if key.endswith("indexer.proj.weight") else tensor
        for key, tensor in file.tensors.items()
    }
    write_gguf(tmp_path / "equal.gguf", file.metadata, tensors)
    equal = GGUF(tmp_path / "equal.gguf")
    spec, tokens = read_spec(equal, 64), text(40)
    for backend in (ReferenceBackend(equal, spec, 64), native(name, spec, file=equal)):
        seen = watched(backend, tokens) > 0
        assert seen[..., :TOP_K].all()
        assert not seen[..., TOP_K:].any()


@pytest.mark.parametrize("top_k", [5, 300])
def test_long_texts_have_the_same_bits_in_chunks(name, top_k):
    """Beyond a span of cells: whole, in chunks beside another text, and token by token at the end."""
    spec, tokens = with_indexers(tiny_spec(name), top_k=top_k), text(560)
    whole = text_logits(native(name, spec, 640, 1, "f16"), tokens)
    exact = text_logits(tiny_backend(name, 640, spec), tokens[:330])
    assert np.median(np.abs(whole[:330] - exact).max(axis=1)) < 0.03
    backend, cells, at = native(name, spec, 640, 3, "f16"), Cells(640), 0
    for size in [250, 1, 60, 200, 45, 1, 1, 2]:
        batch = text_batch(tokens[at : at + size], at)
        batch.add(7, at, [1], logits=True)
        batch.place(cells)
        assert (backend.forward(batch)[:size] == whole[at : at + size]).all()
        cells.remove(1)
        at += size
    assert at == len(tokens)


def test_moved_cells_have_the_index_keys_of_their_new_positions(name):
    tokens = text(30)
    for make in (lambda: tiny_backend(name), lambda: native(name)):
        backend, moved = make(), make()
        text_logits(backend, tokens)
        text_logits(moved, tokens, 9)
        cells = np.arange(30, dtype=np.int32)
        backend.rotate_cells(cells, 9)
        found, expected = (each.read_cells(cells).view(np.float32) for each in (backend, moved))
        np.testing.assert_allclose(found[:TOP_K], expected[:TOP_K], atol=2e-5)


def test_index_keys_are_part_of_a_cell(name):
    spec = tiny_spec(name)
    n_indexers = sum(layer.mixer.indexer is not None for layer in spec.layers)
    assert spec.kv_floats - dense(spec).kv_floats == 20 * n_indexers
    assert spec.kv_layout != dense(spec).kv_layout

"""The reference backend: one forward for any batch, so the same computed in another way is the same."""

import numpy as np
import pytest

from stretto.backends.batch import Batch
from stretto.backends.reference import ReferenceBackend, rotate
from stretto.cache.cells import Cells
from stretto.engine.engine import Engine
from stretto.errors import CacheFull, InvalidRequest
from stretto.models.spec import Rope
from tiny_models import answer, text_batch, text_logits, tiny_backend, tiny_file, tiny_spec, with_mixers

TOLERANCE = 1e-4  # of logits with about unit variance, when the same is computed in another way
SOME = ["llama", "llama-yarn", "qwen2", "qwen3", "gemma3"]
SOME += ["cohere2", "gemma3n", "olmo2-olmo3", "phi3-long"]  # layers that differ


@pytest.fixture(params=SOME)
def name(request):
    return request.param


@pytest.fixture
def backend(name):
    return tiny_backend(name, n_cells=64)


@pytest.fixture
def cells():
    return Cells(64)


@pytest.fixture
def tokens(name):
    return answer(name, "tokens.0").tolist()


def run(backend, cells, batch):
    batch.place(cells)
    return backend.forward(batch)


def near(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


def random_sizes(n):
    rng, sizes = np.random.default_rng(n), []
    while sum(sizes) < n:
        sizes.append(min(int(rng.integers(1, 12)), n - sum(sizes)))
    return sizes


CHUNKINGS = {
    "one by one": lambda n: [1] * n,
    "by seven": lambda n: [7] * (n // 7) + [n % 7],
    "whole": lambda n: [n],
    "whole but one": lambda n: [n - 1, 1],
    "random": random_sizes,
}


@pytest.mark.parametrize("chunking", CHUNKINGS.values(), ids=CHUNKINGS)
def test_cached_decoding_is_recomputing(name, backend, cells, tokens, chunking):
    rows, start = [], 0
    for size in chunking(len(tokens)):
        rows.append(run(backend, cells, text_batch(tokens[start : start + size], start)))
        start += size
    assert start == len(tokens)
    found = np.concatenate(rows)
    for n in (1, 2, 9, 31, len(tokens)):  # each prefix computed anew, in a cache that was never used
        near(found[n - 1], text_logits(tiny_backend(name), tokens[:n])[-1])
    near(found, answer(name, "logits.0"))


def test_two_sequences_in_one_batch(name, backend, cells, tokens):
    other = answer(name, "tokens.1").tolist()[:15]
    batch = Batch()
    order = []
    for i in range(30):  # interleaved, of different lengths
        batch.add(tokens[i], i, [3], logits=True)
        order.append(3)
        if i < len(other):
            batch.add(other[i], i, [8], logits=True)
            order.append(8)
    found, order = run(backend, cells, batch), np.array(order)
    near(found[order == 3], answer(name, "logits.0")[:30])
    near(found[order == 8], answer(name, "logits.1")[:15])


def test_only_wanted_rows_come_back(name, backend, cells, tokens):
    batch = Batch()
    batch.extend(tokens[:10], 0, [0])
    batch.add(tokens[10], 10, [0], logits=True)
    batch.extend(tokens[11:20], 11, [0], logits=True)
    found = run(backend, cells, batch)
    assert found.shape == (2, 96)
    assert found.dtype == np.float32
    assert found.flags.writeable
    near(found, answer(name, "logits.0")[[10, 19]])


def test_positions_need_not_begin_at_zero(name, backend, tokens):
    near(text_logits(backend, tokens, position=70), answer(name, "logits.0"))


def test_a_hole_in_the_positions(name, backend, cells, tokens):
    # Computed with the hole, or removed from the cache afterwards when nothing had seen it: the same.
    batch = text_batch(tokens[:10])
    for i in range(14, 24):
        batch.add(tokens[i], i, [0], logits=True)
    whole = run(backend, cells, batch)

    stepwise, table = tiny_backend(name), Cells(64)
    run(stepwise, table, text_batch(tokens[:14]))
    assert table.remove(0, 10, 14) == 4
    near(run(stepwise, table, text_batch(tokens[14:24], 14)), whole[10:])
    # A hole is not the same as no hole.
    assert np.abs(whole[10:] - text_logits(tiny_backend(name), tokens[:10] + tokens[14:24])[10:]).max() > 0.01


def test_a_shared_prefix(name, backend, cells, tokens):
    other = answer(name, "tokens.1").tolist()
    run(backend, cells, text_batch(tokens[:20]))
    assert cells.copy(0, 1, 0, 12) == 12
    assert cells.n_used == 20
    batch = text_batch(tokens[20:30], 20, [0])
    for i, token in enumerate(other[:10]):
        batch.add(token, 12 + i, [1], logits=True)
    found = run(backend, cells, batch)
    near(found[:10], answer(name, "logits.0")[20:30])
    near(found[10:], text_logits(tiny_backend(name), tokens[:12] + other[:10])[12:])


def test_a_token_in_several_sequences(name, backend, cells, tokens):
    run(backend, cells, text_batch(tokens[:12], sequences=[0, 1]))
    assert cells.n_used == 12
    batch = Batch()
    batch.add(tokens[12], 12, [0], logits=True)
    batch.add(tokens[12], 12, [1], logits=True)
    found = run(backend, cells, batch)
    near(found, answer(name, "logits.0")[[12, 12]])


# -- several tokens at one position --

MEMBERS = [7, 21, 50]
PAST = 12


def test_isolated_members_see_the_past_and_themselves(name, backend, cells, tokens):
    run(backend, cells, text_batch(tokens[:PAST]))
    batch = Batch()
    for member, token in enumerate(MEMBERS, start=1):
        cells.copy(0, member)
        batch.add(token, PAST, [member], logits=True)
    found = run(backend, cells, batch)
    for row, token in zip(found, MEMBERS, strict=True):
        near(row, text_logits(tiny_backend(name), [*tokens[:PAST], token])[-1])
    # Merged into the parent, later tokens see them all: as with a mask made by hand.
    for member in (1, 2, 3):
        cells.copy(member, 0)
        cells.remove(member)
    later = run(backend, cells, text_batch(tokens[PAST : PAST + 5], PAST + 1))

    mask = causal(PAST + 3 + 5)
    for i in range(3):
        for j in range(i):
            mask[PAST + i, PAST + j] = False
    by_hand = masked_logits(name, tokens, mask)
    near(found, by_hand[PAST : PAST + 3])
    near(later, by_hand[PAST + 3 :])


def test_visible_members_see_each_other(name, backend, cells, tokens):
    run(backend, cells, text_batch(tokens[:PAST]))
    batch = Batch()
    for token in MEMBERS:
        batch.add(token, PAST, [0], logits=True)
    found = run(backend, cells, batch)
    later = run(backend, cells, text_batch(tokens[PAST : PAST + 5], PAST + 1))

    mask = causal(PAST + 3 + 5)
    mask[PAST : PAST + 3, PAST : PAST + 3] = True
    by_hand = masked_logits(name, tokens, mask)
    near(found, by_hand[PAST : PAST + 3])
    near(later, by_hand[PAST + 3 :])
    alone = text_logits(tiny_backend(name), [*tokens[:PAST], MEMBERS[0]])[-1]
    assert np.abs(found[0] - alone).max() > 0.01


def test_permuting_visible_members_permutes_the_results(name, tokens):
    results = []
    for order in ([0, 1, 2], [2, 0, 1]):
        backend, cells = tiny_backend(name), Cells(64)
        batch = text_batch(tokens[:PAST])
        for i in order:
            batch.add(MEMBERS[i], PAST, [0], logits=True)
        results.append(run(backend, cells, batch)[PAST:][np.argsort(order)])
    near(results[0], results[1])


def causal(n, n_cells=64):
    """bool[n, n_cells]: row i sees cells 0 to i."""
    return np.tri(n, n_cells, dtype=bool)


def masked_logits(name, tokens, mask):
    """The past, the members at one position, five later tokens: all at once, seeing what `mask` says."""
    backend, cells, batch = tiny_backend(name), Cells(64), text_batch(tokens[:PAST])
    for member, token in enumerate(MEMBERS):
        batch.add(token, PAST, [1 + member], logits=True)
    for i in range(5):
        batch.add(tokens[PAST + i], PAST + 1 + i, [9], logits=True)
    batch.place(cells)
    assert batch.placement.cells.tolist() == list(range(len(batch)))  # so that a mask's columns are rows
    return backend.logits(backend.compute(batch, mask=mask).hidden)


def test_a_mask_by_hand_that_says_what_the_views_say(name, backend, cells, tokens):
    batch = text_batch(tokens)
    batch.place(cells)
    found = backend.compute(batch, mask=causal(len(tokens)))
    np.testing.assert_array_equal(found.hidden, backend.compute(batch).hidden)


@pytest.mark.parametrize(
    "mask",
    [np.ones((3, 64), bool), np.ones((2, 63), bool), np.ones((2, 64)), np.zeros((2, 64), bool)],
    ids=["rows", "cells", "not bool", "a row that sees nothing"],
)
def test_a_wrong_mask_is_refused(mask):
    backend, batch = tiny_backend("llama"), text_batch([1, 2])
    batch.place(Cells(64))
    with pytest.raises(InvalidRequest, match=r"mask must be bool\[2, 64\]"):
        backend.compute(batch, mask=mask)
    assert not any(keys.any() for keys in backend.keys)


# -- vectors, attention, hidden states --


def test_vectors_in_place_of_tokens(name, backend, cells, tokens):
    embeddings = backend.weights["token_embd.weight"] * np.float32(backend.spec.embedding_scale)
    batch = Batch()
    for i, token in enumerate(tokens):
        if i % 3:
            batch.add_vector(embeddings[token], i, [0], logits=True)
        else:
            batch.add(token, i, [0], logits=True)
    logits, expected = run(backend, cells, batch), answer(name, "logits.0")
    if backend.spec.per_layer is None:
        near(logits, expected)
    else:  # a vector has no token, so no embeddings for each layer
        near(logits[:1], expected[:1])
        assert np.abs(logits - expected).max() > 0.1


def test_attention(name, backend, cells, tokens):
    other = answer(name, "tokens.1").tolist()[:10]
    run(backend, cells, text_batch(other, sequences=[5]))
    batch = text_batch(tokens[:20])
    batch.place(cells)
    computed = backend.compute(batch, attention=True)
    assert len(computed.attention) == backend.spec.n_layer
    mine, positions = batch.placement.cells, np.arange(20)
    for layer, weights in zip(backend.spec.layers, computed.attention, strict=True):
        assert weights.shape == (4, 20, 64)
        np.testing.assert_allclose(weights.sum(axis=2), 1, atol=1e-6)
        distance = positions[:, None] - positions[None, :]
        seen = (distance >= 0) & (distance < (layer.mixer.window or 64))
        assert (weights[:, :, mine][:, seen] > 0).all()
        assert (weights[:, :, mine][:, ~seen] == 0).all()
        outside = np.setdiff1d(np.arange(64), mine)
        assert (weights[:, :, outside] == 0).all()


def test_attention_only_when_asked(backend, cells, tokens):
    batch = text_batch(tokens)
    batch.place(cells)
    assert backend.compute(batch).attention == []


def test_hidden_then_logits_is_forward(name, backend, cells, tokens):
    batch = Batch()
    batch.extend(tokens, 0, [0], logits=True)
    batch.place(cells)
    hidden = backend.hidden(batch)
    assert hidden.shape == (1, backend.spec.n_embd)
    np.testing.assert_array_equal(backend.logits(hidden), backend.forward(batch))
    everything = backend.compute(batch).hidden
    np.testing.assert_array_equal(everything[-1:], hidden)
    near(backend.logits(everything), answer(name, "logits.0"))


# -- moving cells --


def test_copy_cells(name, backend, cells, tokens):
    run(backend, cells, text_batch(tokens[:20]))
    cells.copy(0, 1)
    old, new = cells.unshare(1)
    backend.copy_cells(old, new)
    for plane in (*backend.keys, *backend.values):
        np.testing.assert_array_equal(plane[old], plane[new])
    cells.remove(0)
    run(backend, cells, text_batch([5] * 20, 0, [2]))  # what 0 had is written over
    near(run(backend, cells, text_batch(tokens[20:30], 20, [1])), answer(name, "logits.0")[20:30])


@pytest.mark.parametrize("delta", [9, -9, 0, 60])
def test_turned_keys_are_those_of_the_new_position(name, backend, cells, tokens, delta):
    # In the first layer K depends on token and position alone. In deeper ones too, if all moves alike.
    start = 20
    run(backend, cells, text_batch(tokens[:12], start))
    moved = tiny_backend(name)
    text_logits(moved, tokens[:12], start + delta)
    chosen = cells.view(0)
    backend.rotate_cells(chosen, delta)
    np.testing.assert_allclose(backend.keys[0], moved.keys[0], atol=2e-6)
    for mine, other in zip(backend.keys, moved.keys, strict=True):
        np.testing.assert_allclose(mine, other, atol=TOLERANCE)


def test_a_whole_sequence_shifted_goes_on_as_before(name, backend, cells, tokens):
    run(backend, cells, text_batch(tokens[:20], 40))
    moved = cells.shift(0, 0, None, -40)
    backend.rotate_cells(moved, -40)
    near(run(backend, cells, text_batch(tokens[20:30], 20)), answer(name, "logits.0")[20:30])


def test_turning_leaves_what_the_rope_leaves():
    # Half of each head is rotated, with a magnitude; the other half must stay as it is.
    spec = tiny_spec("llama")
    rope = Rope(spec.layers[0].mixer.rope.frequencies[:4], "adjacent", magnitude=1.25)
    spec = with_mixers(spec, rope=rope)
    backend, moved = tiny_backend("llama", spec=spec), tiny_backend("llama", spec=spec)
    text_logits(backend, [1, 2, 3])
    text_logits(moved, [1, 2, 3], 5)
    backend.rotate_cells(np.arange(3, dtype=np.int32), 5)
    np.testing.assert_allclose(backend.keys, moved.keys, atol=TOLERANCE)


@pytest.mark.parametrize("pairs", ["adjacent", "halves"])
def test_rotate_against_complex_numbers(pairs):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 2, 10)).astype(np.float32)
    positions = np.array([0, 1, 17])
    rope = Rope((1.0, 0.3, 0.01), pairs, magnitude=1.5)
    first, second = {"adjacent": ([0, 2, 4], [1, 3, 5]), "halves": ([0, 1, 2], [3, 4, 5])}[pairs]
    turned = (x[..., first] + 1j * x[..., second]) * 1.5 * np.exp(1j * rope.angles(positions))[:, None]
    found = rotate(x, positions, rope)
    np.testing.assert_allclose(found[..., first], turned.real, atol=1e-6)
    np.testing.assert_allclose(found[..., second], turned.imag, atol=1e-6)
    np.testing.assert_array_equal(found[..., 6:], x[..., 6:])


# -- what can go wrong --


def test_an_unplaced_batch_is_refused():
    backend, batch = tiny_backend("llama"), text_batch([1, 2, 3])
    for call in (backend.forward, backend.hidden, backend.compute):
        with pytest.raises(InvalidRequest, match=r"call batch\.place"):
            call(batch)


def state(cells):
    views = {sequence: cells.view(sequence).tolist() for sequence in cells.sequences}
    return cells.positions.tolist(), cells.tokens.tolist(), views, cells.n_free


class Failing(ReferenceBackend):
    def logits(self, hidden, changes=None):
        raise RuntimeError("out of luck")


def test_after_a_forward_that_fails_nothing_is_left_placed():
    backend = tiny_backend("llama", n_cells=16)
    engine = Engine(backend, tokenizer=None)
    engine.runner.forward(text_batch([1, 2, 3], sequences=[0, 1]))
    before = state(engine.cells)
    failing = Failing(tiny_file("llama"), tiny_spec("llama"), 16)
    engine.runner.backend = failing
    batch = text_batch([4, 5], 3, [0, 2])
    with pytest.raises(RuntimeError, match="out of luck"):
        engine.runner.forward(batch)
    assert state(engine.cells) == before
    assert batch.placement is None
    engine.runner.backend = backend
    near(engine.runner.forward(batch), text_logits(tiny_backend("llama"), [1, 2, 3, 4, 5])[3:])

    before = state(engine.cells)
    wrong = Batch()
    wrong.add_vector(np.ones(31), 5, [0])
    for batch, error in [
        (text_batch([96], 5), InvalidRequest),
        (text_batch([-1], 5), InvalidRequest),
        (text_batch([1], 16), InvalidRequest),
        (wrong, InvalidRequest),
        (Batch(), InvalidRequest),
        (text_batch([1] * 12, 0, [4]), CacheFull),
    ]:
        with pytest.raises(error):
            engine.runner.forward(batch)
        assert state(engine.cells) == before
    engine.cells.check()


def test_a_closed_backend_holds_nothing():
    backend = tiny_backend("llama")
    backend.close()
    assert backend.weights == {}
    assert backend.keys == backend.values == []

"""Recurrent layers of the reference backend: states in slots, and errors in them that must show.

That a whole text is right is in test_architectures.py.
"""

import inspect
import types
from dataclasses import replace

import numpy as np
import pytest

from stretto.backends import reference
from stretto.backends.batch import Batch
from stretto.backends.reference import ReferenceBackend, mixers
from stretto.cache.cells import Cells
from stretto.errors import InvalidRequest
from tiny_models import answer, in_slots, text_batch, tiny_backend, tiny_file, tiny_spec, with_layers

pytestmark = pytest.mark.golden

TOLERANCE = 1e-4

DELTA_NETS = ["qwen35", "qwen35moe", "qwen3next"]
CONVOLUTIONS = ["lfm2", "lfm2moe"]
GRANITE = ["granitehybrid", "granitehybrid-moe"]
FALCON = ["falcon-h1", "falcon-h1-plain"]
MAMBAS = [*GRANITE, "nemotron_h", "nemotron_h_moe", *FALCON]
FIRST = ["mamba", "falcon-mamba", "jamba"]
KIMI = ["kimi-linear"]
CONVOLVED_ALL = [*DELTA_NETS, *CONVOLUTIONS, *MAMBAS, *FIRST, *KIMI]
RWKV = ["rwkv7", "arwkv7"]
NAMES = [*CONVOLVED_ALL, *RWKV]


def slots(*numbers):
    return np.array(numbers, np.int32)


def in_chunks(backend, tokens, size, slot=0):
    """float32[n, n_vocab] of a text that is run so many tokens at a time, with its state in a slot."""
    cells, rows = Cells(backend.n_cells), []
    for start in range(0, len(tokens), size):
        batch = text_batch(tokens[start : start + size], start)
        batch.place(cells)
        in_slots(batch, [slot] * len(batch))
        rows.append(backend.forward(batch))
    return np.concatenate(rows)


def backend_with_slots(name, n_slots=4):
    return ReferenceBackend(tiny_file(name), tiny_spec(name), n_cells=96, n_slots=n_slots)


@pytest.mark.parametrize("size", [1, 5, 17])
@pytest.mark.parametrize("name", NAMES)
def test_a_text_in_chunks_gives_what_transformers_gives(name, size):
    tokens, expected = answer(name, "tokens.1"), answer(name, "logits.1")
    found = in_chunks(backend_with_slots(name), tokens, size, slot=2)
    assert np.abs(found - expected).max() < TOLERANCE * max(1.0, expected.std())


@pytest.mark.parametrize("name", ["qwen35", "lfm2", "nemotron_h", "falcon-h1", "jamba"])
def test_two_texts_in_one_batch_keep_their_states_apart(name):
    backend, cells = backend_with_slots(name), Cells(96)
    texts = [answer(name, f"tokens.{i}")[:30] for i in range(2)]
    rows = []
    for start in range(0, 30, 10):
        batch = Batch()
        for offset in range(start, start + 10):  # rows of both texts in turn
            for sequence, tokens in enumerate(texts):
                batch.add(int(tokens[offset]), offset, [sequence], logits=True)
        batch.place(cells)
        in_slots(batch, [3, 1] * 10)
        rows.append(backend.forward(batch))
    found = np.concatenate(rows).reshape(30, 2, -1)
    for i in range(2):
        assert np.abs(found[:, i] - answer(name, f"logits.{i}")[:30]).max() < TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_a_copied_or_restored_state_continues_the_same(name):
    backend, tokens = backend_with_slots(name), answer(name, "tokens.0")[:24]
    cells = Cells(96)
    first = text_batch(tokens[:16])
    first.place(cells)
    in_slots(first, [0] * 16)
    backend.forward(first)
    stored = backend.read_slots(slots(0))
    assert stored.shape == (1, backend.slot_bytes)
    backend.copy_slots(slots(0), slots(1))
    backend.write_slots(slots(2), stored)
    for sequence in (1, 2, 3):
        cells.copy(0, sequence)
    found = []
    for sequence in (0, 1, 2, 3):  # slot 3 is empty: as if the text began here
        batch = text_batch(tokens[16:], 16, [sequence])
        batch.place(cells)
        in_slots(batch, [sequence] * 8)
        found.append(backend.forward(batch))
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
    assert not np.allclose(found[0], found[3], atol=1e-3)
    backend.clear_slots(slots(0, 1, 2, 3))
    assert not backend.read_slots(slots(0, 1, 2, 3)).any()


def test_a_batch_without_slots_is_refused():
    batch = text_batch([1, 2])
    batch.place(Cells(64))
    with pytest.raises(InvalidRequest, match="slots"):
        tiny_backend("lfm2").forward(batch)


def test_a_block_that_predicts_further_tokens_is_no_layer():
    assert tiny_file("qwen35").metadata["qwen35.block_count"] == 5
    assert tiny_spec("qwen35").n_layer == 4


# -- planted errors --

# Pieces of the source, what each becomes, and the models in which that must show.
TOKEN = "memory *= decay[row][:, None, None]\n            "  # the first thing that happens to a memory
SEEN = 'v[t] - np.einsum("hkv,hk->hv", memory, k[t])'
CONVOLVED = 'convolve(history, qkv[rows], w["ssm_conv1d.weight"])'
BOTH = "both[:, :, 0].reshape(len(x), -1), both[:, :, 1].reshape(len(x), -1)"
FOUND = 'np.einsum("hkv,hk->hv", state, corrected[row])'
MUTANTS = {
    "delta net: no decay": ({TOKEN + "error": "error"}, DELTA_NETS),
    "delta net: decay after the correction": (
        {
            TOKEN + "error": "error",
            " * np.float32(mixer.key_size": " * decay[row][:, None] * np.float32(mixer.key_size",
        },
        DELTA_NETS,
    ),
    "delta net: adds instead of correcting": ({SEEN: "v[t]"}, DELTA_NETS),
    "delta net: keys of any length": ({"(mixer, unit(a.": "(mixer, (a."}, DELTA_NETS),
    "delta net: queries not scaled": ({" * np.float32(mixer.key_size**-0.5)": ""}, DELTA_NETS),
    "delta net: norm after the gate": (
        {"w.norm(mixer.norm, out) * silu(z)": "w.norm(mixer.norm, out * silu(z))"},
        DELTA_NETS,
    ),
    "delta net: no activation": ({f"silu({CONVOLVED})": CONVOLVED}, DELTA_NETS),
    "delta net: beta and alpha swapped": ({BOTH: f"({BOTH})[::-1]"}, ["qwen3next"]),
    "KDA: no decay": ({"memory *= decay[row][:, :, None]": ""}, KIMI),
    "KDA: one decay for a head": ({"decay[row][:, :, None]": "decay[row][:, :1, None]"}, KIMI),
    "KDA: no gate": ({".reshape(n, -1) * gate": ".reshape(n, -1)"}, KIMI),
    "convolution: the batch before forgotten": ({"((history, x))": "((0 * history, x))"}, CONVOLVED_ALL),
    "convolution: history that stays": ({"history[:] = inputs[len(x) :]": ""}, CONVOLVED_ALL),
    "convolution: backwards": ({"taps[:, back]": "taps[:, -1 - back]"}, CONVOLVED_ALL),
    "convolution: no bias": ({"out if bias is None else out + bias": "out"}, MAMBAS),
    "short convolution: gates swapped": ({"b, c, inner = np": "c, b, inner = np"}, CONVOLUTIONS),
    "RWKV: no decay": ({"state *= decays[row][:, :, None]": ""}, RWKV),
    "RWKV: decay before the correction is found": (
        {FOUND: FOUND.replace("state,", "state * decays[row][:, :, None],")},
        RWKV,
    ),
    "RWKV: keys of any length": ({"corrected /= np.sqrt": "np.sqrt"}, RWKV),
    "RWKV: keys not scaled by the rate": ({"k = k * (1 + (rate - 1)": "k = k + 0 * (1 + (rate - 1)"}, RWKV),
    "RWKV: each layer its own values": ({"v = v + (run.first_values": "v = v + 0 * (run.first_values"}, RWKV),
    "RWKV: the token itself is not read": ({"(out + own)": "(out)"}, RWKV),
    "RWKV: the row before forgotten": ({"((last[None], x[:-1]))": "((0 * last[None], x[:-1]))"}, RWKV),
    "RWKV: a row before that stays": ({"last[:] = x[-1]": ""}, RWKV),
    "RWKV: channels not mixed": ({'(before - x) * w["channel': '0 * (before - x) * w["channel'}, RWKV[:1]),
    "RWKV: no gate": ({'out * narrow("g", sigmoid)': "out"}, RWKV[:1]),
    "RWKV: heads not normalised": ({"out = layer_norm(out, weight": "layer_norm(out, weight"}, RWKV[:1]),
    "Mamba: no decay": ({'np.exp(step[row][:, None] * w["ssm_a"])': "1"}, FIRST),
    "Mamba: x not scaled by the step": ({"(step[row] * mixed[row])": "mixed[row]"}, FIRST),
    "Mamba: no D": ({' + w["ssm_d"] * mixed[row]': ""}, FIRST),
    "Mamba: B and C swapped": ({"low, b, c = (": "low, c, b = ("}, FIRST),
    "Mamba: steps, B and C of any length": ({"w.norm(norm, w.matmul(mixed,": "(w.matmul(mixed,"}, FIRST[1:]),
    "Mamba-2: no decay": ({TOKEN + "memory": "memory"}, MAMBAS),
    "Mamba-2: x not scaled by the step": ({"step[row][:, None] * values[t]": "values[t]"}, MAMBAS),
    "Mamba-2: no D": ({' + w["ssm_d"] * values[t]': ""}, MAMBAS),
    "Mamba-2: norm before the gate": (
        {"-1) * silu(gate)": "-1)", "w.matmul(gated,": "w.matmul(gated * silu(gate),"},
        ["granitehybrid", "granitehybrid-moe", "nemotron_h", "nemotron_h_moe", "falcon-h1"],
    ),
    "Mamba-2: B and C in turn": (
        {"np.repeat(a.": "np.tile(a.", "shared, axis=1) for": "(1, shared, 1)) for"},
        ["nemotron_h", "nemotron_h_moe", *FALCON],
    ),
}


def other_tiling(spec):
    layers = (
        replace(layer, mixer=replace(layer.mixer, tiled=not layer.mixer.tiled)) if layer.recurrent else layer
        for layer in spec.layers
    )
    return replace(spec, layers=tuple(layers))


SPEC_ERRORS = {
    "value heads with other key heads": (other_tiling, DELTA_NETS),
    "residual not scaled": (lambda s: with_layers(s, residual_scale=1.0), GRANITE),
    "embedding not scaled": (lambda s: replace(s, embedding_scale=1.0), GRANITE),
    "logits not divided": (lambda s: replace(s, logit_scale=1.0), GRANITE),
    "logits multiplied": (lambda s: replace(s, logit_scale=1 / s.logit_scale), GRANITE),
    "no norm before the feed-forward": (lambda s: with_layers(s, ffn_norm=None), FALCON),
}


def each(errors):
    return [
        pytest.param(name, plant, id=f"{name}: {what}")
        for what, (plant, names) in errors.items()
        for name in names
    ]


def shows(backend, name):
    tokens, expected = answer(name, "tokens.1"), answer(name, "logits.1")
    difference = np.abs(in_chunks(backend, tokens, 7) - expected).max()
    return not difference < 10 * TOLERANCE  # not a number shows, too


@pytest.mark.parametrize(("name", "changes"), each(MUTANTS))
def test_an_error_in_a_recurrent_layer_shows(name, changes, monkeypatch):
    source = inspect.getsource(mixers)
    for piece, wrong in changes.items():
        assert source.count(piece) == 1
        source = source.replace(piece, wrong)
    mutant = types.ModuleType("mutant")
    exec(compile(source, "mutant", "exec"), mutant.__dict__)
    planted = {kind: getattr(mutant, mixer.__name__) for kind, mixer in reference.MIXERS.items()}
    monkeypatch.setattr(reference, "MIXERS", planted)
    monkeypatch.setattr(mixers, "mix_channels", mutant.mix_channels)
    with np.errstate(all="ignore"):
        assert shows(backend_with_slots(name), name)


@pytest.mark.parametrize(("name", "plant"), each(SPEC_ERRORS))
def test_an_error_in_a_spec_shows(name, plant):
    spec = plant(tiny_spec(name))
    assert shows(ReferenceBackend(tiny_file(name), spec, n_cells=96), name)

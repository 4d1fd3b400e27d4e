"""The native backend's adapters: near the oracle's, and the same bits whatever else is in the batch."""

import numpy as np
import pytest

from stretto.backends.batch import Mix
from stretto.backends.native import NativeBackend
from stretto.backends.native_weights import narrowest
from stretto.backends.reference import ReferenceBackend
from stretto.cache.cells import Cells
from stretto.weights.adapters import read_adapter
from stretto.weights.formats import Format
from tiny_adapters import matrices, merged_file, random_pairs, target, write_adapter
from tiny_models import ALL, N_CELLS, in_slots, text_batch, text_logits, tiny_backend, tiny_file, tiny_spec

TOKENS = [5, 17, 9, 33, 2, 40, 11, 3]
MIXES = [
    None,
    Mix((("one", 1.0),), "1"),
    Mix((("two", 1.0),), "2"),
    Mix((("one", 0.7), ("two", -0.5)), "12"),
]


def adapted(backend, name, tmp_path, dtype=np.float32):
    """The backend with the adapters one and two."""
    for seed, label in enumerate(("one", "two"), 1):
        pairs = random_pairs(matrices(name), rank=3 + 16 * seed, seed=seed, size=0.1)
        path = write_adapter(tmp_path / f"{label}.gguf", name, pairs, dtype)
        backend.load_adapter(label, read_adapter(path, target(name)))
    return backend


def native(name, threads=1, precision="high"):
    return NativeBackend(
        tiny_file(name), tiny_spec(name), N_CELLS, threads, "f32", precision=precision, n_slots=8
    )


def adapted_logits(backend, mix, tokens=TOKENS):
    batch = text_batch(tokens)
    batch.adapt(0, mix)
    batch.place(Cells(backend.n_cells))
    if backend.spec.recurrent:
        backend.clear_slots(np.array([0], np.int32))
        in_slots(batch, [0] * len(tokens))
    return backend.forward(batch)


@pytest.mark.parametrize("name", [name for name in ALL if matrices(name)])
def test_every_architecture_computes_adapters_as_the_oracle_does(name, tmp_path):
    ours, oracle = adapted(native(name), name, tmp_path), adapted(tiny_backend(name), name, tmp_path)
    plain = adapted_logits(oracle, None)
    for mix in MIXES[1:]:
        expected = adapted_logits(oracle, mix)
        assert np.abs(adapted_logits(ours, mix) - expected).max() < 0.01 * max(1, np.abs(expected).max())
        assert np.abs(plain - expected).max() > 0.02


def test_an_adapter_is_the_merged_model(tmp_path):
    pairs = random_pairs(matrices("llama"))
    backend = native("llama")
    path = write_adapter(tmp_path / "one.gguf", "llama", pairs)
    backend.load_adapter("one", read_adapter(path, target("llama")))
    merged = ReferenceBackend(
        merged_file(tmp_path / "m.gguf", "llama", (pairs, 1.0)), tiny_spec("llama"), N_CELLS
    )
    expected = text_logits(merged, TOKENS)
    assert np.abs(adapted_logits(backend, MIXES[1]) - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("name", ["llama", "qwen3", "mixtral", "qwen35", "deepseek3"])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_rows_of_a_mixed_batch_have_the_bits_that_they_have_alone(name, threads, tmp_path):
    alone = adapted(native(name, precision="standard"), name, tmp_path)
    mixed = adapted(native(name, threads, precision="standard"), name, tmp_path)
    order = [0, 3, 1, 2, 0, 1]
    batch = text_batch([])
    for sequence, which in enumerate(order):
        first = len(batch)
        for place, token in enumerate(TOKENS):
            batch.add(token, place, (sequence,), logits=True)
        batch.adapt(first, MIXES[which])
    batch.place(Cells(mixed.n_cells))
    if mixed.spec.recurrent:
        mixed.clear_slots(np.arange(len(order), dtype=np.int32))
        in_slots(batch, np.repeat(np.arange(len(order)), len(TOKENS)))
    rows = mixed.forward(batch).reshape(len(order), len(TOKENS), -1)
    for sequence, which in enumerate(order):
        assert np.array_equal(rows[sequence], adapted_logits(alone, MIXES[which]))


def test_tokens_one_by_one_have_the_bits_of_a_whole_prompt(tmp_path):
    backend = adapted(native("llama", 2, "standard"), "llama", tmp_path)
    whole, cells = adapted_logits(backend, MIXES[3]), Cells(backend.n_cells)
    for place, token in enumerate(TOKENS):
        batch = text_batch([token], place)
        batch.adapt(0, MIXES[3])
        batch.place(cells)
        assert np.array_equal(backend.forward(batch)[0], whole[place])


def test_an_unloaded_adapter_is_gone_and_others_stay(tmp_path):
    backend = adapted(native("llama"), "llama", tmp_path)
    before = adapted_logits(backend, MIXES[2])
    backend.unload_adapter("one")
    assert np.array_equal(adapted_logits(backend, MIXES[2]), before)
    with pytest.raises(KeyError):
        adapted_logits(backend, MIXES[1])


@pytest.mark.parametrize(
    ("numbers", "fmt"),
    [
        ([0.5, -2.0, 65504.0], Format.F16),
        ([0.5, 1e30, 2.0**-126], Format.BF16),
        ([0.1, 1e6], Format.F32),
        ([0.1], Format.F32),
    ],
)
def test_numbers_are_kept_exactly_in_the_smallest_format(numbers, fmt):
    floats = np.array(numbers, np.float32) if fmt is not Format.BF16 else _short(numbers)
    code, data = narrowest(floats)
    assert code == fmt
    width = 4 if fmt is Format.F32 else 2
    assert len(data) == width * len(floats)


def _short(numbers):
    """The numbers in the upper halves of floats."""
    return (np.array(numbers, np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)


def test_with_an_adapter_every_matrix_is_collected(tmp_path):
    backend = adapted(native("llama"), "llama", tmp_path)
    found = {}
    for mix in (None, MIXES[1]):
        backend.collect(True)
        adapted_logits(backend, mix)
        found[mix] = {one.name: one.times for one in backend.collected()}
    assert found[None]
    assert found[MIXES[1]] == found[None]

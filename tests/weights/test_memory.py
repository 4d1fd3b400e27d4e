"""What loading a model will need, also from files that say strange things."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stretto.weights.formats import Format
from stretto.weights.gguf import GGUF
from stretto.weights.memory import LENGTHS, Memory, memory
from stretto.weights.writer import Quantized, write_gguf

SHAPE = {
    "general.architecture": "llama",
    "llama.context_length": 4096,
    "llama.embedding_length": 576,
    "llama.block_count": 30,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
}


def of(tmp_path, metadata, tensors=None):
    path = tmp_path / "m.gguf"
    write_gguf(path, metadata, tensors or {"x": np.zeros(8, np.float32)})
    with GGUF(path) as file:
        return memory(file)


def test_weights_by_format_and_cache_by_length(tmp_path):
    tensors = {
        "a": Quantized(np.zeros((4, 64), np.float32), Format.Q8_0),
        "b": Quantized(np.zeros((2, 32), np.float32), Format.Q8_0),
        "c": np.zeros(3, np.float32),
    }
    need = of(tmp_path, SHAPE, tensors)
    assert need.weights == {"Q8_0": 10 * 34, "F32": 12}
    assert need.weight_bytes == 352
    assert need.lengths == (512, 2048, 4096)
    cell = 2 * 30 * 3 * 64  # K and V, layers, heads, head size
    assert need.cache_bytes("f16", 512) == 512 * cell * 2
    assert need.cache_bytes("q8", 512) == 512 * cell // 32 * 34


def test_head_sizes_may_be_given_and_differ(tmp_path):
    given = {**SHAPE, "llama.attention.key_length": 128, "llama.attention.value_length": 40}
    need = of(tmp_path, given)
    assert need.cache_bytes("f16", 1) == 30 * 3 * (128 + 40) * 2
    assert need.cache_bytes("q8", 1) == 30 * (12 + 4) * 34  # 3 × 40 numbers take four blocks of 32


def test_heads_may_differ_by_layer_or_not_be_there(tmp_path):
    heads = {**SHAPE, "llama.block_count": 3, "llama.attention.head_count_kv": np.array([1, 0, 4], np.uint32)}
    assert of(tmp_path, heads).cache_bytes("f16", 1) == 2 * 5 * 64 * 2
    without = {key: value for key, value in SHAPE.items() if not key.endswith("kv")}
    assert of(tmp_path, without).cache_bytes("f16", 1) == 2 * 30 * 9 * 64 * 2


@pytest.mark.parametrize(
    "change",
    [
        {"llama.block_count": 0},
        {"llama.block_count": True},
        {"llama.block_count": "many"},
        {"llama.attention.head_count": 0, "llama.attention.head_count_kv": 0},
        {"llama.attention.head_count": 0},
        {"llama.attention.head_count": 1000},
        {"llama.attention.head_count_kv": np.array([1, 2], np.int32)},
        {"llama.embedding_length": -576},
        {"general.architecture": "other"},
        {"general.architecture": 7},
    ],
)
def test_what_makes_no_sense_is_unknown(tmp_path, change):
    need = of(tmp_path, {**SHAPE, **change})
    assert need.cache_bytes("f16", 512) is None
    assert need.weight_bytes == 32


def test_a_file_without_a_shape(tmp_path):
    need = of(tmp_path, {"general.name": "only a name"})
    assert (need.context_length, need.lengths, need.cache_bytes("q8", 512)) == (None, LENGTHS, None)


def test_huge_numbers_are_only_numbers(tmp_path):
    huge = {key: 2**64 - 1 for key in SHAPE if not key.startswith("general")}
    need = of(tmp_path, {"general.architecture": "llama", **huge})
    assert need.cache_bytes("f16", need.lengths[-1]) > 2**128


anything = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.booleans(),
    st.text(max_size=3),
    st.lists(st.integers(-1, 4), min_size=1, max_size=4).map(lambda items: np.array(items, np.int32)),
)


@settings(suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(st.fixed_dictionaries({}, optional=dict.fromkeys((*SHAPE, "llama.attention.key_length"), anything)))
def test_nothing_in_a_file_makes_it_fail(tmp_path_factory, metadata):
    need = of(tmp_path_factory.mktemp("any"), metadata)
    for length in need.lengths:
        for kind in ("f16", "q8"):
            nbytes = need.cache_bytes(kind, length)
            assert nbytes is None or nbytes >= 0


def test_a_model_without_attention_has_states_and_no_cache():
    need = Memory({"F32": 32}, 128, (), state_bytes=10)
    assert [need.cache_bytes(kind, 128) for kind in ("f16", "q8")] == [0, 0]

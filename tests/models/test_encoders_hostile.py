"""Files of encoders with sizes and tensors that do not fit are refused by field, before anything is made."""

import numpy as np
import pytest

from stretto.errors import ModelError
from stretto.models import read_spec
from stretto.models.common import slopes
from stretto.weights.gguf import GGUF
from stretto.weights.writer import write_gguf
from tiny_encoders import file_of

VECTOR = np.zeros(32, np.float32)


def changed(tmp_path, name, metadata=None, tensors=None, without=()):
    """The spec of a tiny encoder with other metadata and tensors."""
    file = file_of(name)
    kept = {key: tensor for key, tensor in file.tensors.items() if key not in without}
    path = tmp_path / "changed.gguf"
    write_gguf(path, dict(file.metadata) | (metadata or {}), {**kept, **(tensors or {})})
    return read_spec(GGUF(path))


@pytest.mark.parametrize(
    ("name", "metadata", "field"),
    [
        ("bert", {"bert.pooling_type": 9}, "bert.pooling_type"),
        ("bert", {"bert.attention.head_count": 0}, "bert.attention.head_count"),
        ("bert", {"bert.attention.layer_norm_epsilon": 7.0}, "bert.attention.layer_norm_epsilon"),
        ("bert", {"bert.block_count": 1 << 20}, "bert.block_count"),
        ("bert", {"bert.expert_count": 4}, "bert.expert_count"),
        ("modern-bert", {"modern-bert.attention.sliding_window": 0}, "modern-bert.attention.sliding_window"),
        ("modern-bert", {"modern-bert.rope.freq_base_swa": -1.0}, "modern-bert.rope.freq_base_swa"),
        ("nomic-bert-moe", {"nomic-bert-moe.moe_every_n_layers": 0}, "nomic-bert-moe.moe_every_n_layers"),
    ],
)
def test_numbers_out_of_range_are_named(tmp_path, name, metadata, field):
    with pytest.raises(ModelError) as caught:
        changed(tmp_path, name, metadata)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("name", "without", "tensors"),
    [
        ("bert", "position_embd.weight", {}),
        ("bert", "token_embd_norm.bias", {}),
        ("bert", "blk.1.attn_output_norm.weight", {}),
        ("bert", "", {"cls.weight": np.zeros((32, 31), np.float32)}),
        ("bert", "", {"cls.output.weight": np.zeros((3, 33), np.float32)}),
        ("bert", "", {"token_types.weight": np.zeros((2, 8), np.float32)}),
        ("gemma-embedding", "", {"dense_3.weight": np.zeros((32, 5), np.float32)}),
        ("jina-bert-v2", "blk.0.ffn_gate.weight", {}),
        ("bert", "", {"blk.0.attn_norm_2.weight": VECTOR}),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path, name, without, tensors):
    with pytest.raises(ModelError) as caught:
        changed(tmp_path, name, tensors=tensors, without=(without,))
    wanted = without or next(iter(tensors))
    assert wanted in (caught.value.field or "") or "ffn_gate" in wanted


def test_the_context_ends_with_the_learned_positions(tmp_path):
    assert changed(tmp_path, "bert", {"bert.context_length": 4096}).context_length == 128


def test_slopes_halve_from_head_to_head():
    assert slopes(8) == tuple(2.0**-i for i in range(1, 9))
    assert slopes(6) == (2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3)

"""The keys of sparse attention: what an indexer is like, and which layers have one."""

import numpy as np
import pytest

from stretto.errors import ModelError
from stretto.models import read_spec
from stretto.models.next_tokens import read_next_layer
from stretto.models.spec import Indexer
from tiny_models import tiny_file, tiny_spec

TYPES = ".attention.indexer.types"


def choices(spec):
    """For each layer, None or the layer whose choice it takes."""
    return [layer.mixer.chosen_by for layer in spec.layers]


def test_deepseek32_has_an_indexer_in_every_layer():
    spec = tiny_spec("deepseek32")
    rope = spec.layers[0].mixer.rope
    assert rope.pairs == "adjacent"
    for layer in spec.layers:
        indexer = layer.mixer.indexer
        assert isinstance(indexer, Indexer)
        assert (indexer.n_head, indexer.head_size, indexer.top_k, indexer.rope.pairs) == (
            10,
            20,
            11,
            "halves",
        )
        assert indexer.rope.frequencies == rope.frequencies


def test_layers_of_glm_take_the_choice_of_one_before_them(changed):
    spec = tiny_spec("glm-dsa")
    assert choices(spec) == [None, 0, None, 2]
    assert spec.layers[0].mixer.indexer.rope.pairs == "adjacent"
    assert choices(read_spec(changed("glm-dsa", {TYPES: [True, False, False, False]}))) == [None, 0, 0, 0]


def test_glm_files_without_types(changed):
    """Those of GLM 5 have an indexer everywhere, those of 5.2 (a longer context) in every fourth layer."""
    first = {name: tensor for name, tensor in tiny_file("glm-dsa").tensors.items() if "0.indexer" in name}
    more = {name.replace("blk.0.", f"blk.{i}."): tensor for name, tensor in first.items() for i in (1, 3)}
    for context, expected in ((1 << 16, [None] * 4), (1 << 20, [None, None, None, 2])):
        file = changed("glm-dsa", {TYPES: None, ".context_length": context}, more)
        assert choices(read_spec(file)) == expected


@pytest.mark.parametrize(
    ("name", "keys", "field"),
    [
        ("deepseek32", {".attention.indexer.top_k": 0}, ".attention.indexer.top_k"),
        ("deepseek32", {".attention.indexer.key_length": 6}, ".attention.indexer.key_length"),
        ("deepseek32", {".attention.indexer.head_count": None}, ".attention.indexer.head_count"),
        ("deepseek32", {".attention.q_lora_rank": None}, ".attention.q_lora_rank"),
        ("glm-dsa", {TYPES: [False, True, True, True]}, TYPES),
        ("glm-dsa", {TYPES: [True, False]}, TYPES),
    ],
)
def test_damaged_keys_are_refused(changed, name, keys, field):
    with pytest.raises(ModelError) as caught:
        read_spec(changed(name, keys))
    assert caught.value.field.endswith(field)


def test_an_indexer_without_its_matrix_is_refused(changed):
    with pytest.raises(ModelError, match=r"blk\.2\.indexer\.proj\.weight.*is missing"):
        read_spec(changed("glm-dsa", tensors={"blk.2.indexer.proj.weight": None}))


@pytest.mark.parametrize("chooses", [True, False])
def test_a_layer_for_drafts_chooses_its_tokens_itself_or_is_left_out(changed, chooses):
    file, n_embd = tiny_file("glm-dsa"), tiny_spec("glm-dsa").n_embd
    tensors = {"blk.4.nextn.eh_proj.weight": np.zeros((n_embd, 2 * n_embd), np.float32)}
    tensors |= {f"blk.4.nextn.{name}.weight": np.ones(n_embd, np.float32) for name in ("enorm", "hnorm")}
    for i, part in ((3, "blk.3."), (2, "blk.2.indexer.")):
        found = {name: tensor for name, tensor in file.tensors.items() if name.startswith(part)}
        tensors |= {name.replace(f"blk.{i}.", "blk.4."): tensor for name, tensor in found.items()}
    keys = {".block_count": 5, ".nextn_predict_layers": 1, TYPES: [True, False, True, False, chooses]}
    wide = changed("glm-dsa", keys, tensors)
    found = read_next_layer(wide, read_spec(wide))
    assert (found is not None) == chooses
    assert found is None or found.spec.layers[0].mixer.indexer is not None

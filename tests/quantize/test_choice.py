"""Mixes: formats by tensor as in llama.cpp, fallbacks for short rows, names."""

import re

import numpy as np
import pytest

from stretto.errors import InvalidRequest
from stretto.quantize.choice import MIXES, choose_formats, find_format, find_mix, fit_row, is_quantised
from stretto.weights.formats import WRITABLE, Format
from stretto.weights.metadata import make_metadata
from stretto.weights.tensor import Tensor


def tensor(name, *shape, fmt=Format.F16):
    return Tensor(name, shape, fmt, 0, np.zeros((*shape[:-1], fmt.row_bytes(shape[-1])), np.uint8))


def model(n_layer=16, n_embd=256, heads=8, kv_heads=8, experts=0, output=False):
    """Metadata and tensors of a llama, or a mixture of experts."""
    metadata = make_metadata(
        {
            "general.architecture": "llama",
            "llama.block_count": n_layer,
            "llama.attention.head_count": heads,
            "llama.attention.head_count_kv": kv_heads,
            "llama.expert_count": experts,
        },
        "model",
    )
    tensors = [tensor("token_embd.weight", 512, n_embd), tensor("output_norm.weight", n_embd, fmt=Format.F32)]
    tensors += [tensor("output.weight", 512, n_embd)] if output else []
    for i in range(n_layer):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensors.append(tensor(f"blk.{i}.{name}.weight", n_embd, n_embd))
        for name in ("ffn_gate", "ffn_up", "ffn_down"):
            shape = (experts, n_embd, n_embd) if experts else (n_embd, n_embd)
            tensors.append(tensor(f"blk.{i}.{name}{'_exps' if experts else ''}.weight", *shape))
        tensors.append(tensor(f"blk.{i}.ffn_gate_inp.weight", 4, n_embd, fmt=Format.F32))
    return metadata, {one.name: one for one in tensors}


def chosen(mix, facts=None, **options):
    metadata, tensors = model(**(facts or {}))
    return choose_formats(find_mix(mix), metadata, tensors, **options)


def layers(formats, kind, fmt):
    """The layers whose matrix of a kind has a format."""
    return [i for i in range(16) if formats[f"blk.{i}.{kind}.weight"] is fmt]


def test_more_bits_go_to_the_ends_and_every_third_layer():
    found = chosen("q4_k_m")
    assert layers(found, "attn_v", Format.Q6_K) == [0, 1, 4, 7, 10, 13, 14, 15]
    assert layers(found, "ffn_down", Format.Q6_K) == [0, 1, 4, 7, 10, 13, 14, 15]
    assert layers(found, "ffn_up", Format.Q4_K) == list(range(16))
    assert found["token_embd.weight"] is Format.Q6_K  # it is the output too


def test_small_mixes_spare_the_first_layers():
    found = chosen("q4_k_s")
    assert layers(found, "attn_v", Format.Q5_K) == [0, 1, 2, 3]
    assert layers(found, "ffn_down", Format.Q5_K) == [0, 1]


def test_shared_heads_get_more_bits_for_v():
    few = chosen("iq4_xs", {"kv_heads": 2})
    assert layers(few, "attn_v", Format.Q5_K) == list(range(16))
    assert layers(chosen("iq4_xs"), "attn_v", Format.IQ4_XS) == list(range(16))


def test_an_own_output_frees_the_embedding():
    found = chosen("q4_0", {"output": True})
    assert (found["output.weight"], found["token_embd.weight"]) == (Format.Q6_K, Format.Q4_0)


def test_importance_changes_mixes():
    assert layers(chosen("q4_0", has_imatrix=True), "ffn_down", Format.Q4_1) == [0, 1]
    assert layers(chosen("iq4_xs"), "ffn_down", Format.Q5_K) == [0, 1]
    assert layers(chosen("iq4_xs", has_imatrix=True), "ffn_down", Format.Q5_K) == []


def test_eight_experts_keep_their_attention():
    found = chosen("q4_k_m", {"experts": 8})
    assert found["blk.3.attn_v.weight"] is Format.Q8_0
    assert found["blk.3.attn_k.weight"] is Format.Q8_0
    assert found["blk.3.attn_output.weight"] is Format.Q5_K
    assert found["blk.4.ffn_down_exps.weight"] is Format.Q6_K
    assert chosen("mxfp4_moe", {"experts": 4})["blk.4.ffn_down_exps.weight"] is Format.MXFP4


def test_short_rows_get_other_formats():
    found = chosen("q4_k_m", {"n_embd": 96})
    assert found["blk.2.attn_q.weight"] is Format.Q5_0
    assert found["blk.0.attn_v.weight"] is Format.Q8_0
    assert found["token_embd.weight"] is Format.Q8_0
    assert set(chosen("q4_k_m", {"n_embd": 24}).values()) == {Format.F32, Format.F16}
    assert [fit_row(Format[name], 32).name for name in ("Q3_K", "IQ4_XS", "Q5_K")] == [
        "Q4_0",
        "IQ4_NL",
        "Q5_1",
    ]


def test_norms_biases_and_routers_stay():
    found = chosen("q8_0")
    assert found["output_norm.weight"] is Format.F32
    assert found["blk.0.ffn_gate_inp.weight"] is Format.F32
    assert not is_quantised(tensor("blk.0.attn_q.bias", 2, 32))
    assert not is_quantised(tensor("position_embd.weight", 2, 32))
    assert is_quantised(tensor("blk.0.ffn_up_exps.weight", 2, 4, 32))


def test_overrides_and_pure():
    found = chosen(
        "q4_k_m", overrides=[(re.compile("attn_v"), Format.Q8_0), (re.compile("attn"), Format.Q5_1)]
    )
    assert found["blk.3.attn_v.weight"] is Format.Q8_0
    assert found["blk.3.attn_q.weight"] is Format.Q5_1
    pure = chosen("q4_k_m", pure=True)
    assert {pure[name] for name in pure if is_quantised(model()[1][name])} == {Format.Q4_K}


@pytest.mark.parametrize("name", MIXES)
def test_every_mix_uses_formats_that_can_be_written(name):
    for experts in (0, 8):
        for importance in (False, True):
            found = chosen(name, {"experts": experts, "kv_heads": 2}, has_imatrix=importance)
            assert set(found.values()) <= WRITABLE


def test_unknown_names_list_the_known_ones():
    with pytest.raises(InvalidRequest, match=r"'q9' is not known; use one of f32, f16, bf16, q8_0.*q4_k_m"):
        find_mix("q9")
    with pytest.raises(InvalidRequest, match=r"cannot write the format 'q8_k'; use one of f32.*q6_k"):
        find_format("q8_k")
    assert find_mix("Q4_K").name == "q4_k_m"

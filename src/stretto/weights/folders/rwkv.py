"""Folders of RWKV 7, as the FLA library writes them."""

from __future__ import annotations

from stretto.weights.folders.conversion import STACK, Conversion, shaped
from stretto.weights.folders.decoder import take_whole
from stretto.weights.folders.mambas import ENDLESS

WHOLE = {"embeddings": "token_embd", "norm": "output_norm", "lm_head": "output"}
WHOLE |= {"layers.0.pre_norm": "token_embd_norm"}
LAYERS = {
    "attn_norm": "attn_norm",
    "ffn_norm": "attn_norm_2",
    "attn.g_norm": "time_mix_ln",
    "attn.r_proj": "time_mix_receptance",
    "attn.k_proj": "time_mix_key",
    "attn.v_proj": "time_mix_value",
    "attn.o_proj": "time_mix_output",
    "ffn.key": "channel_mix_key",
    "ffn.value": "channel_mix_value",
}
RANKS = {  # the narrow pairs of matrices: the setting, its key, and whether they have a bias
    "w": ("decay_low_rank_dim", "decay_lora_rank", True),
    "a": ("a_low_rank_dim", "iclr_lora_rank", True),
    "v": ("v_low_rank_dim", "value_residual_mix_lora_rank", True),
    "g": ("gate_low_rank_dim", "gate_lora_rank", False),
}
FLAT = shaped(-1)


def rwkv7(conversion: Conversion) -> None:
    """RWKV 7: ranks are those of the matrices, which settings leave out where they are the usual ones."""
    config, keys, n = conversion.config, conversion.keys, conversion.n_layer
    conversion.refuse("attn", "attention in some layers", (None,))
    conversion.refuse("norm_bias", "norms without biases", (True, None))
    conversion.refuse("norm_first", "a first layer without a norm of its own", (True, None))
    conversion.refuse("hidden_act", "another activation than the square of relu", ("sqrelu", None))
    hidden, size = config.integer("hidden_size", least=1), config.integer("head_dim", 64, least=1)
    eps = config.number("norm_eps", 1e-5)
    for i in range(1, n):
        conversion.ignore(rf"(?:model\.)?layers\.{i}\.pre_norm\..*")
    first = "layers.0.ffn.key.weight"
    keys |= {
        "context_length": ENDLESS,
        "embedding_length": hidden,
        "block_count": n,
        "feed_forward_length": conversion.shape(first)[0] if conversion.has(first) else 4 * hidden,
        "attention.head_count": 0,
        "attention.layer_norm_epsilon": eps,
        "attention.group_norm_epsilon": size * eps,
        "wkv.head_size": size,
    }
    take_whole(conversion, WHOLE)
    conversion.take_layers(LAYERS)
    for i in range(n):
        place, block = f"layers.{i}.attn", f"blk.{i}.time_mix"
        for name, (setting, key, has_bias) in RANKS.items():
            if name == "v" and i == 0:
                continue  # the other layers take a share of its values
            source = f"{place}.{name}_lora.lora"
            conversion.take(f"{block}_{name}1.weight", f"{source}.0.weight")
            conversion.take(f"{block}_{name}2.weight", f"{source}.2.weight")
            if has_bias:
                conversion.take(f"{block}_{name}0.weight", f"{source}.2.bias")
            rank = conversion.shape(f"{source}.0.weight")[0]
            keys.setdefault(f"attention.{key}", rank)
            if config.get(setting) not in (None, rank):
                raise config.error(setting, f"{config.get(setting)}, but the matrices have {rank} rows")
        for name in ("k_k", "k_a", "r_k"):
            conversion.take(f"{block}_{name}.weight", f"{place}.{name}", op=FLAT)
        together = f"{place}.x_x"  # in older folders
        shares = [together] if conversion.has(together) else [f"{place}.x_{name}" for name in "rwkvag"]
        conversion.take(f"{block}_lerp_fused.weight", *shares, op=STACK.then(shaped(6, hidden)))
        conversion.take(f"blk.{i}.channel_mix_lerp_k.weight", f"layers.{i}.ffn.x_k", op=FLAT)
    conversion.ignore(r"(?:model\.)?layers\.0\.attn\.v_lora\..*")
    keys.setdefault("attention.value_residual_mix_lora_rank", 1)  # of one layer alone, which has none

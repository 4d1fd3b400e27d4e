"""From transformers' parameters to the tensors of a GGUF file, for models with experts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from tiny.base import Floats, adjacent, arrays

WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
NAMES = {  # of a layer's tensors, in transformers and in GGUF
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.sinks": "attn_sinks.weight",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
# A tensor of one layer → the tensors it becomes; None: under its name in `NAMES`.
Change = Callable[[str, Floats], dict[str, Floats] | None]


def parameters(model: torch.nn.Module) -> dict[str, Floats]:
    """All parameters, and the buffers that a file holds as well."""
    found = arrays(model)
    for name, values in model.named_buffers():
        if name.endswith(("e_score_correction_bias", "layer_scalar")):
            found[name] = values.detach().numpy().astype(np.float32)
    return found


def convert(model: torch.nn.Module, names: dict[str, str], change: Change) -> dict[str, Floats]:
    """A model's tensors by the names of the file. `names` adds to the common ones."""
    names = NAMES | names
    tensors: dict[str, Floats] = {}
    for name, array in parameters(model).items():
        if name in WHOLE | names and not name.startswith("model.layers."):
            tensors[(WHOLE | names)[name]] = array
            continue
        _, _, layer, rest = name.split(".", 3)
        made = change(rest, array) or gate_and_up(rest, array)
        if made is None:
            module, _, kind = rest.rpartition(".")
            made = {names[rest] if rest in names else f"{names[module]}.{kind}": array}
        tensors |= {f"blk.{layer}.{key}": np.ascontiguousarray(value) for key, value in made.items()}
    return tensors


def gate_and_up(name: str, array: Floats) -> dict[str, Floats] | None:
    """The two matrices of every expert that transformers keeps as one: gate first, then up."""
    if not name.endswith("experts.gate_up_proj"):
        return None
    gate, up = np.split(array, 2, axis=1)
    return {"ffn_gate_exps.weight": gate, "ffn_up_exps.weight": up}


def unchanged(name: str, array: Floats) -> dict[str, Floats] | None:
    """No tensor needs a change of its own."""
    return None


def rotating_pairs(head_size: int) -> Change:
    """Rows of q and k in the order of files that rotate adjacent pairs."""

    def change(name: str, array: Floats) -> dict[str, Floats] | None:
        if name in ("self_attn.q_proj.weight", "self_attn.k_proj.weight"):
            return {f"{NAMES[name[:-7]]}.weight": adjacent(array, head_size)}
        return None

    return change


def randomize_buffers(model: torch.nn.Module, rng: np.random.Generator) -> None:
    """Biases of the routing that are large enough to change the choice, and scalars of whole layers."""
    for name, values in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            values.data = torch.from_numpy(rng.normal(0, 0.3, tuple(values.shape)).astype(np.float32))
        if name.endswith("layer_scalar"):
            values.data = torch.from_numpy(rng.uniform(0.7, 1.3, 1).astype(np.float32))

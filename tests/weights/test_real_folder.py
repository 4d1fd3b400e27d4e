"""A real model as a folder that transformers saves: SmolLM2, dequantised; its logits are transformers'."""

import numpy as np
import pytest

from stretto.backends.reference import ReferenceBackend
from stretto.models import read_spec
from stretto.text.loading import load_tokenizer
from stretto.weights.folder import Folder
from stretto.weights.gguf import GGUF
from tiny_models import text_logits

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TEXT = "The capital of France is Paris, and the capital of Italy is"
NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def halves(array, n_head):
    """Rows as transformers rotates them, (i, i + d/2), of those of a GGUF file, (2i, 2i + 1)."""
    pairs = array.reshape(n_head, -1, 2, array.shape[1])
    return pairs.swapaxes(1, 2).reshape(array.shape)


def transformers_model(file):
    """The file's model, dequantised."""
    keys = file.metadata
    heads, kv_heads = keys["llama.attention.head_count"], keys["llama.attention.head_count_kv"]
    config = transformers.LlamaConfig(
        hidden_size=keys["llama.embedding_length"],
        intermediate_size=keys["llama.feed_forward_length"],
        num_hidden_layers=keys["llama.block_count"],
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=keys["llama.context_length"],
        rms_norm_eps=keys["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": keys["llama.rope.freq_base"]},
        vocab_size=keys["llama.vocab_size"],
        tie_word_embeddings=True,
    )
    state = {
        "model.embed_tokens.weight": file.tensors["token_embd.weight"].dequantize(),
        "model.norm.weight": file.tensors["output_norm.weight"].dequantize(),
    }
    for layer in range(config.num_hidden_layers):
        for source, target in NAMES.items():
            array = file.tensors[f"blk.{layer}.{source}.weight"].dequantize()
            if source in ("attn_q", "attn_k"):
                array = halves(array, heads if source == "attn_q" else kv_heads)
            state[f"model.layers.{layer}.{target}.weight"] = array
    model = transformers.LlamaForCausalLM(config).float().eval()
    missing, unexpected = model.load_state_dict(
        {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in state.items()}, strict=False
    )
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    return model


@pytest.mark.slow
def test_logits_of_smollm2_saved_by_transformers_are_its_own(smollm2_path, tmp_path):
    with GGUF(smollm2_path) as file:
        tokens = load_tokenizer(file.metadata).encode(TEXT)
        model = transformers_model(file)
        with torch.no_grad():
            expected = model(torch.tensor([tokens])).logits[0].numpy()
        model.save_pretrained(tmp_path, max_shard_size="200MB")
        with Folder(tmp_path) as folder:
            assert len(folder.files) > 1
            for name, tensor in folder.tensors.items():  # nothing is lost on the way there and back
                assert np.array_equal(tensor.dequantize(), file.tensors[name].dequantize()), name
            found = text_logits(ReferenceBackend(folder, read_spec(folder), 64), tokens)
    worst = np.abs(found - expected).max()
    print(f"largest difference of {expected.size:,} logits up to {np.abs(expected).max():.1f}: {worst:.1e}")
    assert worst < 1e-3
    assert np.array_equal(found.argmax(1), expected.argmax(1))

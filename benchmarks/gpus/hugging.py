"""transformers: the same shape by its own model class, bf16, attention by torch's SDPA, one token a call."""

import time

import torch

from gpus.clock import synchronize

CONFIGS = {"llama": "LlamaConfig", "qwen3": "Qwen3Config"}


class Hugging:
    """Random weights and a dynamic cache, as `generate` has by default; tokens stay on the device."""

    def __init__(self, shape, device="cuda"):
        import transformers

        transformers.utils.logging.set_verbosity_error()
        keys = shape.keys
        config = getattr(transformers, CONFIGS[shape.architecture])(
            vocab_size=shape.n_vocab,
            hidden_size=keys["embedding_length"],
            intermediate_size=keys["feed_forward_length"],
            num_hidden_layers=shape.n_layer,
            num_attention_heads=keys["attention.head_count"],
            num_key_value_heads=keys["attention.head_count_kv"],
            head_dim=keys.get(
                "attention.key_length", keys["embedding_length"] // keys["attention.head_count"]
            ),
            rms_norm_eps=keys["attention.layer_norm_rms_epsilon"],
            max_position_embeddings=keys["context_length"],
            tie_word_embeddings=shape.tied,
        )
        with torch.device(device):
            self.model = transformers.AutoModelForCausalLM.from_config(
                config, dtype=torch.bfloat16, attn_implementation="sdpa"
            ).eval()
        self.device, self.cache = device, transformers.DynamicCache

    @torch.inference_mode()
    def decode(self, rows, depth, tokens):
        """Tokens a second behind a prompt; the prompt's time is not in it."""
        cache, next_tokens = self._prompt(rows, depth)
        synchronize()
        begun = time.perf_counter()
        for _ in range(tokens):
            output = self.model(next_tokens, past_key_values=cache, use_cache=True)
            next_tokens = output.logits[:, -1:].argmax(-1)
        synchronize()
        return rows * tokens / (time.perf_counter() - begun)

    @torch.inference_mode()
    def _prompt(self, rows, depth):
        ids = torch.randint(0, self.model.config.vocab_size, (rows, depth), device=self.device)
        cache = self.cache(config=self.model.config)
        output = self.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return cache, output.logits[:, -1:].argmax(-1)

    @torch.inference_mode()
    def prompt_seconds(self, length):
        ids = torch.randint(0, self.model.config.vocab_size, (1, length), device=self.device)
        synchronize()
        begun = time.perf_counter()
        self.model(ids, use_cache=True, logits_to_keep=1).logits.argmax(-1)
        synchronize()
        return time.perf_counter() - begun

    def close(self):
        del self.model

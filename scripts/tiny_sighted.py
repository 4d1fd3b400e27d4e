"""A tiny random Qwen3-VL and Qwen2.5-VL, the language models too, a Qwen3.5 and Gemmas 4, about a picture.

Their encoders are cases of tiny_encoders.py; the files of the language models are qwen3vl-text, qwen2vl-text.
"""

from __future__ import annotations

import zlib
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen3VLConfig
from transformers.models.gemma4.modeling_gemma4 import create_masks_for_vision_model
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLForConditionalGeneration

from tiny import delta_nets, gemma4
from tiny_encoders import Qwen3VL

VOCAB, WIDTH, WIDE, LAYERS = 96, 32, 64, 3
HEADS, KV_HEADS, HEAD = 4, 2, 16
SECTIONS = 3, 2, 2  # the last pair turns with time
BASE, EPS = 700.0, 2.0**-10
IMAGE_TOKEN, START, END = 95, 93, 94  # as the tests tokenize them
IMAGE_START, IMAGE_END = 90, 91  # of Gemma 4
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
WHOLE = {
    "embed_tokens.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
}


class SightedQwen:
    """The whole model, with the encoder of a `Qwen3VL` that has been filled."""

    arch = "qwen3vl"
    classes: ClassVar[tuple[Any, Any]] = (Qwen3VLConfig, Qwen3VLForConditionalGeneration)
    heads, sections = HEADS, SECTIONS
    rope: ClassVar[dict[str, Any]] = {"mrope_interleaved": True}

    def __init__(self, eyes: Qwen3VL, rng: np.random.Generator) -> None:
        text = {
            "vocab_size": VOCAB,
            "hidden_size": WIDTH,
            "intermediate_size": WIDE,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": self.heads,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD,
            "rms_norm_eps": EPS,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": BASE,
                "mrope_section": list(self.sections),
                **self.rope,
            },
        }
        config_class, model_class = self.classes
        config = config_class(
            text_config=text,
            vision_config=eyes.model.config.to_dict(),
            image_token_id=IMAGE_TOKEN,
            vision_start_token_id=START,
            vision_end_token_id=END,
            tie_word_embeddings=True,
        )
        config._attn_implementation = config.text_config._attn_implementation = "eager"
        self.model = model_class(config).eval().float()
        self.model.model.visual = eyes.model
        self.merge = eyes.merge
        for name, parameter in self.model.model.language_model.named_parameters():
            shape = tuple(parameter.shape)
            if parameter.ndim == 1:
                values = np.round(rng.uniform(-0.5, 0.5, shape) * 512) / 512 + (not name.endswith("bias"))
            else:
                values = rng.normal(0, 1 if "embed" in name else 1.3 * shape[1] ** -0.5, shape)
            parameter.data = torch.from_numpy(values.astype(np.float16).astype(np.float32))
        self.model.tie_weights()

    def tensors(self) -> dict[str, np.ndarray]:
        """The language model's, as its file has them."""
        found = {}
        for name, parameter in self.model.model.language_model.named_parameters():
            target = WHOLE.get(name) or name.replace("layers.", "blk.")
            for part, other in NAMES.items():
                target = target.replace(part, other)
            array = parameter.detach().numpy()
            found[target] = array.astype(np.float16) if array.ndim == 2 else array
        return found

    def keys(self, taps: int) -> dict[str, Any]:
        """Its metadata, without a tokenizer."""
        arch = {
            "context_length": 512,
            "embedding_length": WIDTH,
            "block_count": LAYERS,
            "feed_forward_length": WIDE,
            "attention.head_count": self.heads,
            "attention.head_count_kv": KV_HEADS,
            "attention.key_length": HEAD,
            "attention.value_length": HEAD,
            "attention.layer_norm_rms_epsilon": EPS,
            "rope.freq_base": BASE,
            "rope.dimension_sections": np.array([*self.sections, 0], np.int32),
        }
        if taps:
            arch["n_deepstack_layers"] = taps
        keys = {f"{self.arch}.{key}": value for key, value in arch.items()}
        return {"general.architecture": self.arch} | keys

    def answer(self, pictures: list[tuple[np.ndarray, np.ndarray]], *texts: list[int]) -> np.ndarray:
        """float32[n, n_vocab]: logits of texts with a picture (patches and grid) between each two of them."""
        ids = list(texts[0])
        for (_, grid), text in zip(pictures, texts[1:], strict=True):
            ids += [START, *[IMAGE_TOKEN] * (int(grid.prod()) // self.merge**2), END, *text]
        kinds = [int(token == IMAGE_TOKEN) for token in ids]
        patches, grids = (torch.from_numpy(np.concatenate(part)) for part in zip(*pictures, strict=True))
        with torch.no_grad():
            out = self.model(
                input_ids=torch.tensor([ids]),
                mm_token_type_ids=torch.tensor([kinds]),
                pixel_values=patches,
                image_grid_thw=grids,
            )
        return out.logits[0].numpy()


class SightedQwen25(SightedQwen):
    """Qwen2.5-VL: biases instead of norms, the axes of the rope one after the other."""

    arch = "qwen2vl"
    classes: ClassVar = (Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration)
    heads, sections = 2, (2, 3, 3)
    rope: ClassVar = {}


def answer_of_qwen35(vectors: np.ndarray, columns: int, before: list[int], after: list[int]) -> np.ndarray:
    """float32[n, n_vocab]: logits of tests/data/tiny/qwen35.gguf for a text, vectors and a text."""
    kept: list[Any] = []
    delta_nets.run = kept.append  # the model that it would run
    delta_nets.qwen35(np.random.default_rng(zlib.crc32(b"qwen35")))
    (model,) = kept
    n, begin = len(vectors), len(before) + 1
    ids = torch.tensor([[*before, START, *[0] * n, END, *after]])
    at = torch.arange(n)
    image = torch.stack((torch.zeros(n), at // columns, at % columns)).long() + begin
    text = torch.arange(1 + len(after)) + begin + max(columns, n // columns)
    places = torch.cat((torch.arange(begin).expand(3, -1), image, text.expand(3, -1)), dim=1)
    with torch.no_grad():
        rows = model.model.embed_tokens(ids)
        rows[0, begin : begin + n] = torch.from_numpy(vectors)
        out = model(inputs_embeds=rows, position_ids=places[:, None])
    return out.logits[0].numpy()


def answer_of_gemma4(name: str, vectors: np.ndarray, before: list[int], after: list[int]) -> np.ndarray:
    """float32[n, n_vocab]: logits of tests/data/tiny/NAME.gguf for a text, vectors and a text.

    In models without embeddings of each layer the tokens of an image see each other in layers with a window.
    """
    kept: list[Any] = []
    gemma4.run = kept.append
    gemma4.CASES[name](np.random.default_rng(zlib.crc32(name.encode())))
    (model,) = kept
    text, n, begin = model.model, len(vectors), len(before) + 1
    ids = torch.tensor([[*before, IMAGE_START, *[0] * n, IMAGE_END, *after]])
    with torch.no_grad():
        rows = text.embed_tokens(ids)
        rows[0, begin : begin + n] = torch.from_numpy(vectors)
        options: dict[str, Any] = {"use_cache": False}
        if model.config.hidden_size_per_layer_input:
            options["per_layer_inputs"] = text.get_per_layer_inputs(ids)
        else:
            blocks = torch.full(ids.shape, -1)
            blocks[0, begin : begin + n] = 0
            options["attention_mask"] = create_masks_for_vision_model(
                config=model.config,
                inputs_embeds=rows,
                attention_mask=None,
                past_key_values=None,
                position_ids=torch.arange(ids.shape[1])[None],
                block_sequence_ids=blocks,
            )
        logits = model.lm_head(text(inputs_embeds=rows, **options).last_hidden_state)[0]
    cap = model.config.final_logit_softcapping
    return (torch.tanh(logits / cap) * cap).numpy()

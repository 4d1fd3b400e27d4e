"""Makes tests/data/sounds: tiny random models that hear, as transformers saves them, and what it computes.

    python scripts/make_tiny_sounds.py [LLAMA_CPP]

writes a folder for each: the model, its tokenizer, answers.npz, and, by the converter in a checkout of
llama.cpp, mmproj.gguf. It needs torch, transformers and gguf.

No constant has its usual value, a window lasts 0.8 s, and all weights are exact in float16. Sounds go through
the models' own feature extractor.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    LlamaConfig,
    Qwen2AudioConfig,
    Qwen2AudioEncoderConfig,
    Qwen2AudioForConditionalGeneration,
    Qwen2Config,
    VoxtralConfig,
    VoxtralEncoderConfig,
    VoxtralForConditionalGeneration,
    WhisperFeatureExtractor,
)

FOLDER = Path(__file__).parent.parent / "tests" / "data" / "sounds"
POSITIONS, MELS, HIDDEN, HEADS, LAYERS = 40, 16, 32, 4, 3  # the converter needs three layers
WINDOW = POSITIONS * 2 * 160  # samples
SECONDS = (0.3, 2.0, 0.8, 0.777)  # of the sounds: short, of several windows, of one, of an odd length
CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.?ĠĊ!,:"
VOXTRAL = ("<s>", "</s>", "[INST]", "[/INST]", "[AUDIO]", "[BEGIN_AUDIO]")
QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>")
TEXT = {
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 2.0**-10,
    "tie_word_embeddings": False,
}
ENCODER = {
    "num_mel_bins": MELS,
    "max_source_positions": POSITIONS,
    "encoder_layers": LAYERS,
    "encoder_attention_heads": HEADS,
    "encoder_ffn_dim": 4 * HIDDEN,
    "d_model": HIDDEN,
}
TEMPLATES = {
    "voxtral": "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
    "{% else %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}",
    "qwen2audio": "{% set n = namespace(value=0) %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if 'audio' in part or 'audio_url' in part or part.type == 'audio' %}{% set n.value = n.value + 1 %}"
    "Audio {{ n.value }}: <|audio_bos|><|AUDIO|><|audio_eos|>\n{% elif 'text' in part %}{{ part.text }}"
    "{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
}


def noise(i: int) -> np.ndarray:
    """uint8[n]: a sound with an eighth of the samples; each stands for eight. Loud and quiet in turn."""
    n = round(SECONDS[i] * 2000)
    loud = np.arange(n) * 9 // n % 3 + 1
    return (128 + np.random.default_rng(i).integers(-40, 41, n) * loud).astype(np.uint8)


def sound(base: np.ndarray) -> np.ndarray:
    """float32[n], 16,000 samples a second."""
    return ((np.repeat(base, 8).astype(np.float32) - 128) / 128)[: len(base) * 8 - 3]


def fill(model: torch.nn.Module, rng: np.random.Generator) -> None:
    for name, parameter in model.named_parameters():
        shape = tuple(parameter.shape)
        if "norm" in name and name.endswith("weight"):
            values = np.round(rng.uniform(-0.5, 0.5, shape) * 512) / 512 + 1
        elif name.endswith("bias") or "embed_positions" in name:
            values = rng.normal(0, 0.5, shape)
        elif "embed_tokens" in name:
            values = rng.normal(0, 1, shape)
        else:
            gain = 1.4 if "q_proj" in name or "k_proj" in name else 1.0
            values = rng.normal(0, gain * int(np.prod(shape[1:])) ** -0.5, shape)
        parameter.data = torch.from_numpy(values.astype(np.float16).astype(np.float32))


def specials(name: str) -> tuple[str, ...]:
    return VOXTRAL if name == "voxtral" else QWEN


def ids(name: str) -> dict[str, int]:
    return {token: i for i, token in enumerate((*specials(name), *CHARACTERS))}


def build(name: str) -> torch.nn.Module:
    vocab = ids(name)
    if name == "voxtral":
        text = LlamaConfig(**TEXT, vocab_size=len(vocab), head_dim=8, rope_theta=7000.0)
        config = VoxtralConfig(
            audio_config=VoxtralEncoderConfig(**ENCODER).to_dict(),
            text_config=text.to_dict(),
            audio_token_id=vocab["[AUDIO]"],
        )
        return VoxtralForConditionalGeneration(config)
    text = Qwen2Config(**TEXT, vocab_size=len(vocab), rope_theta=7000.0)
    config = Qwen2AudioConfig(
        audio_config=Qwen2AudioEncoderConfig(**ENCODER),
        text_config=text,
        audio_token_index=vocab["<|AUDIO|>"],
    )
    return Qwen2AudioForConditionalGeneration(config)


def extract(name: str, samples: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """float32[windows, mels, frames] of a sound, and which frames are not padding."""
    extractor = WhisperFeatureExtractor(feature_size=MELS, chunk_length=1)
    n = -(-len(samples) // WINDOW) * WINDOW
    done = extractor(
        samples,
        sampling_rate=16_000,
        padding="max_length",
        max_length=n,
        truncation=False,
        return_attention_mask=True,
        return_tensors="pt",
    )
    mels = done["input_features"].reshape(MELS, -1, 2 * POSITIONS).transpose(0, 1)
    return mels, done["attention_mask"].reshape(-1, 2 * POSITIONS)


def answer(name: str, model: Any, samples: np.ndarray) -> dict[str, np.ndarray]:
    """The spectrogram of a sound, its vectors, and the logits behind a text, the sound and a text."""
    mels, mask = extract(name, samples)
    known = ids(name)
    if name == "voxtral":
        n, options = len(mels) * POSITIONS // 4, {"input_features": mels}
        before, stand_in, after = ["<s>", "[INST]", "A", "[BEGIN_AUDIO]"], "[AUDIO]", ["B", "?", "[/INST]"]
    else:
        n = -(-int(mask.sum()) // 2) // 2
        options = {"input_features": mels, "feature_attention_mask": mask}
        before, stand_in, after = (
            ["<|im_start|>", "A", "<|audio_bos|>"],
            "<|AUDIO|>",
            ["<|audio_eos|>", "B", "?"],
        )
    row = torch.tensor([[known[token] for token in (*before, *[stand_in] * n, *after)]])
    vectors: list[torch.Tensor] = []
    inner = model.model.multi_modal_projector
    hook = inner.register_forward_hook(lambda module, given, made: vectors.append(made))
    with torch.no_grad():
        logits = model(input_ids=row, attention_mask=torch.ones_like(row), **options).logits[0]
    hook.remove()
    heard = vectors[0].reshape(-1, HIDDEN)[:n].numpy()
    return {"mels": mels.numpy(), "vectors": heard, "logits": logits.numpy()}


def write_tokenizer(name: str, folder: Path) -> None:
    known = ids(name)
    added = [
        {"id": known[text], "content": text, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for text in specials(name)
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    described = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {"type": "BPE", "vocab": known, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(described, ensure_ascii=False) + "\n")
    begin, end = ("<s>", "</s>") if name == "voxtral" else (None, "<|im_end|>")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": begin,
        "eos_token": end,
        "add_bos_token": False,
        "chat_template": TEMPLATES[name],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


def main(llama_cpp: str | None) -> None:
    torch.set_num_threads(1)  # one order of summation
    for name in TEMPLATES:
        folder = FOLDER / name
        folder.mkdir(parents=True, exist_ok=True)
        model = build(name).eval().float()
        fill(model, np.random.default_rng(zlib.crc32(name.encode())))
        found: dict[str, np.ndarray] = {}
        for i in range(len(SECONDS)):
            if name == "qwen2audio" and SECONDS[i] * 16_000 > WINDOW:
                continue  # transformers cuts off what is behind the first window
            base = noise(i)
            answers = answer(name, model, sound(base)) | {"sound": base}
            found |= {f"{key}.{i}": value for key, value in answers.items()}
            shape, spread = answers["vectors"].shape, answers["vectors"].std()
            print(f"{name} {i}: {shape} vary by {spread:.2f}, logits by {answers['logits'].std():.2f}")
        model.half().save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        write_tokenizer(name, folder)
        np.savez_compressed(folder / "answers.npz", **found)
        if llama_cpp:
            target = folder / "mmproj.gguf"
            program = [sys.executable, str(Path(llama_cpp) / "convert_hf_to_gguf.py"), str(folder)]
            subprocess.run([*program, "--mmproj", "--outtype", "f16", "--outfile", str(target)], check=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)

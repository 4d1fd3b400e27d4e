"""Takes a language model's GGUF file apart for training: its weights as they are, and all texts as tokens.

    python training/prepare.py build/training [--model smollm2]

writes lm-0.npz, lm-1.npz, …, none over 50 MB. Training needs nothing else of Stretto, so that it can run
where only torch, NumPy and Pillow are.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from questions import every_text

from stretto.text.loading import load_tokenizer
from stretto.weights import hub
from stretto.weights.gguf import GGUF
from weights import dequantize

MOST = 50_000_000  # bytes of a part


def main() -> None:
    """Write the parts."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--model", default="smollm2")
    options = arguments.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)

    file = GGUF(hub.resolve(options.model))
    tokenizer = load_tokenizer(file.metadata)
    texts = {text: tokenizer.encode(text) for text in every_text()}
    around = {name: tokenizer.encode(text, special=True, bos=False) for name, text in pieces().items()}
    for text, ids in texts.items():  # with and without the image between them it is the same
        assert tokenizer.encode(f"user\n{text}") == tokenizer.encode("user\n") + ids, text
    config = {
        "head_count": file.metadata.integer("llama.attention.head_count"),
        "head_count_kv": file.metadata.integer("llama.attention.head_count_kv"),
        "block_count": file.metadata.integer("llama.block_count"),
        "eps": file.metadata.number("llama.attention.layer_norm_rms_epsilon"),
        "freq_base": file.metadata.number("llama.rope.freq_base"),
        "end": tokenizer.eos_id,
    }
    head = json.dumps({"config": config, "texts": texts, "around": around}).encode()
    parts: list[dict[str, np.ndarray]] = [{"head": np.frombuffer(head, np.uint8)}]
    size = len(head)
    for name, tensor in file.tensors.items():
        if size + tensor.nbytes > MOST:
            parts.append({})
            size = 0
        size += tensor.nbytes
        rows = tensor.data.reshape(-1, tensor.data.shape[-1])
        assert (dequantize(rows, tensor.format.name).reshape(tensor.shape) == tensor.dequantize()).all(), name
        parts[-1][f"tensor/{tensor.format.name}/{name}"] = np.array(tensor.data)
    for i, part in enumerate(parts):
        path = options.folder / f"lm-{i}.npz"
        np.savez(path, **part)
        print(f"{path}: {path.stat().st_size:,} bytes")


def pieces() -> dict[str, str]:
    """What stands around questions and answers in the model's chat format."""
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    return {
        "begin": f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n",
        "answer": "<|im_end|>\n<|im_start|>assistant\n",
        "next": "\n<|im_start|>user\n",
        "line": "\n",
    }


if __name__ == "__main__":
    main()

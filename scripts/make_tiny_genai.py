"""Makes tests/data/onnx/genai: a tiny random Llama as the model builder of ONNX Runtime GenAI exports it.

    HF_HUB_OFFLINE=1 python scripts/make_tiny_genai.py   # with torch, transformers, onnxruntime-genai

Its attention is GroupQueryAttention, whose past and present may share one buffer. Run make_tiny_onnx.py
first: the tokenizer is that of its Llama.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

DATA = Path(__file__).parent.parent / "tests" / "data" / "onnx"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
N_TOKENS, N_GREEDY = 24, 16


def make():
    torch.manual_seed(2)
    config = LlamaConfig(
        vocab_size=258,
        hidden_size=32,  # heads of 16: the operator takes no others
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=256,
        eos_token_id=257,
        pad_token_id=257,
        initializer_range=0.3,
    )
    model = LlamaForCausalLM(config).eval().float()
    ids = torch.randint(0, 256, (1, N_TOKENS))
    with torch.no_grad():
        logits = model(ids).logits[0].numpy()
    greedy = model.generate(ids, max_new_tokens=N_GREEDY, do_sample=False, eos_token_id=None)[0, N_TOKENS:]
    out = DATA / "genai"
    shutil.rmtree(out, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as made:
        model.save_pretrained(folder)
        for name in TOKENIZER:
            shutil.copy(DATA / "llama" / name, folder)
        arguments = ["-m", "tiny", "-i", folder, "-o", made, "-p", "fp32", "-e", "cpu", "-c", f"{made}/cache"]
        subprocess.run([sys.executable, "-m", "onnxruntime_genai.models.builder", *arguments], check=True)
        out.mkdir()
        for name in ("model.onnx", "model.onnx.data", "genai_config.json", *TOKENIZER):
            shutil.copy(Path(made) / name, out)
    np.savez_compressed(out / "expected.npz", tokens=ids[0].numpy(), logits=logits, greedy=greedy.numpy())
    print({path.name: path.stat().st_size for path in sorted(out.iterdir())})


if __name__ == "__main__":
    make()

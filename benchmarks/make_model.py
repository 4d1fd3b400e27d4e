"""Writes a model with the shape of a known one and random weights, for measuring speed.

    python benchmarks/make_model.py qwen2.5-0.5b model.gguf
    python benchmarks/make_model.py llama-3.2-1b model.gguf --format q4_k --embedding q6_k

How fast a dense model runs does not depend on what its weights say. The vocabulary has the right size, the
256 bytes and one merge in it; the rest is filler.
"""

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from stretto.weights.formats import WRITABLE, Format, quantize
from stretto.weights.tensor import Tensor
from stretto.weights.writer import write_gguf

NORMAL, CONTROL, UNUSED = 1, 3, 5  # types of tokens


@dataclass(frozen=True)
class Shape:
    architecture: str  # llama or qwen2
    pretokenizer: str
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_kv_head: int
    head_size: int
    n_vocab: int
    context_length: int
    rope_base: float
    norm_eps: float
    specials: tuple = ()  # control tokens beside the one that ends a text


AROUND_IMAGES = (
    *("<image>", "<fake_token_around_image>", "<global-img>"),
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
)
SHAPES = {
    "qwen2.5-0.5b": Shape("qwen2", "qwen2", 24, 896, 4864, 14, 2, 64, 151_936, 32_768, 1e6, 1e-6),
    "llama-3.2-1b": Shape("llama", "llama-bpe", 16, 2048, 8192, 32, 8, 64, 128_256, 131_072, 5e5, 1e-5),
    "smollm2-135m": Shape("llama", "smollm", 30, 576, 1536, 9, 3, 64, 49_152, 8192, 1e5, 1e-5),
    "smolvlm-256m": Shape("llama", "smollm", 30, 576, 1536, 9, 3, 64, 49_280, 8192, 1e5, 1e-5, AROUND_IMAGES),
    "tiny": Shape("llama", "gpt-2", 2, 64, 128, 2, 1, 32, 300, 512, 1e4, 1e-5),
}


# Where a block has its half floats, and how large they have to be for numbers of about unit variance.
SCALES = {Format.Q4_K: {0: 1 / 200, 2: 1 / 30}, Format.Q6_K: {208: 1 / 1300}}


def metadata(shape):
    arch = shape.architecture
    return {
        "general.architecture": arch,
        "general.name": "random weights",
        f"{arch}.block_count": shape.n_layer,
        f"{arch}.context_length": shape.context_length,
        f"{arch}.embedding_length": shape.n_embd,
        f"{arch}.feed_forward_length": shape.n_ff,
        f"{arch}.attention.head_count": shape.n_head,
        f"{arch}.attention.head_count_kv": shape.n_kv_head,
        f"{arch}.attention.layer_norm_rms_epsilon": shape.norm_eps,
        f"{arch}.rope.freq_base": shape.rope_base,
        f"{arch}.rope.dimension_count": shape.head_size,
        f"{arch}.vocab_size": shape.n_vocab,
        **vocabulary(shape),
    }


def vocabulary(shape):
    # The character that stands for each byte in such vocabularies: itself if it can be printed.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    tokens = [chr(byte if byte in printable else next(others)) for byte in range(256)]
    tokens += [tokens[ord(" ")] + "t", "<|endoftext|>"]
    tokens += shape.specials
    types = [NORMAL] * 257 + [CONTROL] * (1 + len(shape.specials))
    filler = range(len(tokens), shape.n_vocab)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": shape.pretokenizer,
        "tokenizer.ggml.tokens": [*tokens, *(f"[{number}]" for number in filler)],
        "tokenizer.ggml.token_type": np.array([*types, *[UNUSED] * len(filler)], np.int32),
        "tokenizer.ggml.merges": [f"{tokens[ord(' ')]} t"],
        "tokenizer.ggml.bos_token_id": 257,
        "tokenizer.ggml.eos_token_id": 257,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": "{% for message in messages %}{{ message['content'] }}\n{% endfor %}",
    }


def tensors(shape, weights, embedding, rng):
    """Name → tensor. A matrix of each shape is drawn once; every layer has its rows in another order."""
    q, kv = shape.n_head * shape.head_size, shape.n_kv_head * shape.head_size
    matrices = {
        "attn_q": (q, shape.n_embd),
        "attn_k": (kv, shape.n_embd),
        "attn_v": (kv, shape.n_embd),
        "attn_output": (shape.n_embd, q),
        "ffn_gate": (shape.n_ff, shape.n_embd),
        "ffn_up": (shape.n_ff, shape.n_embd),
        "ffn_down": (shape.n_embd, shape.n_ff),
    }

    def drawn(rows, columns, fmt):
        if fmt in SCALES:
            return random_blocks(rows, columns, fmt, rng)
        blocks = [
            quantize(rng.normal(0, columns**-0.5, (min(4096, rows - row), columns)), fmt)
            for row in range(0, rows, 4096)
        ]
        return np.concatenate(blocks)

    patterns = {name: drawn(*size, weights) for name, size in matrices.items()}
    ones = np.ones(shape.n_embd, np.float32)
    found = {
        "token_embd.weight": Tensor(
            "token_embd.weight",
            (shape.n_vocab, shape.n_embd),
            embedding,
            0,
            drawn(shape.n_vocab, shape.n_embd, embedding),
        ),
        "output_norm.weight": ones,
    }
    for i in range(shape.n_layer):
        for name, size in matrices.items():
            full = f"blk.{i}.{name}.weight"
            found[full] = Tensor(full, size, weights, 0, np.roll(patterns[name], i, axis=0))
        found[f"blk.{i}.attn_norm.weight"] = found[f"blk.{i}.ffn_norm.weight"] = ones
        if shape.architecture == "qwen2":
            for name in ("attn_q", "attn_k", "attn_v"):
                found[f"blk.{i}.{name}.bias"] = np.zeros(matrices[name][0], np.float32)
    return found


def random_blocks(rows, columns, fmt, rng):
    """Blocks of a format that we read and do not write: random bits with a scale that suits their number."""
    blocks = rng.integers(0, 256, (rows, columns // fmt.block, fmt.size), dtype=np.uint8)
    for at, size in SCALES[fmt].items():
        scale = np.array([size * columns**-0.5], np.float16)
        blocks[..., at : at + 2] = scale.view(np.uint8)
    return blocks.reshape(rows, -1)


def make(path, shape, weights=Format.Q4_0, embedding=Format.Q8_0, seed=0):
    rng = np.random.default_rng(seed)
    write_gguf(path, metadata(shape), tensors(shape, weights, embedding, rng))
    return Path(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("path", type=Path)
    names = sorted(fmt.name.lower() for fmt in {*WRITABLE, *SCALES})
    parser.add_argument("--format", choices=names, default="q4_0", help="of the layers' matrices")
    parser.add_argument(
        "--embedding", choices=names, default="q8_0", help="of the embedding, also the output"
    )
    args = parser.parse_args()
    shape = SHAPES[args.shape]
    make(args.path, shape, Format[args.format.upper()], Format[args.embedding.upper()])
    print(f"{args.path}: {args.path.stat().st_size / 1e6:.1f} MB, {asdict(shape)}")


if __name__ == "__main__":
    main()

"""Writes files with the shapes of known models, few of their layers, and random weights, for measuring speed.

    python benchmarks/shapes.py qwen3-30b-a3b model.gguf
    python benchmarks/shapes.py gpt-oss-20b model.gguf --layers 24
    python benchmarks/shapes.py llama-3-8b model.gguf --format q4_k

Layers and vocabulary are cut by the same factor, so that the output matrix has the share of the work that
it has in the whole model. Tensors are those that the architecture's spec asks for. Blocks of quantised
formats are random bits with a scale that suits their number, so nothing is quantised. A tensor of each
shape is drawn once; layers share it.
"""

import argparse
import re
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from make_model import vocabulary
from stretto.models import reader
from stretto.models.common import Keys
from stretto.weights.formats import Format
from stretto.weights.gguf import GGUF
from stretto.weights.tensor import Tensor
from stretto.weights.writer import write_gguf


@dataclass(frozen=True)
class Shape:
    architecture: str
    pretokenizer: str
    keys: dict  # metadata, without the architecture's prefix
    whole: tuple  # layers and tokens of the known model
    n_layer: int  # that are enough to measure
    matrices: Format
    experts: Format | None = None  # as other matrices
    better: Format | None = None  # of V and of what leads back to the stream, in every second layer
    embedding: Format = Format.Q8_0
    tied: bool = False
    specials: tuple = ()
    deviation: float = 1.0  # of the logits

    @property
    def n_vocab(self):
        layers, tokens = self.whole
        return -(-tokens * self.n_layer // layers // 64) * 64


QWEN3_MOE = {
    "context_length": 40_960,
    "embedding_length": 2048,
    "feed_forward_length": 6144,
    "attention.head_count": 32,
    "attention.head_count_kv": 4,
    "attention.key_length": 128,
    "attention.value_length": 128,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 1e6,
    "expert_count": 128,
    "expert_used_count": 8,
    "expert_feed_forward_length": 768,
}
GPT_OSS = {
    "context_length": 131_072,
    "embedding_length": 2880,
    "feed_forward_length": 2880,
    "attention.head_count": 64,
    "attention.head_count_kv": 8,
    "attention.key_length": 64,
    "attention.value_length": 64,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.sliding_window": 128,
    "rope.freq_base": 150_000.0,
    "rope.dimension_count": 64,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 32.0,
    "rope.scaling.original_context_length": 4096,
    "expert_count": 32,
    "expert_used_count": 4,
    "expert_feed_forward_length": 2880,
}
QWEN35 = {
    "context_length": 262_144,
    "embedding_length": 1024,
    "feed_forward_length": 3584,
    "attention.head_count": 8,
    "attention.head_count_kv": 2,
    "attention.key_length": 256,
    "attention.value_length": 256,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 1e7,
    "rope.dimension_count": 64,
    "rope.dimension_sections": np.array([11, 11, 10, 0], np.int32),
    "full_attention_interval": 4,
    "ssm.conv_kernel": 4,
    "ssm.state_size": 128,
    "ssm.group_count": 16,
    "ssm.time_step_rank": 16,
    "ssm.inner_size": 2048,
}
LLAMA_3_8B = {
    "context_length": 8192,
    "embedding_length": 4096,
    "feed_forward_length": 14_336,
    "attention.head_count": 32,
    "attention.head_count_kv": 8,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 500_000.0,
    "rope.dimension_count": 128,
}
QWEN3_600M = {
    "context_length": 40_960,
    "embedding_length": 1024,
    "feed_forward_length": 3072,
    "attention.head_count": 16,
    "attention.head_count_kv": 8,
    "attention.key_length": 128,
    "attention.value_length": 128,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 1e6,
}
SMOLLM2_135M = {
    "context_length": 8192,
    "embedding_length": 576,
    "feed_forward_length": 1536,
    "attention.head_count": 9,
    "attention.head_count_kv": 3,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 1e5,
    "rope.dimension_count": 64,
}
QWEN3_30B = 48, 151_936


def dense(architecture, pretokenizer, keys, whole, tied=True):
    """A whole model, all of whose matrices have one format, with logits about as sharp as real ones."""
    fmt = Format.BF16
    return Shape(
        architecture, pretokenizer, keys, whole, whole[0], fmt, embedding=fmt, tied=tied, deviation=3.0
    )


SHAPES = {
    # As Q4_K_M is made.
    "qwen3-30b-a3b": Shape(
        "qwen3moe", "qwen2", QWEN3_MOE, QWEN3_30B, 4, Format.Q4_K, better=Format.Q6_K, embedding=Format.Q6_K
    ),
    "qwen3-30b-a3b-q4_0": Shape("qwen3moe", "qwen2", QWEN3_MOE, QWEN3_30B, 4, Format.Q4_0),
    "gpt-oss-20b": Shape("gpt-oss", "gpt-4o", GPT_OSS, (24, 201_088), 4, Format.Q8_0, Format.MXFP4),
    "gpt-oss-20b-q4_0": Shape("gpt-oss", "gpt-4o", GPT_OSS, (24, 201_088), 4, Format.Q8_0, Format.Q4_0),
    "qwen3.5-0.8b": Shape("qwen35", "qwen35", QWEN35, (24, 248_320), 24, Format.Q4_0, tied=True),
}
DENSE = {
    "llama-3-8b": dense("llama", "llama-bpe", LLAMA_3_8B, (32, 128_256), tied=False),
    "qwen3-0.6b": dense("qwen3", "qwen2", QWEN3_600M, (28, 151_936)),
    "smollm2-135m": dense("llama", "smollm", SMOLLM2_135M, (30, 49_152)),
}

# Where a block has its half floats, and how large they have to be for numbers of about unit variance.
HALVES = {
    Format.Q4_0: {0: 1 / 4.6},
    Format.Q4_1: {0: 1 / 4.6, 2: -1.6},
    Format.Q8_0: {0: 1 / 74},
    Format.Q4_K: {0: 1 / 200, 2: 1 / 30},
    Format.Q6_K: {208: 1 / 1300},
}
TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
BETTER = re.compile(r"blk\.\d*[13579]\.(attn_v|ffn_down)")


def metadata(shape):
    arch = shape.architecture
    return {
        "general.architecture": arch,
        "general.name": "random weights",
        f"{arch}.block_count": shape.n_layer,
        **{f"{arch}.{key}": value for key, value in shape.keys.items()},
        f"{arch}.vocab_size": shape.n_vocab,
        **vocabulary(shape),
        "tokenizer.chat_template": TEMPLATE,
    }


def blocks(size, fmt, rng, deviation=1.0):
    """Random rows of a quantised format, as bytes; their products with unit vectors have that deviation."""
    columns = size[-1]
    scale = deviation * columns**-0.5
    count = int(np.prod(size[:-1])) * (columns // fmt.block)
    made = rng.integers(0, 256, (count, fmt.size), dtype=np.uint8)
    if fmt is Format.BF16:  # random sign and mantissa, and the exponent of one of four powers of two
        bits = made.view(np.uint16)
        bits &= 0x81FF
        bits += (124 + round(np.log2(scale / 0.88))) << 7
    if fmt is Format.MXFP4:  # one byte, the exponent of a power of two
        made[:, 0] = 127 + round(np.log2(scale / 2.9))
    for at, half in HALVES.get(fmt, {}).items():
        made[:, at : at + 2] = np.array([half * scale], np.float16).view(np.uint8)
    return made.reshape(*size[:-1], -1)


def numbers(name, size, rng):
    """Norms, biases and what else stays in float32."""
    if name.endswith("norm.weight"):
        return np.ones(size, np.float32)
    if name.endswith("ssm_a"):  # a decay, which is below 0
        return -rng.uniform(0.1, 1.0, size).astype(np.float32)
    deviation = size[-1] ** -0.5 if len(size) > 1 and name.endswith("weight") else 0.1
    return rng.normal(0, deviation, size).astype(np.float32)


def format_of(shape, name, size):
    if name in ("token_embd.weight", "output.weight"):
        return shape.embedding
    fmt = (shape.experts if "exps" in name else None) or shape.matrices
    if shape.better and BETTER.match(name):
        fmt = shape.better
    is_matrix = len(size) > 1 and name.endswith("weight") and "ffn_gate_inp" not in name
    return fmt if is_matrix and size[-1] % fmt.block == 0 else Format.F32


def sizes(shape):
    """The names and sizes of all tensors, by the spec that a file of these metadata has."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "head.gguf")
        names = ("token_embd.weight",) if shape.tied else ("token_embd.weight", "output.weight")
        size = shape.n_vocab, shape.keys["embedding_length"]
        write_gguf(path, metadata(shape), dict.fromkeys(names, np.zeros(size, np.int8)))
        with GGUF(path) as file:
            return reader(shape.architecture)(Keys(file, shape.architecture)).tensors()


def make(path, shape, seed=0):
    rng, drawn, found = np.random.default_rng(seed), {}, {}
    output = "token_embd.weight" if shape.tied else "output.weight"
    for name, size in sizes(shape).items():
        fmt = format_of(shape, name, size)
        key = name.split(".", 2)[-1], size, fmt
        if key not in drawn:
            deviation = shape.deviation if name == output else 1.0
            drawn[key] = numbers(name, size, rng) if fmt is Format.F32 else blocks(size, fmt, rng, deviation)
        found[name] = drawn[key] if fmt is Format.F32 else Tensor(name, size, fmt, 0, drawn[key])
    write_gguf(path, metadata(shape), found)
    return Path(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=[*SHAPES, *DENSE])
    parser.add_argument("path", type=Path)
    parser.add_argument("--layers", type=int, help="fewer or more than are usual here")
    parser.add_argument("--format", type=str.upper, help="of all matrices")
    args = parser.parse_args()
    shape = (SHAPES | DENSE)[args.shape]
    if args.format:
        shape = replace(shape, matrices=Format[args.format], embedding=Format[args.format])
    make(args.path, replace(shape, n_layer=args.layers or shape.n_layer))
    print(f"{args.path}: {args.path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()

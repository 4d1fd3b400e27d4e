"""How much memory a model takes: a process's growth from "tokenizer loaded" to the first token.

    python benchmarks/memory.py                 # the default models, and one shape in every format
    python benchmarks/memory.py --only Q6_K

Each figure comes from a process of its own. "At the end" is the growth of the proportional set size, read
after the first token. "At the peak" is the highest resident set of a whole load, tokenizer and all, less that
of a process with the tokenizer only. Nothing is subtracted: the cache has 64 cells, below 2 MB. Linux only.
"""

import argparse
import gc
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from make_model import Shape, metadata
from stretto import load
from stretto.loading import describe
from stretto.text.loading import load_tokenizer
from stretto.weights import hub
from stretto.weights.formats import READABLE
from stretto.weights.gguf import GGUF
from stretto.weights.tensor import Tensor
from stretto.weights.writer import write_gguf

HERE = Path(__file__).parent
PROCESS = Path("/proc/self")
MODELS = "smollm2", "gemma3-270m"
CELLS = 64
# Rows of every matrix are whole blocks of 256: all formats can store it. 113 million weights.
SHAPE = Shape("llama", "smollm", 12, 768, 2048, 12, 4, 64, 49_152, 8192, 1e5, 1e-5)


def kilobytes(file, key):
    """A figure of /proc, in bytes."""
    lines = (PROCESS / file).read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def growth(path, threads):
    """The bytes that this process grows by when its tokenizer is there."""
    with GGUF(path) as file:
        tokenizer = load_tokenizer(file.metadata)
    del file
    gc.collect()
    start, resident = kilobytes("smaps_rollup", "Pss"), kilobytes("status", "VmRSS")
    describe.load_gguf_tokenizer = lambda metadata: tokenizer
    with load(path, threads=threads, cells=CELLS) as llm:
        llm.generate([5, 6, 7], max_tokens=1, temperature=0)
        return {
            "tokenizer": resident,
            "end": kilobytes("smaps_rollup", "Pss") - start,
            "cache": CELLS * llm.backend.cell_bytes,
        }


def highest(path, threads):
    """The most that this process ever had in memory, up to the first token."""
    with load(path, threads=threads, cells=CELLS) as llm:
        llm.generate([5, 6, 7], max_tokens=1, temperature=0)
        return {"highest": kilobytes("status", "VmHWM")}


def write(path, fmt):
    """A model of zeros: what its weights say does not change what they take."""
    width, kv, ff = SHAPE.n_embd, SHAPE.n_kv_head * SHAPE.head_size, SHAPE.n_ff
    shapes = {"token_embd": (SHAPE.n_vocab, width)}
    for i in range(SHAPE.n_layer):
        shapes |= {f"blk.{i}.{name}": (width, width) for name in ("attn_q", "attn_output")}
        shapes |= {f"blk.{i}.{name}": (kv, width) for name in ("attn_k", "attn_v")}
        shapes |= {f"blk.{i}.{name}": (ff, width) for name in ("ffn_gate", "ffn_up")}
        shapes |= {f"blk.{i}.ffn_down": (width, ff)}
    norms = ["output_norm", *(f"blk.{i}.{n}_norm" for i in range(SHAPE.n_layer) for n in ("attn", "ffn"))]
    tensors = {f"{name}.weight": np.ones(width, np.float32) for name in norms}
    for name, (rows, columns) in shapes.items():
        data = np.zeros((rows, fmt.row_bytes(columns)), np.uint8)
        tensors[f"{name}.weight"] = Tensor(f"{name}.weight", (rows, columns), fmt, 0, data)
    write_gguf(path, metadata(SHAPE), tensors)


def measure(path, threads):
    """All figures of a file, in bytes."""
    figures = {"file": path.stat().st_size}
    for part in PARTS:
        command = [sys.executable, __file__, "--threads", str(threads), "--part", part, str(path)]
        figures |= json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {**figures, "peak": figures["highest"] - figures["tokenizer"]}


PARTS = {"growth": growth, "highest": highest}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="models and formats that this expression finds")
    parser.add_argument("--part", nargs=2, help="one figure of a file, in this process")
    parser.add_argument("--out", type=Path, default=HERE / "raw" / "memory.json")
    args = parser.parse_args()
    if args.part:
        print(json.dumps(PARTS[args.part[0]](args.part[1], args.threads)))
        return
    found = {name: measure(hub.resolve(name), args.threads) for name in MODELS if re.search(args.only, name)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        for fmt in sorted(READABLE):
            if re.search(args.only, fmt.name):
                write(path, fmt)
                found[fmt.name] = measure(path, args.threads)
    command = f"python benchmarks/memory.py --threads {args.threads}"
    command += f" --only '{args.only}'" if args.only else ""
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"command": command, "bytes": found}, indent=1) + "\n")
    print(f"`{command}`\n\n| | file | at the end | at the peak | end ÷ file | peak ÷ file |")
    print("|---|---|---|---|---|---|")
    for name, row in found.items():
        file, end, peak = row["file"], row["end"], row["peak"]
        sizes = " | ".join(f"{size / 1e6:.1f} MB" for size in (file, end, peak))
        print(f"| {name} | {sizes} | **{end / file:.2f}** | **{peak / file:.2f}** |")


if __name__ == "__main__":
    main()

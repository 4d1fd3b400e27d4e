"""What an adapter costs: decoding with and without one by turns, in one process.

    python benchmarks/adapters.py smollm2 --rank 16 --threads 2

A random LoRA adapter is made for the model: of all matrices of attention and feed-forward ("all"), and of
queries and values ("qv", what PEFT adapts by default), in float16 and in float32. Two sequences of the same
text are continued by turns, one with the adapter: `llm.generate` with 16 tokens, then with `--step` token by
token through `llm.logits`. Which goes first changes from pair to pair, and the share is the median over all
pairs. Last come rows: 8 sequences with as many different adapters in one step, beside 8 without.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

import stretto
from stretto import hardware
from stretto.weights.writer import write_gguf

ALL = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
PARTS = {"qv": ("attn_q", "attn_v"), "all": ALL}
TOGETHER = 16  # tokens of a generation
PROMPT = "Write a long story about a lighthouse keeper who finds a message in a bottle."


def write_adapter(path, llm, parts, rank, dtype, seed=0):
    """A random adapter of the model's matrices of these names."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in llm.spec.tensors().items():
        if name.split(".")[-2] in parts and len(shape) == 2:
            rows, columns = shape
            for kind, size in (("a", (rank, columns)), ("b", (rows, rank))):
                tensors[f"{name}.lora_{kind}"] = (0.01 * rng.standard_normal(size)).astype(dtype)
    head = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": 16.0}
    write_gguf(path, {"general.architecture": llm.spec.architecture, **head}, tensors)
    return sum(array.nbytes for array in tensors.values())


def generated(llm, name, tokens):
    """(milliseconds of a token without, share that the adapter adds) of short generations by turns."""
    plain, changed = llm.sequence(PROMPT), llm.sequence(PROMPT, adapter=name)
    llm.logits([plain, changed])
    pairs = []
    for number in range(tokens // TOGETHER):
        took = {}
        for one in (plain, changed) if number % 2 else (changed, plain):
            begun = time.perf_counter()
            llm.generate(one, max_tokens=TOGETHER, ignore_eos=True, temperature=0)
            took[one] = (time.perf_counter() - begun) / TOGETHER
        if number:
            pairs.append((took[plain], took[changed]))
    plain.close()
    changed.close()
    return 1e3 * median(a for a, _ in pairs), median(b / a for a, b in pairs) - 1


def pairs_of(llm, groups, tokens):
    """Seconds of each pair of steps: of the first group of sequences, and of the second."""
    found = []
    for number in range(tokens):
        took = {}
        for which in (0, 1) if number % 2 else (1, 0):
            for sequence in groups[which]:
                sequence.append(1000 + number % 500)
            begun = time.perf_counter()
            llm.logits(groups[which])
            took[which] = time.perf_counter() - begun
        if number >= 8:
            found.append((took[0], took[1]))
    return found


def measure(llm, adapters, tokens):
    """(milliseconds of a step without, share that the adapters add) of one sequence for each adapter."""
    plain = [llm.sequence(f"{number} {PROMPT}") for number, _ in enumerate(adapters)]
    changed = [llm.sequence(f"{number} {PROMPT}", adapter=name) for number, name in enumerate(adapters)]
    llm.logits(plain)
    llm.logits(changed)
    pairs = pairs_of(llm, (plain, changed), tokens)
    for sequence in (*plain, *changed):
        sequence.close()
    return 1e3 * median(a for a, _ in pairs), median(b / a for a, b in pairs) - 1


def main():
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--step", action="store_true", help="token by token, in place of generations")
    args = parser.parse_args()
    with (
        stretto.load(args.model, backend="native", threads=args.threads) as llm,
        tempfile.TemporaryDirectory() as folder,
    ):
        print(f"{args.model}, rank {args.rank}, {hardware.cpu_name()}, {llm.backend.threads} threads\n")
        print("| adapter | of | MB | ms without | costs |\n|---|---|---|---|---|")
        for label, parts in PARTS.items():
            for dtype in (np.float16, np.float32):
                name = f"{label}-{np.dtype(dtype).name}"
                nbytes = write_adapter(Path(folder) / f"{name}.gguf", llm, parts, args.rank, dtype)
                llm.load_adapter(name, Path(folder) / f"{name}.gguf")
                way = measure(llm, [name], args.tokens) if args.step else generated(llm, name, args.tokens)
                step, share = way
                kind = np.dtype(dtype).name
                print(f"| one, {kind} | {label} | {nbytes / 1e6:.1f} | {step:.2f} | {share:+.1%} |")
        names = []
        for number in range(8):
            names.append(f"n{number}")
            path = Path(folder) / f"{number}.gguf"
            write_adapter(path, llm, ALL, args.rank, np.float16, number)
            llm.load_adapter(names[-1], path)
        step, share = measure(llm, names, args.tokens)
        print(f"| eight, a row each | all | – | {step:.2f} | {share:+.1%} |")


if __name__ == "__main__":
    main()

"""What the cache is good for: going on, forking, prefix hits, saving and restoring, memory.

    python benchmarks/cache.py --peer PEER/bin/python --rounds 5 --threads 2

PEER is an environment of its own with `llama-cpp-python`, whose own means are measured beside; without one
only Stretto is measured. SmolLM2, random tokens, medians. Only one of the two computes at a time.
"""

import argparse
import json
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

import stretto
from make_model import SHAPES, Shape, make
from peers.process import Process
from stretto.weights import hub

HERE = Path(__file__).parent
LENGTHS = 128, 512, 2048
SYSTEM = 1500  # tokens of a system prompt


def private_bytes():
    """The memory of this process, its part of what it shares with others counted in."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def clocked(work):
    begun = time.perf_counter()
    result = work()
    return time.perf_counter() - begun, result


class Ours:
    """The measurements of one round, in seconds."""

    def __init__(self, path, threads):
        self.llm = stretto.load(path, threads=threads, cells=8192)
        self.path = path

    def recompute(self, tokens):
        """Until the logits of the last token are there, with nothing in the cache."""
        self.llm.cache.clear()
        with self.llm.sequence(tokens) as seq:
            return clocked(lambda: seq.logits)[0]

    def go_on(self, tokens):
        """The same with all but the last token in the cache."""
        self.llm.cache.clear()
        with self.llm.sequence(tokens[:-1]) as seq:
            seq.logits  # noqa: B018
            seq.append(tokens[-1])
            return clocked(lambda: seq.logits)[0]

    def first_token(self, system, question):
        """A request's first token, its system prompt parked or not."""
        self.llm.cache.clear()
        cold = clocked(lambda: next(self.llm.stream(system + question, temperature=0)))[0]
        warm = clocked(lambda: next(self.llm.stream(system + question[::-1], temperature=0)))[0]
        return cold, warm

    def fork(self, tokens):
        self.llm.cache.clear()
        with self.llm.sequence(tokens) as seq:
            seq.logits  # noqa: B018
            seconds, twin = clocked(seq.fork)
            twin.close()
        return seconds

    def save_restore(self, tokens, path):
        self.llm.cache.clear()
        with self.llm.sequence(tokens) as seq:
            seq.logits  # noqa: B018
            save = clocked(lambda: seq.save(path))[0]
        self.llm.cache.clear()
        restore, again = clocked(lambda: self.llm.restore(path))
        again.close()
        return save, restore


def measure(args, ours, peer, rng):
    """seconds[what][who]: a list, one entry a round."""
    seconds = {}

    def note(number, who, found):
        for what, value in found.items() if number else ():  # the first round warms up
            seconds.setdefault(what, {}).setdefault(who, []).append(value)

    def ask(**job):
        return peer.ask({"model": str(ours.path), "threads": args.threads, **job})["seconds"] if peer else {}

    def tokens(n):
        return rng.integers(1000, 40_000, n).tolist()

    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "state.safetensors")
        for number in range(args.rounds + 1):
            for n in LENGTHS:
                text = tokens(n)
                save, restore = ours.save_restore(text, file)
                found = {
                    "recompute": ours.recompute(text),
                    "go on": ours.go_on(text),
                    "fork": ours.fork(text),
                }
                found |= {"save": save, "restore": restore}
                note(number, "ours", {f"{what} {n}": value for what, value in found.items()})
                found = ask(do="cache", prompt=text)
                note(number, "theirs", {f"{what} {n}": value for what, value in found.items()})
            system, question = tokens(SYSTEM), tokens(12)
            cold, warm = ours.first_token(system, question)
            note(number, "ours", {"first token, new": cold, "first token, prefix cached": warm})
            note(number, "theirs", ask(do="prefix", system=system, question=question))
    return seconds


def memory(threads):
    """MiB that a full cache of 2,048 tokens takes, by shape and type: measured, not computed."""
    rng = np.random.default_rng(0)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for kv_heads in (14, 2):
            base = SHAPES["qwen2.5-0.5b"]
            path = Path(folder) / f"{kv_heads}.gguf"
            make(path, Shape(**{**vars(base), "n_kv_head": kv_heads, "n_vocab": 1024}))
            for kv in ("f16", "q8"):
                with stretto.load(path, threads=threads, cells=2048, kv=kv) as llm:
                    with llm.sequence(rng.integers(0, 1000, 8).tolist()) as seq:
                        seq.logits  # noqa: B018
                    llm.cache.clear()
                    before = private_bytes()
                    with llm.sequence(rng.integers(0, 1000, 2047).tolist()) as seq:
                        seq.logits  # noqa: B018
                        found[f"{kv_heads} KV heads, {kv}"] = (private_bytes() - before) / 2**20
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", help="the Python that has llama-cpp-python")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=HERE / "raw" / "cache.json", help="where all samples go")
    args = parser.parse_args()
    with ExitStack() as stack:
        peer = None
        if args.peer:
            peer = stack.enter_context(Process([args.peer, str(HERE / "peers" / "llamacpp_cache.py")]))
        ours = Ours(hub.resolve("smollm2"), args.threads)
        stack.callback(ours.llm.close)
        seconds = measure(args, ours, peer, np.random.default_rng(0))
    sizes = memory(args.threads)
    command = (
        f"python benchmarks/cache.py --peer PEER/bin/python --rounds {args.rounds} --threads {args.threads}"
    )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"command": command, "seconds": seconds, "MiB": sizes}, indent=1) + "\n")
    print(f"`{command}`\n\n| SmolLM2 | Stretto, ms | llama-cpp-python, ms |\n|---|---|---|")
    for what, samples in seconds.items():
        theirs = f"{1e3 * statistics.median(samples['theirs']):.2f}" if "theirs" in samples else "–"
        print(f"| {what} | {1e3 * statistics.median(samples['ours']):.2f} | {theirs} |")
    print("\n| a cache of 2,048 tokens, 24 layers, head size 64 | MiB |\n|---|---|")
    for what, size in sizes.items():
        print(f"| {what} | {size:.1f} |")


if __name__ == "__main__":
    main()

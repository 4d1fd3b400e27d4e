"""Three shapes beside llama.cpp with 2, 8 and 16 threads: prefill, decode, decode at depth, 16 sequences.

    python benchmarks/x86.py --llama BUILD/bin --models FOLDER --rounds 3

BUILD is llama.cpp with native flags; its source is in llama-cpp-python's sdist, under vendor/:

    cmake -S vendor/llama.cpp -B BUILD -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF
    cmake --build BUILD --target llama-bench llama-batched-bench

The models have random weights (make_model.py) and are made in --models unless they are there. Samples of both
take turns; llama.cpp runs with flash attention on and off, and the better median counts. Ours are public
calls with greedy sampling. Each part (--only) adds its samples to --out, so that a run can be cut up; the
table is made of what is there. The machine's memory bandwidth is measured beside, by our probe.
"""

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

import stretto
from make_model import SHAPES, make
from stretto import _native, hardware
from stretto.bench.limits import cache_bytes, file_cost
from stretto.bench.speed import Plan, speed
from stretto.weights.formats import Format

HERE = Path(__file__).parent
MODELS = {  # name → shape, format of the layers, of the embedding, tokens decoded in a sample
    "SmolLM2 shape, Q4_1": ("smollm2-135m", Format.Q4_1, Format.Q8_0, 128),
    "0.5B shape, Q4_0": ("qwen2.5-0.5b", Format.Q4_0, Format.Q8_0, 96),
    "1B shape, Q4_K": ("llama-3.2-1b", Format.Q4_K, Format.Q6_K, 48),
}
THREADS = 2, 8, 16
SCALING = 1, 2, 4, 8, 12, 16
PARTS = "smollm2", "qwen", "llama", "deep", "wide", "scaling", "machine"


class Run:
    """Takes samples, and keeps those of earlier parts."""

    def __init__(self, args):
        self.args = args
        self.found = json.loads(args.out.read_text()) if args.out.exists() else {"samples": [], "machine": {}}

    def note(self, **sample):
        self.found["samples"].append(sample)
        print(sample, file=sys.stderr, flush=True)

    def save(self):
        self.args.out.write_text(json.dumps(self.found, indent=1) + "\n")

    def path(self, name):
        shape, weights, embedding, _ = MODELS[name]
        path = self.args.models / f"{shape}.gguf"
        if not path.exists():
            make(path, SHAPES[shape], weights, embedding)
        return path

    def ours(self, name, llm, threads, plan, wanted):
        """The tests of a plan that are wanted, greedy."""
        llm.cache.clear()  # a plan has the same prompts every time
        for row in speed(llm, plan):
            test = "tg" if row.test.startswith("tg") else "pp"
            test = "wide" if " x" in row.test else "deep" if "@" in row.test else test
            if test in wanted and row.sampling == "greedy":
                self.note(who="stretto", model=name, threads=threads, test=test, speed=row.samples[0])

    def bench(self, name, threads, flash, test, *options):
        """llama-bench: tokens a second of one test."""
        command = [self.args.llama / "llama-bench", "-m", self.path(name), "-t", str(threads), "-r", "1"]
        answer = self._output([*command, "-fa", str(flash), "-o", "json", *options])
        for entry in json.loads(answer):
            kind = test or ("pp" if entry["n_prompt"] else "tg")
            speed = entry["avg_ts"]
            self.note(who=f"flash {flash}", model=name, threads=threads, test=kind, speed=speed)

    def batched(self, name, threads, flash, tokens):
        """llama-batched-bench: tokens a second of 16 sequences behind 128 tokens each."""
        command = [self.args.llama / "llama-batched-bench", "-m", self.path(name), "-t", str(threads)]
        sizes = ["-npp", "128", "-ntg", str(tokens), "-npl", "16", "-c", "8192", "-b", "2048", "-ub", "512"]
        answer = self._output([*command, *sizes, "-fa", str(flash), "--output-format", "jsonl"])
        entry = json.loads([line for line in answer.splitlines() if line.startswith("{")][-1])
        self.note(who=f"flash {flash}", model=name, threads=threads, test="wide", speed=entry["speed_tg"])

    @staticmethod
    def _output(command):
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{command[0]} failed:\n{done.stderr[-2000:]}")
        return done.stdout


def plain(run, name):
    """Prefill and decode with each number of threads."""
    tokens = MODELS[name][3]
    for threads in run.args.threads:
        with stretto.load(run.path(name), threads=threads, cells=4096) as llm:
            for _ in range(run.args.rounds):
                run.ours(name, llm, threads, Plan(512, tokens, 0, 0, 1), ("pp", "tg"))
                for flash in (0, 1):
                    run.bench(name, threads, flash, None, "-p", "512", "-n", str(tokens))


def deep(run, threads=8, depth=4096, tokens=32):
    """Decoding behind 4,096 tokens."""
    for name in MODELS:
        with stretto.load(run.path(name), threads=threads, cells=8192) as llm:
            for _ in range(max(2, run.args.rounds - 1)):
                run.ours(name, llm, threads, Plan(32, tokens, depth, 0, 1), ("deep",))
                for flash in (0, 1):
                    run.bench(name, threads, flash, "deep", "-p", "0", "-n", str(tokens), "-d", str(depth))


def wide(run, threads=8, tokens=64):
    """16 sequences, each behind 128 tokens of its own."""
    for name in MODELS:
        with stretto.load(run.path(name), threads=threads, cells=8192) as llm:
            for _ in range(max(2, run.args.rounds - 1)):
                run.ours(name, llm, threads, Plan(32, tokens, 0, 16, 1), ("wide",))
                for flash in (0, 1):
                    run.batched(name, threads, flash, tokens)


def scaling(run):
    """Ours alone from 1 to 16 threads, and with the number that is chosen by default."""
    name = next(iter(MODELS))
    for threads in (*SCALING, None):
        with stretto.load(run.path(name), threads=threads, cells=4096) as llm:
            for _ in range(run.args.rounds):
                llm.cache.clear()
                for row in speed(llm, Plan(512, 128, 0, 0, 1)):
                    if row.sampling == "greedy":
                        test = "tg" if row.test.startswith("tg") else "pp"
                        chosen = f"default ({llm.backend.threads})" if threads is None else threads
                        run.note(who="scaling", model=name, threads=chosen, test=test, speed=row.samples[0])


def machine(run):
    """What the machine can do: bytes read a second by number of threads, for each model's size."""
    found = hardware.probe(measure=False)
    run.found["machine"] = {"cpu": found.cpu, "cores": found.cores_usable, "kernels": found.kernels}
    for name in MODELS:
        with stretto.load(run.path(name), threads=2, cells=512) as llm:
            cost = file_cost(run.path(name), llm)
            run.found["machine"][name] = {
                "bytes": cost.weight_bytes,
                "cache bytes at 4096": cache_bytes(llm, "f16", 4096),
                "GB/s": dict(
                    zip(THREADS, _native.read_bandwidth(cost.weight_bytes, list(THREADS), 0.5), strict=True)
                ),
            }


def table(run):
    """Ratios of medians, and the share of what the memory could deliver."""
    by = defaultdict(list)
    for sample in run.found["samples"]:
        by[sample["model"], sample["test"], sample["threads"], sample["who"]].append(sample["speed"])
    print("| model | test | threads | Stretto | llama.cpp | ratio | of the memory's limit |")
    print("|---|---|---|---|---|---|---|")
    titles = {"pp": "prefill 512", "tg": "decode", "deep": "decode at 4,096", "wide": "16 sequences"}
    for model in MODELS:
        for test, title in titles.items():
            for threads in THREADS:
                mine = by.get((model, test, threads, "stretto"))
                theirs = [
                    median(v) for k, v in by.items() if k[:3] == (model, test, threads) and "flash" in k[3]
                ]
                if mine and theirs:
                    ratio = median(mine) / max(theirs)
                    share = memory_share(run.found["machine"].get(model), test, threads, median(mine))
                    print(
                        f"| {model} | {title} | {threads} | {median(mine):.0f} | {max(theirs):.0f} "
                        f"| **{ratio:.2f}** | {share} |"
                    )
    print("\n| threads, SmolLM2 shape | decode | prefill 512 |\n|---|---|---|")
    name = next(iter(MODELS))
    for threads in dict.fromkeys(k[2] for k in by if k[3] == "scaling"):
        tg, pp = (median(by[name, test, threads, "scaling"]) for test in ("tg", "pp"))
        print(f"| {threads} | {tg:.0f} | {pp:.0f} |")


def memory_share(limits, test, threads, speed):
    """A share of the speed at which the weights, and K and V, could be read; only decoding is bound by it."""
    if not limits or test not in ("tg", "deep"):
        return "–"
    seen = limits["cache bytes at 4096"] if test == "deep" else 0
    bandwidth = limits["GB/s"].get(threads) or limits["GB/s"].get(str(threads))
    return f"{speed * (limits['bytes'] + seen) / (1e9 * bandwidth):.0%}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--llama", type=Path, required=True, help="the folder of llama-bench")
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="*", default=THREADS)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--out", type=Path, default=HERE / "raw" / "x86.json")
    args = parser.parse_args()
    args.models.mkdir(parents=True, exist_ok=True)
    run = Run(args)
    for part, name in zip(PARTS, MODELS, strict=False):
        if part in args.only:
            plain(run, name)
            run.save()
    for part, work in {"deep": deep, "wide": wide, "scaling": scaling, "machine": machine}.items():
        if part in args.only:
            work(run)
            run.save()
    table(run)


if __name__ == "__main__":
    main()

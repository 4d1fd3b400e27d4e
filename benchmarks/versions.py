"""Two versions of Stretto by turns in one run: what a change costs or brings, on a machine that drifts.

    python benchmarks/versions.py --old ../before/.venv/bin/python --new .venv/bin/python

Each version is a process of its own with the model loaded; only one of them computes at a time, and which one
goes first alternates. A ratio is the median of those of all rounds, new over old in tokens a second, and in
brackets the middle half. Above 1 the new one is faster.
"""

import argparse
import json
import platform
import subprocess
import sys
from pathlib import Path
from statistics import median, quantiles

from peers.bench import Others
from stretto import hardware

WORKER = r"""
import json, random, sys, time
import stretto

model, threads, kv = sys.argv[1], int(sys.argv[2]) or None, sys.argv[3]
llm = stretto.load(model, threads=threads, cells=8192, kv=kv)
rng, deep = random.Random(0), None
GREEDY = {"temperature": 0, "ignore_eos": True}
WORDS = stretto.Grammar.regex("[a-z ]{999}")

def stream(n, **options):
    for _ in llm.stream([0], max_tokens=n, **GREEDY, **options):
        pass

def step(n):
    with llm.sequence([0]) as sequence:
        for _ in range(n):
            done = sequence.step(temperature=0)
            if done.is_end:
                sequence.append(done.token)

def ids(n):
    return [rng.randrange(1000, 5000) for _ in range(n)]

def depth(n):
    global deep  # computed once
    if deep is None:
        deep = llm.sequence(ids(2048))
        deep.logits
    with deep.fork() as sequence:
        begun = time.perf_counter()
        for _ in range(n):
            done = sequence.step(temperature=0)
            if done.is_end:
                sequence.append(done.token)
        return time.perf_counter() - begun

TASKS = {
    "prefill of 512": lambda n: llm.generate(ids(512), max_tokens=1),
    "depth 2048": depth,
    "llm.stream": stream,
    "fused": lambda n: stream(n, loop="fused"),
    "seq.step": step,
    "sampled": lambda n: llm.generate([0], max_tokens=n, seed=1, ignore_eos=True),
    "hooks": lambda n: stream(n, hooks=[lambda logits, tokens: None]),
    "grammar": lambda n: llm.generate([0], max_tokens=n, seed=1, grammar=WORDS),
    "16 sequences": lambda n: llm.generate([[i] for i in range(16)], max_tokens=n // 4, **GREEDY),
}
print("ready", flush=True)
for line in sys.stdin:
    task, n = json.loads(line)
    begun = time.perf_counter()
    inner = TASKS[task](n)
    print(inner if isinstance(inner, float) else time.perf_counter() - begun, flush=True)
"""
TASKS = (
    "prefill of 512",
    "depth 2048",
    "llm.stream",
    "fused",
    "seq.step",
    "sampled",
    "hooks",
    "grammar",
    "16 sequences",
)


class Version:
    """A process with one version and a model."""

    def __init__(self, python, model, threads, kv):
        command = [str(Path(python).absolute()), "-c", WORKER, model, str(threads), kv]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self._process.stdout.readline().strip() != "ready":
            raise SystemExit(f"{python} could not load {model}")

    def seconds(self, task, tokens):
        self._process.stdin.write(json.dumps([task, tokens]) + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self):
        self._process.stdin.close()
        self._process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--old", required=True, help="the interpreter of the version before")
    parser.add_argument("--new", default=sys.executable, help="that of the version after")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--threads", type=int, default=0, help="0: as many as there are cores")
    parser.add_argument("--kv", default="f16")
    parser.add_argument("--only", nargs="*", choices=TASKS, default=TASKS)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=64)
    given = parser.parse_args()
    versions = {
        name: Version(getattr(given, name), given.model, given.threads, given.kv) for name in ("old", "new")
    }
    others = Others()
    print(f"{hardware.probe(False).cpu}, {platform.system()}; {given.rounds} rounds\n")
    print("| task | old tok/s | new tok/s | new / old |\n|---|---|---|---|")
    for task in given.only:
        seconds = {name: [version.seconds(task, given.tokens)][:0] for name, version in versions.items()}
        for number in range(given.rounds):
            for name in ("old", "new") if number % 2 else ("new", "old"):
                seconds[name].append(versions[name].seconds(task, given.tokens))
        tokens = {"16 sequences": 16 * (given.tokens // 4), "prefill of 512": 512}.get(task, given.tokens)
        ratios = [old / new for old, new in zip(seconds["old"], seconds["new"], strict=True)]
        low, _, high = quantiles(ratios, n=4)
        speeds = [tokens / median(seconds[name]) for name in ("old", "new")]
        print(
            f"| {task} | {speeds[0]:.1f} | {speeds[1]:.1f} | {median(ratios):.3f} ({low:.3f} to {high:.3f}) |"
        )
        sys.stdout.flush()
    for version in versions.values():
        version.close()
    print(f"\nothers used {others.share():.0%} of the processors")
    return 0


if __name__ == "__main__":
    sys.exit(main())

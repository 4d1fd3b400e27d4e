"""The host's share of decode steps whose rows stay on a device, measured without one.

    python benchmarks/steps.py                    # microseconds a step for 1, 64 and 256 requests
    python benchmarks/steps.py --profile 256      # and the functions that take most of them

The engine, the table of cells and the planner are real; passes and samplers that would run on the GPU return
at once. What is left is processor time of a step before and after the device's work. A GPU is not needed.
"""

import argparse
import cProfile
import pstats
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

import stretto
from gpus.files import file_of
from stretto.backends.torch import rows as device_rows
from stretto.engine.steps import PersistentBatch

DEPTH = 64
N_TOKENS = 100
SAMPLING = {"greedy": {"temperature": 0}, "default sampler": {}}


class Clock:
    """When the device waits for the host: from the tokens of a step until the next pass."""

    fetched, waited, passes = 0.0, 0.0, 0

    def launch(self):
        if self.fetched:
            self.waited += time.thread_time() - self.fetched
            self.passes += 1

    def reset(self):
        waited, passes = self.waited, self.passes
        self.fetched, self.waited, self.passes = 0.0, 0.0, 0
        return 1e6 * waited / max(1, passes)


def pretend(backend, clock):
    """Replace everything that would run on a GPU."""
    logits = torch.zeros(256, -(-backend.spec.n_vocab // 4) * 4)
    device_rows.uses_kernels = lambda tensor: True

    def run(plan, n):
        clock.launch()
        return backend.sampler.rows(logits[:n])

    def fetch(bucket):
        clock.fetched = time.thread_time()
        return tokens[:bucket]

    backend.steps.run = run
    sampler, tokens = backend.sampler.buffers, [5] * 256
    sampler._replay = sampler._pass = lambda bucket, whole: None
    sampler._fetch = fetch


def sequences(llm, n):
    """Sequences behind a prompt; K and V are whatever they are."""
    found = [llm.sequence([1 + i % 50] * DEPTH) for i in range(n)]
    llm.logits(found)
    return found


def microseconds(llm, prefixes, options, clock, profile=None):
    """Of a step: what `llm.generate` takes in all, and for how long the device would wait for it."""
    forks = [prefix.fork(seed=i) for i, prefix in enumerate(prefixes)]
    steps = llm.metrics.steps
    clock.reset()
    if profile is not None:
        profile.enable()
    begun = time.thread_time()
    llm.generate(forks if len(forks) > 1 else forks[0], max_tokens=N_TOKENS, ignore_eos=True, **options)
    seconds = time.thread_time() - begun
    if profile is not None:
        profile.disable()
    steps = llm.metrics.steps - steps
    for fork in forks:
        fork.close()
    return 1e6 * seconds / steps, clock.reset()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--profile", type=int, help="show the functions of a step of so many rows")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as where:
        path = file_of(Path(where), "smollm2-135m", layers=1)
        limits = stretto.Limits(max_running=256, max_tokens_per_step=4096, max_step_ms=1000.0)
        with stretto.load(path, device="cpu", backend="torch", cells=131072, limits=limits) as llm:
            print("| rows | " + " | ".join(f"{name} | device waits" for name in SAMPLING) + " |")
            prefixes = sequences(llm, max(*args.rows, args.profile or 1))
            clock = Clock()
            pretend(llm.engine.backend, clock)
            engine = llm.engine  # whose backend samples many rows from now on
            batch = PersistentBatch(engine.scheduler, engine.runner, engine.backend, least=1)
            engine.forms = (batch, *engine.forms)
            for n in args.rows:
                found = []
                for options in SAMPLING.values():
                    rounds = [microseconds(llm, prefixes[:n], options, clock) for _ in range(args.rounds)]
                    found += [f"{median(each):.0f}" for each in zip(*rounds, strict=True)]
                print(f"| {n} | " + " | ".join(found) + " |", flush=True)
            if args.profile:
                profile = cProfile.Profile()
                microseconds(llm, prefixes[: args.profile], SAMPLING["default sampler"], clock, profile)
                pstats.Stats(profile).sort_stats("tottime").print_stats(32)


if __name__ == "__main__":
    main()

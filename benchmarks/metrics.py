"""What counting costs: everything that a step of one request notes in its metrics, alone.

    python benchmarks/metrics.py

A step reads the clock eight times, adds to two histograms, and to a dozen numbers (engine/engine.py,
engine/request.py). The share is of a step of SmolLM2, measured in the same run.
"""

import time
from timeit import repeat

import stretto
from stretto.engine.metrics import Metrics

STEPS = 2000


def note(metrics):
    """As much as the engine notes in a step of one request."""
    for _ in range(8):
        now = time.perf_counter()
    metrics.width.add(1)
    metrics.between_tokens.add(0.004)
    metrics.forward += now
    metrics.sampling += now
    metrics.python += now - metrics.forward - metrics.sampling
    metrics.decoded_tokens += 1
    metrics.steps += 1
    metrics.running, metrics.waiting = 1, 0


def main():
    metrics = Metrics()
    noting = min(repeat(lambda: note(metrics), number=STEPS, repeat=9)) / STEPS
    with stretto.load("smollm2", threads=2) as llm:
        stream = llm.stream([1], max_tokens=136, ignore_eos=True, temperature=0)
        for _ in range(8):
            next(stream)
        begun = time.perf_counter()
        for _ in stream:
            pass
        step = (time.perf_counter() - begun) / 128
    print(f"{1e6 * noting:.2f} µs of a step of {1e3 * step:.2f} ms: {noting / step:.3%}")


if __name__ == "__main__":
    main()

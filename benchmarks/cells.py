"""What the table of cells costs a step: placing one token in each of n sequences, and the batch's views.

    python benchmarks/cells.py [--json]

A decode step of a small model takes milliseconds; this has to be far below it, whatever the depth.
"""

import argparse
import json
import statistics
import time

from stretto.backends.base import Batch
from stretto.cache import Cells


def decode_step(cells, n, depth):
    batch = Batch()
    for sequence in range(n):
        batch.add(5, depth, (sequence,), logits=True)
    batch.place(cells)


def measure(n, depth, steps):
    """Microseconds of each: one decode step, a fork of a whole sequence, a cut of its last token."""
    cells = Cells(n * (depth + steps + 8) + 16)
    for sequence in range(n):
        cells.place([1] * depth, range(depth), [(sequence,)] * depth)
    samples = {"step": [], "fork": [], "cut": []}
    for i in range(steps):
        begun = time.perf_counter()
        decode_step(cells, n, depth + i)
        samples["step"].append(1e6 * (time.perf_counter() - begun))
    for i in range(steps):
        begun = time.perf_counter()
        cells.copy(0, n + i)
        samples["fork"].append(1e6 * (time.perf_counter() - begun))
        begun = time.perf_counter()
        cells.remove(n + i, depth + steps - 1)
        samples["cut"].append(1e6 * (time.perf_counter() - begun))
        cells.remove(n + i)
    cells.check()
    return {name: statistics.median(values) for name, values in samples.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    cases = [(1, 100), (1, 4000), (16, 4000), (32, 100), (32, 4000)]
    rows = [{"sequences": n, "depth": d, **measure(n, d, args.steps)} for n, d in cases]
    if args.json:
        print(json.dumps(rows))
        return
    print(f"{'sequences':>9}{'depth':>8}{'step, µs':>12}{'a sequence':>12}{'fork, µs':>12}{'cut, µs':>10}")
    for row in rows:
        each = row["step"] / row["sequences"]
        print(
            f"{row['sequences']:>9}{row['depth']:>8}{row['step']:>12.1f}{each:>12.1f}"
            f"{row['fork']:>12.1f}{row['cut']:>10.1f}"
        )


if __name__ == "__main__":
    main()

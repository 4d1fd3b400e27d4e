"""One text beside a call of many: how long it takes, and what that costs the many.

    python benchmarks/fair.py --model smollm2 --threads 2

The same with steps that all texts share, whatever it costs (`all`), and as the scheduler does it (`turns`).
"""

import argparse
import statistics
import threading
import time

import stretto
from stretto.engine.sharing import ANY_NUMBER, RowCosts

LONE = {"max_tokens": 16, "temperature": 0, "ignore_eos": True, "loop": "python"}
MANY = {"n": 16, "max_tokens": 40, "seed": 1, "ignore_eos": True}


class NoCosts(RowCosts):
    """All rows in every step."""

    def rows_beside(self, n_rows: int) -> int:
        return ANY_NUMBER


def seconds(llm, *args, **options):
    begun = time.perf_counter()
    llm.generate(*args, **options)
    return time.perf_counter() - begun


def beside(llm, costs):
    """Seconds of lone texts while the many run, and of the many."""
    llm.engine.scheduler.row_costs = costs
    many = []
    thread = threading.Thread(target=lambda: many.append(seconds(llm, "Once", **MANY)))
    thread.start()
    time.sleep(0.2)
    lone = [seconds(llm, "Hello", **LONE) for _ in range(2)]
    thread.join()
    return lone, many[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    llm = stretto.load(options.model, threads=options.threads)
    seconds(llm, "Hello", **LONE)
    quiet = statistics.median(seconds(llm, "Hello", **LONE) for _ in range(5))
    kinds = {"all": NoCosts(), "turns": RowCosts()}
    found = {name: [] for name in kinds}
    for _ in range(options.rounds + 1):  # the first one learns
        for name, costs in kinds.items():
            found[name].append(beside(llm, costs))
    print(f"alone   {1e3 * quiet:6.0f} ms")
    for name, rounds in found.items():
        lone = sorted(1e3 * one for texts, _ in rounds[1:] for one in texts)
        many = statistics.median(total for _, total in rounds[1:])
        print(f"{name:7} {statistics.median(lone):6.0f} ms ({lone[0]:.0f} to {lone[-1]:.0f}); "
              f"the {MANY['n']} texts {many:.2f} s")  # fmt: skip


if __name__ == "__main__":
    main()

"""100,000 random operations on a small cache: everything adds up at all times, and nothing is left behind.

Repeat a failure with the seed that it printed, STRETTO_PRESSURE_SEED=…: with one thread it is the same run,
with four they may take other turns.
"""

import os
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from pressure import BURST, WEIGHTS, Thread, World


@pytest.mark.slow
@pytest.mark.parametrize(("n_threads", "n_bursts"), [(1, 20), (4, 40)])
def test_a_small_cache_under_pressure(tmp_path, n_threads, n_bursts):
    seed = int(os.environ.get("STRETTO_PRESSURE_SEED") or time.time_ns() % 1_000_000)
    print(f"STRETTO_PRESSURE_SEED={seed}")  # shown if it fails
    world = World(tmp_path)
    threads = [Thread(world, f"{seed} {index}") for index in range(n_threads)]
    with ThreadPoolExecutor(n_threads) as pool:
        for burst in range(n_bursts):
            done = [pool.submit(thread.run, BURST // n_threads) for thread in threads]
            for future in done:
                future.result()
            world.verify(deep=burst % 4 == 3)
    world.end()
    counts = sum((thread.counts for thread in threads), Counter())
    print(dict(counts))
    assert sum(counts[name] for name in WEIGHTS) == n_bursts * BURST
    assert counts["CacheFull"] > 0  # 6 to 118 with one thread, by the seed
    assert min(counts[name] for name in WEIGHTS) > 0

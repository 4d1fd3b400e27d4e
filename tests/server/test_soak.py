"""At the limit with clients that vanish; some seconds in CI. `benchmarks/serve.py --soak` has more."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from serving import endless, serving
from stretto import Limits

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))
from load.process import ours
from load.soak import judge_memory, soak

SECONDS = 12.0 if os.environ.get("CI") == "true" else 5.0
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")


@LINUX
@pytest.mark.slow
def test_a_model_of_ones_own_has_all_its_cells_back():
    opener = endless(0.001, cells=2048, context_length=1024, limits=Limits(max_running=6, max_queue=6))
    with serving(opener, max_running=6, max_queue=6) as server:
        wrong, found = asyncio.run(soak(server.url, os.getpid(), "mock", 16, 3.0, 20))
        server.llm().cells.check()
    assert wrong == []
    assert min(found[kind] for kind in ("whole", "left", "refused", "wrong")) > 0


@LINUX
@pytest.mark.slow
def test_the_command_stays_as_it_was(smollm2_path):
    options = [
        "--model",
        f"small={smollm2_path}",
        "--cells",
        "1024",
        "--max-running",
        "8",
        "--max-queue",
        "4",
    ]
    with ours(*options) as (address, pid):
        wrong, found = asyncio.run(soak(address, pid, "small", 20, SECONDS, 20))
    assert wrong == []
    assert found["most_running"] > 1
    assert min(found[kind] for kind in ("whole", "left", "refused", "wrong")) > 0


def test_memory_that_grows_is_found():
    wrong = []
    judge_memory([100, 100, 101, 100, 102], wrong)
    assert wrong == []
    judge_memory([100, 103, 106, 109, 112], wrong)
    assert len(wrong) == 1

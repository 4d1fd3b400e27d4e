"""A few seconds at the limit, with clients that vanish; `benchmarks/serve.py --soak` has more."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from serving import endless, serving
from stretto import Limits

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))
from load.soak import soak

SECONDS = 3.0


@pytest.mark.slow
def test_clients_that_vanish_leave_nothing_behind():
    opener = endless(0.001, cells=2048, context_length=1024, limits=Limits(max_running=6, max_queue=6))
    with serving(opener, max_running=6, max_queue=6) as server:
        wrong, found = asyncio.run(soak(server.url, os.getpid(), "mock", 16, SECONDS, 20))
        server.llm().cells.check()
    assert wrong == []
    assert min(found[kind] for kind in ("whole", "left", "refused", "wrong")) > 0

"""The soak of benchmarks/soak.py, for half a minute on a tiny model."""

import sys
from pathlib import Path

import pytest

from stretto import Limits
from stretto.backends.native import NativeBackend
from stretto.llm import LLM
from stretto.testing import byte_tokenizer
from tiny_models import tiny_file, tiny_spec

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))
from soaking import SoakPlan, soak

SECONDS = 12


@pytest.mark.slow
def test_soak():
    limits = Limits(max_running=8, max_queue=3, max_tokens_per_step=64, max_step_ms=5.0)
    backend = NativeBackend(tiny_file("llama"), tiny_spec("llama"), 192, 1)
    with LLM(backend, byte_tokenizer(), limits=limits) as llm:
        report = soak(llm, SoakPlan(SECONDS, seed=1, patience=240.0))
    assert report.problems == []
    assert report.done["probe"] > 0
    assert report.done["async probe"] > 0
    for happened in ("Mine", "QueueFull"):
        assert report.done[happened] > 0
    assert report.metrics["preempted"] > 0

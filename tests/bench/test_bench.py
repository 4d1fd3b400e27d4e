"""The benchmarks on small models: what they report, not how fast it is."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import stretto
from stretto import bench
from stretto.bench.limits import INSTRUCTIONS, Cost, Machine, cache_bytes, limit, measure_gpu
from stretto.errors import InvalidRequest
from stretto.models import read_spec
from stretto.testing import mock_llm
from stretto.weights.gguf import GGUF
from tiny_models import FOLDER

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from make_model import SHAPES, make
from peers.report import markdown

PLAN = bench.Plan(prompt=8, tokens=4, depth=16, sequences=3, rounds=2)
MACHINE = Machine(
    "cpu", 2, "avx2", bandwidth=10.0, bandwidth_nbytes=1, instruction="avx2", integer_peak=100.0
)


class FakeTorch:
    """As much of torch as a measurement calls, on a GPU with 4 MiB of free memory."""

    int64, bfloat16 = np.int64, np.float32
    cuda = SimpleNamespace(
        mem_get_info=lambda device: (4 << 20, 8 << 20),
        synchronize=lambda: None,
        get_device_name=lambda: "a GPU",
    )

    def zeros(self, n, dtype, device):
        return np.zeros(n, dtype)

    def ones(self, rows, columns, dtype, device):
        return np.ones((8, 8), dtype)


@pytest.fixture
def tiny(tmp_path):
    """A model file with random weights."""
    return make(tmp_path / "tiny.gguf", SHAPES["tiny"])


def chatter(seen):
    """Says 65, 66, … and now and then ends its text, which must not stop a benchmark."""
    return 257 if len(seen) % 3 == 0 else 65 + len(seen) % 26


# -- speed --


def test_the_promised_rows_with_samples_of_every_round():
    rows = bench.speed(mock_llm(chatter), PLAN)
    assert [(row.test, row.sampling) for row in rows] == [
        ("pp8", "greedy"),
        ("tg4", "greedy"),
        ("tg4", "default"),
        ("tg4 @ d16", "greedy"),
        ("tg4 x3", "greedy"),
        ("tg4 x3", "default"),
    ]
    for row in rows:
        assert len(row.samples) == PLAN.rounds
        assert min(row.samples) > 0
        assert min(row.samples) <= row.median <= max(row.samples)
        assert row.share is None


def test_each_test_runs_the_passes_it_counts():
    llm = mock_llm(chatter)
    passes = llm.backend.batches
    bench.speed(llm, bench.Plan(prompt=8, tokens=4, depth=16, sequences=3, rounds=1))
    sizes = [len(batch) for batch in passes]
    warm_up, prefixes = [8, 1], [16, 4, 4, 4]
    prefill, decode, deep, wide = [8], [1] * 4, [1] * 4, [3] * 4
    assert sizes == warm_up + prefixes + prefill + 2 * decode + deep + 2 * wide


def test_rounds_have_prompts_of_their_own():
    llm = mock_llm(chatter)
    bench.speed(llm, bench.Plan(prompt=8, tokens=1, depth=0, sequences=0, rounds=3))
    prompts = [tuple(batch) for batch in llm.backend.batches if len(batch) == 8]
    assert len(set(prompts)) == len(prompts) == 4


def test_depth_and_sequences_can_be_left_out():
    rows = bench.speed(mock_llm(chatter), bench.Plan(prompt=4, tokens=2, depth=0, sequences=1, rounds=1))
    assert [row.test for row in rows] == ["pp4", "tg2", "tg2"]


def test_the_plan_knows_the_cells_it_needs_and_gives_them_back():
    llm = mock_llm(chatter, cells=PLAN.cells)
    bench.speed(llm, PLAN)
    assert llm.cache.stats().held == 0


def test_what_does_not_fit_is_refused():
    with pytest.raises(InvalidRequest, match=r"need 22 tokens and the context has 20"):
        bench.speed(mock_llm(chatter, context_length=20), PLAN)
    for wrong in ({"rounds": 0}, {"prompt": -1}, {"depth": -1}, {"tokens": True}):
        with pytest.raises(InvalidRequest, match=next(iter(wrong))):
            bench.Plan(**wrong)


def test_notes_tell_what_is_done():
    heard = []
    bench.speed(mock_llm(chatter), PLAN, heard.append)
    assert "round 2 of 2: tg4 @ d16, greedy" in heard


# -- limits --


def test_a_file_has_a_cost_and_rows_get_limits(tiny):
    with stretto.load(tiny, cells=PLAN.cells, threads=1) as llm:
        cost = bench.file_cost(tiny, llm)
        rows = bench.speed(llm, PLAN)
        machine = bench.measure_machine(llm, 1, cost.weight_bytes, seconds=0.01)
        bench.set_limits(rows, llm, cost, machine, "f16")
    layer = 64 * (64 + 32 + 32 + 64) + 3 * 64 * 128
    assert cost == Cost(2 * layer * 18 // 32 + 300 * 64 * 34 // 32, 2 * layer, 300 * 64)
    assert machine.threads == 1
    assert machine.instruction == INSTRUCTIONS[machine.kernels]
    for row in rows:
        assert row.limit.tokens_per_second > 0
        assert row.limit.bound in ("memory", "compute")
        assert row.share > 0


def test_other_backends_have_no_such_limits(tiny):
    with stretto.load(tiny, backend="reference", cells=16) as llm:
        assert bench.measure_machine(llm, 1, 1000) is None


def test_reading_limits_one_token_and_multiplying_many():
    cost = Cost(weight_bytes=10_000_000, layer_macs=1_000_000, output_macs=0)
    one = limit(cost, MACHINE, tokens=1, wanted=1, seen_bytes=0)
    assert (one.tokens_per_second, one.bound) == (pytest.approx(1000), "memory")
    many = limit(cost, MACHINE, tokens=1000, wanted=1, seen_bytes=0)
    assert (many.tokens_per_second, many.bound) == (pytest.approx(100_000), "compute")
    deep = limit(cost, MACHINE, tokens=1, wanted=1, seen_bytes=10_000_000)
    assert deep.tokens_per_second == pytest.approx(500)


def test_bytes_of_the_cache(tiny):
    with stretto.load(tiny, cells=16) as llm:
        assert cache_bytes(llm, "f16", 10) == 10 * 2 * 2 * 32 * 2  # tokens, layers, K and V, numbers, bytes
        assert cache_bytes(llm, "q8", 10) == 10 * 2 * 2 * 34
        assert (
            cache_bytes(llm, "fp8", 10)
            == cache_bytes(llm, "f16", 10) // 2
            == cache_bytes(llm, "f32", 10) // 4
        )


def test_limits_of_a_gpu_are_those_of_its_memory_and_products():
    machine = measure_gpu(FakeTorch(), 1 << 20, 0.01)
    assert (machine.cpu, machine.threads, machine.instruction) == ("a GPU", 0, "bf16")
    assert machine.bandwidth_nbytes == 1 << 20  # a quarter of what is free
    assert machine.bandwidth > 0
    assert machine.integer_peak > 0


def test_the_better_figures_of_two_measurements():
    other = Machine("cpu", 2, "avx2", 8.0, 1, "avx2", 120.0)
    assert MACHINE.best(other) == other.best(MACHINE) == Machine("cpu", 2, "avx2", 10.0, 1, "avx2", 120.0)


# -- loops --


def test_loops_tell_speed_and_parts():
    llm = mock_llm(chatter)
    forward = type(llm.backend).forward
    found = bench.loops(llm, tokens=5, rounds=2)
    assert [(each.loop, each.sampling) for each in found] == [
        ("llm.stream", "greedy"),
        ("seq.step", "greedy"),
        ("llm.stream", "default"),
        ("seq.step", "default"),
    ]
    for each in found:
        assert list(each.parts) == ["forward", "sampling", "detokenizing", "cells and batch", "rest"]
        assert all(len(values) == 2 and min(values) > 0 for values in each.parts.values())
        assert each.median > 0
        assert each.sampling_share == each.part("sampling") / each.part("forward")
        assert each.python > each.part("sampling")
    assert type(llm.backend).forward is forward  # nothing stays wrapped
    assert {len(batch) for batch in llm.backend.batches} == {1}


# -- the comparison's table --


def test_the_peer_s_better_way_counts():
    def sample(flash, ours, peer, round_, count=100):
        answer = [{"seconds": seconds, "idle_cpu": 0.0} for seconds in (ours, peer)]
        key = {"model": "m", "test": "t" if count else "load", "file": "f", "way": {"flash": flash}}
        return {**key, "round": round_, "count": count, "ours": answer[0], "peer": answer[1]}

    document = {
        **dict.fromkeys(("cpu", "ours", "peer", "system", "command"), "x"),
        "threads": 2,
        "rounds": 2,
        "others": 0.25,
        "samples": [
            *(sample(True, 1.0, 4.0, n) for n in (1, 2)),
            *(sample(False, 1.0, n + 1.0, n) for n in (1, 2)),
            *(sample(False, 0.5, 0.25, n, count=0) for n in (1, 2)),
        ],
    }
    text = "\n".join(markdown(json.loads(json.dumps(document))))
    assert "| m | t | f | tok/s | 100.0 | 41.7 | **2.40** | 2.00 – 3.00 | off |" in text
    assert "| m | load | f | ms | 500.0 | 250.0 | **0.50** | 0.50 – 0.50 | off |" in text
    assert "25% of the processors" in text


def test_of_experts_only_the_chosen_ones_count():
    path = FOLDER / "qwen3moe.gguf"
    with GGUF(path) as file:
        spec = read_spec(file)
    cost = bench.file_cost(path, SimpleNamespace(spec=spec, precision="standard"))
    experts = next(layer.ffn for layer in spec.layers if hasattr(layer.ffn, "routing"))
    share = experts.routing.n_used / experts.n_expert
    assert cost.expert_share == pytest.approx(share)
    assert cost.read_bytes(1) == pytest.approx(cost.weight_bytes + share * cost.expert_bytes)
    assert cost.read_bytes(10_000) == pytest.approx(cost.weight_bytes + cost.expert_bytes)

"""`stretto bench` and `stretto bench loops`: tables for people, JSON for programs."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from make_model import SHAPES, make
from stretto.cli import main

SMALL = ("--prompt", 8, "--tokens", 4, "--depth", 16, "--sequences", 2, "--rounds", 2, "--threads", 1)
TESTS = ["pp8", "tg4", "tg4", "tg4 @ d16", "tg4 x2", "tg4 x2"]


@pytest.fixture
def tiny(tmp_path):
    return make(tmp_path / "tiny.gguf", SHAPES["tiny"])


@pytest.fixture
def run(capsys):
    def call(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["bench", *map(str, arguments)])
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return call


def test_the_table(run, tiny):
    code, output, errors = run("--model", tiny, *SMALL)
    assert code == 0
    tests = "prefill of 8 tokens, decoding 4, decoding behind 16, 2 texts at once; 2 rounds"
    assert errors == f"measuring {tiny}: {tests}; about 10 seconds\n"  # also in a pipe
    for words in (
        "backend native on cpu, K/V f16, standard precision",
        "1 threads, kernels",
        "GMAC/s by",
        "limit",
        "share",
        *TESTS,
    ):
        assert words in output
    assert output.count("%") == len(TESTS)


def test_json(run, tiny):
    code, output, errors = run("--model", tiny, *SMALL, "--kv", "q8", "--precision", "high", "--json")
    assert (code, errors.count("\n")) == (0, 1)
    document = json.loads(output)
    assert [row["test"] for row in document["rows"]] == TESTS
    assert (document["backend"], document["kv"], document["precision"]) == ("native", "q8", "high")
    assert document["weight_bytes"] > 0
    assert document["machine"]["bandwidth"] > 0
    assert document["machine"]["integer_peak"] > 0
    for row in document["rows"]:
        assert len(row["samples"]) == 2
        assert row["median"] > 0
        assert row["limit"]["tokens_per_second"] > 0
        assert row["share"] > 0


def test_a_backend_without_limits(run, tiny):
    code, output, _ = run("--model", tiny, *SMALL, "--backend", "reference")
    assert code == 0
    assert "GMAC/s" not in output
    code, output, _ = run("--model", tiny, *SMALL, "--backend", "reference", "--json")
    document = json.loads(output)
    assert code == 0
    assert document["machine"] is None
    assert {row["limit"] for row in document["rows"]} == {row["share"] for row in document["rows"]} == {None}


def test_loops(run, tiny):
    code, output, errors = run("loops", tiny, tiny, "--tokens", 4, "--rounds", 2)
    assert code == 0
    assert errors.count(f"measuring {tiny}: the loops over 4 tokens, 2 rounds") == 2
    assert output.count("300 tokens in the vocabulary") == 2
    for words in ("llm.stream", "seq.step", "forward", "sampling", "detokenizing", "rest"):
        assert words in output


def test_loops_as_json(run, tiny):
    code, output, errors = run("loops", tiny, "--tokens", 4, "--rounds", 2, "--json")
    (document,) = json.loads(output)
    assert (code, errors.count("\n")) == (0, 1)
    assert document["n_vocab"] == 300
    assert [each["loop"] for each in document["loops"]] == ["llm.stream", "seq.step", "fused"] * 2
    for each in document["loops"]:
        assert each["median"] > 0
        assert (each["sampling_share"] > 0) == (each["loop"] != "fused")
        assert all(min(values) > 0 for values in each["parts"].values())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rounds", 0), "rounds"),
        (("--kv", "f8"), "kv"),
        (("--depth", 4096), "context has 512"),
        (("loops", "--rounds", 0), "rounds"),
    ],
)
def test_what_cannot_be_done_is_one_line(run, tiny, arguments, words):
    model = ("loops", tiny, *arguments[1:]) if arguments[0] == "loops" else ("--model", tiny, *arguments)
    code, output, errors = run(*model)
    assert (code, output) == (2, "")
    *before, error, end = errors.split("\n")
    assert (error.startswith("error: "), words in error, end) == (True, True, "")
    assert all(line.startswith("measuring ") for line in before)

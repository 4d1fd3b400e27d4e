"""The benchmark on GPUs, as far as it runs without one: its files, and its table."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import stretto
from stretto.weights.formats import Format

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from gpus.report import markdown
from gpus.worker import Worker
from shapes import DENSE, make


@pytest.mark.parametrize("fmt", [Format.BF16, Format.Q4_0, Format.Q8_0])
def test_files_of_random_weights_give_sane_logits(fmt, tmp_path):
    shape = replace(DENSE["smollm2-135m"], n_layer=1, matrices=fmt, embedding=fmt)
    path = make(tmp_path / "model.gguf", shape)
    with (
        stretto.load(path, cells=64, threads=1, backend="native") as llm,
        llm.sequence([1, 2, 3]) as sequence,
    ):
        assert np.isfinite(sequence.logits).all()
        assert 1 < sequence.logits.std() < 10
        assert llm.chat_prompt([{"role": "user", "content": "Hi"}])


def test_the_largest_model_has_the_size_of_the_known_one():
    shape = DENSE["llama-3-8b"]
    assert (shape.n_vocab, shape.n_layer, shape.matrices) == (128_256, 32, Format.BF16)


def figure(who, unit, goal, median, error=""):
    return {
        "part": "decode",
        "test": "8B",
        "who": who,
        "unit": unit,
        "goal": goal,
        "median": median,
        "error": error,
    }


def test_the_table_has_goals_beside_figures():
    machine = {"gpu": "H200", "torch": "2", "triton": "3", "read_tb_s": 4.18}
    figures = [
        figure("bare", "tok/s", 230, 253.0),
        figure("load", "s", 10, 12.5),
        figure("transformers", "tok/s", None, 23.4),
        figure("other", "tok/s", 100, None, "OSError: a|b"),
    ]
    lines = list(markdown({"machine": machine, "figures": figures}))
    assert "4.18 TB/s" in lines[0]
    assert lines[-4:] == [
        "| decode | 8B | bare | 253 tok/s | 230 | **1.10** |",
        "| decode | 8B | load | 12.5 s | 10 | 0.80 |",
        "| decode | 8B | transformers | 23.4 tok/s |  |  |",
        "| decode | 8B | other | OSError: a/b | 100 |  |",
    ]


def test_a_contestant_in_a_process_of_its_own(tmp_path):
    worker = Worker(Path, tmp_path)
    assert worker.is_dir() is True
    with pytest.raises(RuntimeError, match="IsADirectoryError"):
        worker.read_text()
    assert worker.joinpath("a") == tmp_path / "a"  # it goes on
    with pytest.raises(RuntimeError, match="ValueError: invalid literal"):
        Worker(int, "one")

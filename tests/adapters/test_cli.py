"""`stretto run --adapter` on a real model."""

import json
import sys

import numpy as np
import pytest

import stretto
from stretto.cli import main
from stretto.weights.writer import write_gguf

PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def adapter(smollm2_path, tmp_path_factory):
    """A random adapter of SmolLM2, so strong that its text has nothing in common with the model's."""
    path = tmp_path_factory.mktemp("adapter") / "a.gguf"
    rng, tensors = np.random.default_rng(1), {}
    for i in range(30):
        for kind, shape in (("a", (2, 576)), ("b", (576, 2))):
            tensors[f"blk.{i}.attn_output.weight.lora_{kind}"] = (3 * rng.standard_normal(shape)).astype(
                np.float16
            )
    head = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": 2.0}
    write_gguf(path, {"general.architecture": "llama", **head}, tensors)
    return path


@pytest.fixture(autouse=True)
def no_stdin(monkeypatch):
    """What stdin has would join the prompt."""
    monkeypatch.setattr(sys, "stdin", None)


def said(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "run",
                PROMPT,
                "--raw",
                "--temperature",
                "0",
                "--max-tokens",
                "6",
                "--json",
                *map(str, arguments),
            ]
        )
    assert ended.value.code == 0
    return json.loads(capsys.readouterr().out)["tokens"]


def test_a_prompt_is_answered_with_adapters_and_scales(smollm2_path, adapter, capsys):
    with stretto.load(smollm2_path, cells=256) as llm:
        llm.load_adapter("a", adapter)
        options = {"temperature": 0, "max_tokens": 6}
        plain, half = (llm.generate(PROMPT, **options, adapter=mix).tokens for mix in (None, {"a": 0.5}))
    model = ("--model", smollm2_path, "--cells", 256)
    assert said(capsys, *model) == plain
    assert said(capsys, *model, "--adapter", f"{adapter}=0.5") == half
    assert plain != half


def test_an_adapter_that_is_none_is_an_error(smollm2_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["run", PROMPT, "--model", str(smollm2_path), "--adapter", str(smollm2_path)])
    assert ended.value.code == 2
    assert "is no adapter" in capsys.readouterr().err

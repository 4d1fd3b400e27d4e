"""`stretto inspect --placement`: what a GPU that need not be there would hold, and what the CPU."""

import json
from pathlib import Path

import pytest

from stretto.loading import open as opening

FOLDER = Path(__file__).parents[1] / "data" / "tiny"
BANDWIDTHS = ("--gpu-bandwidth", "1000", "--cpu-bandwidth", "50")


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(opening, "cuda_devices", tuple)
    monkeypatch.setattr(opening, "find", tuple)


def test_a_plan_is_shown_as_a_table_and_as_json(stretto):
    arguments = ("inspect", str(FOLDER / "gpt-oss.gguf"), "--placement", "--gpu-memory", "600MB", *BANDWIDTHS)
    code, output, errors = stretto(*arguments, "--experts", "1")
    assert (code, errors) == (0, "")
    for words in ("experts of layer 1", "experts of layer 0", "KV cache of 8,192 cells", "of 0.6 GB of GPU"):
        assert words in output
    assert "tokens a second by bandwidth (GPU 1,000 GB/s, CPU 50 GB/s)" in output
    data = json.loads(stretto(*arguments, "--json", "--experts", "blk.1.*", "--cells", "100")[1])
    assert (data["cpu_layers"], data["expert_layers"], data["cells"]) == ([1], [0, 1], 100)
    assert data["gpu"]["free"] == 600_000_000
    assert json.loads(stretto(*arguments, "--json")[1])["cpu_layers"] == []


def test_a_model_without_experts_is_on_the_gpu_or_does_not_fit(stretto):
    model = str(FOLDER / "llama.gguf")
    output = stretto("inspect", model, "--placement", "--gpu-memory", "1GB", *BANDWIDTHS)[1]
    assert "at most" in output
    output = stretto("inspect", model, "--placement", "--gpu-memory", "1MB", *BANDWIDTHS)[1]
    assert "it does not fit" in output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no GPU is visible here; say with gpu_memory"),
        (("--gpu-memory", "1MB"), "are free; ask for fewer cells"),
        (("--gpu-memory", "1GB", "--experts", "blk.0.attn*"), "names tensors that stay on the GPU"),
        (("--gpu-memory", "1GB", "--experts", "3"), "2 layers of this model have experts"),
        (("--gpu-memory", "much"), "takes a size like 8GB"),
    ],
)
def test_what_cannot_be_is_refused_with_the_numbers(stretto, arguments, words):
    model = str(FOLDER / "gpt-oss.gguf")
    code, output, errors = stretto("inspect", model, "--placement", *BANDWIDTHS, *arguments)
    assert (code, output) == (2, "")
    assert words in errors

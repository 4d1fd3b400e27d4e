"""Torch and Triton are imported when a model is opened on the torch backend, and at no other time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TINY = Path(__file__).parent.parent / "data" / "tiny" / "llama.gguf"
GENERATE = "llm.generate([5, 6, 7], max_tokens=3, temperature=0, ignore_eos=True)"
COMMANDS = {
    "importing stretto": "import stretto, stretto.cli, stretto.backends.registry, stretto.testing",
    "naming backends": "from stretto.backends import registry; registry.names(); registry.serving()",
    "a tiny model": (
        "from stretto import testing; from stretto.llm import LLM; from stretto.models import read_spec; "
        "from stretto.weights.gguf import GGUF; from stretto.backends.registry import *; "
        f"file = GGUF({str(TINY)!r}); entry, device = choose('auto', 'cpu'); "
        "backend = entry.open(file, read_spec(file), BackendOptions(device, 64, 1)); "
        f"llm = LLM(backend, testing.byte_tokenizer()); {GENERATE}; llm.close()"
    ),
    "the mock": "from stretto.testing import mock_llm; llm = mock_llm('abc'); llm.generate('x')",
}


@pytest.fixture
def traps(tmp_path):
    """A folder with packages of these names that cannot be imported."""
    for name in ("torch", "triton"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise SystemExit('{name} was imported')\n")
    return tmp_path


def run(code, traps):
    path = os.pathsep.join(filter(None, (str(traps), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )


@pytest.mark.parametrize("what", COMMANDS)
def test_it_is_not_imported_by(what, traps):
    done = run(COMMANDS[what], traps)
    assert done.returncode == 0, done.stderr


def test_the_traps_would_catch_it(traps):
    done = run("import torch", traps)
    assert (done.returncode, done.stderr.strip()) == (1, "torch was imported")


def test_loading_for_the_cpu_does_not_import_it(traps, smollm2_path):
    code = f"import stretto; llm = stretto.load({str(smollm2_path)!r}, cells=64); {GENERATE}; llm.close()"
    done = run(code, traps)
    assert done.returncode == 0, done.stderr

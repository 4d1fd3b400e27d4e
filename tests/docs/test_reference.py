"""The generated pages of docs/reference are current."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_generated_pages_are_current():
    command = [sys.executable, "scripts/doc_reference.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, ""), "run: python scripts/doc_reference.py"


def test_every_variable_of_the_environment_is_on_the_page():
    asked = re.compile(r"""(?:environ(?:\.get)?\W+|envvar=)["']([A-Z][A-Z_]+)["']""")
    sources = [path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py")]
    names = {name for text in sources for name in asked.findall(text)} | {"STRETTO_KERNELS"}
    page = (ROOT / "docs" / "reference" / "configuration.md").read_text("utf-8")
    private = {"GGML_NO_BACKTRACE", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"}  # set for other processes
    assert len(names) > 8
    assert sorted(name for name in names - private if f"`{name}`" not in page) == []

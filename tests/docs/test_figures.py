"""Figures in the documents are those that benchmarks/raw has."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_figures_are_current():
    command = [sys.executable, "scripts/doc_figures.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, ""), "run: python scripts/doc_figures.py"

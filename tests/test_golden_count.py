"""The run says how many golden tests it has seen, and in CI none may be skipped."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = """
import pytest

@pytest.mark.golden
def test_good():
    pass

@pytest.mark.golden
@pytest.mark.skip(reason="no model")
def test_skipped():
    pass

@pytest.mark.golden
@pytest.mark.skipif(True, reason="no model")
def test_skipped_as_well():
    pass

def test_other():
    pytest.skip("not golden")
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [[], ["-p", "xdist", "-n", "2"]], ids=["here", "in two workers"])
@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 1)])
def test_golden_tests_are_counted(tmp_path, ci, code, workers):
    (tmp_path / "test_sample.py").write_text(SAMPLE)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "conftest",
        "-o",
        "markers=golden: x",
        "--rootdir=.",
        *workers,
    ]
    # Plugins of other packages take seconds to import, in each of the processes.
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(Path(__file__).parent), "CI": ci}
    environment = {**os.environ, **alone}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "golden tests: 1 ran, 1 passed, 2 skipped" in done.stdout
    assert ("must not be skipped" in done.stdout) == (ci == "true")
    assert done.returncode == code

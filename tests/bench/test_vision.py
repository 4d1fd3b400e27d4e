"""benchmarks/vision.py with a tiny model: every row is there, and each sample was what it claims to be."""

import json
import re
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "vision.py"


def test_all_cases_are_measured(tmp_path):
    out = tmp_path / "raw.json"
    options = ["--tiny", "--rounds", "2", "--threads", "1", "--cache", tmp_path, "--out", out]
    command = [sys.executable, str(PROGRAM), *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^\| tiny \| (.*?) \|", done.stdout, re.MULTILINE)
    assert rows == ["nothing is there", "its vectors, in memory", *rows[2:-2], "its K and V", "4"]
    samples = json.loads(out.read_text("utf-8"))["first_tokens"]
    found = {case: {s["cached"] for s in samples if s["case"] == case} for case in ("cold", "memory", "k/v")}
    assert found["cold"] == found["memory"] == {0}
    assert len(found["k/v"]) == 1
    assert min(found["k/v"]) >= 6  # the picture's four tokens, and those around it
    assert min(sample["seconds"] for sample in samples) > 0


def test_gaps_are_measured(tmp_path):
    program = PROGRAM.with_name("vision_gap.py")
    options = ["--tiny", "--rounds", "2", "--threads", "1", "--cache", tmp_path]
    command = [sys.executable, str(program), *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\| \*\*\d+\*\* \| \d+, \d+ \| \d+ \| \d+ \|$", done.stdout, re.MULTILINE)

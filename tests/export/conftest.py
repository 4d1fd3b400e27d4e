"""Fixtures for exports of real models."""

import json
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent.parent / "data" / "golden"
FILES = {"smollm2": "smollm2-135m-instruct-q4_1.json", "gemma3": "gemma-3-270m-q4_k_m.json"}


@pytest.fixture(scope="session")
def golden_answers():
    """The golden answers of a model, by its name."""
    return lambda name: json.loads((GOLDEN / FILES[name]).read_text())

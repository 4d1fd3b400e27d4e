"""Figures on disk: found again under their key, and never a reason to fail."""

import json

import pytest

from stretto.loading.probe import MAX_ENTRIES, Figures, default_path, recall, remember

FIGURES = [Figures("native", "cpu", 100.5), Figures("torch", "cuda", 900.0, 0.01, "too far")]


def test_what_is_stored_is_found_under_its_key():
    remember("a", FIGURES)
    remember("b", FIGURES[:1])
    assert recall("a") == FIGURES
    assert recall("b") == FIGURES[:1]
    assert recall("c") is None


def test_the_oldest_entries_go(tmp_path):
    path = tmp_path / "routes.json"
    path.write_text(json.dumps({f"key {i}": [] for i in range(MAX_ENTRIES)}))
    remember("new", FIGURES, path)
    stored = json.loads(path.read_bytes())
    assert len(stored) == MAX_ENTRIES
    assert "key 0" not in stored
    assert recall("new", path) == FIGURES


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 100_000,
        '{"a": 3}',
        '{"a": [{"backend": "x"}]}',
        '{"a": [{"backend": 1, "device": "", "problem": "", "tokens_per_second": 1, "distance": 0}]}',
        '{"a": [{"backend": "", "device": "", "problem": "", "tokens_per_second": -1, "distance": 0}]}',
        '{"a": [{"backend": "", "device": "", "problem": "", "tokens_per_second": "1", "distance": 0}]}',
        '{"a": [{"backend": "", "device": "", "problem": "", "tokens_per_second": NaN, "distance": 0}]}',
    ],
)
def test_a_damaged_file_is_replaced(text):
    path = default_path()
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert recall("a") is None
    remember("a", FIGURES)
    assert recall("a") == FIGURES


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    remember("a", FIGURES, tmp_path / "file" / "routes.json")
    assert recall("a", tmp_path / "file" / "routes.json") is None

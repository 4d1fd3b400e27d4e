"""Magika: what it sees of a file, and the types of real ones."""

import json
import zipfile

import numpy as np
import pytest

from real_tasks import open_real
from stretto.errors import InvalidRequest, ModelError
from stretto.tasks.filetypes import Config, FileTypes, _features, _read_config
from stretto.tasks.model import Source

CONFIG = Config(
    begin=16,
    end=16,
    block=64,
    least=8,
    padding=256,
    labels=("python", "png", "randomtxt", "crt"),
    threshold=0.5,
    thresholds={"crt": 0.9},
    replaced={"randomtxt": "txt"},
    texts=frozenset({"python", "txt", "crt"}),
)


class Scores:
    """A session with scripted scores."""

    def __init__(self, *scores):
        self.scores = np.asarray([scores], np.float32)

    def run(self, feeds, outputs):
        return {"target_label": np.repeat(self.scores, len(feeds["bytes"]), axis=0)}


def best(*scores):
    model = FileTypes(Source("fake", "MIT", {}), Scores(*scores), CONFIG)
    return [(label.name, round(label.score, 2)) for label in model.classify(b"some bytes", top=2)]


def test_beginnings_and_ends_are_stripped_and_padded():
    row = _features(b"  \n" + b"abcdefghij" + b"\n\n", CONFIG)
    assert row[:12].tolist() == [*b"abcdefghij", *b"\n\n"]
    assert row[12:16].tolist() == [256] * 4
    assert row[16:].tolist() == [256] * 3 + [*b"  \n" + b"abcdefghij"]


@pytest.mark.parametrize(
    ("data", "label"),
    [
        (b"", "empty"),
        (b"abc", "txt"),
        (b"\xff\xfe", "unknown"),
        (b" " * 90, "txt"),
        (b" " * 70 + b"\xff", "txt"),
    ],
)
def test_files_of_a_few_bytes_are_told_by_their_encoding(data, label):
    assert _features(data, CONFIG) == label


def test_a_file_on_disk_is_seen_as_its_bytes_are(tmp_path):
    data = bytes(range(32, 127)) * 3
    path = tmp_path / "file"
    path.write_bytes(data)
    np.testing.assert_array_equal(_features(path, CONFIG), _features(data, CONFIG))
    np.testing.assert_array_equal(_features(str(path), CONFIG), _features(memoryview(data), CONFIG))


def test_answers_that_are_not_sure_become_text_or_unknown():
    assert best(0.9, 0.1, 0, 0) == [("python", 0.9), ("png", 0.1)]
    assert best(0.1, 0.4, 0, 0) == [("unknown", 0.4), ("png", 0.4)]
    assert best(0.4, 0.1, 0, 0) == [("txt", 0.4), ("python", 0.4)]
    assert best(0, 0, 0.2, 0.8) == [("txt", 0.8), ("crt", 0.8)]
    assert best(0, 0.1, 0.8, 0) == [("txt", 0.8), ("randomtxt", 0.8)]


@pytest.mark.parametrize(
    ("wrong", "message"), [(7, "a path, or the bytes"), ("no/such/file", "no such file")]
)
def test_what_is_no_file_is_refused(wrong, message):
    with pytest.raises(InvalidRequest, match=message):
        _features(wrong, CONFIG)


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(InvalidRequest, match="is no file"):
        _features(tmp_path, CONFIG)


def test_top_is_at_least_one():
    with pytest.raises(InvalidRequest, match="top must be at least 1"):
        FileTypes(Source("fake", "MIT", {}), Scores(1, 0, 0, 0), CONFIG).classify(b"some bytes", top=0)


def test_a_damaged_configuration_is_refused(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"mid_size": 0, "use_inputs_at_offsets": False}))
    with pytest.raises(ModelError, match="no configuration of Magika"):
        _read_config(path, path)


@pytest.mark.slow
def test_real_files_have_their_types(tmp_path):
    archive = tmp_path / "archive"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a.txt", "text " * 100)
    source = b"import os\n\n\ndef main(path):\n    for name in os.listdir(path):\n        print(name)\n" * 4
    page = b"<!DOCTYPE html>\n<html><head><title>A page</title></head><body><p>Text</p></body></html>\n"
    with open_real("magika") as model:
        results = model.classify([source, page, archive, b""], top=3)
        alone = model.classify(archive)
    assert [result.best.name for result in results] == ["python", "html", "zip", "empty"]
    assert [len(result.labels) for result in results] == [3, 3, 3, 1]
    assert alone.best.score == pytest.approx(results[2].best.score, abs=1e-4)
    assert (alone.model, alone.license) == ("magika", "Apache-2.0")

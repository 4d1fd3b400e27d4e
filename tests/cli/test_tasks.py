"""Commands of models that do not generate: files, folders, stdin, JSON, pictures."""

import io
import json

import numpy as np
import pytest
from PIL import Image as Pillow

from stretto import Image
from stretto.cli import tasks as task_files
from stretto.errors import InvalidRequest
from stretto.tasks import (
    Box,
    Classification,
    Detection,
    Detections,
    Label,
    Line,
    Ranked,
    Ranking,
    Reading,
    Segment,
    Segmentation,
    TaskModel,
    Transcript,
)
from stretto.tasks.model import Source


class Everything(TaskModel):
    verbs = "embed", "rerank", "classify", "detect", "segment", "read", "transcribe"

    def __init__(self, takes="image"):
        super().__init__(Source("everything", "MIT", {}))
        self.takes = takes

    def embed(self, texts, normalize=True):
        return np.array([[len(text), float(normalize)] for text in texts], np.float32)

    def rerank(self, query, documents, top=None):
        items = [Ranked(i, float(query in text), text) for i, text in enumerate(documents)]
        return Ranking(tuple(sorted(items, key=lambda item: -item.score)[:top]))

    def classify(self, source, top=5):
        return Classification((Label(f"{type(source).__name__} \x1b[2J", 0.5),) * top)

    def detect(self, source, threshold=0.25):
        size = Image.open(source).size
        return Detections((Detection("cat", threshold, Box(1, 2, 3, 4)),), *size)

    def segment(self, source):
        image = Image.open(source)
        return Segmentation(np.ones((image.height, image.width), np.float32))

    def read(self, source):
        corners = ((0.0, 0.0), (5.0, 0.0), (5.0, 5.0), (0.0, 5.0))
        return Reading((Line("Hello", 0.9, corners), Line("there", 0.8, corners)), *Image.open(source).size)

    def transcribe(self, source):
        return Transcript((Segment(0.0, 1.5, "Hello there."),), 2.0)


@pytest.fixture
def tasks(cli, tmp_path):
    """Runs a command on a model that knows everything."""
    model = Everything()

    def tasks_run(*arguments, stdin=b"", takes="image"):
        model.takes = takes
        return cli(*arguments, "--model", tmp_path / "any.onnx", llm=model, stdin=stdin)

    return tasks_run


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    (folder / "more").mkdir(parents=True)
    for name in ("a.png", "more/b.jpg"):
        Pillow.new("RGB", (60, 40), (10, 200, 10)).save(folder / name)
    (folder / "notes.txt").write_text("no picture")
    return folder


@pytest.fixture
def talk(tmp_path):
    path = tmp_path / "talk.wav"
    path.write_bytes(b"RIFF")
    return path


def shown(path):
    """The picture in a file, which is closed again."""
    with Pillow.open(path) as picture:
        return picture.copy()


def test_texts_become_vectors(tasks, tmp_path):
    assert tasks("embed", "ab", "abc") == (0, "2 1\n3 1\n", "")
    assert tasks("embed", "--raw", stdin=b"a\n\nabcd\n")[1] == "1 0\n4 0\n"
    data = json.loads(tasks("embed", "ab", "--json")[1])
    assert data["vectors"] == [{"text": "ab", "vector": [2.0, 1.0]}]
    assert tasks("embed", "ab", "--out", tmp_path / "v.npy")[:2] == (0, "")
    assert np.load(tmp_path / "v.npy").tolist() == [[2.0, 1.0]]


def test_texts_are_ranked(tasks):
    code, output, _ = tasks("rerank", "b", "xx", "abc", "--top", "1")
    assert code == 0
    assert "abc" in output
    assert "xx" not in output
    items = json.loads(tasks("rerank", "b", "--json", stdin=b"xx\nabc\n")[1])["items"]
    assert [item["index"] for item in items] == [1, 0]


def test_stdin_without_a_text_is_refused(tasks):
    assert "give texts" in tasks("embed", stdin=b"\n")[2]
    assert "not UTF-8" in tasks("embed", stdin=b"\xff\n")[2]


def test_what_is_classified_is_up_to_the_model(tasks, pictures):
    assert tasks("classify", "some text", "--top", "1", takes="text")[1] == "str \\x1b[2J 0.50\n"
    assert tasks("classify", pictures, "--top", "1")[1].count("\n") == 2
    assert tasks("classify", pictures, "--top", "1", takes="bytes")[1].count("\n") == 3
    assert tasks("classify", "-", "--top", "1", stdin=b"123", takes="bytes")[1].startswith("bytes")
    data = json.loads(tasks("classify", pictures / "a.png", "--json")[1])
    assert [len(one["labels"]) for one in data] == [5]


def test_objects_are_listed_and_drawn(tasks, pictures, tmp_path):
    code, output, _ = tasks("detect", pictures / "a.png", "--threshold", "0.5", "--draw", tmp_path / "x.png")
    assert (code, output) == (0, "cat 0.50 at (1, 2, 3, 4)\n")
    assert shown(tmp_path / "x.png").size == (60, 40)
    code, output, _ = tasks("detect", pictures, "--draw", tmp_path / "drawn")
    assert code == 0
    assert output.count("cat 0.25") == 2
    assert sorted(path.name for path in (tmp_path / "drawn").iterdir()) == ["a.png", "b.png"]


def test_a_picture_from_stdin_is_read_once(tasks, pictures, tmp_path):
    data = (pictures / "a.png").read_bytes()
    code, output, _ = tasks("read", "-", "--draw", tmp_path / "x.jpg", stdin=data)
    assert (code, output) == (0, "Hello\nthere\n")
    assert (tmp_path / "x.jpg").read_bytes()[:2] == b"\xff\xd8"


def test_a_foreground_is_cut_out(tasks, pictures, tmp_path):
    code, output, _ = tasks("segment", pictures / "a.png", "--cut-out", tmp_path / "x.png")
    assert (code, output) == (0, "100.0 % of 60 × 40 pixels\n")
    assert shown(tmp_path / "x.png").mode == "RGBA"
    data = json.loads(tasks("segment", pictures / "a.png", "--json")[1])
    assert data[0]["alpha"].startswith("data:")


def test_one_bad_file_does_not_stop_the_others(tasks, pictures):
    (pictures / "bad.png").write_bytes(b"no picture")
    code, output, errors = tasks("read", pictures)
    assert code == 2
    assert output.count("Hello") == 2
    assert "bad.png" in errors
    assert "1 of 3 files failed" in errors


def test_a_folder_without_pictures_is_named(tasks, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "no file of this kind" in tasks("detect", tmp_path / "empty")[2]


def test_a_drawing_needs_the_ending_of_a_picture(tasks, pictures, monkeypatch):
    monkeypatch.setattr(Everything, "detect", lambda *args, **options: pytest.fail("computed in vain"))
    assert "ends with .png" in tasks("detect", pictures / "a.png", "--draw", "x.mp3")[2]


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("text", "Hello there.\n"),
        ("times", "[   0.00 –    1.50] Hello there.\n"),
        ("srt", "1\n00:00:00,000 --> 00:00:01,500\nHello there.\n"),
        ("vtt", "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHello there.\n"),
    ],
)
def test_speech_is_written_down(tasks, talk, form, expected):
    assert tasks("transcribe", talk, "--format", form)[:2] == (0, expected)


def test_transcripts_go_to_json(tasks, talk):
    data = json.loads(tasks("transcribe", talk, "--json")[1])
    assert data[0]["text"] == "Hello there."
    assert data[0]["segments"][0]["end"] == 1.5


def test_stdin_is_bounded(monkeypatch):
    monkeypatch.setattr(task_files, "MAX_STDIN_BYTES", 10)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"x" * 11)))
    with pytest.raises(InvalidRequest, match="more than 10 bytes"):
        task_files.read_texts([])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"x" * 11)))
    with pytest.raises(InvalidRequest, match="more than 10 bytes"):
        task_files.read_source("-")

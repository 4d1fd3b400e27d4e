"""Models that do not generate, behind a server: their endpoints, their turns, their errors."""

import base64
import io
import threading

import numpy as np
import pytest
from PIL import Image as Pillow

from serving import TINY, mock, visiting
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
from stretto.tasks.model import Source, each


class Everything(TaskModel):
    """A model with every verb; its answers are about its inputs."""

    verbs = "rerank", "classify", "detect", "segment", "read", "transcribe"

    def __init__(self, takes="text"):
        super().__init__(Source("everything", "MIT", {}))
        self.takes = takes
        self.at_once = self.most = 0
        self.go = threading.Event()
        self.go.set()

    def rerank(self, query, documents, top=None):
        order = sorted(range(len(documents)), key=lambda i: -documents[i].count(query))
        items = [Ranked(i, float(documents[i].count(query)), documents[i]) for i in order]
        n_tokens = len(query) + sum(map(len, documents))
        return Ranking(tuple(items[:top]), n_tokens=n_tokens, model=self.name, license=self.license)

    def classify(self, inputs, top=5):
        labels = [Label("text" if isinstance(one, str) else type(one).__name__, 0.5) for one in inputs]
        return [Classification((label,) * top) for label in labels]

    def detect(self, images, threshold=0.25):
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        self.go.wait(30)
        found = each(
            images,
            lambda image: Detections(
                (Detection("all", threshold, Box(0, 0, image.width, image.height)),),
                image.width,
                image.height,
            ),
        )
        self.at_once -= 1
        return found

    def segment(self, images):
        return [Segmentation(np.ones((image.height, image.width), np.float32)) for image in images]

    def read(self, images):
        corners = ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0))
        return [Reading((Line("Hello", 0.9, corners),), image.width, image.height) for image in images]

    def transcribe(self, audio):
        return Transcript((Segment(0.0, 1.5, f"{len(audio)} bytes"), Segment(2.0, 61.25, "Bye.")), 62.0)


def png(width=8, height=6):
    file = io.BytesIO()
    Pillow.new("RGB", (width, height)).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


@pytest.fixture(scope="module")
def web():
    model = Everything()
    openers = {"all": lambda entry: model, "files": lambda entry: Everything("bytes"), "mock": mock()}
    models = (f"all={TINY}", f"files={TINY}", f"mock={TINY}")
    with visiting(lambda entry: openers[entry.name](entry), models=models) as (running, client):
        client.model, client.running = model, running
        yield client


def test_documents_are_ranked_as_clients_of_jina_and_cohere_expect(web):
    body = {"model": "all", "query": "a", "documents": ["b", {"text": "aa"}, "a"], "top_n": 2}
    answer = web.post("/v1/rerank", json={**body, "return_documents": True}).json()
    assert [one["index"] for one in answer["results"]] == [1, 2]
    assert answer["results"][0] == {"index": 1, "relevance_score": 2.0, "document": {"text": "aa"}}
    assert "document" not in web.post("/v1/rerank", json=body).json()["results"][0]


def test_a_ranking_says_how_many_tokens_were_read(web):
    body = {"model": "all", "query": "a", "documents": ["b", "aa"] * 60, "top_n": 1}
    answer = web.post("/v2/rerank", json=body).json()
    assert answer["usage"] == {"prompt_tokens": 181, "total_tokens": 181}
    assert answer["meta"] == {"billed_units": {"search_units": 2}, "tokens": {"input_tokens": 181}}
    assert answer["id"].startswith("rerank-")


@pytest.mark.parametrize(
    ("field", "value", "label"),
    [("input", "text", "text"), ("image", png(), "Image"), ("data", "AAEC", "bytes")],
)
def test_texts_images_and_bytes_are_classified(web, field, value, label):
    answer = web.post("/stretto/classify", json={"model": "all", field: [value, value], "top": 1}).json()
    assert [one["labels"] for one in answer["data"]] == [[{"name": label, "score": 0.5}]] * 2


def test_one_kind_of_input_is_asked_for(web):
    answer = web.post("/stretto/classify", json={"model": "all", "input": "x", "data": "AA=="})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "data")
    answer = web.post("/stretto/classify", json={"model": "all", "data": "!"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "data")


def test_a_client_cannot_name_files_of_the_server(web):
    answer = web.post("/stretto/classify", json={"model": "files", "input": __file__})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")
    assert "give data" in answer.json()["error"]["message"]
    assert web.post("/stretto/classify", json={"model": "files", "data": "AAEC"}).status_code == 200


def test_objects_are_detected(web):
    answer = web.post("/stretto/detect", json={"model": "all", "image": png(), "threshold": 0.75}).json()
    (found,) = answer["data"]
    assert (found["width"], found["height"]) == (8, 6)
    assert found["items"][0]["score"] == 0.75
    assert answer["timings"]["total"] > 0


def test_masks_and_texts_come_as_json(web):
    (mask,) = web.post("/stretto/segment", json={"model": "all", "image": png()}).json()["data"]
    assert mask["alpha"].startswith("data:image/png;base64,")
    (text,) = web.post("/stretto/read", json={"model": "all", "image": [png()]}).json()["data"]
    assert text["lines"][0]["text"] == "Hello"


def test_an_image_that_is_none_is_named(web):
    answer = web.post("/stretto/read", json={"model": "all", "image": "data:image/png;base64,AAAA"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "image")
    answer = web.post("/stretto/read", json={"model": "all", "image": "file:///etc/passwd"})
    assert answer.status_code == 400


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("text", "3 bytes Bye.\n"),
        ("srt", "1\n00:00:00,000 --> 00:00:01,500\n3 bytes\n\n2\n00:00:02,000 --> 00:01:01,250\nBye.\n"),
        ("vtt", "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\n3 bytes\n\n00:00:02.000 --> 00:01:01.250\nBye.\n"),
    ],
)
def test_speech_is_written_down(web, kind, expected):
    form = {"model": "all", "response_format": kind}
    answer = web.post("/v1/audio/transcriptions", data=form, files={"file": ("a.wav", b"123")})
    assert (answer.status_code, answer.text) == (200, expected)


def test_openais_client_transcribes(web):
    from openai import OpenAI

    client = OpenAI(base_url=f"{web.running.url}/v1", api_key="none")
    answer = client.audio.transcriptions.create(model="all", file=("a.wav", b"1234"))
    assert answer.text == "4 bytes Bye."
    verbose = client.audio.transcriptions.create(
        model="all", file=("a.wav", b"1"), response_format="verbose_json"
    )
    assert (verbose.duration, verbose.segments[1].end) == (62.0, 61.25)


@pytest.mark.parametrize(
    ("form", "files", "param"),
    [
        ({}, {"file": b"1"}, "model"),
        ({"model": "all"}, {"other": b"1"}, "other"),
        ({"model": "all", "temperature": "0.5"}, {"file": b"1"}, "temperature"),
        ({"model": "all", "response_format": "xml"}, {"file": b"1"}, "response_format"),
        ({"model": "all", "language": "fr"}, {"file": b"1"}, "language"),
    ],
)
def test_a_wrong_form_is_explained(web, form, files, param):
    answer = web.post("/v1/audio/transcriptions", data=form, files=files)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_body_that_is_no_form_is_refused(web):
    assert web.post("/v1/audio/transcriptions", json={"model": "all"}).status_code == 400
    answer = web.post(
        "/v1/audio/transcriptions", content=b"x", headers={"content-type": "multipart/form-data; boundary=a"}
    )
    assert answer.status_code == 400


def test_a_missing_verb_is_a_400(web):
    answer = web.post("/stretto/detect", json={"model": "mock", "image": png()})
    assert answer.status_code == 400
    assert "mock cannot detect; it can generate" in answer.json()["error"]["message"]
    answer = web.post("/v1/completions", json={"model": "all", "prompt": "Hi"})
    assert answer.status_code == 400
    assert "all cannot generate; it can rerank" in answer.json()["error"]["message"]


def test_a_model_computes_one_request_at_a_time(web):
    web.model.most = 0
    web.model.go.clear()
    answers = []

    def ask():
        answers.append(web.post("/stretto/detect", json={"model": "all", "image": png()}).status_code)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    web.model.go.set()
    for thread in threads:
        thread.join(60)
    assert (answers, web.model.most) == ([200] * 4, 1)


def test_metrics_and_stats_count_tasks(web):
    web.post("/stretto/read", json={"model": "all", "image": png()})
    assert 'stretto_task_inputs_total{model="all",verb="read"}' in web.get("/metrics").text
    assert web.get("/stretto/stats").json()["models"]["all"]["tasks"]["inputs"]["read"] >= 1
    assert web.get("/stretto/cells", params={"model": "all"}).json()["cells"] == 0

"""`/v2/embed`, as Cohere's clients ask for vectors."""

import base64
import time

import httpx
import numpy as np
import pytest

import stretto
from serving import TINY, until, visiting
from stretto import LLM
from stretto.backends.native import NativeBackend
from stretto.tasks import TaskModel
from stretto.tasks.model import Source
from stretto.testing import byte_tokenizer
from tiny_encoders import with_words
from tiny_models import tiny_file, tiny_spec

TEXTS = ["A CAT", "ANOTHER DOG"]  # the tiny vocabularies have no small letters


class Lengths(TaskModel):
    """Vectors of what a text is as long as."""

    verbs = ("embed",)

    def __init__(self):
        super().__init__(Source("lengths", "MIT", {}))

    def embed(self, texts, normalize=True):
        return np.array([[len(text)] * 3 for text in texts], np.float32)


def open_model(entry):
    if entry.name == "encoder":
        return stretto.load(entry.source, threads=1)
    if entry.name == "lengths":
        return Lengths()
    return LLM(NativeBackend(tiny_file("llama"), tiny_spec("llama"), 256, 1), byte_tokenizer())


@pytest.fixture(scope="module")
def web(tmp_path_factory):
    words = with_words("bert", tmp_path_factory.mktemp("encoder") / "words.gguf")
    models = (f"mock={TINY}", f"encoder={words}", f"lengths={TINY}")
    with visiting(open_model, models=models) as (_, client):
        yield client


def embedded(web, **fields):
    answer = web.post("/v2/embed", json={"model": "mock", "texts": TEXTS, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(web, **fields):
    answer = web.post("/v2/embed", json={"model": "mock", "texts": TEXTS, **fields})
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]["param"]


def test_vectors_are_those_of_openais_endpoint(web):
    found = embedded(web, input_type="search_document", priority=1)
    other = web.post("/v1/embeddings", json={"model": "mock", "input": TEXTS}).json()
    assert found["embeddings"] == {"float": [item["embedding"] for item in other["data"]]}
    assert (found["texts"], found["response_type"]) == (TEXTS, "embeddings_by_type")
    assert found["meta"]["billed_units"] == {"input_tokens": other["usage"]["prompt_tokens"]}
    inputs = [{"content": [{"type": "text", "text": text}]} for text in TEXTS]
    assert embedded(web, texts=None, inputs=inputs)["embeddings"] == found["embeddings"]


def test_forms_of_a_vector(web):
    kinds = ["float", "base64", "binary", "ubinary", "float"]
    found = embedded(web, embedding_types=kinds, output_dimension=16)["embeddings"]
    assert list(found) == kinds[:4]
    vectors = np.array(found["float"], np.float32)  # float32[2, 16]
    decoded = [np.frombuffer(base64.b64decode(text), "<f4") for text in found["base64"]]
    assert np.array_equal(decoded, vectors)
    for vector, bits, signed in zip(vectors, found["ubinary"], found["binary"], strict=True):
        expected = [
            int("".join("01"[int(number > 0)] for number in half), 2) for half in (vector[:8], vector[8:])
        ]
        assert bits == expected
        assert signed == [byte - 128 for byte in expected]


def test_long_texts_are_cut_where_the_request_says(web):
    def vector(text, **fields):
        return embedded(web, texts=[text], **fields)["embeddings"]["float"][0]

    begin, end = "A" * 100 + "B" * 100, "C" * 255
    assert refused(web, texts=[begin + end], truncate="NONE") == "texts"
    whole = web.get("/tokenizer_info").json()["model_max_length"]
    assert vector(begin + end) == vector((begin + end)[:whole])
    assert vector(begin + end, truncate="START") == vector((begin + end)[-whole:])
    assert vector("A CAT", max_tokens=3) == vector("A C")


def test_special_tokens_stay_around_a_text_that_is_cut(web):
    whole = embedded(web, model="encoder", texts=["the cat"])
    assert whole["meta"]["billed_units"]["input_tokens"] == 4  # [CLS] the cat [SEP]
    ends = {"START": "dog the cat", "END": "the cat sleeps"}
    for side, text in ends.items():
        cut = embedded(web, model="encoder", texts=[text], max_tokens=4, truncate=side)
        assert cut["embeddings"] == whole["embeddings"]
    long = embedded(web, model="encoder", texts=["cat " * 1000, "cat " * 999])["embeddings"]["float"]
    assert long[0] == long[1]


def test_models_that_are_no_language_models(web):
    assert embedded(web, model="lengths")["embeddings"] == {"float": [[5.0] * 3, [11.0] * 3]}
    assert refused(web, model="lengths", max_tokens=3) == "max_tokens"
    assert refused(web, model="lengths", embedding_types=["binary"]) == "embedding_types"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"embedding_types": ["int8"]}, "embedding_types"),
        ({"embedding_types": ["float", "uint8"]}, "embedding_types"),
        ({"embedding_types": ["half"]}, "embedding_types[0]"),
        ({"embedding_types": []}, "embedding_types"),
        ({"texts": None}, "texts"),
        ({"texts": []}, "texts"),
        ({"inputs": [{"content": [{"type": "text", "text": "a"}]}]}, "inputs"),
        ({"texts": ["a"] * 97}, "texts"),
        ({"images": ["data:image/png;base64,AA=="]}, "images"),
        ({"input_type": "image"}, "input_type"),
        ({"output_dimension": 100_000}, "output_dimension"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"truncate": "MIDDLE"}, "truncate"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(web, fields, param):
    assert refused(web, **fields) == param


class Slow(Lengths):
    """Takes a while."""

    def embed(self, texts, normalize=True):
        time.sleep(0.5)
        return super().embed(texts, normalize)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v2/embed", {"texts": TEXTS}),
        ("/v1/embeddings", {"input": TEXTS}),
        ("/api/embed", {"input": TEXTS}),
    ],
)
def test_a_client_that_leaves_is_no_bug_of_the_server(path, fields):
    with visiting(lambda entry: Slow(), models=(f"slow={TINY}",)) as (server, client):
        with pytest.raises(httpx.ReadTimeout):
            client.post(path, json={"model": "slow", **fields}, timeout=0.2)
        until(lambda: server.state.traffic.answered)
        assert list(server.state.traffic.answered) == [(path, 499)]

"""Adapters over HTTP: model="base:name", `lora`, and the command that loads them."""

import pytest

from serving import TINY, visiting
from stretto.backends.native import NativeBackend
from stretto.errors import InvalidRequest, ModelError
from stretto.llm import LLM
from stretto.server.http.registry import with_adapters
from stretto.server.serve import Server
from stretto.server.settings import ModelEntry, Settings
from stretto.testing import byte_tokenizer
from tiny_adapters import matrices, random_pairs, write_adapter
from tiny_models import tiny_file, tiny_spec

PROMPT = [5, 17, 9, 33, 2, 40, 11]
GREEDY = {"prompt": PROMPT, "temperature": 0, "max_tokens": 8, "ignore_eos": True, "return_token_ids": True}


def native(entry=None):
    return LLM(NativeBackend(tiny_file("llama"), tiny_spec("llama", 512), 512, 1), byte_tokenizer())


@pytest.fixture
def paths(tmp_path):
    return [
        write_adapter(
            tmp_path / f"{name}.gguf", "llama", random_pairs(matrices("llama"), seed=seed, size=0.2)
        )
        for seed, name in enumerate(("one", "two"))
    ]


@pytest.fixture
def web(paths, monkeypatch):
    given = [f"{name}={path}" for name, path in zip(("one", "two"), paths, strict=True)]
    parse = ModelEntry.parse
    monkeypatch.setattr(ModelEntry, "parse", lambda text: with_adapters([parse(text)], given)[0])
    with visiting(native, (f"tiny={TINY}",)) as (_, client):
        yield client


@pytest.fixture
def expected(paths):
    """The tokens with an adapter, from the library."""
    with native() as llm:
        for name, path in zip(("one", "two"), paths, strict=True):
            llm.load_adapter(name, path)

        def tokens(adapter):
            options = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
            return llm.generate(PROMPT, **options, adapter=adapter).tokens

        yield tokens


def tokens(web, **fields):
    answer = web.post("/v1/completions", json={"model": "tiny", **GREEDY, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["token_ids"]


def refusal(web, path="/v1/completions", **fields):
    answer = web.post(path, json={"model": "tiny", **GREEDY, **fields})
    assert answer.status_code in (400, 404), answer.text
    return answer.json()["error"]


def test_a_model_name_chooses_an_adapter(web, expected):
    assert tokens(web) == expected(None)
    assert tokens(web, model="tiny:one") == expected("one")
    assert tokens(web, model="tiny:two") == expected("two")


def test_the_field_lora_mixes_adapters(web, expected):
    assert tokens(web, lora="two") == expected("two")
    assert tokens(web, lora={"one": 0.5, "two": -0.25}) == expected({"one": 0.5, "two": -0.25})
    assert tokens(web) == expected(None)


def test_an_adapter_may_be_named_alone(web, expected):
    assert tokens(web, model="one") == expected("one")


def test_llama_servers_clients_name_adapters_by_number(web, expected):
    by_number = [{"id": 0, "scale": 0.5}, {"id": 1, "scale": -0.25}]
    assert tokens(web, lora=by_number) == expected({"one": 0.5, "two": -0.25})
    assert tokens(web, lora=[{"id": 0, "scale": 0.0}]) == expected(None)
    body = {"prompt": PROMPT, "temperature": 0, "n_predict": 8, "ignore_eos": True, "return_tokens": True}
    answer = web.post("/completion", json={**body, "lora": [{"id": 1, "scale": 1.0}]})
    assert answer.json()["tokens"] == expected("two")
    assert "2 adapters, and none of the number 7" in refusal(web, lora=[{"id": 7, "scale": 1}])["message"]


def test_adapters_of_requests_that_name_none(web, expected):
    listed = [{"id": 0, "name": "one", "path": "one.gguf", "scale": 0.0}]
    assert web.get("/lora-adapters").json()[:1] == listed
    assert web.post("/lora-adapters", json=[{"id": 1, "scale": 1.0}]).json() == {"success": True}
    assert [one["scale"] for one in web.get("/lora-adapters").json()] == [0.0, 1.0]
    assert tokens(web) == expected("two")
    assert tokens(web, lora=[]) == expected(None)
    assert tokens(web, model="tiny:one") == expected("one")
    web.post("/lora-adapters", json=[])
    assert tokens(web) == expected(None)
    for wrong in ({}, [{"id": 9, "scale": 1}], [{"id": 0}], [{"id": 0, "scale": "x"}]):
        assert web.post("/lora-adapters", json=wrong).status_code == 400


def test_adapters_are_listed_as_models(web):
    listed = {one["id"]: one.get("parent") for one in web.get("/v1/models").json()["data"]}
    assert listed == {"tiny": None, "tiny:one": "tiny", "tiny:two": "tiny"}
    assert web.get("/v1/models/tiny:one").json()["id"] == "tiny:one"


def test_ollamas_clients_name_adapters_too(web):
    options = {"temperature": 0, "num_predict": 4}
    body = {"model": "tiny:one", "prompt": "!!", "raw": True, "stream": False, "options": options}
    answer = web.post("/api/generate", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == "tiny:one"


def test_scores_are_those_of_the_adapter(web):
    scores = [
        web.post("/stretto/score", json={"model": model, "text": PROMPT}).json()["total"]
        for model in ("tiny", "tiny:one")
    ]
    assert scores[0] != pytest.approx(scores[1], abs=1e-3)


def test_what_does_not_exist_or_fit_is_refused_by_name(web):
    assert "there is tiny, tiny:one, tiny:two" in refusal(web, model="tiny:three")["message"]
    assert refusal(web, lora="three")["param"] == "lora"
    assert "no adapter 'three'" in refusal(web, lora="three")["message"]
    assert refusal(web, model="tiny:one", lora="two")["param"] == "lora"
    for wrong in ({}, {"one": "x"}, {"one": 1e9}, 3, ""):
        assert "lora" in refusal(web, lora=wrong)["param"]
    embeddings = web.post("/v1/embeddings", json={"model": "tiny:one", "input": PROMPT})
    assert embeddings.status_code == 400
    assert "adapters are for texts" in embeddings.json()["error"]["message"]


def test_pins_are_of_the_adapter(web, expected):
    assert tokens(web, model="tiny:one", cache_pin="mine") == expected("one")
    again = web.post("/v1/completions", json={**GREEDY, "model": "tiny:one"}).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == len(PROMPT) - 1


def test_the_option_names_a_model_and_a_path():
    small, large = ModelEntry("small", "s.gguf"), ModelEntry("large", "l.gguf")
    assert with_adapters([small], ["a=x.gguf"])[0].adapters == (("a", "x.gguf"),)
    found = with_adapters([small, large], ["large:a=x", "large:b=y=z"])
    assert [entry.adapters for entry in found] == [(), (("a", "x"), ("b", "y=z"))]
    for wrong in ("a", "a=", "=x", "other:a=x", "small:=x"):
        with pytest.raises(InvalidRequest, match="--adapter takes"):
            with_adapters([small], [wrong])
    with pytest.raises(InvalidRequest, match="two adapters 'a'"):
        with_adapters([small], ["a=x", "a=y"])
    with pytest.raises(InvalidRequest, match="--adapter takes"):
        with_adapters([small, large], ["a=x"])


def test_an_adapter_of_another_model_is_refused_at_the_start(tmp_path):
    path = write_adapter(tmp_path / "a.gguf", "qwen3")
    entry = ModelEntry("tiny", str(TINY), adapters=(("a", str(path)),))
    with pytest.raises(ModelError, match="architecture 'qwen3'"):
        Server(Settings((entry,), port=0, memory=1 << 40))

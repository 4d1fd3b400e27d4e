"""llama-server's endpoints: tokens, and texts between two others."""

import json
import time

import httpx
import ollama
import pytest

from serving import serving
from stretto.llm import LLM
from stretto.server.generation.options import engine_options
from stretto.server.generation.requests import ChatRequest
from stretto.server.settings import RequestLimits
from stretto.testing import MockBackend, mock_llm
from stretto.text.loading import load_tokenizer
from vocabularies import bpe, metadata

MARKS = ["<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|im_end|>"]


def code_model(entry):
    """A model that has the tokens, and says what it was asked."""
    tokenizer = load_tokenizer(metadata(bpe(specials=MARKS)))
    answer = [*tokenizer.encode("hello"), tokenizer.specials["<|im_end|>"]]
    seen = {}

    def script(tokens):
        start = seen.setdefault(tuple(tokens[:5]), len(tokens))
        return answer[min(len(tokens) - start, len(answer) - 1)]

    return LLM(MockBackend(script, tokenizer.n_vocab, 512, 128), tokenizer, None)


@pytest.fixture(scope="module")
def web():
    with serving(code_model) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def test_text_becomes_tokens_and_back(web):
    tokens = web.post("/tokenize", json={"content": "hello ☃ <|fim_middle|>"}).json()["tokens"]
    assert web.post("/detokenize", json={"tokens": tokens}).json()["content"] == "hello ☃ <|fim_middle|>"
    plain = web.post("/tokenize", json={"content": "<|fim_middle|>", "parse_special": False}).json()["tokens"]
    assert len(plain) > 1


def test_tokens_with_their_pieces(web):
    asked = {"content": "hello ☃", "with_pieces": True}
    pieces = [one["piece"] for one in web.post("/tokenize", json=asked).json()["tokens"]]
    assert pieces[0] == "hello"
    assert pieces[-1] == [0x83]  # a byte that is no text


def test_a_gap_is_filled(web):
    asked = {
        "input_prefix": "def f(",
        "input_suffix": ")",
        "input_extra": [{"filename": "a.py", "text": "x"}],
        "prompt": "",
        "n_predict": 16,
        "cache_prompt": True,
        "t_max_prompt_ms": 500,
        "samplers": ["top_k", "top_p", "infill"],
    }
    answer = web.post("/infill", json=asked).json()
    assert answer["content"] == "hello"
    assert answer["stop"]
    assert answer["tokens_evaluated"] > 8


def test_a_gap_is_filled_in_a_stream(web):
    asked = {"input_prefix": "if (", "input_suffix": ")", "stream": True}
    answer = web.post("/infill", json=asked)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert "".join(one["content"] for one in events) == "hello"
    assert events[-1]["stop"]


def test_ollama_fills_a_gap(web):
    client = ollama.Client(host=str(web.base_url))
    answer = client.generate(model="mock", prompt="while (", suffix=")")
    assert answer.context
    client.close()
    assert answer.response == "hello"


def test_a_model_without_the_tokens_is_refused():
    with serving(lambda entry: mock_llm("x")) as server:
        answer = httpx.post(f"{server.url}/infill", json={"input_prefix": "a", "input_suffix": "b"})
    assert answer.status_code == 400
    assert "fill-in-the-middle" in answer.text


def test_tokens_outside_the_vocabulary_are_refused(web):
    assert web.post("/detokenize", json={"tokens": [10**6]}).status_code == 400


def test_a_conversation_is_rendered_and_not_answered():
    with serving(lambda entry: mock_llm("x")) as server, httpx.Client(base_url=server.url) as client:
        body = {"messages": [{"role": "user", "content": "Is <|im_end|> a token?"}]}
        found = client.post("/apply-template", json=body).json()
    assert "Is <|im_end|> a token?" in found["prompt"]


def test_openai_paths_work_without_their_version():
    with serving(lambda entry: mock_llm("x")) as server, httpx.Client(base_url=server.url) as client:
        asked = {"model": "mock", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
        assert client.post("/chat/completions", json=asked).json()["object"] == "chat.completion"
        assert client.get("/models").json() == client.get("/v1/models").json()


@pytest.fixture(scope="module")
def native():
    with serving() as server, httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def events_of(answer):
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


def test_native_completion_has_its_own_fields(native):
    asked = {"prompt": "Say", "n_predict": 4, "return_tokens": True, "cache_prompt": True, "id_slot": -1}
    answer = native.post("/completion", json=asked).json()
    assert answer["content"]
    assert len(answer["tokens"]) == answer["tokens_predicted"] == answer["timings"]["predicted_n"] == 4
    assert answer["tokens_evaluated"] == answer["timings"]["prompt_n"] + answer["timings"]["cache_n"]
    assert (answer["stop"], answer["stop_type"], answer["truncated"]) == (True, "limit", False)
    assert answer["generation_settings"]["n_predict"] == 4
    assert answer["prompt"] == "Say"
    assert native.post("/completions", json=asked).json()["content"] == answer["content"]


def test_native_completion_stops_at_a_word(native):
    answer = native.post("/completion", json={"prompt": "Say", "stop": ["world"]}).json()
    assert (answer["stop_type"], answer["stopping_word"]) == ("word", "world")


def test_native_completion_takes_every_kind_of_prompt(native):
    ids = native.post("/tokenize", json={"content": "Say", "add_special": True}).json()["tokens"]
    prompts = ["Say", ids, [*ids[:-1], "y"], {"prompt_string": "Say"}]
    answer = native.post("/completion", json={"prompt": prompts, "n_predict": 2}).json()
    assert [one["index"] for one in answer] == [0, 1, 2, 3]
    assert {one["content"] for one in answer} == {answer[0]["content"]}
    single = native.post("/completion", json={"prompt": prompts[2], "n_predict": 2}).json()
    assert single["content"] == answer[0]["content"]


def test_native_completion_streams_each_token(native):
    asked = {"prompt": "Say", "n_predict": 3, "stream": True, "n_probs": 2, "timings_per_token": True}
    *pieces, last = events_of(native.post("/completion", json=asked))
    assert [len(one["tokens"]) for one in pieces] == [1, 1, 1]
    assert [one["timings"]["predicted_n"] for one in pieces] == [1, 2, 3]
    assert all(len(one["completion_probabilities"][0]["top_logprobs"]) == 2 for one in pieces)
    assert (last["stop"], last["content"], last["tokens_predicted"]) == (True, "", 3)


def test_no_predicted_tokens_compute_the_prompt_only(native):
    asked = {"prompt": "Compute this much", "n_predict": 0, "n_probs": 2, "return_tokens": True}
    answer = native.post("/completion", json=asked).json()
    assert (answer["content"], answer["tokens"], answer["completion_probabilities"]) == ("", [], [])
    assert (answer["tokens_predicted"], answer["stop_type"], answer["truncated"]) == (0, "limit", False)
    assert answer["timings"]["predicted_n"] == answer["generation_settings"]["n_predict"] == 0
    again = native.post("/completion", json=asked | {"stream": True})
    (event,) = events_of(again)
    assert (event["content"], event["tokens_predicted"], event["stop_type"]) == ("", 0, "limit")
    assert event["timings"]["cache_n"] == event["tokens_evaluated"] - 1  # the first one warmed the cache


def test_openais_paths_know_n_predict(native):
    def tokens(path, **asked):
        return native.post(path, json=asked).json()["usage"]["completion_tokens"]

    messages = [{"role": "user", "content": "Say"}]
    assert tokens("/v1/completions", prompt="Say", n_predict=3) == 3
    assert tokens("/v1/completions", prompt="Say", n_predict=-1) > 16
    assert tokens("/v1/chat/completions", messages=messages, n_predict=2) == 2
    wrong = native.post("/v1/completions", json={"prompt": "Say", "n_predict": 3, "max_tokens": 4})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "n_predict")


def test_probabilities_after_the_samplers(native):
    asked = {"prompt": "Say", "n_predict": 2, "n_probs": 5, "post_sampling_probs": True, "temperature": 0}
    for one in native.post("/completion", json=asked).json()["completion_probabilities"]:
        assert one["prob"] == 1
        assert [(top["id"], top["prob"]) for top in one["top_probs"]] == [(one["id"], 1)]
        assert "logprob" not in one


def test_metrics_have_llama_servers_names(native):
    def values():
        answer = native.get("/metrics")
        assert int(answer.headers["process-start-time-unix"]) > 1_700_000_000
        lines = [line for line in answer.text.splitlines() if line.startswith("llamacpp:")]
        for name in (line.split(" ")[0] for line in lines):
            assert f"# HELP {name} " in answer.text
            assert f"# TYPE {name} " in answer.text
        return {name.removeprefix("llamacpp:"): float(value) for name, value in map(str.split, lines)}

    for _ in range(2):  # the second time, most of the prompt is in the cache
        before = values()
        asked = {"prompt": "Say more", "n_predict": 4, "backend_sampling": True}
        timings = native.post("/completion", json=asked).json()["timings"]
        after = values()
        grown = {name: after[name] - before[name] for name in after}
        assert grown["prompt_tokens_total"] == timings["prompt_n"]
        assert grown["prompt_tokens_cached_total"] == timings["cache_n"]
        assert grown["tokens_predicted_total"] == timings["predicted_n"] == 4
        assert grown["n_decode_total"] > 0
    assert timings["prompt_n"] == 1
    assert after["n_tokens_max"] >= timings["prompt_n"] + timings["cache_n"] + 4
    assert after["requests_processing"] == after["requests_deferred"] == 0


def test_native_completion_returns_only_the_fields_asked_for(native):
    fields = ["content", "generation_settings/n_predict", "nothing"]
    answer = native.post("/completion", json={"prompt": "x", "n_predict": 2, "response_fields": fields})
    assert set(answer.json()) == {"content", "generation_settings/n_predict"}


@pytest.mark.parametrize("biases", [[["Hello", False]], {"Hello": -1000}])
def test_texts_can_have_a_bias(native, biases):
    plain = native.post("/completion", json={"prompt": "x", "n_predict": 1}).json()["content"]
    asked = {"prompt": "x", "n_predict": 1, "logit_bias": biases, "temperature": 0}
    assert plain == "H"
    assert native.post("/completion", json=asked).json()["content"] != plain


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_grammars_are_gbnf_and_schemas_have_a_field(native, path):
    def text(**fields):
        asked = {"prompt": "x", "n_predict" if path == "/completion" else "max_tokens": 12, **fields}
        answer = native.post(path, json=asked)
        assert answer.status_code == 200, answer.text
        return answer.json()["content"] if path == "/completion" else answer.json()["choices"][0]["text"]

    assert text(grammar='root ::= "a"{5,5}') == "aaaaa"
    assert json.loads(text(json_schema={"const": "42"})) == "42"
    wrong = native.post(path, json={"prompt": "x", "grammar": "root ::= (not"})
    assert wrong.status_code == 400
    assert wrong.json()["error"]["param"] == "grammar"


@pytest.mark.parametrize(
    "field",
    [{"mirostat": 2}, {"dry_multiplier": 0.8}, {"xtc_probability": 0.5}, {"typical_p": 0.9}],
)
@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1/chat/completions"])
def test_samplers_that_are_missing_are_refused_unless_they_are_off(native, path, field):
    ((name, _),) = field.items()
    asked = {"messages": [{"role": "user", "content": "x"}]} if "chat" in path else {"prompt": "x"}
    asked["n_predict"] = 1
    off = {
        "mirostat": 0,
        "mirostat_tau": 5.0,
        "mirostat_eta": 0.1,
        "dry_multiplier": 0.0,
        "dry_base": 1.75,
        "xtc_probability": 0,
        "typical_p": 1.0,
        "typ_p": 1.0,
        "top_n_sigma": -1,
        "dynatemp_range": 0,
        "samplers": ["top_k", "temperature"],
        "min_keep": 0,
        "repeat_last_n": 64,
        "repeat_penalty": 1.0,
    }
    plain = native.post(path, json=asked).json()["choices" if "v1" in path else "content"]
    taken = native.post(path, json={**asked, **off})
    assert taken.status_code == 200, taken.text
    assert taken.json()["choices" if "v1" in path else "content"] == plain
    answer = native.post(path, json={**asked, **field})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == name
    assert "leave it out, or give" in answer.json()["error"]["message"]


def test_llama_servers_penalty_is_that_of_the_library(native):
    chat = {"messages": [{"role": "user", "content": "x"}], "n_predict": 1}
    wrong = {
        "repeat_last_n": {"repeat_penalty": 1.1, "repeat_last_n": 64},
        "repeat_penalty": {"repeat_penalty": 1.1, "repetition_penalty": 1.2},
    }
    for param, fields in wrong.items():
        answer = native.post("/v1/chat/completions", json={**chat, **fields})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    for fields in ({"repeat_penalty": 1.1, "repeat_last_n": -1}, {"repeat_penalty": 1.1, "repeat_last_n": 0}):
        assert native.post("/v1/chat/completions", json={**chat, **fields}).status_code == 200
    limits = RequestLimits()
    body = ChatRequest.model_validate({**chat, "repeat_penalty": 1.1})
    assert engine_options(body, limits)["repetition_penalty"] == 1.1
    body = ChatRequest.model_validate({**chat, "repeat_penalty": 1.1, "repeat_last_n": 0})
    assert "repetition_penalty" not in engine_options(body, limits)


def test_a_request_without_a_model_means_the_first_one(native):
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    assert native.post("/v1/chat/completions", json=chat).json()["model"] == "mock"
    assert native.post("/v1/completions", json={"prompt": "x", "model": None}).json()["model"] == "mock"
    missing = native.post("/v1/rerank", json={"query": "x", "documents": ["y"]})
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "model")


def test_the_tokens_of_a_conversation_are_counted(native):
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    prompt = native.post("/apply-template", json=chat).json()["prompt"]
    ids = native.post("/tokenize", json={"content": prompt}).json()["tokens"]
    assert native.post("/v1/chat/completions/input_tokens", json=chat).json()["input_tokens"] == len(ids)


def test_properties_and_slots(native):
    props = native.get("/props").json()
    assert props["model_path"].endswith(".gguf")
    assert props["default_generation_settings"]["n_ctx"] > 0
    slots = native.get("/slots").json()
    assert len(slots) == props["total_slots"]
    assert not any(slot["is_processing"] for slot in slots)


def test_errors_have_the_types_of_llama_server_on_its_paths(native):
    long = {"prompt": "x" * 100_000}
    error = native.post("/completion", json=long).json()["error"]
    assert error["type"] == "exceed_context_size_error"
    assert error["n_prompt_tokens"] > error["n_ctx"] > 0
    assert "exceeds the available context size" in error["message"]
    assert f"maximum context length is {error['n_ctx']} tokens" in error["message"]
    assert native.post("/v1/completions", json=long).json()["error"]["type"] == "invalid_request_error"


def test_the_first_chunk_has_the_text_of_its_protocol(native):
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "stream": True}
    openai, llama = (
        events_of(native.post(path, json=chat))[0]["choices"][0]["delta"]
        for path in ("/v1/chat/completions", "/chat/completions")
    )
    assert (openai["content"], llama["content"]) == ("", None)


def test_chunks_of_a_chat_have_timings_on_demand(native):
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "stream": True}
    found = events_of(native.post("/v1/chat/completions", json={**chat, "timings_per_token": True}))
    assert [one["timings"]["predicted_n"] for one in found if "timings" in one][:3] == [1, 2, 3]


@pytest.fixture(scope="module")
def hello():
    with serving() as server, httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def test_a_last_message_of_the_assistant_is_continued(hello):
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well, Whill"}]

    def prompt(path, **more):
        answer = hello.post(path, json={"messages": said, "verbose": True, "max_tokens": 3, **more})
        assert answer.status_code == 200, answer.text
        return answer.json()["__verbose"]["prompt"]

    assert prompt("/chat/completions").endswith("Whill")
    assert not prompt("/chat/completions", continue_final_message=False).endswith("Whill")
    assert not prompt("/v1/chat/completions").endswith("Whill")
    shown = hello.post("/apply-template", json={"messages": said}).json()["prompt"]
    assert shown == prompt("/chat/completions")
    twice = hello.post("/chat/completions", json={"messages": [*said, said[-1]]})
    assert (twice.status_code, twice.json()["error"]["param"]) == (400, "messages[2]")


def test_models_are_loaded_and_unloaded_by_name(web):
    def status():
        (model,) = web.get("/models").json()["data"]
        return model["status"]["value"]

    web.post("/tokenize", json={"content": "a"})
    assert status() == "loaded"
    again = web.post("/models/load", json={"model": "mock"})
    assert (again.status_code, again.json()["error"]["message"]) == (400, "mock is loaded")
    assert web.post("/models/unload", json={"model": "mock"}).json() == {"success": True}
    assert status() == "unloaded"
    assert web.post("/models/unload", json={"model": "mock"}).status_code == 400
    assert web.post("/models/load", json={"model": "mock"}).json() == {"success": True}
    for _ in range(200):
        if status() == "loaded":
            break
        time.sleep(0.02)
    assert status() == "loaded"
    assert web.post("/models/load", json={"model": "other"}).status_code == 404


def test_models_say_their_limits(web):
    (model,) = web.get("/v1/models").json()["data"]
    assert model["max_model_len"] == web.get("/props").json()["default_generation_settings"]["n_ctx"]
    assert model["context_length"] == model["max_input_tokens"] == model["max_model_len"]
    assert (model["root"], model["parent"]) == ("llama.gguf", None)


def test_models_that_are_not_loaded_say_what_a_request_would_get():
    with serving(cells=32) as server, httpx.Client(base_url=server.url) as client:
        (model,) = client.get("/v1/models").json()["data"]
        (own,) = client.get("/stretto/models").json()["models"]
    assert model["status"]["value"] == "unloaded"
    found = {model[name] for name in ("context_length", "max_input_tokens", "max_model_len")}
    assert found == {own["context_length"]} == {32}


def test_vllms_clients_tokenize_prompts_and_conversations(native):
    ids = native.post("/tokenize", json={"content": "Say", "add_special": True}).json()["tokens"]
    n_ctx = native.get("/props").json()["default_generation_settings"]["n_ctx"]
    found = native.post("/tokenize", json={"prompt": "Say"}).json()
    assert found == {"count": len(ids), "max_model_len": n_ctx, "tokens": ids, "token_strs": None}
    bare = {"prompt": "Say", "add_special_tokens": False, "return_token_strs": True}
    assert "".join(native.post("/tokenize", json=bare).json()["token_strs"]) == "Say"
    chat = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Sure,"}]}
    begins = [{"add_generation_prompt": False}, {"add_generation_prompt": True}]
    for ending in (*begins, {"continue_final_message": True}):
        prompt = native.post("/apply-template", json={**chat, **ending}).json()["prompt"]
        ids = native.post("/tokenize", json={"content": prompt}).json()["tokens"]
        assert native.post("/tokenize", json={**chat, **ending}).json()["tokens"] == ids
    assert native.post("/detokenize", json={"tokens": ids}).json()["prompt"] == prompt
    for wrong in ({}, {"prompt": "a", "content": "b"}, {"messages": []}):
        assert native.post("/tokenize", json=wrong).status_code == 400

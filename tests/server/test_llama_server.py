"""llama-server's endpoints: tokens, and texts between two others."""

import json

import httpx
import ollama
import pytest

from serving import serving
from stretto.llm import LLM
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
    assert web.post("/detokenize", json={"tokens": tokens}).json() == {"content": "hello ☃ <|fim_middle|>"}
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
    client._client.close()
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

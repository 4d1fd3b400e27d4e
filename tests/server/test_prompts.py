"""Prompts of `/v1/completions`: mixtures of texts and ids, gaps to fill; and how a chat's prompt ends."""

import pytest

from serving import HELLO, serving, visiting
from stretto.llm import LLM
from stretto.testing import CHAT_TEMPLATE, END, MockBackend, byte_tokenizer
from stretto.text.template import ChatTemplate

FILLS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
TEXT = {"model": "mock", "max_tokens": 4, "return_token_ids": True}
TALK = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello wor"}]


def filler(entry):
    """A model whose vocabulary has the tokens that mark a gap."""
    tokenizer = byte_tokenizer(("<|start|>", END, *FILLS))
    script = [*tokenizer.encode("a + b"), tokenizer.eos_id]
    template = ChatTemplate(CHAT_TEMPLATE, tokenizer.specials)
    return LLM(MockBackend(script, tokenizer.n_vocab), tokenizer, template)


@pytest.fixture(scope="module")
def server():
    with serving(filler) as running:
        yield running


def prompts(web, prompt, **more):
    answer = web.post("/v1/completions", json={**TEXT, "prompt": prompt, **more})
    assert answer.status_code == 200, answer.text
    return [choice["prompt_token_ids"] for choice in answer.json()["choices"]]


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ([65, "BC", 68], [[65, 66, 67, 68]]),
        (["AB", 67], [[65, 66, 67]]),
        (["AB", [67, 68]], [[65, 66], [67, 68]]),
        ([["A", 66], "C", [68]], [[65, 66], [67], [68]]),
        (["<|start|>", 65], [[256, 65]]),
    ],
)
def test_texts_and_ids_may_be_mixed(web, prompt, ids):
    assert prompts(web, prompt) == ids


def test_a_mixture_may_be_echoed_with_logprobs(web):
    asked = {**TEXT, "prompt": [65, "BC"], "echo": True, "logprobs": 1, "max_tokens": 0}
    choice = web.post("/v1/completions", json={**asked, "return_token_ids": None}).json()["choices"][0]
    assert (choice["text"], choice["logprobs"]["tokens"]) == ("ABC", ["A", "B", "C"])


def test_the_sampled_token_is_always_among_the_logprobs(web):
    for asked, most in ((0, 1), (2, 3)):
        answer = web.post("/v1/completions", json={**TEXT, "prompt": "A", "logprobs": asked}).json()
        logprobs = answer["choices"][0]["logprobs"]
        for token, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True):
            assert token in top
            assert max(1, asked) <= len(top) <= most


def test_a_gap_is_filled(web):
    asked = {**TEXT, "prompt": "x = ", "suffix": "\n", "max_tokens": 9, "temperature": 0}
    choice = web.post("/v1/completions", json=asked).json()["choices"][0]
    assert choice["prompt_token_ids"] == [258, *b"x = ", 259, *b"\n", 260]
    assert choice["text"] == "a + b"
    assert prompts(web, "x = ", suffix="") == [list(b"x = ")]


@pytest.mark.parametrize(("more", "param"), [({"prompt": [65]}, "suffix"), ({"echo": True}, "echo")])
def test_a_gap_is_between_texts(web, more, param):
    answer = web.post("/v1/completions", json={**TEXT, "prompt": "x", "suffix": "y", **more})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_the_last_message_is_continued_where_that_is_asked_for():
    with visiting() as (_, web):

        def chat(**more):
            asked = {"model": "mock", "messages": TALK, "temperature": 0, "return_token_ids": True, **more}
            return web.post("/v1/chat/completions", json=asked).json()

        (choice,) = chat(continue_final_message=True, add_generation_prompt=False)["choices"]
        assert choice["message"]["content"] == HELLO.removeprefix("Hello wor")
        assert bytes(choice["prompt_token_ids"][-9:]) == b"Hello wor"
        (choice,) = chat()["choices"]
        assert choice["message"]["content"] == HELLO
        assert chat(add_generation_prompt=False)["choices"][0]["prompt_token_ids"][-1] == 257  # the end
        both = chat(continue_final_message=True, add_generation_prompt=True)
        assert both["error"]["param"] == "add_generation_prompt"
        other = chat(messages=TALK[:1], continue_final_message=True)
        assert other["error"]["param"] == "messages"

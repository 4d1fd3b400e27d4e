"""Models that think, in the terminal: the answer on stdout, the reasoning on stderr or nowhere."""

import json

import pytest

from stretto.cli.generation import template_arguments
from stretto.errors import InvalidRequest
from thinking import KINDS, make

KIND = KINDS["qwen3"]
RUN = ("run", "--model", "mock.gguf", "--chat", "--temperature", "0")


def test_the_answer_alone_is_on_stdout(cli):
    code, output, errors = cli(*RUN, "Is it?", llm=make("qwen3"))
    assert (code, output, errors) == (0, KIND.text + "\n", "")


def test_reasoning_is_shown_on_demand(cli):
    code, output, errors = cli(*RUN, "--reasoning", "Is it?", llm=make("qwen3"))
    assert (code, output, errors) == (0, KIND.text + "\n", KIND.reasoning + "\n\n")


def test_json_has_both(cli):
    document = json.loads(cli(*RUN, "--json", "Is it?", llm=make("qwen3"))[1])
    assert (document["text"], document["reasoning"]) == (KIND.text, KIND.reasoning)
    assert document["usage"]["reasoning_tokens"] > 0


def test_a_raw_prompt_is_continued_as_it_is(cli):
    code, output, _ = cli(*RUN, "--raw", "Is it?", llm=make("qwen3"))
    assert (code, output) == (0, KIND.says + "\n")


def test_template_arguments_reach_the_template(cli):
    llm = make("qwen3", "Yes.")
    assert cli(*RUN, "--template-arg", "enable_thinking=false", "Is it?", llm=llm)[:2] == (0, "Yes.\n")
    assert llm.tokenizer.decode(llm.backend.batches[0]).endswith("<think>\n\n</think>\n\n")
    code, _, errors = cli(*RUN, "--template-arg", "thinkin=1", "Is it?", llm=make("qwen3"))
    assert (code, "reads no variable 'thinkin'" in errors) == (2, True)
    code, _, errors = cli(*RUN, "--raw", "--template-arg", "a=1", "Is it?", llm=make("qwen3"))
    assert (code, "--template-arg is for a chat" in errors) == (2, True)


def test_a_chat_keeps_the_reasoning_for_the_template(cli, tmp_path):
    path = tmp_path / "chat.json"
    llm = make("qwen3")
    lines = f"Is it?\n/save {path}\n".encode()
    code, output, _ = cli("chat", "--model", "mock.gguf", "--temperature", "0", llm=llm, stdin=lines)
    assert (code, output) == (0, KIND.text + "\n")
    turn = json.loads(path.read_text())["messages"][-1]
    assert turn == {"role": "assistant", "content": KIND.text, "reasoning_content": KIND.reasoning}
    again = cli("chat", "--model", "mock.gguf", "--load", path, llm=make("qwen3"), stdin=b"And now?\n")
    assert again[0] == 0


def test_a_chat_takes_template_arguments(cli):
    llm = make("qwen3", "Yes.")
    options = ("--template-arg", '{"enable_thinking": false}', "--temperature", "0")
    assert cli("chat", "--model", "mock.gguf", *options, llm=llm, stdin=b"Is it?\n")[:2] == (0, "Yes.\n")


def test_arguments_are_json_or_text():
    given = ["a=1", "b=true", "c=high", 'd="x"', "e=", '{"f": [1, 2]}', "g=a=b"]
    expected = {"a": 1, "b": True, "c": "high", "d": "x", "e": "", "f": [1, 2], "g": "a=b"}
    assert template_arguments(given) == expected
    for wrong in ("alone", "=1", "{broken"):
        with pytest.raises(InvalidRequest, match="--template-arg"):
            template_arguments([wrong])

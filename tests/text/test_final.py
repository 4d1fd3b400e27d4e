"""Conversations that end within a message of the assistant."""

import pytest

from stretto.errors import InvalidRequest
from stretto.testing import mock_llm
from thinking import make

TALK = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One, two, "}]


def test_the_prompt_ends_with_the_text():
    with mock_llm("x") as llm:
        ids = llm.chat_prompt(TALK, continue_final=True)
        begun = llm.chat_prompt(TALK[:1])
        assert ids == [*begun, *llm.tokenizer.encode("One, two, ")]


def test_reasoning_is_written_as_the_template_has_it():
    with make("qwen3") as llm:
        ids = llm.chat_prompt([TALK[0], {**TALK[1], "reasoning_content": "Hm."}], continue_final=True)
        written = llm.tokenizer.decode(ids, special=True)
    assert written.endswith("<|im_start|>assistant\n<think>\nHm.\n</think>\n\nOne, two, ")


def test_an_answer_goes_on_behind_its_reasoning():
    with make("qwen3", "three.") as llm:
        ids = llm.chat_prompt(TALK, continue_final=True)
        result = llm.generate(ids, temperature=0, reasoning=True)
    assert (result.text, result.reasoning) == ("three.", "")


def test_reasoning_without_an_answer_goes_on():
    begun = {"role": "assistant", "content": "", "reasoning_content": "Let me"}
    with make("qwen3", " see.\n</think>\n\nThree.") as llm:
        ids = llm.chat_prompt([TALK[0], begun], continue_final=True)
        written = llm.tokenizer.decode(ids, special=True)
        result = llm.generate(ids, temperature=0, reasoning=True)
    assert written.endswith("<|im_start|>assistant\n<think>\nLet me")
    assert (result.text, result.reasoning) == ("Three.", " see.")


@pytest.mark.parametrize(
    "messages",
    [
        [],
        TALK[:1],
        [TALK[0], {"role": "assistant", "content": None}],
        [TALK[0], {**TALK[1], "tool_calls": [{"function": {"name": "x", "arguments": {}}}]}],
    ],
)
def test_other_ends_cannot_be_continued(messages):
    with mock_llm("x") as llm, pytest.raises(InvalidRequest, match="cannot be continued"):
        llm.chat_prompt(messages, continue_final=True)

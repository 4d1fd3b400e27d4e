"""The mock model that users test with: it answers by what is asked."""

import pytest

from stretto import InvalidRequest
from stretto.testing import mock_llm

ANSWERS = {"time": "It is noon.", "weather": "What a time for a walk!"}


def said(llm, *turns):
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]
    return llm.chat(messages, temperature=0).text


def test_answers_go_by_the_last_message():
    llm = mock_llm(ANSWERS)
    assert said(llm, "What time is it?") == "It is noon."
    assert said(llm, "How is the weather?") == "What a time for a walk!"
    assert said(llm, "What time is it?", "It is noon.", "And the weather?") == "What a time for a walk!"


def test_answers_to_texts_and_to_anything():
    llm = mock_llm({"one": "two", "": "Hm?"})
    assert llm.generate("one, ", temperature=0).text == "two"
    assert llm.generate("three, ", temperature=0).text == "Hm?"


def test_a_prompt_without_an_answer_is_named():
    with pytest.raises(InvalidRequest, match=r"no answer of the mock fits .*Who"):
        said(mock_llm(ANSWERS), "Who?")

"""`continues`: the last tokens of a prompt are the start of the answer."""

import pytest

from stretto import InvalidRequest
from stretto.testing import mock_llm
from thinking import KINDS, make

GREEDY = {"temperature": 0}


def test_an_answer_goes_on_where_it_was_cut():
    llm = mock_llm("Hello world")
    whole = llm.generate("Say: ", **GREEDY)
    prompt = llm.tokenizer.encode("Say: ")
    rest = llm.generate([*prompt, *whole.tokens[:5]], continues=5, **GREEDY)
    assert rest.text == " world"
    assert rest.tokens == whole.tokens[5:]
    assert rest.usage.prompt_tokens == len(prompt) + 5


def test_penalties_count_the_start_as_generated():
    llm = mock_llm(lambda seen: [9.0 if t == 97 else 8.0 if t == 98 else 0.0 for t in range(258)])
    start = list(b"x")
    assert llm.generate([*start, 97, 97], presence_penalty=2.0, max_tokens=1, **GREEDY).text == "a"
    assert llm.generate([*start, 97], continues=1, presence_penalty=2.0, max_tokens=1, **GREEDY).text == "b"


def test_the_start_of_an_answer_may_lie_before_its_new_tokens():
    kind = KINDS["qwen3"]
    llm = make("qwen3")
    prompt = llm.chat_prompt([{"role": "user", "content": "Hi"}])
    whole = llm.generate(prompt, reasoning=True, **GREEDY)
    n = whole.answer_start + 2
    rest = llm.generate([*prompt, *whole.tokens[:n]], continues=n, reasoning=True, **GREEDY)
    assert (rest.reasoning, rest.answer_start) == ("", whole.answer_start - n)
    assert kind.text.endswith(rest.text)


@pytest.mark.parametrize(
    ("options", "param"), [({"continues": 5}, "continues"), ({"continues": -1}, "continues")]
)
def test_a_prompt_has_to_stand_before_it(options, param):
    with pytest.raises(InvalidRequest) as caught:
        mock_llm("x").generate("Say: ", **options)
    assert caught.value.param == param


def test_beams_start_behind_their_prompt():
    with pytest.raises(InvalidRequest, match="beams"):
        mock_llm("x").generate("Say: ", continues=1, beams=2)

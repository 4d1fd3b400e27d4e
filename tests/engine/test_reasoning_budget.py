"""A bound on the reasoning: it is closed behind so many tokens, and the answer follows."""

import pytest

from stretto import Grammar, InvalidRequest
from stretto.testing import mock_llm
from thinking import HELLO, KINDS, make

GREEDY = {"temperature": 0, "max_tokens": 200}


def endless(name):
    """A model that thinks until somebody else closes its reasoning, and says Yes then."""
    held = {}

    def script(seen):
        llm, said = held["llm"], seen[len(held["prompt"]) :]
        closing, tokenizer = llm.engine.reasoning.closing, llm.tokenizer
        opening = tokenizer.encode(KINDS[name].says.partition("Hm")[0], special=True, bos=False)
        ends = [i for i in range(len(said)) if said[i : i + len(closing)] == closing]
        if ends:
            answer = [*tokenizer.encode("Yes"), tokenizer.eos_id]
            return answer[min(len(said) - ends[0] - len(closing), len(answer) - 1)]
        return opening[len(said)] if len(said) < len(opening) else tokenizer.encode("h")[0]

    llm = make(name, script)
    held |= {"llm": llm, "prompt": llm.chat_prompt(HELLO)}
    return llm


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("budget", [0, 1, 20])
def test_reasoning_is_closed(name, budget):
    with endless(name) as llm:
        free = llm.chat(HELLO, **GREEDY)
        assert (free.text, free.finish_reason) == ("", "length")
        result = llm.chat(HELLO, reasoning_budget=budget, **GREEDY)
        assert (result.text.strip(), result.finish_reason) == ("Yes", "stop")
        assert len(result.reasoning.strip()) <= budget
        assert budget < 20 or set(result.reasoning.strip()) == {"h"}
        stream = llm.chat(HELLO, reasoning_budget=budget, stream=True, **GREEDY)
        said = "".join(token.text for token in stream if not token.is_reasoning)
        assert (said, stream.result.tokens) == (result.text, result.tokens)


@pytest.mark.parametrize("name", KINDS)
def test_a_large_budget_changes_nothing(name):
    with make(name) as llm:
        plain = llm.chat(HELLO, **GREEDY)
        bound = llm.chat(HELLO, reasoning_budget=1000, **GREEDY)
        assert (bound.tokens, bound.text, bound.reasoning) == (plain.tokens, plain.text, plain.reasoning)


@pytest.mark.parametrize("options", [{"n": 2}, {"beams": 2}, {"draft": "lookup"}, {"logprobs": 1}])
def test_every_way_to_generate_keeps_the_budget(options):
    asked = {"max_tokens": 200} if "beams" in options else GREEDY
    with endless("qwen3") as llm:
        prompt = llm.chat_prompt(HELLO)
        found = llm.generate(prompt, reasoning=True, reasoning_budget=9, **options, **asked)
        for result in found if isinstance(found, list) else [found]:
            assert (result.text, result.reasoning.strip()) == ("Yes", "h" * 8)  # and a line break


def test_a_grammar_follows_the_reasoning():
    with endless("qwen3") as llm:
        result = llm.chat(HELLO, reasoning_budget=5, grammar=Grammar.choices(["No", "Yes"]), **GREEDY)
        assert (result.text, result.reasoning.strip()) == ("Yes", "hhhh")  # and a line break


def test_a_model_that_does_not_think_keeps_any_budget():
    assert mock_llm("Hi").chat(HELLO, reasoning_budget=5).text == "Hi"


@pytest.mark.parametrize("wrong", [{"reasoning_budget": -1}, {"reasoning_budget": 5, "reasoning": False}])
def test_what_is_wrong_is_named(wrong):
    with pytest.raises(InvalidRequest, match="reasoning_budget"):
        mock_llm("Hi").chat(HELLO, **wrong)

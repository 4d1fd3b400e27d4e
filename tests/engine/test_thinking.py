"""Models that think: the reasoning beside the answer, whole and streamed, with all that ends a text."""

import asyncio
import json

import numpy as np
import pytest

import stretto
from stretto import Grammar, InvalidRequest
from thinking import GREEDY, HELLO, KINDS, make

SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
SCHEMA["additionalProperties"] = False


@pytest.mark.parametrize("name", KINDS)
def test_reasoning_and_answer_come_apart(name):
    kind, llm = KINDS[name], make(name)
    result = llm.chat(HELLO, **GREEDY)
    assert (result.reasoning, result.text) == (kind.reasoning, kind.text)
    assert (result.finish_reason, str(result)) == ("stop", kind.text)
    answer = llm.tokenizer.decode(result.tokens[result.answer_start :])
    assert (kind.text in answer, "Hm" in answer) == (True, False)
    assert 15 <= result.usage.reasoning_tokens < result.usage.completion_tokens


@pytest.mark.parametrize("name", KINDS)
def test_streamed_tokens_say_what_they_are(name):
    kind, llm = KINDS[name], make(name)
    stream = llm.chat(HELLO, stream=True, **GREEDY)
    tokens = list(stream)
    assert "".join(token.text for token in tokens if token.is_reasoning) == kind.reasoning
    assert "".join(token.text for token in tokens if not token.is_reasoning) == kind.text
    kinds = [token.is_reasoning for token in tokens if token.text]
    assert kinds == sorted(kinds, reverse=True)  # all of the reasoning comes first
    assert (stream.text, stream.result.reasoning) == (kind.text, kind.reasoning)
    assert [token.id for token in tokens if token.id is not None][:-1] == stream.result.tokens


@pytest.mark.parametrize("name", ["qwen3", "gpt-oss", "smollm3"])
def test_the_text_as_it_is(name):
    kind, llm = KINDS[name], make(name)
    raw = llm.chat(HELLO, reasoning=False, **GREEDY)
    spelled = llm.tokenizer.decode(raw.tokens)
    assert (raw.text, raw.reasoning, raw.answer_start) == (spelled, "", 0)
    assert llm.generate(llm.chat_prompt(HELLO), **GREEDY).text == spelled  # generate tells nothing apart
    result = llm.generate(llm.chat_prompt(HELLO), reasoning=True, **GREEDY)
    assert (result.reasoning, result.text) == (kind.reasoning, kind.text)
    assert result.tokens == raw.tokens


def test_asyncio_batches_and_beams():
    kind, llm = KINDS["qwen3"], make("qwen3")
    expected = (kind.reasoning, kind.text)
    result = asyncio.run(llm.achat(HELLO, **GREEDY))
    assert (result.reasoning, result.text) == expected
    for found in (
        llm.chat(HELLO, n=2, **GREEDY),
        llm.chat(HELLO, beams=2, n=2)[:1],
        [llm.chat(HELLO, draft="lookup", **GREEDY)],
        llm.generate([llm.chat_prompt(HELLO)] * 2, reasoning=True, **GREEDY),
    ):
        assert {(one.reasoning, one.text) for one in found} == {expected}
    prompt = llm.sequence(llm.chat_prompt(HELLO))
    assert llm.chat(prompt, max_tokens=10, **GREEDY).text == ""
    rest = llm.chat(prompt, **GREEDY)  # in the middle of its reasoning
    assert (kind.reasoning.endswith(rest.reasoning), rest.text) == (True, kind.text)


@pytest.mark.parametrize("name", ["qwen3", "qwen3.5", "gpt-oss"])
def test_an_end_within_the_reasoning(name):
    llm = make(name)
    result = llm.chat(HELLO, max_tokens=17, **GREEDY)
    assert (result.text, result.finish_reason, len(result.tokens)) == ("", "length", 17)
    assert KINDS[name].reasoning.startswith(result.reasoning)
    assert len(result.reasoning) >= 5
    stopped = llm.chat(HELLO, callback=lambda token: "3" not in token.text, **GREEDY)
    assert (stopped.reasoning, stopped.text, stopped.stop_reason) == ("Hm < 3", "", "callback")


def test_no_reasoning_at_all():
    llm = make("qwen3", "Just yes.")
    result = llm.chat(HELLO, **GREEDY)
    assert (result.text, result.reasoning, result.usage.reasoning_tokens) == ("Just yes.", "", 0)
    empty = make("qwen3", "<think>\n\n</think>\n\nYes.").chat(HELLO, **GREEDY)
    assert (empty.text, empty.reasoning) == ("Yes.", "")
    assert "reasoning_content" not in empty.message


def test_stops_look_at_the_answer_alone():
    llm = make("qwen3")
    result = llm.chat(HELLO, stop=["yes", "Yes > n"], **GREEDY)
    assert (result.reasoning, result.text, result.stop_reason) == (KINDS["qwen3"].reasoning, "", "Yes > n")
    seen = []
    llm.chat(HELLO, stop=lambda text: seen.append(text), **GREEDY)
    assert seen[-1] == KINDS["qwen3"].text
    assert "Hm" not in "".join(seen)


def test_log_probabilities_have_an_entry_for_each_token():
    llm = make("smollm3")  # whose markers are made of many tokens
    result = llm.chat(HELLO, logprobs=2, **GREEDY)
    assert [token.id for token in result.logprobs][:-1] == result.tokens
    assert "".join(token.text for token in result.logprobs if not token.is_reasoning) == result.text


def test_one_token_that_ends_the_reasoning_and_starts_the_answer():
    llm = make(KINDS["smollm3"]._replace(user=("m</", ">Ye")), "<think>Hm</think>Yes")
    stream = llm.chat(HELLO, stream=True, **GREEDY)
    tokens = [token for token in stream if token.text]
    assert [(token.text, token.is_reasoning) for token in tokens] == [
        ("H", True),
        ("m", True),
        ("Ye", False),
        ("s", False),
    ]
    both = make(KINDS["smollm3"]._replace(user=("m</think>Ye",)), "<think>Hm</think>Yes")
    tokens = [token for token in both.chat(HELLO, stream=True, **GREEDY) if token.text]
    assert [(token.text, token.is_reasoning, token.id is None) for token in tokens] == [
        ("H", True, False),
        ("m", True, True),
        ("Ye", False, False),
        ("s", False, False),
    ]


# -- template arguments --


def test_arguments_reach_the_template():
    llm = make("qwen3", "Yes.")
    off = llm.chat_prompt(HELLO, template={"enable_thinking": False})
    assert llm.tokenizer.decode(off).endswith("<think>\n\n</think>\n\n")
    options = stretto.Options(template={"enable_thinking": False}, **GREEDY)
    for result in (
        llm.chat(HELLO, template={"enable_thinking": False}, **GREEDY),
        llm.chat(HELLO, options),
        llm.chat(HELLO, stream=True, template={"enable_thinking": False}, **GREEDY).result,
        asyncio.run(llm.achat(HELLO, options)),
        asyncio.run(llm.achat(HELLO, template={"enable_thinking": False}, **GREEDY)),
    ):
        assert (result.usage.prompt_tokens, result.text) == (len(off), "Yes.")
    on = llm.chat(HELLO, options, template={"enable_thinking": True})
    assert on.usage.prompt_tokens == len(llm.chat_prompt(HELLO))
    gpt_oss = make("gpt-oss")
    prompt = gpt_oss.chat_prompt(HELLO, template={"reasoning_effort": "high"})
    assert gpt_oss.tokenizer.decode(prompt).startswith("<|start|>system<|message|>Reasoning: high<|end|>")


def test_wrong_arguments_are_refused():
    llm = make("qwen3")
    with pytest.raises(InvalidRequest, match="reads no variable 'enable_thinkin'; did you mean 'enable_th"):
        llm.chat(HELLO, template={"enable_thinkin": False})
    with pytest.raises(InvalidRequest, match="reads no variable 'messages'"):
        llm.chat(HELLO, template={"messages": []})
    with pytest.raises(InvalidRequest, match="template must be a mapping"):
        llm.chat(HELLO, template="enable_thinking")
    with pytest.raises(InvalidRequest, match="template must be a mapping"):
        stretto.Options(template=["enable_thinking"])
    with pytest.raises(InvalidRequest, match="template is for chat"):
        llm.generate("Hi", stretto.Options(template={"enable_thinking": False}))
    with pytest.raises(InvalidRequest, match="a sequence is continued as it is"):
        llm.chat(llm.sequence("Hi"), template={"enable_thinking": False})
    with pytest.raises(InvalidRequest, match="reasoning must be True or False, not 'raw'"):
        llm.chat(HELLO, reasoning="raw")
    with pytest.raises(InvalidRequest, match=r"llm\.parallel and reasoning do not go together"):
        llm.parallel("Hi", reasoning=True)


@pytest.mark.parametrize(
    ("name", "think", "arguments"),
    [
        ("qwen3", False, {"enable_thinking": False}),
        ("qwen3", "none", {"enable_thinking": False}),
        ("qwen3", "high", {"enable_thinking": True}),
        ("granite", True, {"thinking": True}),
        ("gpt-oss", "low", {"reasoning_effort": "low"}),
        ("kimi k3", "none", {"thinking": False}),
        ("seed budget", False, {"thinking_budget": 0}),
        ("seed budget", True, {}),
        ("gpt-oss", True, {}),
        ("r1", True, {}),
    ],
)
def test_thinking_is_set_by_the_names_of_the_template(name, think, arguments):
    kind = KINDS[name.removesuffix(" budget")]
    if name.endswith(" budget"):
        kind = kind._replace(template=kind.template + "{{ thinking_budget or '' }}")
    assert make(kind).thinking(think) == arguments


@pytest.mark.parametrize(
    ("name", "think", "message"),
    [
        ("r1", False, "thinking cannot be turned off"),
        ("gpt-oss", False, "thinking cannot be turned off"),
        ("r1", "high", "the effort of thinking cannot be set"),
    ],
)
def test_thinking_that_cannot_be_set_is_refused(name, think, message):
    with pytest.raises(stretto.Unsupported, match=message):
        make(name).thinking(think)


@pytest.mark.parametrize(("name", "field"), [("qwen3", "reasoning_content"), ("gpt-oss", "thinking")])
def test_the_reasoning_of_earlier_turns_reaches_the_template(name, field):
    llm = make(name)
    answer = llm.chat(HELLO, **GREEDY).message
    assert answer["reasoning_content"] == KINDS[name].reasoning
    for given in ("reasoning_content", "reasoning", "thinking"):
        turn = {"role": "assistant", "content": answer["content"], given: "I wonder"}
        prompt = llm.chat_prompt([*HELLO, turn], add_generation_prompt=False)
        assert "I wonder" in llm.tokenizer.decode(prompt)


# -- grammars --


def noise(kind):
    """A model that says anything, the special tokens and markers included."""

    def script(seen):
        row = np.random.default_rng(len(seen)).standard_normal(n_vocab).astype(np.float32)
        row[256:] += 1.0
        return row

    n_vocab = 256 + 4 + len(kind.specials) + len(kind.user)
    return script


@pytest.mark.parametrize("name", ["qwen3", "qwen3.5", "exaone", "gpt-oss", "gemma4", "mistral", "kimi k3"])
@pytest.mark.parametrize("loop", ["plain", "draft", "logprobs", "beams"])
def test_a_grammar_constrains_the_answer(name, loop):
    kind = KINDS[name]
    says = kind.says.replace(kind.text, '{"ok": true}').replace("\n\n{", "{")
    llm = make(name, says)
    options = {"plain": GREEDY, "draft": {**GREEDY, "draft": "lookup"}, "logprobs": {**GREEDY, "logprobs": 1}}
    result = llm.chat(HELLO, grammar=SCHEMA, **options.get(loop, {"beams": 2}))
    assert (result.reasoning, json.loads(result.text)) == (kind.reasoning, {"ok": True})
    assert result.stop_reason == "grammar" or result.stop_reason in llm.tokenizer.end_ids


@pytest.mark.parametrize("name", ["qwen3", "qwen3.5", "gpt-oss", "gemma4", "smollm3"])
def test_whatever_the_model_does_the_answer_fits(name):
    llm = make(name, noise(KINDS[name]))
    answered = 0
    for seed in range(20):
        options = {"seed": seed, "temperature": 3.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        result = llm.chat(HELLO, grammar=SCHEMA, max_tokens=400, **options)
        if result.finish_reason == "stop":
            assert json.loads(result.text).keys() == {"ok"}
            answered += 1
    assert answered


def test_without_thinking_the_grammar_starts_at_once():
    llm = make("qwen3", noise(KINDS["qwen3"]))
    off = {"enable_thinking": False}
    result = llm.chat(HELLO, grammar=Grammar.choices(["yes", "no"]), template=off, seed=1)
    assert (result.reasoning, result.text in ("yes", "no")) == ("", True)
    raw = llm.chat(HELLO, grammar=Grammar.choices(["yes", "no"]), reasoning=False, seed=1)
    assert raw.text in ("yes", "no")


def test_a_short_token_opens_no_reasoning():
    kind = KINDS["qwen3"]._replace(user=("<t", "</think>"))
    llm = make(kind, "<tr>")
    result = llm.chat(HELLO, grammar=Grammar.choices(["<tr>", "<i>"]), **GREEDY)
    assert (result.text, result.reasoning) == ("<tr>", "")


def test_a_grammar_needs_a_token_that_closes_the_reasoning():
    kind = KINDS["qwen3.5"]._replace(user=())
    llm = make(kind)
    with pytest.raises(InvalidRequest, match="the vocabulary has no token that closes it; turn thinking off"):
        llm.chat(HELLO, grammar=SCHEMA)
    off = llm.chat(HELLO, grammar=Grammar.choices(["Hm"]), template={"enable_thinking": False})
    assert off.text == "Hm"

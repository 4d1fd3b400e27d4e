"""Reasoning is told apart from the answer, in every format, however the text is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import thinking
from stretto.text.reasoning import (
    ANSWER,
    FORMATS,
    REASONING,
    START,
    Splitter,
    block,
    find_format,
    find_reasoning,
)

THINK = block("<think>", "</think>")


def split(states, state, text, cuts=()):
    splitter = Splitter(states, state)
    pieces = []
    for begin, end in zip((0, *cuts), (*cuts, len(text)), strict=True):
        pieces += splitter.push(text[begin:end])
    pieces += splitter.flush()
    return tuple("".join(text for text, kind in pieces if kind is wanted) for wanted in (True, False))


@pytest.mark.parametrize(
    ("state", "text", "reasoning", "answer"),
    [
        (START, "<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
        (START, "\n<think>Hm.</think>Yes.\n", "Hm.", "Yes.\n"),
        (START, "<think>\n\n</think>\n\nYes.", "", "Yes."),
        (START, "  Yes. ", "", "  Yes. "),
        (START, "Use <think>, then </think>.", "", "Use <think>, then </think>."),
        (START, "<think>a</think>Use <think>b</think>", "a", "Use <think>b</think>"),
        (START, "<think>Hm", "Hm", ""),
        (START, "<think>Hm </thi", "Hm </thi", ""),
        (START, "<thi", "", "<thi"),
        (START, " \n", "", " \n"),
        (REASONING, "\nHm.</think>Yes.", "\nHm.", "Yes."),
        (REASONING, "</think>", "", ""),
        (ANSWER, "\nYes <think>", "", "\nYes <think>"),
    ],
)
def test_a_block_of_reasoning(state, text, reasoning, answer):
    for size in range(1, len(text) + 1):
        assert split(THINK, state, text, range(size, len(text), size)) == (reasoning, answer)


PARTS = ["<think>", "</think>", "<|channel|>", "analysis", "<|message|>", "<|end|>", "<", "a", " ", "\n", "é"]


@given(
    st.sampled_from([layout.states for layout in FORMATS] + [block("<<a", "a<")]),
    st.lists(st.sampled_from(PARTS), max_size=12).map("".join),
    st.data(),
)
def test_cuts_change_nothing(states, text, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    assert split(states, START, text, cuts) == split(states, START, text)


def test_a_copy_goes_its_own_way():
    splitter = Splitter(THINK, START)
    splitter.push("<think>one</th")
    twin = splitter.fork()
    assert splitter.push("ink>two") == [("two", False)]
    assert twin.push("at") == [("</that", True)]


@pytest.mark.parametrize("name", thinking.KINDS)
def test_the_format_is_found_by_the_template(name):
    expected = {"qwen3": "think", "qwen3.5": "think", "smollm3": "think", "exaone": "think", "r1": "think"}
    expected |= {"gpt-oss": "harmony", "gemma4": "gemma", "granite": "think, response"}
    expected |= {"hunyuan": "think, answer"}
    found = find_format(thinking.KINDS[name].template)
    assert found.name == expected.get(name, name)


def test_a_template_without_markers_has_no_reasoning():
    tokenizer = thinking.make("qwen3").tokenizer
    source = (thinking.FOLDER / "smollm2.jinja").read_text()
    assert find_reasoning(source, tokenizer) is None


@pytest.mark.parametrize(
    ("name", "arguments", "shows"),
    [
        ("qwen3", {}, "undecided"),
        ("qwen3", {"enable_thinking": False}, "answer"),
        ("qwen3.5", {}, "reasoning"),
        ("qwen3.5", {"enable_thinking": False}, "answer"),
        ("smollm3", {"enable_thinking": False}, "answer"),
        ("r1", {}, "reasoning"),
        ("gemma4", {}, "undecided"),
        ("gemma4", {"enable_thinking": False}, "answer"),
        ("gpt-oss", {}, "nothing"),
        ("kimi k3", {}, "reasoning"),
        ("kimi k3", {"thinking": False}, "answer"),
        ("seed, no budget", {}, "reasoning"),
        ("mistral", {}, "undecided"),
    ],
)
def test_the_prompt_says_whether_the_model_thinks_already(name, arguments, shows):
    kind = thinking.KINDS[name.split(",")[0]]
    if name == "seed, no budget":
        ending = "<seed:think><seed:cot_budget_reflect>"
        kind = kind._replace(
            template=kind.template + ending, specials=(*kind.specials, "<seed:cot_budget_reflect>")
        )
    llm = thinking.make(kind)
    reasoning = find_reasoning(kind.template, llm.tokenizer)
    # The markers in the user's message are text, and change nothing.
    assert reasoning.splitter(llm.chat_prompt(thinking.HELLO, template=arguments)).shows == shows


def test_a_text_that_is_continued_in_the_middle_of_reasoning():
    llm = thinking.make("qwen3")
    reasoning = find_reasoning(thinking.KINDS["qwen3"].template, llm.tokenizer)
    prompt = llm.chat_prompt(thinking.HELLO) + llm.tokenizer.encode("<think>\nWell")
    assert reasoning.splitter(prompt).push(" then</think> Yes") == [(" then", True), ("Yes", False)]


def test_special_tokens_may_interrupt_an_answer():
    said = "One.<|channel>thought\nHm.<channel|>Two."
    result = thinking.make("gemma4", said).chat(thinking.HELLO, temperature=0)
    assert (result.text, result.reasoning) == ("One.\n\nTwo.", "Hm.")
    off = thinking.make("gemma4", said).chat(
        thinking.HELLO, temperature=0, template={"enable_thinking": False}
    )
    assert (off.text, off.reasoning) == ("One.\n\nTwo.", "Hm.")

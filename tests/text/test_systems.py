"""System messages are never lost: a template that drops or refuses them gets them in the user's turn."""
# ruff: noqa: E501 (templates in one line)

import pytest

import vocabularies
from stretto.errors import InvalidRequest
from stretto.llm import LLM
from stretto.llm.prompts import fit_system
from stretto.testing import MockBackend
from stretto.text.bpe import BPETokenizer
from stretto.text.template import ChatTemplate

TAKES = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
DROPS = "{% for m in messages %}{% if m.role in ('user', 'assistant') %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"
REFUSES = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + TAKES
STRICT = "{% for m in messages %}{% if m.role not in ('user', 'system') %}{{ raise_exception('?') }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}"
SYSTEM = {"role": "system", "content": "Be brief."}
HELLO = {"role": "user", "content": "Hi"}


def rendered(source, messages):
    template = ChatTemplate(source, {})
    return template.render(fit_system(template, messages))


def test_a_template_that_takes_them_gets_them():
    assert rendered(TAKES, [SYSTEM, HELLO]) == "<system>Be brief.<user>Hi"


@pytest.mark.parametrize("source", [DROPS, REFUSES])
def test_a_template_that_does_not_gets_them_in_the_users_turn(source):
    assert rendered(source, [SYSTEM, HELLO]) == "<user>Be brief.\n\nHi"
    twice = [SYSTEM, {"role": "developer", "content": "Be kind."}, HELLO]
    assert rendered(source, twice) == "<user>Be brief.\n\nBe kind.\n\nHi"
    assert rendered(source, [SYSTEM]) == "<user>Be brief."
    parts = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
    (merged,) = fit_system(ChatTemplate(source, {}), [SYSTEM, parts])
    assert [part["text"] for part in merged["content"]] == ["Be brief.\n\n", "Hi"]


def test_developers_are_the_system_where_a_template_does_not_know_them():
    assert rendered(STRICT, [{**SYSTEM, "role": "developer"}, HELLO]) == "<system>Be brief.<user>Hi"


def test_templates_that_need_a_list_of_tools_render_without_any():
    source = "{% for t in tools %}{{ t.function.name }}{% endfor %}" + TAKES
    assert ChatTemplate(source, {}).render([HELLO]) == "<user>Hi"
    with pytest.raises(InvalidRequest, match="no system"):
        ChatTemplate("{{ tools.x }}" + REFUSES, {}).render([SYSTEM])


def test_the_template_for_tools_is_used_with_tools():
    tokenizer = BPETokenizer(vocabularies.metadata(vocabularies.bpe(specials=["<|im_end|>"])))
    calls = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}{% endfor %}"
    template = ChatTemplate(TAKES, tokenizer.specials, with_tools="{{ tools | tojson }}" + calls)
    said = tokenizer.encode('<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>')
    llm = LLM(MockBackend([*said, 0], tokenizer.n_vocab), tokenizer, template)
    result = llm.chat([HELLO], tools=[{"name": "now"}], temperature=0, max_tokens=len(said))
    assert [call.name for call in result.tool_calls] == ["now"]
    assert "now" in tokenizer.decode(llm.chat_prompt([HELLO], tools=[{"name": "now"}]))
    assert tokenizer.decode(llm.chat_prompt([HELLO])) == "<user>Hi"

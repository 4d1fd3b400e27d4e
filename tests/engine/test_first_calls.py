"""Calls that people try first: a text to chat with, an empty list, a long list with a bar."""

import asyncio
import subprocess
import sys

import pytest

from stretto import InvalidRequest
from stretto.testing import mock_llm


def test_a_text_is_one_message_of_the_user():
    llm = mock_llm({"Hello": "Hi!", "": "?"})
    messages = [{"role": "user", "content": "Hello"}]
    assert llm.chat_prompt("Hello") == llm.chat_prompt(messages)
    assert llm.chat("Hello", temperature=0).text == "Hi!"
    assert llm.chat("Hello", stream=True, temperature=0).result.text == "Hi!"
    assert asyncio.run(llm.achat("Hello", temperature=0)).text == "Hi!"
    with pytest.raises(InvalidRequest, match="is not a conversation"):
        llm.chat([])


def test_no_prompts_have_no_results():
    llm = mock_llm("Hi")
    assert llm.generate([]) == []
    assert llm.generate([], n=2, progress=True) == []
    assert asyncio.run(llm.agenerate([])) == []
    assert llm.parallel([]) == []
    with pytest.raises(InvalidRequest, match="temperature"):
        llm.generate([], temperature=-1)
    with pytest.raises(InvalidRequest, match="the prompt is empty"):
        llm.stream([])


@pytest.mark.parametrize("options", [{}, {"n": 2}, {"beams": 2}], ids=str)
def test_progress_is_shown_on_stderr_if_asked_for(capsys, options):
    llm = mock_llm("Hello")
    plain = llm.generate(["a", "b", "c"], seed=1, **options) if "beams" not in options else None
    assert capsys.readouterr() == ("", "")
    shown = llm.generate(["a", "b", "c"], progress=True, **({"seed": 1} if plain else {}), **options)
    captured = capsys.readouterr()
    n = 6 if "n" in options else 3
    assert captured.out == ""
    assert f"{n}/{n} texts" in captured.err
    assert "tokens" in captured.err
    assert len(shown) == 3
    if plain:
        assert [str(one) for one in shown] == [str(one) for one in plain]


def test_progress_is_true_or_false():
    with pytest.raises(InvalidRequest, match="progress must be True or False, not 'yes'"):
        mock_llm("Hello").generate(["a", "b"], progress="yes")


def test_progress_of_one_prompt_and_of_a_failure(capsys):
    llm = mock_llm("Hello")
    assert llm.generate("a", progress=True, temperature=0).text == "Hello"
    assert "1/1 texts" in capsys.readouterr().err

    def fail(logits, tokens):
        raise RuntimeError("a hook failed")

    with pytest.raises(RuntimeError, match="a hook failed"):
        llm.generate(["a", "b"], progress=True, hooks=[fail])
    assert llm.cache.stats().held == 0


def test_only_a_bar_imports_rich():
    script = (
        "import sys\n"
        "from stretto.testing import mock_llm\n"
        "mock_llm('Hi').generate(['a', 'b'])\n"
        "assert not any(name.startswith('rich') for name in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")

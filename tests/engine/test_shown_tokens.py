"""Hooks and readers see tokens, and what they write to them changes nothing of the engine's."""

import numpy as np
import pytest

from stretto import InvalidRequest
from stretto.testing import mock_llm

TEXT = "the quick brown fox jumps over the lazy dog"
OTHER = "the quack brown fox jumps over the lazy dog"


def other_order(input_ids, scores):
    scores[6] = ord("a")


class OtherOrder:
    __call__ = staticmethod(other_order)

    def batch(self, logits, rows):
        rows[0].tokens[6] = ord("a")


def new_logits(logits, tokens):
    return logits - 1


class NewLogits:
    __call__ = staticmethod(new_logits)

    def batch(self, logits, rows):
        return logits - 1


def followed(seen):
    """Each token is followed by the next letter: an answer tells what was read."""
    logits = np.zeros(258, np.float32)
    logits[(sum(seen) + len(seen)) % 26 + ord("a")] = 20.0
    return logits


@pytest.mark.parametrize("hook", [other_order, OtherOrder()])
@pytest.mark.parametrize("options", [{"temperature": 0}, {"beams": 2}])
def test_a_hook_that_writes_to_tokens_is_refused_and_the_cache_stays(hook, options):
    with mock_llm(followed, prefix_cache=True) as llm, mock_llm(followed) as fresh:
        with pytest.raises(InvalidRequest, match=r"wrote to the tokens.*hook\(logits, tokens\)") as raised:
            llm.generate(TEXT, max_tokens=4, hooks=[hook], **options)
        assert raised.value.param == "hooks"
        for text in (OTHER, TEXT):
            result = llm.generate(text, max_tokens=4, temperature=0)
            assert result.text == fresh.generate(text, max_tokens=4, temperature=0).text
        llm.cells.check()


@pytest.mark.parametrize("hook", [new_logits, NewLogits()])
def test_a_hook_that_returns_logits_is_refused(hook):
    with mock_llm(followed) as llm:
        with pytest.raises(InvalidRequest, match=r"returned logits.*logits\[:\]") as raised:
            llm.generate(TEXT, max_tokens=4, temperature=0, hooks=[hook])
        assert raised.value.param == "hooks"


def test_what_else_a_hook_returns_does_not_matter():
    with mock_llm(followed) as llm:
        plain = llm.generate(TEXT, max_tokens=4, temperature=0).text
        for hook in (lambda logits, tokens: logits, lambda logits, tokens: len(tokens)):
            assert llm.generate(TEXT, max_tokens=4, temperature=0, hooks=[hook]).text == plain


def test_hooks_see_one_list_that_follows_the_request():
    seen = []
    with mock_llm(followed) as llm:
        result = llm.generate(
            TEXT,
            max_tokens=4,
            temperature=0,
            hooks=[lambda _, tokens: seen.append((id(tokens), list(tokens)))],
        )
    prompt = [ord(character) for character in TEXT]
    assert len({which for which, _ in seen}) == 1
    assert [tokens for _, tokens in seen] == [prompt + result.tokens[:n] for n in range(4)]


def test_writing_to_the_history_of_a_sequence_changes_nothing():
    with mock_llm(followed, prefix_cache=True) as llm, mock_llm(followed) as fresh:
        with llm.sequence(TEXT) as seq:
            first = seq.step(temperature=0).token
            history = seq.history
            history[6] = ord("a")
            assert seq.tokens == [*map(ord, TEXT), first]
            assert seq.history is history
            assert history == seq.tokens
            history.clear()
            seq.step(temperature=0)
            assert len(seq.tokens) == len(TEXT) + 2
        assert (
            llm.generate(OTHER, max_tokens=4, temperature=0).text
            == fresh.generate(OTHER, max_tokens=4, temperature=0).text
        )
        llm.cells.check()

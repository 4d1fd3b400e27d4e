"""The end of the context: an end, or a shift if one asks for it."""

import pytest

from stretto.errors import ContextOverflow, InvalidRequest
from stretto.testing import mock_llm


def counting(seen):
    return ord("a") + len(seen) % 26


def test_the_default_is_an_end():
    result = mock_llm(counting, context_length=20).generate("p" * 10, temperature=0)
    assert (result.finish_reason, len(result.tokens)) == ("length", 11)


@pytest.mark.parametrize("keep", [0, 1, 4, 17])
def test_a_shift_goes_on_and_keeps_the_beginning(keep):
    llm = mock_llm(lambda seen: seen[0] if len(seen) % 2 else ord("."), context_length=20)
    result = llm.generate(
        "K" + "p" * 9, temperature=0, max_tokens=100, overflow="shift", keep=keep, ignore_eos=True
    )
    assert (result.finish_reason, len(result.tokens)) == ("length", 100)
    assert ("K" in result.text[-20:]) == (keep > 0)
    assert max(len(tokens) for tokens in llm.backend.batches) <= 20
    assert llm.cache.stats().held == 0
    llm.cells.check()
    # What was shifted is not found again; what was kept is.
    again = llm.generate("K" + "p" * 12, temperature=0, max_tokens=1)
    assert again.usage.cached_tokens <= max(keep, 9)


def test_a_prompt_that_does_not_fit_is_an_error_all_the_same():
    with pytest.raises(ContextOverflow, match="30 tokens and the context 20"):
        mock_llm(counting, context_length=20).generate("p" * 30, overflow="shift")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"overflow": "drop"}, "overflow must be 'error' or 'shift', not 'drop'"),
        ({"keep": 3}, "keep is for overflow='shift'"),
        ({"overflow": "shift", "keep": 19}, "keep is 19; in a context of 20 at most 18"),
        ({"overflow": "shift", "keep": -1}, "keep must be"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(InvalidRequest, match=message):
        mock_llm(counting, context_length=20).generate("p", **options)

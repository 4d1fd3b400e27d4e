"""Complements and intersections of patterns, against Python's own regular expressions."""

import random
import re
import time

import pytest

from stretto.structured.places import NotExpressible
from stretto.structured.regular import complement, disjoint, region, without_looking

TEXTS = [
    "",
    "foo",
    "foobar",
    "bar",
    "/x",
    "a.json",
    "aXjson",
    "AB",
    "2020-12",
    "a b",
    "\\n",
    "a\\nb",
    "x" * 9,
]


def random_texts(rng, n):
    made = ("".join(rng.choices("abfo.019-/ A_Z\n\tx{}", k=rng.randint(0, 7))) for _ in range(n))
    return [*TEXTS, *made]


def matcher(pattern):
    """A pattern as Python reads it: `$` is the end, and characters have other escapes."""
    text = re.sub(r"\\x\{([0-9A-F]+)\}", lambda match: f"\\U{int(match[1], 16):08x}", pattern)
    found = re.compile(re.sub(r"\$(?!\])", r"\\Z", text), re.ASCII)
    return lambda text: found.search(text) is not None


def random_pattern(rng, depth=2):
    if depth == 0:
        return rng.choice(["a", "b", "[ab]", "[^a]", ".", r"\d", r"\w", r"\s", r"\S", "[a-fx]", r"\.", "o"])
    part = lambda: random_pattern(rng, depth - 1)  # noqa: E731
    makers = [
        lambda: part() + part(),
        lambda: f"(?:{part()}|{part()})",
        lambda: f"(?:{part()}){rng.choice(['*', '+', '?', '{2}', '{1,3}', '{2,}', '*?'])}",
        lambda: f"({part()})",
    ]
    return rng.choice(makers)()


def anchored(rng):
    return f"{rng.choice(['^', ''])}{random_pattern(rng)}{rng.choice(['$', ''])}"


def test_complements_have_all_other_texts():
    refused = 0
    for seed in range(60):
        rng = random.Random(seed)
        pattern = anchored(rng)
        try:
            found = complement(pattern, "#")
        except NotExpressible:
            refused += 1
            continue
        others = (lambda text: False) if found is None else matcher(found)
        for text in random_texts(rng, 200):
            assert others(text) != matcher(pattern)(text), (pattern, found, text)
    assert refused < 6


def test_regions_are_inside_and_outside():
    refused = 0
    for seed in range(60):
        rng = random.Random(100 + seed)
        left, right = anchored(rng), anchored(rng)
        try:
            found = region([left], [right], "#")
        except NotExpressible:
            refused += 1
            continue
        inside = (lambda text: False) if found is None else matcher(found)
        for text in random_texts(rng, 200):
            assert inside(text) == (matcher(left)(text) and not matcher(right)(text)), (left, right, text)
    assert refused < 6


@pytest.mark.parametrize(
    "pattern", ["^(?!foo)", "^(?!foo$|a)[a-z]*$", "^(?=.*o)(?!.*r$)", "^(?!(bar|x+)$)[a-z_]+$"]
)
def test_looking_ahead_is_written_out(pattern):
    found = without_looking(pattern, "#")
    assert re.search(r"\(\?[!=]", found) is None
    for text in random_texts(random.Random(1), 300):
        assert matcher(found)(text) == matcher(pattern)(text), text


def test_patterns_that_exclude_each_other():
    assert disjoint(["^success$", "^fail$"])
    assert disjoint(["^a", "^[b-z]"])
    assert not disjoint(["^a", "b$"])
    assert not disjoint([r"(a)\1", "^b$"])  # not read, so nothing is proved


@pytest.mark.parametrize(
    "pattern", ["(a*)*" * 90 + "$", "(" * 400 + "a" + ")" * 400, "[ab]*a[ab]{60}$", "(?:a|b|ab|ba){60}" * 3]
)
def test_large_patterns_are_refused_in_time(pattern):
    start = time.process_time()
    with pytest.raises(NotExpressible, match="#/here"):
        complement(pattern, "#/here")
    assert time.process_time() - start < 5

"""Complements and intersections of patterns, against Python's own regular expressions."""

import random
import re
import time
from itertools import product

import pytest

from stretto import Grammar, InvalidGrammar
from stretto.structured.automata import (
    LAST,
    TooLarge,
    automaton,
    characters,
    has_empty,
    has_text,
    intersection,
    is_empty,
    repeat,
)
from stretto.structured.places import NotExpressible
from stretto.structured.regular import (
    _node,
    _Unknown,
    complement,
    disjoint,
    matches,
    move_anchors,
    region,
    without_looking,
)

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

ANY_CHARACTER = characters(((0, LAST),))


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


FONT = (
    "^((italic|normal) )?((black|bold|medium|thin|light|normal) )?[1-9][0-9]*px"
    "( ([A-Za-z\\-]+|'[A-Za-z \\-]+')(, ?([A-Za-z\\-]+|'[A-Za-z \\-]+'))*)?$"
)
ADDRESS = r"^(?:(?:25[0-5]|2[0-4]\d|[01]?\d\d?)\.){3}(?:25[0-5]|2[0-4]\d|[01]?\d\d?)$"


@pytest.mark.parametrize("pattern", [FONT, ADDRESS, "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"])
def test_complements_of_patterns_with_many_states(pattern):
    others, right = complement(pattern, "#"), matcher(pattern)
    assert others is not None
    rng = random.Random(3)
    known = [
        "12px",
        "italic 9px Arial, 'b c'",
        "bold 1px a,b",
        "1.2.3.4",
        "255.0.1.25",
        "12345678-1234-abcd-0123-0123456789ab",
    ]
    for text in known:
        for _ in range(60):
            at = rng.randint(0, len(text))
            changed = (
                text[:at] + rng.choice(["", "0", "a", ", ", "'", ".", "256"]) + text[at + rng.randint(0, 1) :]
            )
            assert matcher(others)(changed) != right(changed), changed
        assert matcher(others)(text) != right(text)


@pytest.mark.parametrize(
    ("left", "right", "is_disjoint"),
    [
        ("[ab]*a[ab]{60}$", "!$", True),  # 2 ** 60 states of a deterministic automaton
        ("[ab]*a[ab]{60}$", "^[0-9]+q", False),
        ("^.{1,255}$", "^x{300}", True),
        ("^.{1,255}$", "^x{200}", False),
        ("(?:a|b|ab|ba){60}" * 3, "^[^a]*$", False),
        ("(?:a|b|ab|ba){60}" * 3, "^[c-z]*$", True),
        ("(.*[ab].*[bc]){12}$", "d$", True),
        ("^a", "^[^a]" + "b?" * 2_000, True),
        ("^(.{0,63}\\.){1,5}[a-z]{1,63}$", "_$", True),
        (FONT, "^[a-z]+$", True),
        (FONT, "^b.*x$", False),
        ("^1{19}x$", "^.{10,20}$", False),
        ("^a.*1{19}.*x$", "^.{10,20}$", True),
    ],
)
def test_intersections_are_searched_without_automata_of_all_texts(left, right, is_disjoint):
    start = time.process_time()
    assert disjoint([left, right]) == is_disjoint == disjoint([right, left])
    assert time.process_time() - start < 2


def test_emptiness_as_the_automaton_of_all_states_says():
    for seed in range(150):
        rng = random.Random(seed)
        node = intersection(
            [_node(anchored(rng)), _node(anchored(rng)), repeat(ANY_CHARACTER, rng.randint(0, 3), 4)]
        )
        assert is_empty(node) == (not any(map(has_empty, automaton(node))))


@pytest.mark.parametrize(
    "pattern",
    [
        "(.*a.*b){60}$",
        "(" * 400 + "a" + ")" * 400,
        "[ab]*a[ab]{60}$",
        "(?:a|b|ab|ba){60}" * 3,
        "((a{0,99}b){0,99}c){0,99}$",
        "^[a-z]{0,9999}$",
        "(((((a?){30}b?){30}c?){30}d?){30})$",
        "ab" * 3_999,
        "(a|[^b]|c*)+" * 600,
        "(^a|b|(?=c).)" * 600,
        "(" * 60 + "$|a" + "){0,8}" * 60,
    ],
    ids=lambda pattern: pattern[:20],
)
def test_large_patterns_are_refused_in_time(pattern):
    start = time.process_time()
    with pytest.raises(NotExpressible, match="#/here"):
        complement(pattern, "#/here")
    assert time.process_time() - start < 5


def test_all_patterns_of_a_schema_share_a_bound_on_the_work():
    parts = [{"type": "string", "pattern": f"({a}|.){{40}}{b}[ab]{{30}}x$"} for a in "abcdefg" for b in "xyz"]
    start = time.process_time()
    with pytest.raises(InvalidGrammar, match="oneOf"):
        Grammar.json({"oneOf": parts})
    assert time.process_time() - start < 10


def inner_pattern(rng, depth):
    """A pattern with anchors and look-ahead anywhere."""
    kind = rng.random()
    if depth == 0 or kind < 0.4:
        return rng.choice(["a", "b", "[ab]", ".", "^", "$"])
    if kind < 0.5:
        return f"(?{rng.choice('=!')}{inner_pattern(rng, depth - 1)})"
    if kind < 0.75:
        return f"{inner_pattern(rng, depth - 1)}{inner_pattern(rng, depth - 1)}"
    repetition = rng.choice(["", "*", "?", "{1,2}", "+", "{2}"])
    return f"({inner_pattern(rng, depth - 1)}|{inner_pattern(rng, depth - 1)}){repetition}"


def test_anchors_and_look_ahead_anywhere_mean_what_they_mean_in_python():
    rng, n_known = random.Random(5), 0
    texts = ["".join(letters) for n in range(5) for letters in product("ab", repeat=n)]
    for _ in range(500):
        pattern = inner_pattern(rng, 4)
        try:
            node = _node(pattern)
        except (_Unknown, TooLarge):
            continue
        found = re.compile(pattern.replace("$", r"\Z"))
        assert [has_text(node, text) for text in texts] == [found.search(text) is not None for text in texts]
        n_known += 1
    assert n_known > 350


def test_patterns_that_the_parser_takes_are_not_rewritten():
    plain = {"properties": {"a": {"pattern": "^a$|b|^c"}}, "patternProperties": {"(a|b){3}$": {}}}
    assert move_anchors(plain) == plain
    path = r"^(\/?((\.{2})|([a-z0-9\-]*))($|\/))*$"
    moved = move_anchors({"pattern": path})["pattern"]
    assert moved.count("$") == 1
    for text in ("/a/../b", "a//", "a/B", "..", "/...", ""):
        assert matches(moved, text, "#") == (re.search(path, text) is not None)

"""Texts made to take long: pre-tokenizers, methods and filters of chat templates grow near linearly.

Times are those of this thread, of two sizes; a quadratic way takes sixteen times as long for four times the
text.
"""

import random
import re
import time
from itertools import product

import pytest
from tokenizers import Regex, pre_tokenizers

from stretto.errors import StrettoError
from stretto.text.guards import METHODS, Budget, current
from stretto.text.pretokenizers import PART_DIGITS, PRETOKENIZERS, cut_digits
from stretto.text.sandbox import FILTERS

ENOUGH_SECONDS = 0.15  # below, times are not compared
WORST_GROWTH = 10.0  # of the time, for four times the size
TRIES = 3  # a pause of the interpreter may fall into one


def growth(run, small):
    """The time for 4 × small, and how many times that for small, where it is long enough to compare."""
    times = []
    for n in (4 * small, small):
        begun = time.thread_time()
        run(n)
        times.append(time.thread_time() - begun)
        if times[0] < ENOUGH_SECONDS:
            return times[0], 0.0
    return times[0], times[0] / max(times[1], 1e-6)


def assert_near_linear(run, small, what):
    for _ in range(TRIES):
        seconds, factor = growth(run, small)
        if seconds < ENOUGH_SECONDS or factor < WORST_GROWTH:
            return
    raise AssertionError(f"{what}: {seconds:.2f} s, {factor:.0f} ×")


# -- pre-tokenizers --

DISTINCT = {pre: name for name, pre in PRETOKENIZERS.items()}
UNITS = (" ", "\n", "7", "aA", "'", "一", "\u0301", " a")
TAILS = ("x", "7", "!")


def engine(pre):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(one), "isolated") for one in pre.patterns])


def pieces(cut, pre, text):
    """What a text is cut into, as tokenizers do it."""
    return [piece for part in cut_digits(text, pre.digits) for piece, _ in cut.pre_tokenize_str(part)]


@pytest.mark.parametrize("pre", DISTINCT, ids=DISTINCT.values())
def test_no_pattern_grows_faster_than_the_text(pre):
    cut = engine(pre)
    for unit, tail in product(UNITS, TAILS):
        what = f"{unit!r} … {tail!r}"
        assert_near_linear(lambda n, u=unit, t=tail: pieces(cut, pre, u * (n // len(u)) + t), 2000, what)


def test_digits_are_grouped_alike_in_parts_and_as_a_whole():
    rng = random.Random(4)
    for pre in (pre for pre in DISTINCT if pre.digits):
        cut = engine(pre)
        for _ in range(60):
            n = rng.randrange(2 * PART_DIGITS - 5, 4 * PART_DIGITS)
            head, tail = rng.choice(("", "a ", "٣", "x")), rng.choice(("", "x", "_", " 12", "²", "\u0301"))
            text = head + "".join(rng.choices("0123456789", k=n)) + tail
            whole = [piece for piece, _ in cut.pre_tokenize_str(text)]
            assert pieces(cut, pre, text) == whole, (pre.digits, n, head, tail)
            assert len(cut_digits(text, pre.digits)) > 1 or n < 2 * PART_DIGITS


def test_trailing_space_is_found_as_before():
    old, new = Regex(r"\s+$"), Regex(r"(?<!\s)\s+$")
    rng = random.Random(5)
    for _ in range(500):
        text = "".join(rng.choices(" \t\u00a0ab7", k=rng.randrange(12)))
        both = [pre_tokenizers.Split(one, "isolated").pre_tokenize_str(text) for one in (old, new)]
        assert both[0] == both[1], repr(text)


# -- templates --


def rendered(call):
    """Whether a call within a budget of its own came to an end; errors are one."""
    token = current.set(Budget(1 << 20))
    try:
        return call()
    except (StrettoError, Exception):
        return None
    finally:
        current.reset(token)


def texts(n):
    """Subjects and needles that make naive searches slow."""
    half = "a" * (n // 2)
    many = "".join(map(chr, range(0x4E00, 0x9000)))
    return [
        ("a" * n, "b" + half),
        ("ab" * (n // 2), "ab" * (n // 4) + "b"),
        ("b" + "a" * n, "b" + half),
        (many[:5000] * (n // 5000), many),
        ("{0}%s" * (n // 5), "x"),
        ("1" * n, "1"),
    ]


@pytest.mark.parametrize("name", sorted(METHODS[str]))
def test_no_method_of_texts_grows_faster_than_they_do(name):
    method = METHODS[str][name]
    for i in range(len(texts(10_000))):
        for swap in (False, True):

            def run(n, i=i, swap=swap):
                subject, needle = texts(n)[i][:: -1 if swap else 1]
                for arguments in ((), (needle,), ((needle, needle),), (needle, "x")):
                    rendered(lambda a=arguments: method(subject, *a))

            assert_near_linear(run, 10_000, f"{name} {i} {swap}")


PLAIN_FILTERS = sorted(
    name for name, run in FILTERS.items() if not name.startswith("~") and not hasattr(run, "jinja_pass_arg")
)


@pytest.mark.parametrize("name", PLAIN_FILTERS)
def test_no_filter_grows_faster_than_its_text(name):
    for i in range(len(texts(10_000))):

        def run(n, i=i):
            subject, needle = texts(n)[i]
            for arguments in ((subject,), (subject, needle), (subject, needle, "x"), ([subject, needle],)):
                rendered(lambda a=arguments: FILTERS[name](*a))

        assert_near_linear(run, 10_000, f"{name} {i}")


def test_searching_backwards_finds_what_python_finds():
    rng = random.Random(6)
    for _ in range(3000):
        subject = "".join(rng.choices("ab", k=rng.randrange(60)))
        needle = "".join(rng.choices("ab", k=rng.choice((1, 2, 17, 18, 20))))
        if rng.random() < 0.5 and len(subject) > 20:
            at = rng.randrange(len(subject) - 17)
            needle = subject[at : at + 17]
        start, end = rng.choice((None, -30, 0, 3)), rng.choice((None, -2, 40, 100))
        for name in ("rfind", "rindex"):
            assert outcome(METHODS[str][name], subject, needle, start, end) == outcome(
                getattr(str, name), subject, needle, start, end
            )
        assert METHODS[str]["rpartition"](subject, needle) == subject.rpartition(needle)
        for most in (-1, 0, 1, 2):
            assert METHODS[str]["rsplit"](subject, needle, most) == subject.rsplit(needle, most)
        chars = "".join(rng.choices("abcdef", k=rng.choice((1, 20))))
        for name in ("strip", "lstrip", "rstrip"):
            assert METHODS[str][name](subject, chars) == getattr(subject, name)(chars)


def outcome(run, *arguments):
    try:
        return run(*arguments)
    except ValueError as error:
        return re.sub("^.*: ", "", str(error))

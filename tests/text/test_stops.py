"""Stop strings, whatever the pieces the text comes in."""

from hypothesis import given
from hypothesis import strategies as st

from stretto.text.stops import StopMatcher

letters = st.text("abc", max_size=30)
stops = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3)


def run(pieces, stop):
    matcher = StopMatcher(stop)
    shown = "".join(matcher.push(piece) for piece in pieces)
    return shown + matcher.flush(), matcher.matched


@given(letters, stops, st.data())
def test_the_cut_does_not_matter(text, stop, data):
    borders = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    pieces = [text[a:b] for a, b in zip([0, *borders], [*borders, len(text)], strict=True)]
    assert run(pieces, stop) == run([text], stop) == run(list(text), stop)


@given(letters, stops)
def test_a_stop_string_is_never_shown(text, stop):
    shown, matched = run(list(text), stop)
    assert all(s not in shown for s in stop)
    if matched is None:
        assert shown == text
    else:
        assert text.startswith(shown + matched)


def test_nothing_is_held_back_without_need():
    matcher = StopMatcher(["\n\n"])
    assert matcher.push("one\n") == "one"
    assert matcher.push("two") == "\ntwo"
    assert matcher.push("\n\nthree") == ""
    assert matcher.matched == "\n\n"
    assert matcher.push("more") == ""


def test_without_stops_text_passes():
    assert run(["a", "b"], []) == ("ab", None)

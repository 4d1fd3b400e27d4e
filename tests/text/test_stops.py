"""Stop strings, whatever the pieces the text comes in."""

from copy import copy

from hypothesis import given
from hypothesis import strategies as st

from stretto.text.stops import StopBuffer, StopMatcher, _Automaton

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


@given(st.text("abc*", max_size=30), stops, st.data())
def test_a_second_reading_is_cut_where_the_first_was(text, stop, data):
    borders = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    pieces = [text[a:b] for a, b in zip([0, *borders], [*borders, len(text)], strict=True)]
    matcher, buffer, shown, read = StopMatcher(stop), StopBuffer(stop, {"*": ""}), "", ""
    for piece in pieces:  # marks, which the first reading does not have
        read += buffer.push(piece)
        shown += matcher.push(piece.replace("*", ""))
        assert shown.startswith(read.replace("*", ""))
        if matcher.matched:
            break
    read += buffer.cut() if matcher.matched else buffer.held
    assert buffer.has_match == (matcher.matched is not None)
    assert read.replace("*", "") == shown + matcher.flush()


def test_a_mark_is_held_as_a_whole():
    buffer = StopBuffer(["!D"], {"*": "EN!"})
    assert [buffer.push(c) for c in "a*D"] == ["a", "", ""]
    assert (buffer.cut(), buffer.held) == ("", "*D")


def test_nothing_is_held_back_without_need():
    matcher = StopMatcher(["\n\n"])
    assert matcher.push("one\n") == "one"
    assert matcher.push("two") == "\ntwo"
    assert matcher.push("\n\nthree") == ""
    assert matcher.matched == "\n\n"
    assert matcher.push("more") == ""


def test_without_stops_text_passes():
    assert run(["a", "b"], []) == ("ab", None)


@given(letters, st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=6))
def test_the_first_to_be_complete_is_found_and_the_longest_of_those(text, stop):
    found = [(text.find(one) + len(one), -len(one), one) for one in stop if one in text]
    shown, matched = run(list(text), stop)
    assert matched == (min(found)[2] if found else None)
    assert shown == (text[: min(found)[0] + min(found)[1]] if found else text)


def test_a_character_is_read_once_however_long_the_stops_are():
    """Without a clock: the nodes that are visited are counted."""
    stops = tuple("a" * n + "b" for n in range(900, 1000))
    automaton = _Automaton(stops)
    visits = 0

    class Counted(list):
        def __getitem__(self, node):
            nonlocal visits
            visits += 1
            return super().__getitem__(node)

    automaton.shorter = Counted(automaton.shorter)
    node, _, matched = automaton.read(0, "a" * 5000 + "c" + "a" * 999 + "b")
    assert matched == "a" * 999 + "b"
    assert visits < 8000
    assert automaton.depths[node] == 1000


def test_a_copy_goes_its_own_way():
    matcher = StopMatcher(["ab"])
    matcher.push("a")
    twin = copy(matcher)
    assert (matcher.push("b"), twin.push("c")) == ("", "ac")
    assert (matcher.matched, twin.matched) == ("ab", None)

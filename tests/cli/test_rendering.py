"""Markdown that is drawn while it streams: the same in the end however it came, with little written twice."""

import io
import re

import pyte
import pytest
from rich.console import Console

from stretto.cli.chatting import screen as screens
from stretto.cli.chatting.markdown import blocks, final_blocks
from stretto.cli.chatting.screen import LiveLines

TEXT = """# A title

Some **bold text** and `code`, vector<int> and a [link](http://x.y/z), in a paragraph that is much wider
than the screen.
A line of its own.

1. one
2. two
   - inside

3. three

- other

```python
def f(x):
    return x

```

| a | b |
|---|---|
| 1 | 2 |

> a quote

[1]: http://x.y

Under
-----
last"""
WIDTH = 40


@pytest.fixture
def drawn(monkeypatch):
    """Streams a text in pieces, all of which are drawn: what a terminal shows then, and what was written."""
    monkeypatch.setattr(screens, "FRAME_SECONDS", 0)
    monkeypatch.setattr(screens, "DRAWING_SHARE", 1e9)

    def draw(pieces, height=80, **options):
        file = io.StringIO()
        console = Console(
            file=file, force_terminal=True, width=WIDTH, height=height, color_system="standard", **options
        )
        screen = screens.MarkdownScreen(True, console)
        for piece in pieces:
            text, is_reasoning = piece if isinstance(piece, tuple) else (piece, False)
            screen.show(text, is_reasoning)
        screen.end()
        return shown(file.getvalue(), height), file.getvalue()

    return draw


def shown(written, height):
    terminal = pyte.HistoryScreen(WIDTH, height, history=1000)
    pyte.Stream(terminal).feed(written)
    above = ["".join(line[x].data for x in range(WIDTH)) for line in terminal.history.top]
    return "\n".join(line.rstrip() for line in [*above, *terminal.display]).rstrip()


def cut(text, size):
    return [text[start : start + size] for start in range(0, len(text), size)]


def test_a_text_as_a_terminal_shows_it(drawn):
    assert drawn([TEXT])[0].split("\n") == [
        "A title",
        "",
        "Some bold text and code, vector<int> and",
        "a link (http://x.y/z), in a paragraph",
        "that is much wider",
        "than the screen.",
        "A line of its own.",
        "",
        " 1 one",
        " 2 two",
        "    • inside",
        " 3 three",
        "",
        " • other",
        "",
        "def f(x):",
        "    return x",
        "",
        " a  b",
        " ────",
        " 1  2",
        "",
        "▌ a quote",
        "",
        "[1]: http://x.y",
        "",
        "Under",
        "",
        "last",
    ]


@pytest.mark.parametrize("height", [80, 7])
@pytest.mark.parametrize("size", [1, 2, 5, 30])
def test_it_is_the_same_however_it_comes_and_small_screens_are_enough(drawn, size, height):
    text, written = drawn(cut(TEXT, size), height)
    assert text == drawn([TEXT])[0]
    assert all(int(up) < height for up in re.findall(r"\x1b\[(\d+)A", written))


def test_text_that_only_grows_is_written_once(drawn):
    words = [f"word{n} " for n in range(200)]
    text, written = drawn(words, height=10)
    assert text.split() == [word.strip() for word in words]
    assert "\x1b[" not in written


def test_a_final_block_is_never_drawn_again(drawn):
    text = "First **of all**.\n\n" + "\n\n".join(f"Paragraph *{n}* of many." for n in range(20))
    _, written = drawn(cut(text, 3))
    later = written.split("Paragraph", 1)[1]
    assert "of all" not in later
    assert written.count("many.") == 20


def test_code_longer_than_the_screen_stays_whole(drawn):
    code = "\n".join(f"line_{n} = {n}" for n in range(40))
    text, _ = drawn(cut(f"```python\n{code}\n```\n", 4), height=8)
    assert text == code


def test_nothing_is_obeyed_that_a_model_writes(drawn):
    text, written = drawn(cut("a\x1b[2Jb [x](http://evil\x1b]0;t\x07)", 1))
    assert "\x1b[2J" not in written
    assert "\x1b]" not in written
    assert text.startswith("a\\x1b[2Jb")


def test_reasoning_is_set_off_and_ends_where_the_answer_begins(drawn):
    pieces = [("\nHm, **so**", True), (" it is\nclear.\n", True), ("Yes, **so**.", False)]
    text, written = drawn(pieces)
    assert text == "Hm, **so** it is\nclear.\n\nYes, so."
    assert "\x1b[2;3m" in written


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_reasoning_is_the_same_however_it_comes(drawn, size):
    thought = "\n\nFirst\nsecond line of it\n\n\nthird after two empty ones\n\n"
    text, _ = drawn([*((piece, True) for piece in cut(thought, size)), "Yes."])
    assert text == "First\nsecond line of it\n\n\nthird after two empty ones\n\nYes."


def test_no_colour_codes_without_colours(drawn):
    _, written = drawn([TEXT], no_color=True)
    assert not re.search(r"\x1b\[(?:[\d;]*;)?(3[0-7]|4[0-7]|9[0-7]|38|48)(?:;[\d;]*)?m", written)


def test_a_block_is_final_when_another_begins_in_a_whole_line():
    assert final_blocks("one\n\ntwo") == ([], "one\n\ntwo")
    final, rest = final_blocks("one\n\ntwo\nthr")
    assert ([block.source for block in final], rest) == (["one"], "two\nthr")
    assert final_blocks("- a\n- b\n- c\n")[1] == "- c\n"
    assert blocks("") == []


def test_lines_are_redrawn_from_the_first_that_changed():
    file = io.StringIO()
    lines = LiveLines(file, lambda: 3)
    lines.draw(["a", "b", "c", "d"])
    file.truncate(file.seek(0))
    lines.draw(["a", "b", "C", "d"])
    assert file.getvalue() == "\x1b[?2026h\r\x1b[1A\x1b[JC\r\nd\x1b[?2026l"
    file.truncate(file.seek(0))
    lines.draw(["A", "b", "C", "d"])  # "A" has scrolled away; what is below it comes again
    assert file.getvalue() == "\x1b[?2026h\r\x1b[2A\x1b[Jb\r\nC\r\nd\x1b[?2026l"
    file.truncate(file.seek(0))
    lines.draw(["A", "b", "C", "dd", "e"])
    assert file.getvalue() == "d\r\ne"

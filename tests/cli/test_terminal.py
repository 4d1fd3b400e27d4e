"""`stretto chat` in a real terminal: keys in, and the screen as a person sees it."""

import re
import stat
from pathlib import Path

import PIL.Image
import pytest

import terminals
from stretto.cli.chatting.keyboard import HISTORY_LINES, LINE_CHARACTERS, LineFile
from tiny_vision import picture

# Answers with what was asked, on one line: ⏎ for the end of a line.
ECHO = """
def script(seen):
    turns = []
    for token in seen:
        turns.append([]) if token == 256 else turns[-1].append(token)
    asked = bytes(turns[-2][5:-1]).decode().replace("\\n", "⏎")
    wanted = f"You said {asked}.".encode()
    said = len(turns[-1]) - len("assistant\\n")
    return 257 if said >= len(wanted) else wanted[said]
"""
# Says "z " for ever.
ENDLESS = """
import time

def script(seen):
    time.sleep(0.01)
    return ord("z") if seen[-1] in b"\\n " else ord(" ")
"""
# Counts from a to f; from any other letter it goes on to f as well.
LETTERS = """
import numpy as np

def script(seen):
    row = np.zeros(258, np.float32)
    last = seen[-1]
    row[257 if last == ord("f") else max(last, ord("`")) + 1] = 20
    row[ord("e")] += 10
    return row
"""
PASTE = "\x1b[200~{}\x1b[201~"
CODES = re.compile(r"\x1b\[[?\d;]*[a-zA-Z]")  # a frame may end anywhere, so they may stand within words
COLOURS = re.compile(r"\x1b\[(?:[\d;]*;)?(?:3[0-7]|4[0-7]|9[0-7]|38|48)(?:;[\d;]*)?m")


@pytest.fixture
def start():
    """Starts a chat with a scripted model and waits for its prompt; it is ended with the test."""
    started = []

    def chat(*arguments, **options):
        terminal = terminals.chat(*arguments, **options)
        started.append(terminal)
        terminal.prompt()
        return terminal

    yield chat
    for terminal in started:
        terminals.stop(terminal.process)


# -- typing --


@pytest.mark.slow
def test_a_chat_goes_on_where_the_last_one_ended(start):
    terminal = start(ECHO)
    terminal.say("first")
    terminal.type("\x04")
    assert terminal.end() == 0
    terminal = start(ECHO, "-c")
    assert "going on after 1 turn: first" in terminal.text
    assert "2 second" in terminal.say("second") + terminal.say("/tree")
    terminal.type("\x04")
    assert terminal.end() == 0


def test_settings_are_completed_and_hold(start):
    terminal = start(ECHO)
    terminal.type("/set temp\t")
    terminal.until("/set temperature")
    terminal.type(" 0.5\r")
    assert "temperature: 0.5" in terminal.prompt(2)
    assert re.search(r"^temperature +0\.5$", terminal.say("/set"), re.MULTILINE)
    terminal.type("\x04")
    assert terminal.end() == 0


def test_a_pasted_text_is_one_message_and_so_are_lines_joined_by_keys(start):
    terminal = start(ECHO)
    terminal.type(PASTE.format("first\nsecond\r\nthird\n"))
    terminal.until("… third")
    terminal.type("\r")
    assert "You said first⏎second⏎third." in terminal.prompt(2)
    terminal.type("a\x1b\rb\\\rc")
    terminal.until("… c")
    terminal.type("\r")
    assert "You said a⏎b⏎c." in terminal.prompt(3)
    terminal.type("\x04")
    assert terminal.end() == 0


@pytest.mark.slow
def test_the_history_is_kept_for_its_owner(start, store_home):
    history = store_home / "chat_history"
    terminal = start(ECHO)
    terminal.type(PASTE.format("one\ntwo \\n"))
    terminal.until("… two")
    terminal.type("\r")
    terminal.prompt(2)
    terminal.type("/exit\r")
    assert terminal.end() == 0
    assert history.read_text() == "one\\ntwo \\\\n\n/exit\n"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600

    history.chmod(0o644)  # as a careless copy might be
    terminal = start(ECHO)
    terminal.type("\x10\x10")  # Ctrl-P: the message before, and the one before that
    terminal.until("… two \\n")
    terminal.type("\r")
    terminal.until("You said one⏎two \\n.")
    terminal.prompt()
    terminal.type("\x04")
    assert terminal.end() == 0
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_a_long_history_is_cut_back_and_one_that_cannot_be_kept_is_no_error(tmp_path):
    history = tmp_path / "history"
    history.write_text("".join(f"line {n}\n" for n in range(3 * HISTORY_LINES)))
    file = LineFile(history)
    assert file.read()[-1] == f"line {3 * HISTORY_LINES - 1}"
    assert len(history.read_text().splitlines()) == HISTORY_LINES
    file.append("x" * (LINE_CHARACTERS + 1))
    file.append("  ")
    file.append("a\\\nb")
    assert (len(file.read()), file.read()[-1]) == (HISTORY_LINES, "a\\\nb")
    history.unlink()
    history.mkdir()
    file.append("Hi")
    assert file.read() == []


def test_tab_completes_commands_and_paths_anywhere(start, tmp_path):
    (tmp_path / "a cat.png").touch()
    (tmp_path / "folder").mkdir()
    terminal = start(ECHO, width=len(str(tmp_path)) + 80)  # a path that is wrapped is not found on the screen
    terminal.type("/mod\t")
    terminal.until("> /model")
    terminal.type("\x15")  # Ctrl-U: empties the line
    terminal.type(f"See {tmp_path}/a\t")
    terminal.until("cat.png")
    terminal.type(" ok\r")
    assert "sees no images" in terminal.prompt(2)
    assert "cat.png ok." in terminal.text
    terminal.type(f"/save {tmp_path}/fo\t")
    terminal.until("folder/")
    terminal.type("x.json\r")
    terminal.prompt(3)
    assert (tmp_path / "folder" / "x.json").exists()


SEEING = """
import sys
sys.path.insert(0, {tests!r})
import stretto
from stretto.cli import main
from tiny_vision import seeing_llm

stretto.load = lambda model, **options: seeing_llm("mlp")
main(["chat", "-m", "mock.gguf", "--vision", "mm.gguf", "-n", "2"])
"""


@pytest.mark.slow
def test_an_image_is_shown_by_its_path(tmp_path):
    PIL.Image.fromarray(picture(0).pixels).save(tmp_path / "cat.png")
    program = SEEING.format(tests=str(Path(terminals.__file__).parent))
    terminal = terminals.Terminal(["-c", program], folder=str(tmp_path))
    terminal.prompt()
    terminal.type("ca\t")
    terminal.until("> cat.png")
    terminal.type("\r")
    terminal.prompt(2)
    assert "1 (an image) → " in terminal.say("/tree")
    terminal.type("\x04")
    assert terminal.end() == 0


# -- answers --

MARKDOWN = (
    "Alpha beta\n\n" + "".join(f"- item {n} with **bold** words and `code`\n" for n in range(14)) + "\nEnd."
)


def test_markdown_is_rendered_while_it_streams_and_never_drawn_beyond_the_screen(start):
    terminal = start(MARKDOWN, height=8, width=30)
    text = terminal.say("Go")
    assert "Alpha beta\n\n • item 0 with bold words and\n   code\n • item 1 with" in text
    assert " • item 13 with bold words and\n   code\n\nEnd." in text
    answer = terminal.raw.split("Alpha", 1)[1].split("End.")[0]
    assert all(int(up) < 8 for up in re.findall(r"\x1b\[(\d+)A", answer))
    drawn = CODES.sub("", answer)
    assert "item 7 " not in drawn.split("item 10 ", 1)[1]  # a final block is not drawn again
    assert COLOURS.search(terminal.raw)


@pytest.mark.slow
def test_no_colours_if_they_are_not_wanted(start):
    terminal = start(MARKDOWN[:200] + "\n```python\nx = 1\n```\n", NO_COLOR="1")
    terminal.say("Go")
    terminal.say("/help")
    terminal.say("/nonsense")
    assert "x = 1" in terminal.text
    assert not COLOURS.search(terminal.raw)


@pytest.mark.slow
def test_a_dumb_terminal_gets_plain_text():
    terminal = terminals.chat("Hello **there**", TERM="dumb")
    terminal.until("\n>")
    terminal.type("Hi\r")
    assert "Hello **there**" in terminal.until("\n>", 2)
    terminal.type("\x04")
    assert terminal.end() == 0


def test_ctrl_c_stops_an_answer_and_keeps_it_and_twice_at_the_prompt_leaves(start):
    terminal = start(ENDLESS, "--no-repeat-guard", model={"cells": 16384, "context_length": 16384})
    terminal.type("Hi\r")
    terminal.until("z z z")
    terminal.type("typed meanwhile")  # nothing of it shows in the answer
    terminal.type("\x03")
    text = terminal.prompt(2)
    assert "\nstopped\n" in text
    assert "typed" not in text
    assert "1 Hi → z z z" in terminal.say("/tree")
    terminal.type("half a line\x03")
    terminal.until("Ctrl-C again or Ctrl-D ends the chat")
    terminal.prompt(4)
    assert "1 turn in" in terminal.say("/stats")  # whoever goes on has not meant it
    terminal.type("\x03")
    terminal.until("ends the chat", 2)
    terminal.prompt()
    terminal.type("\x03")
    assert terminal.end() == 0


def test_an_answer_that_repeats_itself_is_stopped_and_says_so(start):
    text = start(ENDLESS).say("Hi")
    assert "stopped because it repeats itself (--no-repeat-guard" in text.replace("\n", " ")


# -- the tree --


def test_go_back_branch_and_find_everything_in_the_cache(start):
    terminal = start(ECHO, "--stats")
    for line in ("one", "two", "three"):
        terminal.say(line)
    terminal.say("/undo")
    terminal.say("/fork 1")
    text = terminal.say("four")
    n_cached = len(".user\none..assistant\nYou said one...user\n")  # the dots are special tokens
    n_new = len("four..assistant\n")
    assert f"{n_cached} of {n_cached + n_new} prompt tokens cached" in text
    text = terminal.say("/tree")
    for line in ("1 one → You said one.", "├ 2 two →", "│ 3 three →", "└ 4 four → You said four.  ← here"):
        assert line in text
    terminal.type("/edit 2\r")
    terminal.until("> two", 2)
    terminal.type("\x7f\x7f\x7fTWO\r")
    terminal.until("You said TWO.")
    terminal.prompt()
    assert "└ 5 TWO → You said TWO.  ← here" in terminal.say("/tree")
    terminal.say("/retry")
    assert "└ 6 TWO → You said TWO.  ← here" in terminal.say("/tree")
    assert "there is no turn 9; there are turns 1 to 6" in terminal.say("/fork 9")


def test_tokens_show_alternatives_and_one_can_be_chosen(start):
    terminal = start(LETTERS)
    assert "abcdef" in terminal.say("Hi")
    assert re.search(r"2  +100.0% “b”  “e” 0.0%", terminal.say("/tokens"))
    text = terminal.say("/tokens 2")
    assert re.search(r"1  100.0% “b”  ← chosen\n +2    0.0% “e”", text)
    assert "\naef\n" in terminal.say("/tokens 2 2")
    assert "2 Hi → aef  ← here" in terminal.say("/tree")
    assert "a token has a number from 1 to 3, not 4" in terminal.say("/tokens 4")


def test_chats_are_saved_and_loaded_and_other_models_go_on(start, tmp_path):
    terminal = start(ECHO)
    terminal.say("one")
    terminal.say("two")
    terminal.say("/undo")
    terminal.say("/system Be brief.")
    assert "saved to" in terminal.say(f"/save {tmp_path}/c.json --state")
    assert (tmp_path / "c.json.state").exists()
    terminal.say("/reset")
    assert "1 turn, " in terminal.say(f"/load {tmp_path}/c.json --state")
    assert "mock2.gguf, backend mock" in terminal.say("/model mock2.gguf")
    assert "└ 2 two" not in terminal.say("/tree")
    assert "2 two → You said two." in terminal.text
    assert terminal.text.endswith("mock2.gguf")
    assert "You said three." in terminal.say("three")


def test_a_full_context_offers_what_can_be_done_and_the_message_waits(start):
    terminal = start(ECHO, model={"cells": 220, "context_length": 1024})
    terminal.say("one " * 8)
    text = terminal.say("two " * 40)
    assert re.search(r"error: the conversation has \d+ tokens, the context 220. What can be done:", text)
    for offer in ("/drop", "/summarise", "/undo", "/reset", "stretto chat --cells 440"):
        assert f"\n{offer} " in text
    assert "your message waits" in text
    terminal.type("/drop\r")
    terminal.until("without the oldest 1 turn")
    terminal.until("> two two")
    terminal.type("\r")
    assert "You said two two" in terminal.until("the context is full, so the answer ends here")


@pytest.mark.slow
def test_a_summary_takes_the_place_of_the_oldest_turns(start):
    terminal = start(ECHO, model={"cells": 600, "context_length": 600}, width=200)
    for number in range(4):
        terminal.say(f"turn {number} " * 4)
    text = terminal.say("/summarise")
    assert re.search(r"a summary in place of \d turns?: \d+ tokens", text)
    assert re.search(r"└ 5 Summarise our conversation so far .* → You said Summarise", terminal.say("/tree"))


@pytest.mark.slow
def test_a_real_model_chats(start, smollm2_path):
    arguments = ["chat", "-m", str(smollm2_path), "--temperature", "0", "--stats"]
    terminal = terminals.Terminal(["-c", f"from stretto.cli import main; main({arguments})"])
    terminal.prompt()
    assert "Paris" in terminal.say("What is the capital of France? One word.")
    assert "%) · " in terminal.text.split("\n")[-1]
    terminal.say("And of Italy?")
    terminal.say("/fork 1")
    text = terminal.say("And of Germany?")
    assert re.search(r"[1-9]\d* of \d+ prompt tokens cached", text)
    terminal.type("\x04")
    assert terminal.end() == 0

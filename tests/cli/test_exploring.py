"""The tree of alternatives, and the keys that walk through it, in a real pseudo-terminal."""

import subprocess
import sys

import pytest
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from stretto.cli.exploring import Tree, explore, render_branch, render_tree
from stretto.testing import END, mock_llm
from terminals import Terminal

UP, DOWN, RIGHT, LEFT = "\x1b[A", "\x1b[B", "\x1b[C", "\x1b[D"


@pytest.fixture
def tree():
    with mock_llm("abc") as llm:
        yield Tree(llm, "x", width=4)


def test_a_walk_forks_and_computes_nothing_twice(tree):
    llm = tree.llm
    assert tree.here.branches[0].text == "a"
    assert tree.follow()
    assert (tree.text, tree.here.depth, tree.n_computed) == ("a", 1, 1)
    tree.back()
    llm.backend.batches.clear()
    assert tree.follow()
    assert (tree.text, tree.n_computed, llm.backend.batches) == ("a", 1, [])
    tree.back()
    tree.select(1)
    other = tree.here.branches[1].text
    assert tree.follow()
    assert (tree.text, tree.n_computed) == (other, 2)
    tree.back()
    tree.select(-1)
    assert tree.here.selected == 0
    llm.cells.check()


def test_running_on_ends_at_the_end_of_the_text(tree):
    tree.run_on()
    assert tree.text == "abc"
    assert tree.here.branches[0].text in ("", END)
    assert not tree.follow()
    assert tree.logprob == pytest.approx(0, abs=1e-3)
    tree.back()
    tree.back()
    tree.back()
    tree.back()
    assert tree.text == ""


def test_the_screen_shows_text_and_branches(tree):
    tree.follow()
    text = "".join(fragment[1] for fragment in render_tree(tree))
    assert text.startswith("xa\n")
    assert "1 tokens" in text
    assert "q quit" in text
    assert render_branch(tree.here.parent.branches[0]).startswith("•")
    assert "100.0%" in render_branch(tree.here.branches[0])


def test_keys(tree):
    with create_pipe_input() as keys:
        keys.send_text(RIGHT + RIGHT + LEFT + "q")
        assert explore(tree, input=keys, output=DummyOutput()) == "a"
    with create_pipe_input() as keys:
        keys.send_text("\r" + "q")
        assert explore(tree, input=keys, output=DummyOutput()) == "abc"


def test_the_command_needs_a_terminal_and_works_in_one(smollm2_path):
    options = ["parallel", "--explore", "--model", str(smollm2_path), "The capital of France is"]
    command = ["-c", "from stretto.cli import main; main()", *options]
    piped = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert "needs a terminal" in piped.stderr
    assert piped.returncode == 2
    terminal = Terminal(command)
    terminal.until("Paris")
    terminal.process.send(RIGHT)
    terminal.until("1 tokens")
    terminal.process.send("q")
    terminal.until("The capital of France is Paris")
    assert terminal.end() == 0

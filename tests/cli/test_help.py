"""Help pages: words for values, nothing beside switches; and what a shell completes."""

import os
import re
import shutil
import subprocess
import sys

import pytest
import typer

from stretto.cli import app, main
from stretto.cli.commands import value_name
from stretto.cli.options import model_names

STRETTO = [sys.executable, "-c", "from stretto.cli import main; main()"]


def pages(command=None, path=()):
    """The words that lead to each command."""
    command = command or typer.main.get_command(app)
    yield path
    for name, child in getattr(command, "commands", {}).items():
        yield from pages(child, (*path, name))


@pytest.mark.parametrize("path", list(pages()), ids=" ".join)
def test_no_type_of_python_is_on_a_help_page(path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    with pytest.raises(SystemExit) as ended:
        main([*path, "--help"])
    page = capsys.readouterr().out
    assert ended.value.code == 0
    assert "Usage: stretto" in page
    assert not re.findall(r"<\w+>|BOOLEAN|INTEGER|FLOAT|list\[", page)


@pytest.mark.parametrize(
    ("type_name", "word"),
    [("<bool>", "bool"), ("<int range>", "N"), ("list[str]", "TEXT"), ("FLOAT", "NUMBER"), ("<a|b>", "a|b")],
)
def test_types_in_words(type_name, word):
    assert value_name(type_name) == word


def complete(words, env=os.environ):
    shell = {"_STRETTO_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run(STRETTO, env={**env, **shell}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_commands_options_choices_and_models_are_completed():
    assert complete("stretto pu") == ["pull"]
    assert complete("stretto run --tempe") == ["--temperature"]
    assert complete("stretto run --repack ") == ["auto", "yes", "no", "shared"]
    assert complete("stretto run --model smol")[0] == "smollm2"


def test_models_that_are_here_come_first(tiny, store_home, capsys):
    with pytest.raises(SystemExit):
        main(["pull", tiny.name])
    assert model_names("")[0] == tiny.name
    assert model_names("no such") == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_the_tab_key_in_a_shell(tmp_path):
    pexpect = pytest.importorskip("pexpect")
    from terminals import stop

    program = tmp_path / "stretto"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from stretto.cli import main; main()" "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "TERM": "dumb"}
    shell = pexpect.spawn(
        "bash", ["--norc", "--noprofile"], env=environment, encoding="utf-8", timeout=60, dimensions=(24, 100)
    )
    try:
        shell.sendline("PS1='ready''> '; eval \"$(stretto --show-completion)\"")
        shell.expect("ready> ")
        shell.send("stretto toke\t")
        shell.expect(re.escape("tokenize "))
    finally:
        stop(shell)
    assert shell.after == "tokenize "

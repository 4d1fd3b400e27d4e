"""Fixtures for commands that run a model."""

import io
import sys

import pytest

import stretto
from stretto.cli import main
from stretto.testing import mock_llm


@pytest.fixture(name="stretto")
def run_command(capsys):
    """Runs a command here: its exit code, output and errors."""

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return run


@pytest.fixture
def cli(capsys, monkeypatch):
    """Runs a command on a scripted model, with bytes on stdin: its exit code, output and errors."""

    def call(*arguments, llm=None, stdin=b""):
        loaded = []

        def load(model, **options):
            loaded.append((model, options))
            return mock_llm("Hello there") if llm is None else llm

        monkeypatch.setattr(stretto, "load", load)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        call.loaded = loaded
        return ended.value.code, captured.out, captured.err

    return call

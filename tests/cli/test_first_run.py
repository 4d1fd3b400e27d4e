"""The line about the default model: once, in a terminal only, with the best model that fits."""

import subprocess
import sys

import pytest

from stretto.cli.first_run import MARKER, _is_first, sentence
from stretto.weights.hub.catalogue import CATALOGUE

CODE = """
import sys
import stretto.llm
from stretto.cli import first_run, main
from stretto.testing import mock_llm
from stretto.weights.hub.catalogue import CATALOGUE
stretto.llm.load = lambda model, **options: mock_llm("Hello")
sys.modules["stretto.cli.pull"].pull_missing = lambda model: None
first_run._best = lambda: (CATALOGUE["qwen3-0.6b"], 400_000_000, 20e9)
main(["run", *sys.argv[1:]])
"""


def test_the_line_names_model_size_and_speed():
    entry = CATALOGUE["qwen3-0.6b"]
    line = sentence(entry, 400_000_000, 20e9)
    assert line.startswith("smollm2 is tiny and says silly things; ")
    assert 'stretto run qwen3-0.6b "…" (a download of 400.0 MB, about 35 tokens/s)' in line
    assert "(size unknown)" in sentence(entry, None, 20e9)
    assert "unknown while the Hub cannot be reached" in sentence(None, None, None)
    assert "\n" not in line


def test_the_marker_is_left_once(tmp_path):
    marker = tmp_path / "new" / MARKER
    assert [_is_first(marker), _is_first(marker)] == [True, False]
    assert not _is_first(marker / "below a file")


def in_terminal(*arguments):
    pexpect = pytest.importorskip("pexpect")
    child = pexpect.spawn(sys.executable, ["-c", CODE, *arguments], encoding="utf-8", timeout=120)
    child.setwinsize(24, 200)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0, child.before
    return child.before


def test_it_comes_once_in_a_terminal_and_never_in_a_pipe(store_home):
    piped = subprocess.run(
        [sys.executable, "-c", CODE, "Hi"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=os.environ,
    )
    assert (piped.stdout, piped.stderr) == ("Hello\n", "")
    assert not (store_home / MARKER).exists()
    assert "tiny" not in in_terminal("-m", "mock.gguf", "Hi")
    assert "the best that fits here: stretto run qwen3-0.6b" in in_terminal("Hi")
    assert "tiny" not in in_terminal("Hi")

"""Types as a user's checker sees them: the README's first snippet passes, and calls have precise types."""

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

TYPES = """
from typing_extensions import assert_type

import stretto
from stretto import Result, Step

llm = stretto.load("smollm2")
seq = llm.sequence("Once")
options = stretto.Options(temperature=0.2, stop=["."], template={"enable_thinking": False})
messages = [{"role": "user", "content": "Hi"}]

assert_type(llm.generate("Once"), Result)
assert_type(llm.generate([1, 2, 3]), Result)
assert_type(llm.generate(seq, options, seed=7), Result)
assert_type(llm.generate(["Once", "Twice"]), list[Result])
assert_type(llm.generate("Once", n=2), list[Result])
assert_type(llm.generate(["Once"], n=2), list[list[Result]])
assert_type(llm.chat(messages), Result)
assert_type(llm.chat(messages, template=llm.thinking("low"), reasoning=True).reasoning, str)
assert_type([token.is_reasoning for token in llm.chat(messages, stream=True)], list[bool])
assert_type(llm.step([seq]), list[Step])
assert_type([token.text for token in llm.chat(messages, stream=True)], list[str])


async def main() -> None:
    assert_type(await llm.agenerate("Once"), Result)
    assert_type(await llm.achat(messages, options), Result)
    async for token in llm.astream(seq):
        assert_type(token.text, str)
    async for token in llm.achat(messages, stream=True):
        assert_type(token.text, str)
"""


def first_snippet():
    return re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A user's project: nothing of this repository's settings applies there."""
    made = tmp_path_factory.mktemp("project")
    (made / "readme.py").write_text(first_snippet(), "utf-8")
    (made / "calls.py").write_text(TYPES, "utf-8")
    (made / "wrong.py").write_text(
        'import stretto\n\nstretto.load("m").generate("Once", top_k="many")\n', "utf-8"
    )
    (made / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}', "utf-8")
    return made


def check(folder, *command):
    """The exit code and the output of a checker."""
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    return done.returncode, done.stdout + done.stderr


needs_mypy = pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed")


@pytest.mark.slow
@needs_mypy
def test_mypy(folder):
    code, output = check(folder, "mypy", "--strict", "--config-file=", "readme.py", "calls.py")
    assert (code, output.strip()) == (0, "Success: no issues found in 2 source files")


@needs_mypy
def test_wrong_types_are_found(folder):
    """A checker that sees `Any` everywhere would pass the snippets too."""
    code, output = check(folder, "mypy", "--strict", "--config-file=", "wrong.py")
    assert code == 1
    assert 'No overload variant of "generate"' in output


@pytest.mark.skipif(find_spec("pyright") is None, reason="pyright is not installed")
@pytest.mark.skipif(shutil.which("node") is None, reason="pyright needs node, and would fetch it")
def test_pyright(folder):
    code, output = check(folder, "pyright", "--pythonpath", sys.executable, "readme.py", "calls.py")
    assert (code, output.strip().splitlines()[-1][:8]) == (0, "0 errors"), output

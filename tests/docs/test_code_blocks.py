"""Every block of Python in the documentation runs as it stands, and every command in it exists."""

import ast
import asyncio
import inspect
import os
import re
import sys
from types import CodeType

import pytest
from typer.main import get_command

import stretto
from doc_blocks import NOT_RUN, ROOT, SHELLS, blocks, commands, pages
from doc_stand_ins import Loader, bounded, put_files, with_free_ports
from stretto.cli import app
from stretto.llm.texts import Texts
from stretto.weights.hub import Store

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ORDINARY_HOME = str(Store.default().home)  # found before a test gets a store of its own
CALLS = ("generate", "agenerate", "stream", "astream", "chat", "achat")
PYTHON = [page for page in pages() if any(block.language == "python" for block in blocks(page))]
SHELL = [page for page in pages() if any(block.language in SHELLS for block in blocks(page))]


README = """
my_hook = lambda logits, tokens: None
my_schema = {"type": "object", "properties": {"age": {"type": "integer", "maximum": 99}}, "required": ["age"]}
messages = [{"role": "user", "content": "Is it cold in Oslo?"}]
parameters = {"type": "object", "properties": {"town": {"type": "string"}}}
my_tools = [{"type": "function", "function": {"name": "weather", "parameters": parameters}}]
llm.load_adapter("pirate", "pirate.gguf")
"""  # what its second block leaves to the reader


def name_of(page):
    return page.relative_to(ROOT).as_posix()


@pytest.fixture
def workplace(tmp_path, monkeypatch, smollm2_path):
    """An empty folder to work in, with the models of this machine, and `stretto.load` for small ones."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STRETTO_HOME", ORDINARY_HOME)
    for variable in ("STRETTO_API_KEY", "STRETTO_ADMIN_KEY"):
        monkeypatch.delenv(variable, raising=False)
    for name in CALLS:
        monkeypatch.setattr(Texts, name, bounded(getattr(Texts, name)))
    monkeypatch.setattr(stretto.LLM, "parallel", bounded(stretto.LLM.parallel))
    loader = Loader(smollm2_path)
    monkeypatch.setattr(stretto, "load", loader)
    yield tmp_path
    loader.close()


def execute(code: CodeType, names):
    """Run code that may await at its top level."""
    value = eval(code, names)
    if inspect.iscoroutine(value):
        asyncio.run(value)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("page", PYTHON, ids=name_of)
def test_the_code_of_a_page_runs(page, workplace, smollm2_path):
    found = [block for block in blocks(page) if block.language == "python"]
    runnable = [block for block in found if not block.not_run]
    text = with_free_ports("\0".join(f"{block.given}\0{block.text}" for block in runnable))
    put_files(text, workplace, smollm2_path)
    names = {"__name__": "__main__"}
    given_of_readme = iter(("", README)) if page.name == "README.md" else None
    environment = dict(os.environ)
    try:
        for block, given, code in zip(runnable, *[iter(text.split("\0"))] * 2, strict=False):
            where = f"{name_of(page)}:{block.line}"
            given = next(given_of_readme, "") if given_of_readme else given
            execute(compile(given, f"{where} (given)", "exec"), names)
            source = "\n" * (block.line - 1) + code  # so that a traceback has the line of the page
            execute(compile(source, str(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    finally:
        os.environ.clear()
        os.environ.update(environment)
    assert len(runnable) + sum(bool(block.not_run) for block in found) == len(found)


def options_of(words):
    """The options that a command of `stretto` knows, and how many of the words name it; None: no command."""
    command, depth = get_command(app), 0
    while depth < len(words) and words[depth] in getattr(command, "commands", {}):
        command, depth = command.commands[words[depth]], depth + 1
    names = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    return {*names, "--help", "-h"} if depth or not getattr(command, "commands", {}) else None


def extras():
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]


def problem(words):
    """What is wrong with a command, or None."""
    if words[0] == "stretto" and len(words) > 1 and not words[1].startswith(("-", "COMMAND")):
        options = options_of(words[1:])
        if options is None:
            return f"there is no command {words[1]!r}"
        given = [word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)]
        wrong = [word for word in given if word not in options]
        return f"{words[1]} has no option {wrong[0]}" if wrong else None
    if words[0] == "make" and len(words) > 1 and "=" not in words[1]:
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
        return None if words[1] in targets else f"make has no target {words[1]!r}"
    if (
        words[0] in ("python", "python3")
        and len(words) > 1
        and words[1].startswith(("scripts/", "benchmarks/"))
    ):
        return None if (ROOT / words[1]).is_file() else f"there is no {words[1]}"
    for word in words if "install" in words else ():
        for extra in re.findall(r"stretto\[([\w,]+)\]", word):
            if unknown := set(extra.split(",")) - extras().keys():
                return f"there is no extra {unknown.pop()!r}"
    return None


@pytest.mark.parametrize("page", SHELL, ids=name_of)
def test_the_commands_of_a_page_exist(page):
    found = [
        (block, words) for block in blocks(page) if block.language in SHELLS for words in commands(block.text)
    ]
    wrong = [(name_of(page), block.line, problem(words)) for block, words in found if problem(words)]
    assert wrong == []


def test_a_command_that_does_not_exist_is_found():
    lines = "stretto fly\nstretto run --wings\nmake nothing\npip install 'stretto[wings]' # why not\n"
    assert all(problem(words) for words in commands(lines))
    assert len(commands(lines)) == 4


def test_every_block_that_does_not_run_says_why():
    texts = [page.read_text("utf-8") for page in pages()]
    reasons = [match[1] for text in texts for match in re.finditer(NOT_RUN.pattern, text, re.MULTILINE)]
    assert all(len(reason) > 5 for reason in reasons)

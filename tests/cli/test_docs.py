"""`stretto docs`: the installed pages, and every place that names one."""

import ast
import re
import sys
from pathlib import Path

import pytest

import stretto as package
import terminals
from stretto.cli.docs import find, folder, pages
from stretto.errors import InvalidRequest

SOURCES = sorted(Path(package.__file__).parent.rglob("*.py"))
NAMED = re.compile(r"\(stretto docs ([a-z][\w/-]*)|`stretto docs ([a-z][\w/-]*)`")
PATH = re.compile(r"docs/[\w/-]+\.md")


def test_all_pages_are_listed_by_names_that_open_them(stretto):
    code, out, _ = stretto("docs")
    names = [line.split()[0] for line in out.splitlines()[2:] if line.strip() and line.startswith(" ")][1:]
    assert code == 0
    assert sorted(find(name) for name in names) == sorted(folder() / f"{page}.md" for page in pages())


def test_a_page_in_a_pipe_is_markdown(stretto):
    code, out, _ = stretto("docs", "mixes")
    assert code == 0
    assert out == (folder() / "reference" / "mixes.md").read_text()
    assert stretto("docs", "reference/mixes.md")[1] == out
    assert stretto("docs", "--path", "mixes")[1] == f"{folder() / 'reference' / 'mixes.md'}\n"


def test_names_that_lead_to_no_page_or_to_two(stretto):
    code, _, err = stretto("docs", "mixs")
    assert code == 2
    assert "there is no page 'mixs'; perhaps mixes" in err
    code, _, err = stretto("docs", "bench")
    assert code == 2
    assert "stretto docs how-to/bench or stretto docs reference/bench" in err
    with pytest.raises(InvalidRequest):
        find("../README")


def test_the_installed_pages_come_first(tmp_path, monkeypatch):
    docs = sys.modules[find.__module__]  # `stretto.cli.docs` is the command
    installed = tmp_path / "stretto" / "_docs"
    installed.mkdir(parents=True)
    monkeypatch.setattr(docs, "__file__", str(tmp_path / "stretto" / "cli" / "docs.py"))
    with pytest.raises(InvalidRequest, match="pages of documentation are missing"):
        docs.pages()
    (installed / "index.md").write_text("# Stretto\n")
    assert docs.pages() == ["index"]


def test_every_page_that_a_text_names_is_there():
    named = {one or two for source in SOURCES for one, two in NAMED.findall(source.read_text())}
    assert {"mixes", "control", "how-to/export"} <= named
    assert [name for name in named if not find(name).is_file()] == []


def texts(source):
    """The strings of a source that are no docstrings."""
    tree = ast.parse(source.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def test_no_help_and_no_error_names_a_path_of_the_repository():
    found = {source.name: [text for text in texts(source) if PATH.search(text)] for source in SOURCES}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_a_page_in_a_terminal_is_laid_out():
    program = "from stretto.cli import main; main(['docs', 'mixes'])"
    terminal = terminals.Terminal(["-c", program], height=300, PAGER="cat", MANPAGER="cat")
    assert terminal.end() == 0
    assert "Mixes of formats" in terminal.text
    assert "# Mixes" not in terminal.text
    assert "(stretto docs quantize)" in " ".join(terminal.text.split())

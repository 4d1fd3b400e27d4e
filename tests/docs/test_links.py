"""Links in the documents are named after what they lead to, and lists of names and pages are in the files."""

import re
from pathlib import Path

import stretto

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))]
FILE_NAME = re.compile(r"\[(?:[\w-]+/)*[\w-]+\.md\]\([^)]*\)")


def test_no_link_has_a_file_name_as_its_label():
    found = {page.name: FILE_NAME.findall(page.read_text("utf-8")) for page in PAGES}
    assert {page: labels for page, labels in found.items() if labels} == {}


def test_commands_that_open_pages_become_links_with_their_titles(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "site"))
    from titles import linked

    text = linked("Hooks (stretto docs control) and `stretto docs how-to/tools`.", "reference/api")
    assert text == "Hooks ([Hooks](../control.md)) and [Give a model tools](../../how-to/tools.md)."


def test_no_page_names_another_by_its_path():
    path = re.compile(r"\(docs/[\w/-]+\.md\)")
    found = {page.name: path.findall(page.read_text("utf-8")) for page in (ROOT / "docs").rglob("*.md")}
    del found["architecture.md"]  # the tree of files
    assert {page: paths for page, paths in found.items() if paths} == {}


def test_every_page_has_its_place_in_the_navigation(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "site"))
    from order import PARTS

    placed = [path for groups in PARTS.values() for paths in groups.values() for path in paths]
    there = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert sorted(placed) == sorted(there - {"index.md", "glossary.md"})


def test_pages_of_names_list_them_in_their_source():
    page = (ROOT / "docs/reference/api/llm.md").read_text("utf-8")
    names = [
        name for name in dir(stretto.LLM) if not name.startswith("_") and callable(getattr(stretto.LLM, name))
    ]
    assert {"generate", "stream", "chat", "step", "parallel"} <= set(names)
    assert [name for name in names if f"`LLM.{name}`" not in page] == []


def test_the_first_page_lists_all_tutorials():
    index = (ROOT / "docs/index.md").read_text("utf-8")
    tutorials = [page.name for page in (ROOT / "docs/tutorials").glob("*.md")]
    assert tutorials
    assert [name for name in tutorials if f"(tutorials/{name})" not in index] == []


def test_options_say_which_ones_a_step_takes():
    page = (ROOT / "docs/reference/options.md").read_text("utf-8")
    heading = next(line for line in page.splitlines() if line.startswith("## ") and "sampling" in line)
    assert "`step`" in heading

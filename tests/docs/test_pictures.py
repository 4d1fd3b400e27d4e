"""Pictures of the documents: drawn by their script, for light and dark pages, and described where used."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "pictures"
NAMES = (
    "cells-and-forks",
    "cost-by-length",
    "engine-step",
    "image-cells",
    "lattice",
    "parallel-quality",
    "speed-by-cpu",
)
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)]*)\)")
SVG = "{http://www.w3.org/2000/svg}"


def uses():
    """The alternative texts of each file in docs/pictures, over all pages and the README."""
    found = {}
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for alternative, target in IMAGE.findall(page.read_text("utf-8")):
            file = (page.parent / target).resolve()
            if file.parent == FOLDER:
                found.setdefault(file.stem, []).append(alternative)
    return found


def test_pictures_are_current():
    command = [sys.executable, "scripts/doc_pictures.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, ""), "run: python scripts/doc_pictures.py"


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_has_a_title_and_colours_for_light_and_dark(name):
    svg = ElementTree.parse(FOLDER / f"{name}.svg").getroot()
    light, dark = re.findall(r":root \{ (.*?) \}", svg.findtext(f"{SVG}style"))
    colours = [dict(re.findall(r"--([\w-]+): (#\w{6});", theme)) for theme in (light, dark)]
    assert svg.findtext(f"{SVG}title") == svg.get("aria-label")
    assert colours[0].keys() == colours[1].keys()
    assert colours[0]["ground"] != colours[1]["ground"]


@pytest.mark.parametrize("name", NAMES)
def test_all_shapes_lie_within_their_picture(name):
    svg = ElementTree.parse(FOLDER / f"{name}.svg").getroot()
    width, height = float(svg.get("width")), float(svg.get("height"))
    for shape in svg.iter(f"{SVG}rect"):
        x, y, w, h = (float(shape.get(key)) for key in ("x", "y", "width", "height"))
        assert 0 <= x <= x + w <= width
        assert 0 <= y <= y + h <= height


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_used_and_described(name):
    alternatives = uses().get(name, [])
    assert alternatives
    assert all(len(text) > 60 for text in alternatives)


def test_a_screenshot_of_the_page_has_a_dark_twin_and_a_description():
    shots = [file.stem for file in FOLDER.glob("page-*.png") if not file.stem.endswith("-dark")]
    assert len(shots) == 10
    assert [name for name in shots if not (FOLDER / f"{name}-dark.png").is_file()] == []
    assert [name for name in shots if not any(len(text) > 60 for text in uses().get(name, []))] == []


@pytest.mark.parametrize("name", ["run", "chat"])
def test_a_recorded_session_is_shown_and_described(name):
    assert any(len(text) > 60 for text in uses().get(name, []))


def test_the_site_shows_a_screenshot_in_its_own_colours(monkeypatch):
    pytest.importorskip("mkdocs")
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "site"))
    import hooks

    page = "![A page](../pictures/page-play.png) and ![A plot](../pictures/lattice.svg)"
    both = (
        "![A page](../pictures/page-play.png#only-light)![A page](../pictures/page-play-dark.png#only-dark)"
    )
    assert hooks.with_dark_twins(page) == f"{both} and ![A plot](../pictures/lattice.svg)"

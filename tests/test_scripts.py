"""Scripts: the progress of a build, and pictures of terminals."""

import io
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"
PIP = """
import sys
print("  Preparing metadata (pyproject.toml): started")
print("  [1/3] Building CXX object a.o")
print("  [3/3] Linking CXX shared module core.so")
print("  error: something of the compiler")
sys.exit({code})
"""


@pytest.fixture
def script(monkeypatch):
    """Imports a script by its name."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return lambda name: __import__(name)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_build_shows_how_far_it_is_in_one_line(script):
    screen = Terminal()
    assert script("build_progress").run([sys.executable, "-c", PIP.format(code=0)], screen) == 0
    shown = [line.strip() for line in screen.getvalue().split("\r")]
    assert shown[1:5] == [
        "building, which takes a minute or a few",
        "preparing the build",
        "compiling the native core: 1 of 3",
        "compiling the native core: 3 of 3",
    ]
    assert "error" not in screen.getvalue()


def test_a_build_that_fails_says_why(script):
    screen = io.StringIO()
    assert script("build_progress").run([sys.executable, "-c", PIP.format(code=3)], screen) == 3
    assert "error: something of the compiler" in screen.getvalue()
    assert screen.getvalue().startswith("building, which takes a minute or a few\n")


def test_the_script_is_python_with_other_arguments():
    done = subprocess.run(
        [sys.executable, SCRIPTS / "build_progress.py", "-c", "import sys; print(sys.argv)"],
        capture_output=True,
    )
    assert done.returncode == 0


def test_a_screen_is_drawn_with_its_colours_and_as_xml(script):
    pyte = pytest.importorskip("pyte")
    svg = script("terminal_svg")
    screen = pyte.HistoryScreen(20, 3)
    pyte.Stream(screen).feed("\x1b[1;32m> \x1b[0ma <b> & c\r\n\x1b[90mgrey\r\n\x1b[0mx\r\nlast")
    rows = svg.lines_of(screen)
    assert [[text for _, text, _ in row] for row in rows] == [["> ", "a <b> & c"], ["grey"], ["x"], ["last"]]
    drawn = svg.draw(rows, 20, "a <title>")
    root = ElementTree.fromstring(drawn)
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["a <title>", "> ", "a <b> & c", "grey", "x", "last"]
    assert "prefers-color-scheme: dark" in drawn
    assert 'class="green" font-weight="bold"' in drawn


@pytest.mark.parametrize("name", ["run", "chat"])
def test_recorded_pictures_are_xml_and_name_their_command(name):
    root = ElementTree.parse(SCRIPTS.parent / "docs" / "pictures" / f"{name}.svg").getroot()
    texts = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == f"stretto {name}"
    assert any(text.startswith(f"$ stretto {name}") for text in texts)

"""Scripts: the progress of a build, and pictures of terminals."""

import io
import os
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
        "building, which takes a minute or two",
        "preparing the build",
        "compiling the native core: 1 of 3",
        "compiling the native core: 3 of 3",
    ]
    assert "error" not in screen.getvalue()


def test_a_build_that_fails_says_why(script):
    screen = io.StringIO()
    assert script("build_progress").run([sys.executable, "-c", PIP.format(code=3)], screen) == 3
    assert "error: something of the compiler" in screen.getvalue()
    assert screen.getvalue().startswith("building, which takes a minute or two\n")


def test_the_script_is_python_with_other_arguments():
    done = subprocess.run(
        [sys.executable, SCRIPTS / "build_progress.py", "-c", "import sys; print(sys.argv)"],
        capture_output=True,
    )
    assert done.returncode == 0


def test_a_download_is_shown_beside_the_build(script):
    screen = Terminal()
    run = script("build_progress").run
    assert run([sys.executable, "-c", PIP.format(code=0)], screen, beside=lambda: "mine: 20 % of 1.1 GB") == 0
    shown = [line.strip() for line in screen.getvalue().split("\r")]
    assert "preparing the build · mine: 20 % of 1.1 GB" in shown
    assert "compiling the native core: 3 of 3 · mine: 20 % of 1.1 GB" in shown


def test_requirements_of_an_extra_are_those_of_the_extras_it_names(script):
    install = script("install")
    extras = install.project()["project"]["optional-dependencies"]
    found = install.of_extra("test", extras)
    assert {*extras["docs"], *extras["onnx"]} < set(found)
    assert not any(requirement.startswith("stretto") for requirement in found)


def test_a_download_that_fails_leaves_the_build(script, monkeypatch, capsys):
    install = script("install")
    monkeypatch.setattr(install, "PIP", [sys.executable, "-c", PIP.format(code=0)])
    failing = 'import sys; print(\'{"model": "m", "done": 1, "total": 2}\'); sys.exit(\'error: no network\')'
    assert install.compile_core(install.Download([sys.executable, "-c", failing])) == 0
    assert "error: no network\nthe model is fetched again when it is used" in capsys.readouterr().err


def test_a_build_that_fails_ends_the_download(script, monkeypatch, capsys):
    install = script("install")
    monkeypatch.setattr(install, "PIP", [sys.executable, "-c", PIP.format(code=3)])
    download = install.Download([sys.executable, "-c", "import time; time.sleep(600)"])
    assert install.compile_core(download) == 3
    assert not download.running()
    assert "error: something of the compiler" in capsys.readouterr().err


def test_a_file_that_is_here_is_not_fetched(script, monkeypatch, tmp_path):
    (tmp_path / "mine.gguf").touch()
    monkeypatch.setenv("STRETTO_MODEL", str(tmp_path / "mine.gguf"))
    assert script("install").begin_download() is None


def find_python(**variables):
    command = ["/bin/sh", str(SCRIPTS / "find_python.sh")]
    return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)


def test_a_machine_without_a_compiler_is_told_which_package_has_one():
    done = find_python(CXX="/nowhere/c++", PYTHON=sys.executable)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "no C++17 compiler" in done.stderr
    assert all(
        package in done.stderr for package in ("apt install g++", "dnf install gcc-c++", "xcode-select")
    )


def test_an_old_python_is_refused_in_a_sentence(tmp_path):
    old = tmp_path / "python3.9"
    old.write_text("#!/bin/sh\ncase $1 in --version) echo Python 3.9.18;; *) exit 1;; esac\n")
    old.chmod(0o755)
    done = find_python(PYTHON=str(old))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "needs Python 3.10 or newer" in done.stderr
    assert "is Python 3.9.18" in done.stderr


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

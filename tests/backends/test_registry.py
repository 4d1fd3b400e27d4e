"""Backends by name and device: the built-in ones, and those that other packages add."""

import importlib.metadata
import subprocess
import sys

import pytest

import stretto
from stretto.backends import registry
from stretto.backends.reference import ReferenceBackend
from stretto.backends.registry import BackendEntry, choose, names
from stretto.errors import InvalidRequest, Unsupported

asked = []  # the options that the backend of this file was opened with


def open_here(file, spec, options):
    asked.append(options)
    return ReferenceBackend(file, spec, options.cells)


ABACUS = BackendEntry("abacus", ("beads", "cpu"), open_here)
NOT_AN_ENTRY = "abacus"


@pytest.fixture
def installed(monkeypatch):
    """Let entry points be installed, as `name = value`; counts how often they were looked for."""
    points, counted = [], []

    def entry_points(group):
        counted.append(group)
        return [point for point in points if point.group == group]

    def install(name, value):
        points.append(importlib.metadata.EntryPoint(name, f"{__name__}:{value}", "stretto.backends"))

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    monkeypatch.setattr(registry, "entries_by_name", dict(registry.entries_by_name))
    install.counted = counted
    return install


def test_the_native_backend_comes_first(installed):
    for backend, device, name in [
        ("auto", "auto", "native"),
        ("auto", "cpu", "native"),
        ("native", "cpu", "native"),
        ("reference", "auto", "reference"),
    ]:
        entry, chosen = choose(backend, device)
        assert (entry.name, chosen) == (name, "cpu")
    assert installed.counted == []  # no package was looked at


def test_a_backend_of_another_package(installed, smollm2_path):
    installed("abacus", "ABACUS")
    assert names() == ("native", "reference", "llamacpp", "torch", "onnx", "abacus")
    assert choose("abacus") == (ABACUS, "beads")
    assert choose("abacus", "cpu") == (ABACUS, "cpu")
    assert choose(device="beads") == (ABACUS, "beads")
    assert choose(device="cpu")[0].name == "native"
    with stretto.load(smollm2_path, device="beads", cells=16, threads=3, kv="f32", repack=False) as llm:
        assert llm.backend.name == "reference"
    assert asked == [registry.BackendOptions("beads", 16, 3, "f32", "standard", False)]


def test_a_device_is_refused_with_those_that_exist(installed):
    with pytest.raises(
        InvalidRequest, match=r"^device must be one of 'auto', 'cpu', 'cuda', not 'beads'$"
    ) as refused:
        choose("auto", "beads")
    assert (refused.value.param, refused.value.value) == ("device", "beads")
    installed("abacus", "ABACUS")
    with pytest.raises(Unsupported, match=r"'beads' is not served by backend='native', but by .*'abacus'"):
        choose("native", "beads")
    with pytest.raises(InvalidRequest, match="must be one of 'auto', 'cpu', 'cuda', 'beads', not 'gpu'"):
        choose("auto", "gpu")
    with pytest.raises(InvalidRequest, match="device must be one of 'auto', 'cpu', not 'gpu'"):
        choose("native", "gpu")
    with pytest.raises(InvalidRequest, match=r"backend must be one of 'auto', 'native', .*'abacus', not 'x'"):
        choose("x")


def test_a_damaged_package_harms_nobody_who_does_not_ask_for_it(installed):
    installed("abacus", "NO_SUCH_NAME")
    installed("counter", "NOT_AN_ENTRY")
    assert choose("reference")[0].name == "reference"
    with pytest.raises(Unsupported, match=r"'abacus' cannot be imported from .*NO_SUCH_NAME") as refused:
        choose("abacus")
    assert (refused.value.param, refused.value.value) == ("backend", "abacus")
    with pytest.raises(Unsupported, match="NOT_AN_ENTRY must be a BackendEntry of that name"):
        choose("counter")


def test_loading_looks_through_no_packages():
    code = (
        "import sys; from stretto.backends.registry import choose; choose(); "
        "print({'importlib.metadata', 'stretto.backends.reference'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"

"""The catalogue of well-known models on the Hub: sizes are asked for, and what fits is chosen by them."""

from dataclasses import replace
from pathlib import Path

import pytest

import local_hub
from stretto.models import ARCHITECTURES
from stretto.weights import hub
from stretto.weights.hub import catalogue, links
from stretto.weights.hub.catalogue import CATALOGUE, CHAT, fits
from stretto.weights.hub.huggingface import ask_sizes, best_fit, file_sizes
from stretto.weights.hub.names import is_name, parse_reference

GB = 10**9


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(links, "BACKOFF_SECONDS", 0.0)
    with local_hub.serving(monkeypatch) as server:
        yield server


def put(server, name, nbytes):
    """List a file of that size; its content does not matter."""
    path = f"{CATALOGUE[name].repo}/{name}-{CATALOGUE[name].files}.gguf"
    server.files[path] = b"GGUF"
    server.lies[path] = {"lfs": {"sha256": "0" * 64, "size": nbytes}}


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=lambda entry: entry.name)
def test_entries_are_sound_and_of_proven_architectures(entry):
    assert entry.architecture in ARCHITECTURES
    assert is_name(entry.name)
    assert entry.name not in hub.packaged_models()
    assert parse_reference(str(entry.reference)) == entry.reference
    assert entry.source.startswith("https://huggingface.co/")
    assert entry.licence_url.startswith("https://")
    assert entry.summary
    assert entry.licence


def test_there_are_about_thirty_and_those_to_begin_with_are_among_them():
    assert 30 <= len(CATALOGUE) <= 40
    assert set(CHAT) <= CATALOGUE.keys()
    assert [*CATALOGUE] == [entry.name for entry in CATALOGUE.values()]


def test_no_size_is_written_down():
    text = catalogue.Path(catalogue.__file__).with_suffix(".json").read_text()
    assert not any(word in text for word in ("bytes", "size", "sha256"))


def test_sizes_are_asked_from_the_hub_and_unknown_without_it(server):
    put(server, "qwen3-0.6b", 400_000_000)
    put(server, "gpt-oss-20b", 12 * GB)
    sizes = ask_sizes(CATALOGUE.values())
    assert [*sizes] == [*CATALOGUE]
    known = {name: size for name, size in sizes.items() if size is not None}
    assert known == {"qwen3-0.6b": 400_000_000, "gpt-oss-20b": 12 * GB}
    assert file_sizes(CATALOGUE["gemma4-e2b"]) is None
    server.server_close()
    server.requests.clear()
    assert set(ask_sizes(CATALOGUE.values()).values()) == {None}


def test_the_best_that_fits_is_chosen(server):
    for number, name in enumerate(CHAT):
        put(server, name, (number + 1) * GB)
    assert best_fit(100 * GB).name == CHAT[-1]
    assert best_fit(5 * GB).name == CHAT[3]
    assert best_fit().name == CHAT[0]  # memory is not known
    assert best_fit(1 * GB) is None
    # Weights that take long to read are left to faster machines, but a mixture reads only a part of them.
    assert best_fit(6 * GB, bandwidth=25 * GB).name == CHAT[2]
    assert best_fit(100 * GB, bandwidth=25 * GB).name == "gpt-oss-20b"
    assert fits(4 * GB, 5 * GB)
    assert not fits(5 * GB, 5 * GB)


def test_without_a_network_nothing_is_chosen(server):
    server.server_close()
    assert best_fit(100 * GB) is None


@pytest.mark.parametrize("name", ["qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b", "gemma3-270m"])
def test_estimates_are_near_the_sizes_that_are_known(name):
    about = replace(CATALOGUE["qwen3-0.6b"], name=name).about_nbytes
    assert about == pytest.approx(hub.packaged_models()[name].nbytes, rel=0.1)


def test_no_module_of_the_hub_has_the_name_of_a_function():
    """Importing a module binds its name in the package: a module imported late would replace a function."""
    modules = {path.stem for path in Path(hub.__file__).parent.iterdir()}
    assert not modules & {name for name in hub.__all__ if callable(getattr(hub, name))}

"""Files from the Hugging Face Hub: the real client against a server on this machine."""

import hashlib
import importlib.util
import shutil
import subprocess
import sys

import numpy as np
import pytest

import local_index
from stretto.errors import PullError, Unsupported
from stretto.weights import hub
from stretto.weights.gguf import GGUF
from stretto.weights.writer import write_split

TENSORS = {f"t{i}": np.full((2, 32), i, np.float32) for i in range(4)}
NAME = "hf:org/repo/sub/tiny.gguf"


@pytest.fixture
def server(tmp_path, wheels, monkeypatch):
    with local_index.serving(wheels) as server:
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE"):
            monkeypatch.delenv(name, raising=False)
        settings = {
            "HF_ENDPOINT": server.url,
            "HF_HOME": str(tmp_path / "hf"),
            "NO_PROXY": "*",
            "no_proxy": "*",
        }
        for name in ("HF_HUB_DISABLE_XET", "HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DISABLE_IMPLICIT_TOKEN"):
            settings[name] = "1"
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        server.files = {"org/repo/sub/tiny.gguf": local_index.tiny_gguf(tmp_path)}
        yield server


def left_behind(home):
    return [path for path in home.rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_a_file_is_fetched_verified_and_kept_with_its_licence(server, store_home):
    server.files["org/repo/LICENSE"] = b"Be kind.\n"
    server.files["org/repo/LICENSE/../../x"] = b"a name that must not be asked for"
    server.license = "mit"
    steps = []
    model = hub.pull(NAME, progress=lambda *step: steps.append(step))
    gguf = server.files["org/repo/sub/tiny.gguf"]
    assert model.path.read_bytes() == gguf
    assert model.path == store_home / "models" / "hf~org~repo~sub~tiny.gguf" / "tiny.gguf"
    assert model.sha256 == hashlib.sha256(gguf).hexdigest()
    assert (model.name, model.verified, model.license) == (NAME, True, "mit")
    assert model.source.startswith(f"{NAME}@0123456789abcdef")
    assert [notice.read_text() for notice in model.notices] == ["Be kind.\n"]
    assert steps[-1] == (len(gguf), len(gguf), "verifying")
    assert sorted(path.name for path in left_behind(store_home)) == ["LICENSE", "model.json", "tiny.gguf"]
    assert hub.resolve(NAME) == model.path
    hub.remove(NAME)
    assert left_behind(store_home) == []


def test_a_revision_is_another_model(server, store_home):
    model = hub.pull(f"{NAME}@v1.0")
    assert any("/resolve/v1.0/" in request for request in server.requests)
    assert model.path.parent.name == "hf~org~repo~sub~tiny.gguf@v1.0"
    assert hub.models() == [model]


def test_a_wrong_hash_is_not_kept(server, store_home):
    server.etags["org/repo/sub/tiny.gguf"] = "0" * 64
    with pytest.raises(PullError, match=f"{NAME} arrived with SHA-256 .* instead of 0000"):
        hub.pull(NAME)
    assert left_behind(store_home) == []


def test_without_a_published_hash_that_is_said(server):
    server.etags["org/repo/sub/tiny.gguf"] = "an-etag-of-another-kind"
    assert not hub.pull(NAME).verified


def test_not_a_gguf(server, store_home):
    server.files["org/repo/sub/tiny.gguf"] = b"version https://git-lfs.github.com/spec/v1"
    with pytest.raises(PullError, match="is not a GGUF file"):
        hub.pull(NAME)
    assert left_behind(store_home) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf:org/repo/other.gguf", "the repository has no such file"),
        ("hf:no/where/other.gguf", "no such repository, or a private one"),
    ],
)
def test_what_is_not_there(server, store_home, name, message):
    with pytest.raises(PullError, match=f"{name} could not be fetched: {message}"):
        hub.pull(name)
    assert left_behind(store_home) == []


def test_a_hub_that_cannot_be_reached(server, store_home):
    server.server_close()
    with pytest.raises(PullError, match="the Hub cannot be reached"):
        hub.pull(NAME)
    assert left_behind(store_home) == []


def test_an_interruption_leaves_nothing(server, store_home):
    def interrupt(done, total, what):
        if what == "verifying":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hub.pull(NAME, progress=interrupt)
    assert left_behind(store_home) == []


def test_too_little_room(server, monkeypatch, store_home):
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=-1))
    with pytest.raises(PullError, match="make room"):
        hub.pull(NAME)
    assert left_behind(store_home) == []


def test_without_the_client(monkeypatch, store_home):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unsupported, match=r"pip install 'stretto\[hub\]'"):
        hub.pull(NAME)
    assert left_behind(store_home) == []


def test_the_client_is_not_imported_here():
    code = "import sys, stretto.weights.hub; sys.exit('huggingface_hub' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_any_part_of_a_split_model_fetches_all_of_it(server, store_home, tmp_path):
    parts = write_split(tmp_path / "big.gguf", {"general.architecture": "llama"}, TENSORS, 3)
    for part in parts:
        server.files[f"org/repo/q8/{part.name}"] = part.read_bytes()
    second = f"hf:org/repo/q8/{parts[1].name}"
    model = hub.pull(second)
    assert (model.path.name, [part.name for part in model.parts]) == (
        parts[0].name,
        [part.name for part in parts[1:]],
    )
    assert model.sha256 == hashlib.sha256(b"".join(part.read_bytes() for part in parts)).hexdigest()
    assert (model.verified, model.nbytes) == (True, sum(part.stat().st_size for part in parts))
    with GGUF(hub.resolve(second, pull=False)) as file:
        assert list(file.tensors) == list(TENSORS)
    assert hub.pull(f"hf:org/repo/q8/{parts[2].name}") == model  # nothing is fetched again
    assert hub.models() == [model]
    model.parts[0].unlink()
    assert hub.models() == []  # not whole any more
    hub.remove(second)
    assert left_behind(store_home) == []


def test_a_split_model_of_which_a_part_is_damaged_is_not_kept(server, store_home, tmp_path):
    parts = write_split(tmp_path / "big.gguf", {"general.architecture": "llama"}, TENSORS, 2)
    for part in parts:
        server.files[f"org/repo/{part.name}"] = part.read_bytes()
    server.etags[f"org/repo/{parts[1].name}"] = "0" * 64
    with pytest.raises(PullError, match=r"big-00002-of-00002.gguf arrived with SHA-256 .* instead of 0000"):
        hub.pull(f"hf:org/repo/{parts[0].name}")
    assert left_behind(store_home) == []


def test_a_split_model_of_which_a_part_is_missing_is_not_kept(server, store_home, tmp_path):
    parts = write_split(tmp_path / "big.gguf", {"general.architecture": "llama"}, TENSORS, 2)
    server.files[f"org/repo/{parts[0].name}"] = parts[0].read_bytes()
    with pytest.raises(PullError, match="the repository has no such file"):
        hub.pull(f"hf:org/repo/{parts[0].name}")
    assert left_behind(store_home) == []

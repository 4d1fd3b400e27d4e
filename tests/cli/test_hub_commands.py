"""`stretto pull`, `inspect` and `models --catalogue` with models of the Hub."""

import json
from pathlib import Path

import huggingface_hub.constants
import pytest

import local_hub
from stretto import hardware
from stretto.quantize import convert_folder
from stretto.weights.hub import links
from stretto.weights.hub.catalogue import CATALOGUE

DATA = Path(__file__).parent.parent / "data" / "folders"


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setattr(links, "BACKOFF_SECONDS", 0.0)
    path = tmp_path / "made.gguf"
    convert_folder(DATA / "llama", path, "f16")
    with local_hub.serving(monkeypatch) as server:
        for name in ("m-Q4_K_M.gguf", "m-Q8_0.gguf"):
            server.files[f"org/repo/{name}"] = path.read_bytes()
        server.license = "mit"
        yield server


def test_a_repository_is_listed_and_the_usual_file_fetched(stretto, server, store_home):
    code, output, errors = stretto("pull", "org/repo")
    assert code == 0
    assert [line.split()[:2] for line in errors.splitlines() if "m-Q" in line] == [
        ["m-Q4_K_M.gguf", "Q4_K_M"],
        ["m-Q8_0.gguf", "Q8_0"],
    ]
    assert next(line for line in errors.splitlines() if "chosen" in line).split()[0] == "m-Q4_K_M.gguf"
    assert output.splitlines()[0].endswith("hf~org~repo~m-Q4_K_M.gguf/m-Q4_K_M.gguf")
    assert "By using it you accept its licence: mit" in output
    server.requests.clear()
    assert stretto("pull", "hf:org/repo")[0] == 0
    assert server.requests == []
    assert "hf:org/repo/m-Q4_K_M.gguf" in stretto("models")[1]


def test_a_list_fetches_nothing(stretto, server, store_home):
    code, output, _ = stretto("pull", "--list", "hf:org/repo:Q8_0")
    assert code == 0
    assert [line.split()[0] for line in output.splitlines() if "chosen" in line] == ["m-Q8_0.gguf"]
    assert server.stored() == []
    for path in (DATA / "llama").iterdir():
        server.files[f"org/folder/{path.name}"] = path.read_bytes()
    assert "safetensors   folder" in stretto("pull", "--list", "org/folder")[1]


def test_a_model_on_the_hub_is_inspected_by_its_head(stretto, server, store_home):
    code, output, _ = stretto("inspect", "hf:org/repo")
    assert code == 0
    assert "hf:org/repo (its head; the weights are not here)" in output
    assert "llama.block_count" in output
    found = json.loads(stretto("inspect", "--json", "hf:org/repo/m-Q8_0.gguf")[1])
    assert found["bytes"] == len(server.files["org/repo/m-Q8_0.gguf"])
    assert found["problem"] is None
    assert not store_home.exists() or not (store_home / "models").exists()


def test_what_does_not_fit_is_refused_and_fetched_if_it_is_wanted(stretto, server, monkeypatch):
    monkeypatch.setattr("stretto.loading.choose.total_memory", lambda: 1000)
    code, output, errors = stretto("pull", "hf:org/repo")
    assert (code, output) == (2, "")
    assert "hf:org/repo/m-Q4_K_M.gguf was not fetched: " in errors
    assert stretto("pull", "hf:org/repo", "--oversize")[0] == 0


def test_the_catalogue_says_what_fits_and_how_fast(stretto, server, monkeypatch):
    monkeypatch.setattr(hardware, "free_memory", lambda: 8 * 10**9)
    for name, nbytes in (("qwen3-0.6b", 4 * 10**8), ("gpt-oss-20b", 12 * 10**9)):
        path = f"{CATALOGUE[name].repo}/m-{CATALOGUE[name].files}.gguf"
        server.files[path] = b"GGUF"
        server.lies[path] = {"lfs": {"sha256": "0" * 64, "size": nbytes}}
    rows = {row["name"]: row for row in json.loads(stretto("models", "--catalogue", "--json")[1])}
    assert rows.keys() == CATALOGUE.keys()
    assert [rows[name]["fits"] for name in ("qwen3-0.6b", "gpt-oss-20b", "gemma4-e2b")] == [True, False, None]
    speeds = [rows[name]["tokens_per_second"] for name in ("qwen3-0.6b", "gpt-oss-20b")]
    assert speeds[0] == pytest.approx(30 * speeds[1])
    code, output, _ = stretto("models", "--catalogue")
    (line,) = [line for line in output.splitlines() if line.startswith(" gpt-oss-20b")]
    assert code == 0
    assert line.split()[2:6] == ["Apache-2.0", "12.0", "GB", "no"]


def test_the_catalogue_has_sizes_without_the_hub(stretto, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hardware, "free_memory", lambda: 8 * 10**9)
    code, output, errors = stretto("models", "--catalogue")
    lines = {line.split()[0]: line for line in output.splitlines() if line.strip()}
    assert code == 0
    assert "≈ 5.0 GB" in lines["llama3.1-8b"]
    assert "unknown" in lines["gemma4-e2b"]  # its name does not say how many parameters there are
    assert "sizes with ≈ are estimates" in errors
    rows = {row["name"]: row for row in json.loads(stretto("models", "--catalogue", "--json")[1])}
    assert rows["embeddinggemma-300m"]["verbs"] == ["embed", "rerank"]
    assert (rows["llama3.1-8b"]["bytes"], rows["llama3.1-8b"]["fits"]) == (None, True)
    assert rows["llama3.1-8b"]["bytes_about"] == CATALOGUE["llama3.1-8b"].about_nbytes

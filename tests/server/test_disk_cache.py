"""Prompts on disk behind a server: there after `kill -9`, apart for each key, shown and removed."""

import json
import os
import re
import signal
import subprocess
from contextlib import contextmanager

import httpx
import numpy as np
import pytest

import stretto
from serving import STRETTO, until
from strange_models import llama
from stretto.cache.disk import DiskStore
from stretto.cli import main
from stretto.errors import InvalidRequest
from stretto.server.http.state import Callers
from stretto.server.settings import ModelEntry, Settings
from stretto.weights.gguf import GGUF

PROMPT = [(7 * i) % 90 + 3 for i in range(100)]


@pytest.fixture
def model(tmp_path):
    """A model that can be loaded."""
    return llama(tmp_path / "tiny.gguf")


@contextmanager
def serving(model, *options):
    """The address of a server and its lines about the start; it is killed at the end."""
    command = [*STRETTO, "serve", f"tiny={model}", "--port", "0", "--no-socket", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            address = process.stdout.readline().split()[-1]
            yield address, process
        finally:
            process.send_signal(signal.SIGKILL)


def cached(address, key="one"):
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 2, "temperature": 0}
    answer = httpx.post(
        f"{address}/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"}, timeout=60
    ).json()
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"], answer["choices"][0]["text"]


def test_prompts_survive_a_kill_and_belong_to_their_key(model, tmp_path, capsys):
    folder = tmp_path / "prefixes"
    options = ("--api-key", "one", "--api-key", "two", "--cache-dir", str(folder))
    with serving(model, *options) as (address, process):
        said = process.stdout.readline()
        assert said.startswith(f"prompts are kept on disk too, in {folder}, up to 2.1 GB")
        assert "--cache memory" in said
        found, text = cached(address)
        assert found == 0
        until(lambda: DiskStore(folder).usage().blocks == 1)
    with serving(model, *options) as (address, _):
        assert cached(address, "two")[0] == 0
        assert cached(address) == (64, text)
        until(lambda: DiskStore(folder).usage().owners == 2)
    for arguments in (["clear", "--api-key", "one"], []):
        with pytest.raises(SystemExit):
            main(["cache", *arguments, "--cache-dir", str(folder), *([] if arguments else ["--json"])])
    out = capsys.readouterr().out
    assert re.match("removed [0-9.]+ kB\n", out)
    shown = json.loads(out.partition("\n")[2])
    assert (shown["blocks"], shown["keys"]) == (1, 1)
    with serving(model, *options) as (address, _):
        assert cached(address)[0] == 0
        assert cached(address, "two")[0] == 64


@pytest.mark.parametrize("options", [("--cache", "memory"), ("--cache-size", "0")])
def test_it_can_be_switched_off(model, options, tmp_path, monkeypatch):
    monkeypatch.setenv("STRETTO_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("STRETTO_CACHE_DIR")
    with serving(model, *options) as (address, process):
        cached(address)
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == ""
    assert not (tmp_path / "home" / "prefixes").exists()


def test_a_folder_that_cannot_be_used_is_an_error_only_if_it_was_asked_for(tmp_path, monkeypatch, capsys):
    started = []

    def serve(settings, tell, waiting):
        started.append(settings)
        tell("http://127.0.0.1:1")

    monkeypatch.setattr("stretto.server.serve.serve", serve)
    monkeypatch.setattr("stretto.cli.servers.pull_missing", lambda source: None)
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(SystemExit) as ended:
        main(["serve", "mock.gguf", "--cache-dir", str(tmp_path / "open")])
    assert ended.value.code == 2
    assert "chmod 700" in capsys.readouterr().err
    (tmp_path / "home" / "prefixes").mkdir(parents=True, mode=0o755)
    os.chmod(tmp_path / "home" / "prefixes", 0o755)  # noqa: PTH101
    monkeypatch.setenv("STRETTO_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("STRETTO_CACHE_DIR")
    with pytest.raises(SystemExit):
        main(["serve", "mock.gguf"])
    assert [settings.cache for settings in started] == ["memory"]
    assert "prompts are kept in memory alone: the disk cache" in capsys.readouterr().out


def test_salts_of_keys_stay_and_are_apart(tmp_path):
    def salts(*keys, **options):
        settings = Settings((ModelEntry("m", "m"),), api_keys=keys, cache="disk", **options)
        callers = Callers(settings)
        return [callers.find(f"Bearer {key}".encode()).salt for key in keys]

    one, two = salts("one", "two", cache_dir=str(tmp_path))
    assert one
    assert two not in ("", one)
    assert salts("one", cache_dir=str(tmp_path)) == [one]
    assert salts("one", "two", cache_dir=str(tmp_path), share_prefixes=True) == ["", ""]
    with pytest.raises(InvalidRequest, match="cache_size"):
        salts("one", cache_size=-1)


def test_the_command_limits_and_clears(tmp_path, capsys):
    folder = tmp_path / "prefixes"

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["cache", *arguments, "--cache-dir", str(folder)])
        assert ended.value.code == 0
        return capsys.readouterr().out

    assert "0 blocks" in run()
    assert not folder.exists()
    assert "nothing is kept" in run("clear")
    store = DiskStore(folder)
    root = store.root("model")
    for key in store.chain(root, list(range(640))):
        store.write(root, key, np.zeros(1000, np.uint8))
    assert "10 blocks, 10.9 kB\nwritten today: 10.9 kB" in run()
    assert "4 blocks, 4.4 kB" in run("limit", "5kB")
    assert "limit for all servers: 5.0 kB" in run()
    assert "4 blocks" in run("limit", "none")
    assert "removed 4.4 kB" in run("clear")
    assert store.usage().blocks == 0


def test_a_file_changed_where_its_fingerprint_does_not_look_finds_nothing(tmp_path):
    path = llama(tmp_path / "tiny.gguf")
    fingerprints, cached = [], []
    for _ in range(2):
        with stretto.load(path, cache="disk", cache_dir=tmp_path / "prefixes") as llm:
            fingerprints.append(llm.engine.fingerprint())
            cached.append(llm.generate(PROMPT, max_tokens=1).usage.cached_tokens)
    data = bytearray(path.read_bytes())
    with GGUF(path) as file:
        data[file.tensors["blk.0.ffn_up.weight"].offset + 12_000] ^= 1
    path.write_bytes(data)
    with stretto.load(path, cache="disk", cache_dir=tmp_path / "prefixes") as llm:
        fingerprints.append(llm.engine.fingerprint())
        cached.append(llm.generate(PROMPT, max_tokens=1).usage.cached_tokens)
    assert len(set(fingerprints)) == 1
    assert cached == [0, 64, 0]


def test_a_limit_leaves_the_other_one_as_it_was(tmp_path, capsys):
    folder = tmp_path / "prefixes"
    told = []
    for arguments in (["1GB", "--writes", "3GB"], ["2GB"], ["none", "--writes", "none"]):
        with pytest.raises(SystemExit):
            main(["cache", "limit", *arguments, "--cache-dir", str(folder)])
        usage = DiskStore(folder).usage()
        told.append((usage.limit, usage.write_limit))
    assert told == [(10**9, 3 * 10**9), (2 * 10**9, 3 * 10**9), (None, None)]


@pytest.mark.parametrize("option", ["--api-key", "--api-key-file"])
def test_clearing_for_no_key_is_refused(tmp_path, option, capsys):
    store = DiskStore(tmp_path / "prefixes")
    root = store.root("model")
    (key,) = store.chain(root, list(range(64)))
    store.write(root, key, np.zeros(1000, np.uint8))
    (tmp_path / "keys").write_text("\n \n")
    value = str(tmp_path / "keys") if option == "--api-key-file" else ""
    with pytest.raises(SystemExit) as ended:
        main(["cache", "clear", option, value, "--cache-dir", str(store.folder)])
    assert ended.value.code == 2
    assert "has no key; give one" in capsys.readouterr().err
    assert store.usage().blocks == 1

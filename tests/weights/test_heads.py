"""The head of a model on the Hub is looked at before its weights are fetched."""

import struct
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import local_hub
import stretto
from stretto.backends import registry
from stretto.errors import ModelError, PullError
from stretto.loading.choose import check_download, check_head
from stretto.loading.describe import open_tokenizer
from stretto.models import read_spec
from stretto.quantize import convert_folder
from stretto.weights import hub
from stretto.weights.folder import open_weights
from stretto.weights.gguf import GGUF
from stretto.weights.hub import heads, links
from stretto.weights.writer import write_gguf, write_split

DATA = Path(__file__).parent.parent / "data" / "folders"
FILE = "org/repo/m-Q8_0.gguf"


@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    """A model that runs, with a vocabulary."""
    path = tmp_path_factory.mktemp("made") / "m.gguf"
    convert_folder(DATA / "llama", path, "f16")
    return path


@pytest.fixture
def server(gguf, monkeypatch):
    monkeypatch.setattr(links, "BACKOFF_SECONDS", 0.0)
    monkeypatch.setattr(heads, "FIRST_BYTES", 1000)  # so that it takes several requests
    with local_hub.serving(monkeypatch) as server:
        server.files = {FILE: gguf.read_bytes()}
        yield server


def put(server, tmp_path, metadata, tensors=None):
    path = tmp_path / "other.gguf"
    write_gguf(path, metadata, tensors or {"token_embd.weight": np.zeros((8, 32), np.float32)})
    server.files["org/repo/other.gguf"] = path.read_bytes()
    return "hf:org/repo/other.gguf"


def fetched(server):
    """Whether anything but ranges was asked from storage."""
    return None in server.stored()


def test_a_head_is_read_without_the_weights(server, gguf):
    with hub.head("hf:org/repo:Q8_0") as path, open_weights(path) as file, GGUF(gguf) as whole:
        assert read_spec(file) == read_spec(whole)
        assert (file.nbytes, list(file.tensors)) == (whole.nbytes, list(whole.tensors))
        assert dict(file.metadata.types) == dict(whole.metadata.types)
        name = "blk.1.ffn_up.weight"
        assert not file.tensors[name].dequantize().any()
        assert whole.tensors[name].dequantize().any()
    assert not fetched(server)
    assert not path.exists()
    assert len(server.stored()) > 1


@pytest.mark.parametrize("has_ranges", [True, False])
def test_what_can_run_is_fetched(server, has_ranges):
    server.has_ranges = has_ranges
    with stretto.load("hf:org/repo", cells=64, threads=1) as llm:
        assert llm.spec.architecture == "llama"


def test_an_architecture_that_is_not_known_is_not_fetched(server, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "BUILT_IN", registry.BUILT_IN[:1])
    sizes = {f"rwkv6.{key}": 32 for key in ("embedding_length", "context_length", "block_count")}
    name = put(server, tmp_path, {"general.architecture": "rwkv6", **sizes})
    with pytest.raises(PullError, match=f"{name} was not fetched: {name} in .*'rwkv6' is not supported yet"):
        hub.pull(name, check=check_head)
    assert not fetched(server)
    assert hub.models() == []


def test_an_incomplete_model_is_not_fetched(server, tmp_path, gguf):
    with GGUF(gguf) as file:
        tensors = {name: tensor for name, tensor in file.tensors.items() if name != "blk.0.ffn_up.weight"}
        name = put(server, tmp_path, dict(file.metadata), tensors)
    with pytest.raises(PullError, match=r"blk.0.ffn_up.weight: the tensor is missing"):
        hub.pull(name, check=check_head)
    assert not fetched(server)


def test_a_vocabulary_that_cannot_be_read_is_found_first(server, tmp_path, gguf):
    with GGUF(gguf) as file:
        metadata = {**dict(file.metadata), "tokenizer.ggml.pre": "nobody-knows"}
        name = put(server, tmp_path, metadata, file.tensors)
    with pytest.raises(PullError, match="nobody-knows"):
        hub.pull(name, check=check_head)
    assert not fetched(server)


def test_weights_beyond_memory_are_not_fetched_unless_that_is_wanted(server):
    small = partial(check_head, memory=10_000)
    with pytest.raises(PullError, match=r"its weights take .* this machine has 0.0 GB: .* --oversize"):
        hub.pull("hf:org/repo", check=small)
    assert not fetched(server)
    assert hub.pull("hf:org/repo", check=partial(check_download, oversize=True)).verified


def test_parts_of_a_model_pass(server, tmp_path):
    for metadata in (
        {"general.architecture": "clip"},
        {"general.architecture": "llama", "general.type": "adapter"},
    ):
        assert hub.pull(put(server, tmp_path, metadata), check=check_head, force=True).verified


def test_a_folder_is_looked_at_first(server):
    for path in (DATA / "llama").iterdir():
        server.files[f"org/folder/{path.name}"] = path.read_bytes()
    with hub.head("org/folder") as path, open_weights(path) as file:
        assert read_spec(file).architecture == "llama"
    config = server.files["org/folder/config.json"].replace(b'"llama"', b'"rwkv6"')
    server.files["org/folder/config.json"] = config
    with pytest.raises(PullError, match=r"hf:org/folder was not fetched: .*model_type 'rwkv6'"):
        hub.pull("org/folder", check=check_head)
    assert not fetched(server)
    assert hub.models() == []


def test_all_parts_of_a_split_model_are_looked_at(server, tmp_path, gguf):
    with GGUF(gguf) as file:
        parts = write_split(tmp_path / "big.gguf", dict(file.metadata), file.tensors, 3)
    for part in parts:
        server.files[f"org/split/{part.name}"] = part.read_bytes()
    with hub.head("org/split") as path, open_weights(path) as file:
        assert len(file.files) == 3
        read_spec(file)
    assert hub.pull("org/split", check=check_head).verified


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"GG", "its head ends behind the end of the file"),
        (b"PK\x03\x04" + bytes(2000), "not a GGUF file"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 1 << 40, 1) + bytes(2000), "more than the 1048576 allowed"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 1000, 1000) + bytes(2000), "its head ends behind the end"),
        (struct.pack("<4sIQQ", b"GGUF", 9, 0, 0) + bytes(2000), "version 9 is not known"),
        (struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, 1 << 60) + bytes(20_000), "a name of"),
    ],
)
def test_hostile_heads_are_refused(server, data, message):
    server.files["org/repo/bad.gguf"] = data
    with pytest.raises(PullError, match=message):
        hub.pull("hf:org/repo/bad.gguf")
    assert hub.models() == []


def test_a_head_that_never_ends_is_given_up(server, monkeypatch):
    monkeypatch.setattr(heads, "MAX_GGUF_HEAD_BYTES", 10_000)
    text = (
        struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<Q1sIQ", 1, b"k", 8, 90_000) + bytes(100_000)
    )
    server.files["org/repo/bad.gguf"] = text
    with pytest.raises(PullError, match="its head has more than"):
        hub.pull("hf:org/repo/bad.gguf")
    assert sum(int(asked.partition("-")[2]) for asked in server.stored()) < 100_000


def test_what_is_on_this_machine_is_not_looked_up(tmp_path):
    with pytest.raises(ModelError):
        open_tokenizer(tmp_path / "no.gguf")

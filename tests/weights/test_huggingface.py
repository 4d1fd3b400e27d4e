"""Models of the Hugging Face Hub by every kind of name, against a server on this machine."""

import hashlib
import json
import shutil
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pytest

import local_hub
import local_index
import stretto
from stretto.errors import InvalidRequest, ModelError, PullError
from stretto.weights import hub
from stretto.weights.gguf import GGUF
from stretto.weights.hub import catalogue, huggingface, links
from stretto.weights.hub.names import canonical, folder, is_repository, parse_reference
from stretto.weights.writer import write_split

DATA = Path(__file__).parent.parent / "data" / "folders"
TENSORS = {f"t{i}": np.full((2, 32), i, np.float32) for i in range(4)}
NAME = "hf:org/repo/sub/tiny.gguf"


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setattr(links, "BACKOFF_SECONDS", 0.0)
    with local_hub.serving(monkeypatch) as server:
        server.files = {"org/repo/sub/tiny.gguf": local_index.tiny_gguf(tmp_path)}
        yield server


def left_behind(home):
    return [path for path in home.rglob("*") if path.is_file() and path.suffix != ".lock"]


def several(server, *names, repo="org/many"):
    """Put copies of the model into a repository, each a little longer than the one before."""
    data = server.files["org/repo/sub/tiny.gguf"]
    for number, name in enumerate(names):
        server.files[f"{repo}/{name}"] = data + bytes(number)


# -- files --


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
    assert model.source == f"{NAME}@{local_hub.COMMIT}"
    assert [notice.read_text() for notice in model.notices] == ["Be kind.\n"]
    assert steps[-1] == (len(gguf) + 9, len(gguf) + 9, "verifying")
    assert sorted(path.name for path in left_behind(store_home)) == ["LICENSE", "model.json", "tiny.gguf"]
    assert hub.resolve(NAME) == model.path
    assert not any(".." in path for path in server.paths())
    hub.remove(NAME)
    assert left_behind(store_home) == []


def test_a_revision_is_another_model(server, store_home):
    model = hub.pull(f"{NAME}@v1.0")
    assert server.paths("/api/models/org/repo/revision/v1.0")
    assert model.path.parent.name == "hf~org~repo~sub~tiny.gguf@v1.0"
    assert hub.models() == [model]
    with pytest.raises(PullError, match="no such revision"):
        hub.pull(f"{NAME}@v2.0")


def test_without_a_published_hash_that_is_said(server, monkeypatch):
    server.lies["org/repo/sub/tiny.gguf"] = {"lfs": None}
    monkeypatch.setattr(
        local_hub.Handler,
        "resolve",
        lambda self, repo, path: self.send(200, self.server.files[f"{repo}/{path}"], {"ETag": 'W/"x"'}),
    )
    assert not hub.pull(NAME).verified


def test_a_hub_that_lists_no_sizes_is_asked_for_each_file(server):
    server.lies["org/repo/sub/tiny.gguf"] = {"lfs": None, "size": None}
    assert hub.pull(NAME).verified


def test_not_a_gguf(server, store_home):
    server.files["org/repo/sub/tiny.gguf"] = b"version https://git-lfs.github.com/spec/v1"
    with pytest.raises(PullError, match="not a GGUF file"):
        hub.pull(NAME)
    assert left_behind(store_home) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf:org/repo/other.gguf", r"the repository has no such file, but sub/tiny.gguf \(1.0 MB\)"),
        ("hf:no/where/other.gguf", "no such repository, or a private one"),
        ("hf:no/where", "no such repository, or a private one: check the name, or set HF_TOKEN"),
        ("no/where", "no path 'no/where' here; as a repository of the Hub: hf:no/where could not be fetched"),
    ],
)
def test_what_is_not_there(server, store_home, name, message):
    with pytest.raises(PullError, match=message):
        hub.resolve(name)
    assert left_behind(store_home) == []


def test_a_hub_that_cannot_be_reached(server, store_home):
    server.server_close()
    with pytest.raises(PullError, match=r"cannot be reached .*; check the network and the proxy"):
        hub.pull(NAME)
    assert left_behind(store_home) == []


def test_offline_mode_is_respected(server, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(PullError, match="HF_HUB_OFFLINE is set"):
        hub.pull(NAME)
    assert server.requests == []


def test_too_little_room(server, monkeypatch, store_home):
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=-1))
    with pytest.raises(PullError, match="make room"):
        hub.pull(NAME)
    assert left_behind(store_home) == []


# -- split models --


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
    size = parts[1].stat().st_size
    server.lies[f"org/repo/{parts[1].name}"] = {"lfs": {"sha256": "0" * 64, "size": size}}
    with pytest.raises(PullError, match=r"big-00002-of-00002.gguf arrived with SHA-256 .* instead of 0000"):
        hub.pull(f"hf:org/repo/{parts[0].name}")
    assert left_behind(store_home) == []


def test_a_split_model_of_which_a_part_is_missing_is_not_kept(server, store_home, tmp_path):
    parts = write_split(tmp_path / "big.gguf", {"general.architecture": "llama"}, TENSORS, 2)
    server.files[f"org/repo/{parts[0].name}"] = parts[0].read_bytes()
    with pytest.raises(PullError, match="the repository has no such file"):
        hub.pull(f"hf:org/repo/{parts[0].name}")
    assert left_behind(store_home) == []


# -- repositories and tags --


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        (("m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q2_K.gguf", "m-f16.gguf"), "m-Q4_K_M.gguf"),
        (("m-Q8_0.gguf", "m.Q5_K_M.gguf", "m-IQ2_XXS.gguf"), "m.Q5_K_M.gguf"),
        (("m-q8_0.gguf", "m-bf16.gguf"), "m-q8_0.gguf"),
        (("m-UD-Q4_K_M.gguf", "m-Q6_K.gguf"), "m-UD-Q4_K_M.gguf"),
        (("gpt-oss-20b-mxfp4.gguf",), "gpt-oss-20b-mxfp4.gguf"),
        (("model.gguf", "mmproj-model-f16.gguf", "mtp-model.gguf", "imatrix.gguf"), "model.gguf"),
        (("Q4_K_M/m-Q4_K_M-00001-of-00001.gguf", "m-Q8_0.gguf"), "Q4_K_M/m-Q4_K_M-00001-of-00001.gguf"),
    ],
)
def test_of_a_repository_q4_k_m_or_the_nearest_is_chosen(server, files, chosen):
    several(server, *files)
    assert hub.listing("hf:org/many").choose("").files[0].path == chosen


def test_a_repository_stands_for_the_file_that_was_chosen(server, store_home):
    several(server, "m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q2_K.gguf")
    model = hub.pull("hf:org/many")
    assert model.name == "hf:org/many/m-Q4_K_M.gguf"
    server.requests.clear()
    for name in ("hf:org/many", "org/many", "hf:org/many/m-Q4_K_M.gguf"):
        assert hub.pull(name) == model
        assert hub.resolve(name) == model.path
    assert server.requests == []  # what is here needs no network
    assert hub.pull("hf:org/many:q4_k_m") == model
    assert server.stored() == []  # the list was asked for, and nothing fetched
    assert hub.pull("hf:org/many:Q8_0").name == "hf:org/many/m-Q8_0.gguf"
    assert [one.name for one in hub.models()] == ["hf:org/many/m-Q4_K_M.gguf", "hf:org/many/m-Q8_0.gguf"]
    hub.remove("org/many")
    assert [one.name for one in hub.models()] == ["hf:org/many/m-Q8_0.gguf"]
    with pytest.raises(ModelError, match="stretto pull hf:org/many"):
        hub.resolve("org/many", pull=False)


def test_a_tag_that_is_not_there_is_refused_with_those_that_are(server):
    several(server, "m-Q8_0.gguf", "m-Q2_K.gguf")
    with pytest.raises(PullError, match=r"no file of Q4_K_M; it has m-Q8_0.gguf \(1.0 MB\), m-Q2_K.gguf"):
        hub.pull("hf:org/many:Q4_K_M")


def test_two_files_of_one_format_have_to_be_named(server):
    several(server, "a-Q4_K_M.gguf", "b-Q4_K_M.gguf")
    with pytest.raises(PullError, match=r"2 files of Q4_K_M; name one of them, as hf:org/many/a-Q4_K_M.gguf"):
        hub.pull("hf:org/many")


def test_a_short_name_of_the_catalogue_leads_to_its_repository(server):
    entry = catalogue.CATALOGUE["gpt-oss-20b"]
    several(server, "gpt-oss-20b-mxfp4.gguf", "gpt-oss-20b-F16.gguf", repo=entry.repo)
    assert hub.pull("gpt-oss-20b").name == f"hf:{entry.repo}/gpt-oss-20b-mxfp4.gguf"
    assert hub.resolve("gpt-oss-20b").name == "gpt-oss-20b-mxfp4.gguf"
    sizes = {size.tag: (size.nbytes, size.is_chosen) for size in huggingface.file_sizes(entry)}
    whole = len(server.files["org/repo/sub/tiny.gguf"])
    assert sizes == {"MXFP4": (whole, True), "F16": (whole + 1, False)}


def test_a_path_wins_over_a_repository_of_the_same_name(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert hub.resolve("org/repo").name == "tiny.gguf"
    (tmp_path / "org" / "repo").mkdir(parents=True)
    assert hub.resolve("org/repo") == Path("org/repo")
    assert hub.resolve("./org/other") == Path("org/other")


# -- names --


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("https://huggingface.co/org/repo/blob/main/m.gguf", "hf:org/repo/m.gguf"),
        ("https://huggingface.co/org/repo/resolve/v1/a/m.gguf?download=true", "hf:org/repo/a/m.gguf@v1"),
        ("https://huggingface.co/org/repo", "hf:org/repo"),
        ("https://hf.co/org/repo/tree/main", "hf:org/repo"),
        ("https://example.org/a/m.gguf?x=1", "https://example.org/a/m.gguf?x=1"),
        ("hf:org/repo:Q4_K_M@v1", "hf:org/repo:Q4_K_M@v1"),
    ],
)
def test_names_are_stored_in_one_form(name, stored):
    assert canonical(name) == stored
    assert folder(name) == folder(stored)
    assert "/" not in folder(name)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "hf:org",
            "hf:org/repo:",
            "hf:org/repo:a/b",
            "hf:org/repo:x.gguf",
            "hf:org/repo/m.gguf:Q4",
            "hf:a/m.gguf",
        ),
        *("http://example.org/m.gguf", "https://example.org/m.bin", "https://me:pw@example.org/m.gguf"),
        *(
            "https://example.org/m.gguf#x",
            "https:///m.gguf",
            "https://[/m.gguf",
            "https://example.org:0/m.gguf",
        ),
        *("https://example.org/\n/m.gguf", "https://example.org/" + "x" * 3000 + "/m.gguf"),
        *("https://example.org/..%2f..%2f.gguf", "https://huggingface.co/a/../x/blob/main/m.gguf"),
    ],
)
def test_names_that_cannot_be_are_refused(name, store_home):
    with pytest.raises(InvalidRequest):
        hub.pull(name)
    assert not store_home.exists()


def test_folders_of_different_names_differ():
    names = ["hf:a/b", "hf:a/b:c", "hf:a/b@c", "hf:a/b/c.gguf", "hf:a/b:c@d", "https://x.org/c.gguf"]
    assert len({folder(name) for name in names}) == len(names)
    assert is_repository("a/b:Q4_K_M")
    assert not any(map(is_repository, ["a", "a/b/c", "./b", "a/..", "a/m.gguf", "/a/b", "a/b/", "~/b"]))
    assert str(parse_reference("hf:a/b:Q8_0@x/y")) == "hf:a/b:Q8_0@x/y"


def test_a_link_is_fetched_without_the_token(server, monkeypatch, store_home):
    monkeypatch.setenv("HF_TOKEN", server.token)
    link = f"{server.storage}/org/repo/sub/tiny.gguf"
    model = hub.pull(link)
    assert (model.name, model.path.name, model.verified) == (link, "tiny.gguf", False)
    assert hub.resolve(link) == model.path
    assert not any("Authorization" in headers for _, headers in server.requests)
    hub.remove(link)
    assert hub.models() == []


@pytest.mark.parametrize(
    ("status", "message"), [(404, "there is no such file"), (403, "refuses the request")]
)
def test_a_link_that_leads_to_nothing_says_nothing_of_the_hub(server, status, message):
    server.faults = [status]
    with pytest.raises(PullError, match=rf"{message} \(.*tiny.gguf answers {status}\)$"):
        hub.pull(f"{server.storage}/org/repo/sub/tiny.gguf")


# -- Hugging Face folders --


def put_folder(server, name, repo="org/folder"):
    for path in (DATA / name).iterdir():
        if path.name != "answers.npz":
            server.files[f"{repo}/{path.name}"] = path.read_bytes()


def test_a_repository_of_safetensors_is_loaded_as_a_folder(server, store_home):
    put_folder(server, "llama")
    server.files["org/folder/pytorch_model.bin"] = b"never fetched"
    server.files["org/folder/modeling_llama.py"] = b"nor this"
    expected = dict(np.load(DATA / "llama" / "answers.npz"))
    with (
        stretto.load("org/folder", backend="native", cells=64, threads=1) as llm,
        llm.sequence(expected["tokens"].tolist()) as s,
    ):
        assert np.abs(s.logits - expected["logits"][-1]).max() < 2e-2
    (model,) = hub.models()
    assert (model.name, model.path.name, model.verified) == ("hf:org/folder", "config.json", True)
    assert hub.resolve("hf:org/folder") == model.path.parent
    assert not any(path.endswith((".bin", ".py")) for path in server.paths())
    hub.remove("hf:org/folder")
    assert left_behind(store_home) == []


def test_shards_are_those_that_the_index_names(server):
    put_folder(server, "mixtral")
    server.files["org/folder/consolidated.safetensors"] = b"the same weights once more"
    model = hub.pull("org/folder")
    shards = {part.name for part in model.parts if part.suffix == ".safetensors"}
    index = json.loads((model.path.parent / "model.safetensors.index.json").read_text())
    assert shards == set(index["weight_map"].values())


def test_an_index_that_names_what_is_not_there_is_refused(server, store_home):
    put_folder(server, "mixtral")
    names = [name for name in server.files if name.endswith(".safetensors")]
    del server.files[names[0]]
    with pytest.raises(PullError, match=f"names '{names[0].rpartition('/')[2]}', which the repository lacks"):
        hub.pull("org/folder")
    server.files["org/folder/model.safetensors.index.json"] = b'{"weight_map": {"x": "../x.safetensors"}}'
    with pytest.raises(PullError, match="which the repository lacks"):
        hub.pull("org/folder")
    assert hub.models() == []


def test_a_small_file_with_another_hash_is_not_kept(server, store_home):
    put_folder(server, "llama")
    server.lies["org/folder/tokenizer.json"] = {"blobId": "0" * 40}
    with pytest.raises(PullError, match=r"tokenizer.json arrived with Git's hash .* instead of 0000"):
        hub.pull("org/folder")
    assert hub.models() == []


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"config.json": b"{}", "pytorch_model.bin": b"x"}, r"pickle files only \(pytorch_model.bin\)"),
        ({"config.json": b"{}", "model.ckpt": b"x"}, r"pickle files only \(model.ckpt\)"),
        ({"adapter_config.json": b"{}", "adapter_model.safetensors": b"x"}, "is an adapter"),
        ({"README.md": b"x"}, "has neither GGUF files nor a config.json"),
    ],
)
def test_repositories_without_weights_that_are_read_are_refused(server, store_home, files, message):
    server.files |= {f"org/other/{name}": data for name, data in files.items()}
    with pytest.raises(PullError, match=message):
        hub.pull("hf:org/other")
    assert len(server.requests) == 1  # the list, and nothing else
    assert left_behind(store_home) == []


def test_a_tag_of_a_repository_without_gguf_files_is_refused(server):
    put_folder(server, "llama")
    with pytest.raises(PullError, match="no GGUF files, and so none of Q4_K_M"):
        hub.pull("org/folder:Q4_K_M")


# -- hostile lists --


@pytest.mark.parametrize(
    "entry",
    [
        None,
        7,
        {},
        {"rfilename": 7},
        {"rfilename": "../x.gguf"},
        {"rfilename": "/etc/passwd.gguf"},
        {"rfilename": "a/../../x.gguf"},
        {"rfilename": "a\\..\\x.gguf"},
        {"rfilename": "x\0.gguf"},
        {"rfilename": ".hidden.gguf"},
        {"rfilename": "x" * 5000 + ".gguf"},
    ],
)
def test_entries_that_no_repository_has_are_passed_over(server, entry):
    server.api_faults = [
        lambda handler: handler.send(
            200, json.dumps({"sha": local_hub.COMMIT, "siblings": [entry], "cardData": [1]}).encode()
        )
    ]
    with pytest.raises(PullError, match="has neither GGUF files nor"):
        hub.pull("hf:org/repo")


@pytest.mark.parametrize(
    "lie",
    [
        {"lfs": {"size": -1}},
        {"lfs": {"size": 1 << 70}},
        {"lfs": {"size": "7", "sha256": ["0"]}},
        {"lfs": {"size": True, "sha256": "../../x"}},
        {"lfs": 7, "size": None, "blobId": "x" * 40},
    ],
)
def test_sizes_and_hashes_that_make_no_sense_are_asked_for_again(server, lie, store_home):
    server.lies["org/repo/sub/tiny.gguf"] = lie
    model = hub.pull(NAME)
    assert model.path.read_bytes() == server.files["org/repo/sub/tiny.gguf"]
    assert model.verified

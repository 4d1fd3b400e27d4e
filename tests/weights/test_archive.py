"""Single members out of archives that may be anything."""

import zipfile

import pytest

from local_index import zip_bytes
from stretto.errors import PullError
from stretto.weights.hub.packages import read_member


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "a.whl"
    path.write_bytes(zip_bytes({"a": b"x" * 100_000, "../b": b"y"}))
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
    data = zip_bytes({"a": b"\0" * 10_000_000})
    path.write_bytes(data.replace((10_000_000).to_bytes(4, "little"), (1).to_bytes(4, "little")))
    with zipfile.ZipFile(path) as bomb:
        assert bomb.getinfo("a").file_size == 1
    with pytest.raises(PullError):
        list(read_member(path, "a", exactly=1))

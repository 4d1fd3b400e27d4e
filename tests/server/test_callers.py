"""Callers: which key is whose, and who administrates."""

import pytest
from starlette.requests import Request

from stretto.errors import InvalidRequest
from stretto.server.http.errors import ApiError
from stretto.server.http.state import CALLER, Caller, Callers, get_caller, require_admin
from stretto.server.settings import ModelEntry, Settings, api_keys

MODELS = (ModelEntry("mock", "mock.gguf"),)


def callers(**settings):
    return Callers(Settings(MODELS, **settings))


def test_a_caller_has_a_name_that_is_not_its_key():
    known = callers(api_keys=("one", "two"), admin_keys=("boss",))
    one, two, boss = (known.find(b"Bearer " + key) for key in (b"one", b"two", b"boss"))
    assert len({one.name, two.name, boss.name}) == 3
    assert "one" not in one.name
    assert [caller.admin for caller in (one, two, boss)] == [False, False, True]
    assert known.find(b"bearer  one") == one
    assert callers(api_keys=("one",)).find(b"Bearer one").name != one.name


def test_a_wrong_key_is_refused():
    known = callers(api_keys=("one",))
    for given in (b"", b"one", b"Bearer", b"Bearer ", b"Bearer on", b"Basic one", b"Bearer \xff"):
        with pytest.raises(ApiError) as refused:
            known.find(given)
        assert refused.value.status == 401


def test_without_keys_everybody_is_one_caller_who_administrates_on_this_machine_only():
    assert callers().find(b"") == callers().find(b"Bearer anything") == Caller("", admin=True)
    assert callers(host="0.0.0.0", no_auth=True).find(b"") == Caller("", admin=False)


def test_an_admin_key_works_beside_callers_without_one():
    known = callers(no_auth=True, admin_keys=("boss",))
    assert known.find(b"") == Caller("", admin=False)
    assert known.find(b"Bearer boss").admin
    with pytest.raises(ApiError):
        known.find(b"Bearer wrong")


def test_prompts_of_several_callers_are_salted_unless_they_are_shared():
    assert callers(api_keys=("one",)).find(b"Bearer one").salt == ""
    assert callers(admin_keys=("boss",)).find(b"Bearer boss").salt == ""
    for settings in ({"api_keys": ("one", "two")}, {"api_keys": ("one",), "admin_keys": ("boss",)}):
        one = callers(**settings).find(b"Bearer one")
        assert one.salt == one.name
        assert callers(**settings, share_prefixes=True).find(b"Bearer one").salt == ""
    assert callers(no_auth=True, admin_keys=("boss",)).find(b"Bearer boss").salt


def test_administration_is_refused_with_the_remedy():
    require_admin(Request({"type": "http", CALLER: Caller("a", admin=True)}))
    user = Request({"type": "http", CALLER: Caller("a")})
    assert get_caller(user).name == "a"
    with pytest.raises(ApiError, match="--admin-key") as refused:
        require_admin(user)
    assert (refused.value.status, refused.value.code) == (403, "admin_only")


def test_admin_keys_are_checked_like_keys(monkeypatch, tmp_path):
    monkeypatch.setenv("STRETTO_ADMIN_KEY", "boss")
    assert api_keys(None, None, "admin") == ("boss",)
    assert api_keys(None, None) == ()
    (tmp_path / "keys").write_text("")
    with pytest.raises(InvalidRequest, match="--admin-key-file"):
        api_keys(["one"], tmp_path / "keys", "admin")
    with pytest.raises(InvalidRequest, match="printable"):
        Settings(MODELS, admin_keys=("with space",))
    with pytest.raises(InvalidRequest, match="both"):
        Settings(MODELS, api_keys=("one",), admin_keys=("one",))
    assert not Settings(MODELS, host="0.0.0.0", admin_keys=("k",)).loopback

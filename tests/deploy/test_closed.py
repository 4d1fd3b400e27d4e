"""Clusters that others can reach need a token."""

import pytest

from stretto.deploy.closed import check_addresses
from stretto.deploy.environment import client_environment, haproxy_environment, runtime_folder
from stretto.errors import InvalidRequest


def test_a_cluster_without_a_token_is_refused_off_loopback():
    with pytest.raises(InvalidRequest, match=r"reached at 192\.0\.2\.7.*RAY_AUTH_MODE=token") as caught:
        check_addresses(["127.0.0.1", "192.0.2.7"], token=False)
    assert caught.value.param == "RAY_AUTH_MODE"


@pytest.mark.parametrize(("addresses", "token"), [(["127.0.0.1", "::1"], False), (["192.0.2.7"], True)])
def test_loopback_or_a_token_will_do(addresses, token):
    check_addresses(addresses, token)
    assert addresses


def test_the_token_is_made_once_and_for_this_user_only(tmp_path):
    first, second = (client_environment(tmp_path / "home") for _ in range(2))
    assert first == second
    token = tmp_path / "home" / "token"
    assert first["RAY_AUTH_TOKEN_PATH"] == str(token)
    assert len(token.read_text()) == 64
    assert token.stat().st_mode & 0o777 == 0o600


def test_sockets_are_where_only_this_user_can_enter_and_their_paths_are_short():
    folder = runtime_folder()
    try:
        assert folder.stat().st_mode & 0o777 == 0o700
        node = "f" * 56  # Ray puts the node's id between
        admin = haproxy_environment(folder / "ha")["RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH"]
        assert len(admin) + len(node) + 1 <= 97
    finally:
        folder.rmdir()

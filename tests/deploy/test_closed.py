"""Clusters that others can reach need a token."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from live_cluster import live
from stretto.deploy.environment import (
    check_addresses,
    client_environment,
    haproxy_environment,
    runtime_folder,
)
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


def listeners(fleet):
    """The listening sockets of a cluster's processes: (process, address, port)."""
    home, found = f"STRETTO_HOME={fleet.environment['STRETTO_HOME']}".encode(), set()
    said = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout
    for line in said.splitlines():
        address, _, port = line.split()[3].rpartition(":")
        for name, pid in re.findall(r'\("([^"]+)",pid=(\d+)', line):
            if home in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.add((name, address, int(port)))
    return found


def is_open(address):
    return address.strip("[]").removeprefix("::ffff:") not in ("127.0.0.1", "::1")


def refused(port, method):
    """Whether a call without a token is refused for just that."""
    grpc = pytest.importorskip("grpc")
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(method)(b"", timeout=30)
    return caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


@live
def test_what_listens_beyond_this_machine_is_known_and_refuses_commands(two_replicas):
    found = listeners(two_replicas)
    print(json.dumps(sorted(found)))
    outside = {(name, port) for name, address, port in found if is_open(address)}
    assert {("haproxy", 8404), ("haproxy", 9101)} <= outside
    replicas = {port for name, port in outside if name.startswith("ray::ServeRepli")}
    assert len(outside) == 2 + len(replicas)
    assert replicas
    assert all(refused(port, "/ray.serve.ASGIService/HandleRequest") for port in replicas)
    (control,) = {port for name, _, port in found if name == "gcs_server"}
    assert refused(control, "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo")

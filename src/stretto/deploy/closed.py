"""Clusters are closed: who talks to Ray may run code on all its machines, so everybody needs a token.

On loopback other users of the machine are kept out the same way: `stretto deploy up` makes a token of its
own. A cluster that other machines can reach is refused without one, wherever its replicas were started from.
"""

from __future__ import annotations

from collections.abc import Iterable

from stretto.errors import InvalidRequest
from stretto.server.hosts import is_loopback


def check_addresses(addresses: Iterable[str], token: bool) -> None:
    """Raise for nodes that others can reach, unless a token is needed to use them."""
    reachable = sorted(address for address in addresses if not is_loopback(address.strip("[]")))
    if reachable and not token:
        raise InvalidRequest(
            f"the Ray cluster can be reached at {', '.join(reachable[:4])}, and takes commands from "
            "everybody: start all of its nodes with RAY_AUTH_MODE=token and the same RAY_AUTH_TOKEN_PATH "
            "(`ray get-auth-token --generate` makes a token)",
            param="RAY_AUTH_MODE",
            value="disabled",
        )


def stay_on_loopback() -> None:
    """Let Ray use 127.0.0.1, in a process that starts or joins the cluster of this machine.

    It replaces that by an address that others can reach, and all of its ports are then open to all of them.
    """
    from ray._private import services

    services.resolve_ip_for_localhost = lambda host: host


def check_cluster() -> str:
    """Check the cluster that this process is connected to; returns the host that its proxies listen on."""
    import ray
    from ray._private.authentication.authentication_utils import is_token_auth_enabled

    nodes = [node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]]
    check_addresses(nodes, is_token_auth_enabled())
    return proxy_host()


def proxy_host() -> str:
    """The host that the proxies of the cluster listen on, as keys are needed by."""
    from ray.serve.context import _get_global_client

    client = _get_global_client(raise_if_no_controller_running=False)
    return "127.0.0.1" if client is None else str(client.http_config.host or "127.0.0.1")

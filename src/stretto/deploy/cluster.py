"""A cluster from the command line: models brought up, looked at and taken down.

with connect(folder, "auto-or-address"):
    up([DeploySettings.parse({"model": "smollm2", "replicas": 2})], "127.0.0.1", 8080)
    status()
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from stretto.deploy import require_ray
from stretto.deploy.environment import (
    check_cluster,
    client_environment,
    cluster_environment,
    runtime_folder,
    stay_on_loopback,
)
from stretto.deploy.head import STATE_FILE
from stretto.deploy.settings import DEPLOYMENT, DeploySettings
from stretto.errors import InvalidRequest, ModelError, StrettoError
from stretto.server.http.registry import Registry
from stretto.server.http.state import Callers
from stretto.weights.hub import resolve
from stretto.weights.hub.store import Store

START_SECONDS = 120.0  # for a cluster on this machine
END_SECONDS = 60.0
POLL_SECONDS = 0.05
LOG_FILE = "cluster.log"
KEY_VARIABLES = ("STRETTO_API_KEY", "STRETTO_ADMIN_KEY")


def home() -> Path:
    """The folder of the cluster on this machine."""
    return Store.default().home / "deploy"


def running_head(folder: Path) -> dict[str, Any] | None:
    """The process that holds the cluster of this machine, and its address; None if there is none."""
    try:
        state: dict[str, Any] = json.loads((folder / STATE_FILE).read_text())
        os.kill(state["pid"], 0)
        words = (
            Path(f"/proc/{state['pid']}/cmdline").read_bytes() if Path("/proc").is_dir() else b"deploy.head"
        )
    except (OSError, ValueError, KeyError):
        return None
    return state if b"deploy.head" in words else None


def start_head(
    folder: Path, haproxy: bool, cpus: float, gpus: float, tenants: bool = False
) -> dict[str, Any]:
    """Start a cluster on this machine, on loopback and with a token; returns what `running_head` does."""
    runtime = runtime_folder()
    environment = {**os.environ, **cluster_environment(folder, runtime, haproxy, tenants)}
    (folder / STATE_FILE).unlink(missing_ok=True)
    with (folder / LOG_FILE).open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "stretto.deploy.head", str(folder), str(runtime), str(cpus), str(gpus)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_SECONDS
    while (state := running_head(folder)) is None:
        if process.poll() is not None or time.monotonic() > deadline:
            process.terminate()
            raise StrettoError(f"the cluster did not start; {folder / LOG_FILE} says why")
        time.sleep(POLL_SECONDS)
    return state


def end_head(folder: Path) -> bool:
    """Take down the cluster of this machine; False if there is none."""
    state = running_head(folder)
    if state is None:
        return False
    os.kill(state["pid"], signal.SIGTERM)
    deadline = time.monotonic() + END_SECONDS
    while running_head(folder) is not None:
        if time.monotonic() > deadline:
            raise StrettoError(f"the process {state['pid']} that holds the cluster does not end")
        time.sleep(POLL_SECONDS)
    return True


@contextmanager
def connect(folder: Path, address: str | None) -> Iterator[None]:
    """This process as a client of the cluster of this machine, or of another one; checked to be closed."""
    own = address is None
    if address is None:
        state = running_head(folder)
        if state is None:
            raise InvalidRequest(
                "no cluster runs on this machine; start one with `stretto deploy up`, or give --address",
                param="address",
            )
        address = str(state["address"])
        os.environ.update(client_environment(folder))  # Ray reads it when it is imported
        os.environ["RAY_SERVE_ENABLE_HA_PROXY"] = "1" if state.get("haproxy") else "0"
    require_ray()
    import ray

    if own:
        stay_on_loopback()
    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, namespace="stretto")
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InvalidRequest(
            f"there is no Ray cluster at {address!r}, or it wants another token: "
            f"{str(error).splitlines()[0]}",
            param="address",
            value=address,
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def up(deployments: Sequence[DeploySettings], host: str, port: int) -> list[str]:
    """Serve models; returns their routes. Those that run already get the new settings, replica by replica."""
    from ray import serve

    from stretto.deploy.application import build

    serve.start(
        http_options={"host": host, "port": port},
        logging_config={"log_level": "WARNING", "enable_access_log": False},
    )
    check_cluster()
    routes = make_routes(deployments)
    for settings, route in zip(deployments, routes, strict=True):
        args = settings.model_dump(mode="json", exclude_defaults=True)
        try:
            serve.run(build(args), name=settings.entry.name, route_prefix=route)
        except RuntimeError as error:  # Ray's only kind
            raise StrettoError(
                f"{settings.entry.name} was not deployed: {_reason(settings.entry.name) or error}"
            ) from error
    return routes


def check_models(deployments: Sequence[DeploySettings], host: str, here: bool) -> None:
    """Raise for models that no replica could load, before any is started.

    `here`: replicas run on this machine, which has the files or fetches them now. Elsewhere only names can be
    checked.
    """
    for settings in deployments:
        if here:
            Registry(settings.server(host))  # reads the heads of the files, as a server does when it starts
            continue
        with suppress(ModelError):  # it is not on this machine, and may be there
            resolve(settings.entry.source, pull=False)


def check_port(host: str, port: int) -> None:
    """Raise unless a cluster on this machine can listen there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: connections may linger
        try:
            tried.bind((host, port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error).rstrip(".")
            raise InvalidRequest(
                f"nothing can listen at {host}, port {port}: {reason}; --port takes another",
                param="port",
                value=port,
            ) from None


def have_tenants(deployments: Sequence[DeploySettings], host: str) -> bool:
    """Whether some model has callers whose prefixes are kept apart."""
    return any(Callers(settings.server(host)).are_apart for settings in deployments)


def failure(message: str) -> str:
    """The reason in a traceback of a replica: the last exception, with the lines that belong to it.

    >>> failure("Traceback (most recent call last):\\n …\\nstretto.errors.ModelError: m.gguf: too short")
    'm.gguf: too short'
    """
    lines = message.rstrip().splitlines()
    for at in reversed(range(len(lines))):
        kind, colon, reason = lines[at].partition(": ")
        name = kind.rpartition(".")[2]
        if colon and kind.replace(".", "_").isidentifier() and name[:1].isupper():
            own = kind.startswith("stretto.")
            return " ".join([reason if own else f"{name}: {reason}", *map(str.strip, lines[at + 1 :])])
    return lines[-1].strip() if lines else ""


def _reason(name: str) -> str:
    """Why the replicas of a model do not start; "" if Ray does not know."""
    return next((one["message"] for one in status() if one["name"] == name), "")


def make_routes(deployments: Sequence[DeploySettings]) -> list[str]:
    """The path of each model: `/` for one, its name for several."""
    if len(deployments) == 1:
        return ["/"]
    names = [settings.entry.name for settings in deployments]
    for name in names:
        if names.count(name) > 1:
            raise InvalidRequest(
                f"two models are called {name!r}; give one of them as NAME=MODEL", param="model"
            )
        if not all(part.isalnum() for part in name.replace("-", "_").replace(".", "_").split("_") if part):
            raise InvalidRequest(
                f"{name!r} cannot be a route; call it by letters, digits, '-', '_' and '.': NAME={name}",
                param="model",
                value=name,
            )
    return [f"/{name}" for name in names]


def check_keys(address: str | None) -> None:
    """Raise for keys of this shell's environment that replicas of a running cluster would not have."""
    given = [name for name in KEY_VARIABLES if os.environ.get(name)]
    if address is not None and given:
        raise InvalidRequest(
            f"{given[0]} is set here, and not for replicas at {address}; put the keys into a file on every "
            "node and give --api-key-file, or unset it",
            param=given[0],
        )


def status() -> list[dict[str, Any]]:
    """The models that are served: their states, and their replicas."""
    from ray import serve

    found = []
    for name, application in serve.status().applications.items():
        deployment = application.deployments.get(DEPLOYMENT)
        message = application.message
        if deployment is not None and "Error:" in deployment.message:
            message = failure(deployment.message)
        found.append(
            {
                "name": name,
                "status": str(getattr(application.status, "value", application.status)),
                "message": message,
                "replicas": {
                    str(getattr(state, "value", state)): n
                    for state, n in (deployment.replica_states.items() if deployment else ())
                },
            }
        )
    return found


def down(names: Sequence[str] = ()) -> list[str]:
    """Take models down, all of them if none is named; returns their names."""
    from ray import serve

    here = list(serve.status().applications)
    for name in names:
        if name not in here:
            raise InvalidRequest(
                f"no model {name!r} is served here; there is {', '.join(here) or 'none'}",
                param="name",
                value=name,
            )
    if not names:
        serve.shutdown()
        return here
    for name in names:
        serve.delete(name)
    return list(names)

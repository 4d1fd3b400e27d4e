"""A cluster from the command line: models brought up, looked at and taken down.

with connected(folder, "auto-or-address"):
    up([DeploySettings.parse({"model": "smollm2", "replicas": 2})], "127.0.0.1", 8080)
    status()
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stretto.deploy import require_ray
from stretto.deploy.closed import check_cluster, stay_on_loopback
from stretto.deploy.environment import client_environment, cluster_environment, runtime_folder
from stretto.deploy.head import STATE_FILE
from stretto.deploy.settings import DEPLOYMENT, DeploySettings
from stretto.errors import InvalidRequest, StrettoError
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


def start_head(folder: Path, haproxy: bool, cpus: float, gpus: float) -> dict[str, Any]:
    """Start a cluster on this machine, on loopback and with a token; returns what `running_head` does."""
    runtime = runtime_folder()
    environment = {**os.environ, **cluster_environment(folder, runtime, haproxy)}
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
def connected(folder: Path, address: str | None) -> Iterator[None]:
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
    routes = routes_of(deployments)
    for settings, route in zip(deployments, routes, strict=True):
        args = settings.model_dump(mode="json", exclude_defaults=True)
        try:
            serve.run(build(args), name=settings.entry.name, route_prefix=route)
        except RuntimeError as error:  # Ray's only kind: the replica's own reason is in its log
            raise StrettoError(
                f"{settings.entry.name} was not deployed: {error}; see whether `stretto inspect "
                f"{settings.entry.source}` finds the model, and `stretto deploy status`"
            ) from error
    return routes


def routes_of(deployments: Sequence[DeploySettings]) -> list[str]:
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
        found.append(
            {
                "name": name,
                "status": str(getattr(application.status, "value", application.status)),
                "message": application.message,
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

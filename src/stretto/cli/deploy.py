"""`stretto deploy`: replicas of models on Ray Serve (stretto docs how-to/replicas)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli import options as o
from stretto.cli.commands import Command, Group
from stretto.cli.first_run import default_model
from stretto.cli.generation import note
from stretto.cli.output import clean, print_json
from stretto.errors import InvalidRequest

if TYPE_CHECKING:
    from stretto.deploy.settings import DeploySettings

deploy = typer.Typer(cls=Group, help="Serve models by several replicas, on Ray Serve.")

Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT|auto",
        help="A Ray cluster that runs; without it, one of this machine's own.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@deploy.callback()
def _commands() -> None:
    """Serve models by several replicas, on Ray Serve."""


@deploy.command(cls=Command)
@o.flags("deploy", repeat_guard=True, grace_seconds=60.0)
def up(
    models: o.Served = None,
    model: o.ServedModels = None,
    replicas: Annotated[int, typer.Option(help="Replicas of each model.")] = 1,
    max_replicas: Annotated[
        int | None,
        typer.Option(metavar="N", help="Scale between --replicas and this, by queue and cells."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads of each replica (default: the cores shared out).")
    ] = None,
    gpus: Annotated[float, typer.Option(help="GPUs of each replica, as 0.25 or 1.")] = 0.0,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="FIELD=VALUE", help="Any other field of the YAML file's args; may be repeated."
        ),
    ] = None,
    address: Address = None,
    host: Annotated[str, typer.Option(help="The address that the proxies listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Their port.")] = 8080,
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keys, one a line; on every node.")
    ] = None,
    admin_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Admin keys, one a line; on every node.")
    ] = None,
    proxy: Annotated[
        str,
        typer.Option(
            metavar="auto|haproxy|python",
            help="Of a cluster that is started: auto takes HAProxy if it is there.",
        ),
    ] = "auto",
    as_yaml: Annotated[
        bool, typer.Option("--yaml", help="Print a YAML file for `serve deploy`, and do nothing.")
    ] = False,
    **options: Any,
) -> None:
    """Serve models by replicas; starts a cluster on this machine unless there is one.

    Running it again with other settings replaces the replicas one by one, without an error for clients.
    """
    from stretto.cli.pull import pull_missing
    from stretto.deploy import cluster
    from stretto.deploy.environment import haproxy_path
    from stretto.deploy.settings import DeploySettings

    usual = {name: field.default for name, field in DeploySettings.model_fields.items()}
    shared = {name: value for name, value in options.items() if value not in (None, usual[name])}
    shared |= _more(set_ or ())
    names = [o.resolve_served(one) for one in (*(models or ()), *(model or ()))] or [default_model()]
    if address is None and not as_yaml:
        names = [_absolute(name) for name in names]
    shared["threads"] = threads or shared.get("threads") or _share(len(names) * replicas)
    if gpus:
        shared["gpus"] = gpus
    if max_replicas is None:
        shared["replicas"] = replicas
    else:
        shared["autoscaling"] = {"min_replicas": replicas, "max_replicas": max_replicas} | dict(
            shared.get("autoscaling", {})
        )
    for name, file in (("api_key_file", api_key_file), ("admin_key_file", admin_key_file)):
        if file is not None:
            shared[name] = str(file.absolute())
    deployments = [DeploySettings.parse({"model": name, **shared}) for name in names]
    cluster.make_routes(deployments)
    if proxy not in ("auto", "haproxy", "python"):
        raise InvalidRequest(
            f"--proxy takes auto, haproxy or python, not {proxy!r}", param="proxy", value=proxy
        )
    if as_yaml:
        print(_yaml(deployments, host, port), end="")
        return
    cluster.check_keys(address)
    tenants = cluster.have_tenants(deployments, host)  # or an error: keys are needed beyond this machine
    if address is None:
        for settings in deployments:
            pull_missing(settings.entry.source)
    cluster.check_models(deployments, host, here=address is None)
    folder = cluster.home()
    state = cluster.running_head(folder)
    if address is None and state is None:
        haproxy = proxy == "haproxy" or (proxy == "auto" and haproxy_path() is not None)
        cluster.check_port(host, port)
        cpus = max(float(os.cpu_count() or 1), 1 + sum(_cpus(settings) for settings in deployments))
        cluster.start_head(folder, haproxy, cpus, _whole_gpus(deployments), tenants)
    elif state is not None and address is None and tenants and _lacks_tenants(state):
        note(
            "this cluster was started for one key, so requests of several are not routed by their prefixes; "
            "`stretto deploy down`, then `up`, changes that"
        )
    with cluster.connect(folder, address):
        routes = cluster.up(deployments, host, port)
    for settings, route in zip(deployments, routes, strict=True):
        print(f"serving {settings.entry.name} on http://{host}:{port}{route.rstrip('/')}", flush=True)


@deploy.command(cls=Command)
def status(address: Address = None, as_json: Json = False) -> None:
    """Show the models that are served, and their replicas."""
    from stretto.deploy import cluster

    with cluster.connect(cluster.home(), address):
        found = cluster.status()
    if as_json:
        print_json(found)
        return
    for one in found or ():
        replicas = ", ".join(f"{n} {state.lower()}" for state, n in one["replicas"].items()) or "no replicas"
        print(clean(f"{one['name']}: {one['status'].lower()}, {replicas} {one['message']}".rstrip()))
    if not found:
        print("no model is served")


@deploy.command(cls=Command)
def down(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Models; all by default.")
    ] = None,
    address: Address = None,
) -> None:
    """Take models down once their requests have ended; without names also this machine's cluster."""
    from stretto.deploy import cluster

    folder = cluster.home()
    with cluster.connect(folder, address):
        gone = cluster.down(names or ())
    if address is None and not names:
        cluster.end_head(folder)
    print(f"taken down: {', '.join(gone) or 'no model was served'}")


def _lacks_tenants(state: dict[str, Any]) -> bool:
    """Whether the router of a cluster does not learn whose request it has."""
    return bool(state.get("haproxy")) and not state.get("tenants")


def _absolute(model: str) -> str:
    """A model whose file is here, by its whole path: replicas run in another folder."""
    from stretto.server.settings import ModelEntry

    entry = ModelEntry.parse(model)
    is_file = "/" in entry.source or entry.source.endswith((".gguf", ".onnx"))
    if not is_file or not Path(entry.source).exists():
        return model
    return f"{entry.name}={Path(entry.source).absolute()}"


def _share(replicas: int) -> int:
    """The threads of a replica, if the cores are shared out."""
    from stretto.hardware import usable_cores

    return max(1, usable_cores() // max(1, replicas))


def _cpus(settings: DeploySettings) -> float:
    n = settings.replicas if settings.autoscaling is None else settings.autoscaling.max_replicas
    return n * float(settings.threads if settings.cpus is None else settings.cpus)


def _whole_gpus(deployments: list[DeploySettings]) -> float:
    """GPUs that a cluster on this machine says it has: those that are here, where a replica asks for some."""
    if not any(settings.gpus for settings in deployments):
        return 0.0
    from stretto.hardware.gpus import cuda_devices

    return float(len(cuda_devices()))


def _more(given: list[str] | tuple[str, ...]) -> dict[str, Any]:
    """Fields from FIELD=VALUE: numbers, true and false, JSON, or else text."""
    import json

    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidRequest(f"--set takes FIELD=VALUE, not {text!r}", param="set", value=text)
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _yaml(deployments: list[DeploySettings], host: str, port: int) -> str:
    """The file that `serve deploy` takes; values are in JSON, which is YAML too."""
    import json

    from stretto.deploy.cluster import make_routes

    lines = [
        "proxy_location: EveryNode",
        "http_options:",
        f"  host: {json.dumps(host)}",
        f"  port: {port}",
        "applications:",
    ]
    for settings, route in zip(deployments, make_routes(deployments), strict=True):
        lines += [
            f"  - name: {json.dumps(settings.entry.name)}",
            f"    route_prefix: {json.dumps(route)}",
            "    import_path: stretto.deploy.application:build",
            "    args:",
        ]
        args = settings.model_dump(mode="json", exclude_unset=True)
        lines += [f"      {key}: {json.dumps(value)}" for key, value in args.items()]
    return "\n".join(lines) + "\n"

"""The settings of a deployment: one model, its replicas and where they run. The `args:` of a YAML file.

    settings = DeploySettings.parse({"model": "smollm2", "replicas": 2, "threads": 1})
    settings.server("127.0.0.1")        # the server's own settings, which every replica has

An error names the field, what was given and what it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from stretto.errors import InvalidRequest
from stretto.options.loading import CacheType, Precision
from stretto.options.serving import BY_NAME, Log
from stretto.server.settings import ModelEntry, Settings, api_keys

DEPLOYMENT = "stretto"  # the name of the deployment in each application
SPARE_REQUESTS = 64  # beside those that generate: pages, health checks, metrics

Share = Annotated[float, Field(gt=0, le=1)]
Seconds = Annotated[float, Field(gt=0, le=86400)]
Count = Annotated[int, Field(ge=1, le=4096)]


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Autoscaling(_Fields):
    """How many replicas there are, by what they have to do."""

    min_replicas: Count = Field(1, description="a number of replicas, 1 or more")
    max_replicas: Count = Field(description="a number of replicas, at least min_replicas")
    requests: Annotated[float, Field(gt=0, le=65536)] = Field(
        8.0, description="how many requests, running and waiting, one replica is to have"
    )
    cells: Share = Field(0.8, description="the share of a replica's cells that its requests are to hold")
    up_seconds: Seconds = Field(5.0, description="for how long it takes more before a replica is added")
    down_seconds: Seconds = Field(120.0, description="for how long it takes fewer before one is removed")

    @model_validator(mode="after")
    def _ordered(self) -> Autoscaling:
        if self.max_replicas < self.min_replicas:
            raise ValueError(
                f"max_replicas is {self.max_replicas}, below min_replicas, {self.min_replicas}; raise it"
            )
        return self


def setting(name: str, default: Any = None) -> Any:
    """A field that is an option of the server; `default` in place of the server's."""
    option = BY_NAME[name]
    return Field(option.default if default is None else default, description=option.meaning)


class DeploySettings(_Fields):
    """A model and its replicas; the fields of a YAML file's `args:`."""

    model: str = Field(min_length=1, max_length=4096, description="a model as `stretto serve --model`")
    vision: str | None = Field(None, description="the mmproj file of its image encoder")
    adapters: dict[str, str] = Field({}, description="paths of LoRA adapters by their names")

    replicas: Count = Field(1, description="a number of replicas, 1 or more")
    autoscaling: Autoscaling | None = Field(
        None, description="min_replicas and max_replicas, in place of replicas"
    )
    threads: Annotated[int, Field(ge=1, le=1024)] = Field(1, description="threads of each replica, 1 or more")
    cpus: Annotated[float, Field(ge=0, le=1024)] | None = Field(
        None, description="cores that Ray reserves for a replica; as many as threads if not given"
    )
    gpus: Annotated[float, Field(ge=0, le=64)] = Field(
        0.0, description="GPUs of a replica: a fraction such as 0.25, or whole ones"
    )
    per_node: Count | None = Field(None, description="how many replicas a node may have")
    resources: dict[str, Annotated[float, Field(gt=0)]] = Field(
        {}, description="resources of your own that a node must have, as {fast: 1}"
    )
    labels: dict[str, str] = Field({}, description="labels that a node must have, as {zone: a}")

    cells: int | Literal["auto"] = setting("cells")
    kv: CacheType = setting("kv")
    precision: Precision = setting("precision")
    experts: str | int | tuple[str, ...] | None = setting("experts")
    gpu_memory: int | None = setting("gpu_memory")
    backend: str = setting("backend")
    device: str = setting("device")
    share_weights: bool = Field(
        True, description="true or false: replicas of a node map one file of packed weights"
    )
    memory: int | None = setting("memory")
    cache: Literal["memory", "disk"] = setting("cache")
    cache_dir: str | None = setting("cache_dir")
    cache_size: int = setting("cache_size")
    cache_writes: int = setting("cache_writes")

    api_key_file: str | None = Field(
        None, description="a file with keys, one a line, on every node; STRETTO_API_KEY there is one more"
    )
    admin_key_file: str | None = Field(
        None, description="a file with admin keys, one a line, on every node; STRETTO_ADMIN_KEY too"
    )
    share_prefixes: bool = setting("share_prefixes")
    no_auth: bool = setting("no_auth")
    allow_hosts: tuple[str, ...] = Field((), description="names of the server, where it has no keys")
    allow_origins: tuple[str, ...] = Field((), description="origins of web pages that may use it")
    remote_images: bool = setting("remote_images")

    repeat_guard: bool = setting("repeat_guard", True)
    max_running: int = setting("max_running")
    max_queue: int = setting("max_queue")
    max_seconds: float = setting("max_seconds")
    max_body: int = setting("max_body")
    max_n: int = setting("max_n")
    grace_seconds: float = setting("grace_seconds", 60.0)
    log: Log = setting("log")
    routing: Literal["prefix", "ray"] = Field(
        "prefix", description="prefix: to the replica that holds the longest prefix; ray: as Ray does"
    )

    @model_validator(mode="after")
    def _consistent(self) -> DeploySettings:
        for name in SHARED:
            BY_NAME[name].check(getattr(self, name))
        if self.autoscaling is not None and "replicas" in self.model_fields_set:
            raise ValueError("replicas and autoscaling are both given; leave one of them out")
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise ValueError(f"gpus is {self.gpus:g}; above 1 it takes a whole number")
        if self.cells == "auto" and self.gpus < 1:
            raise ValueError(
                "cells is auto, which takes all free memory of a GPU; with gpus below 1 give a number"
            )
        if self.gpus and self.device == "cpu":
            raise ValueError(f"device is cpu, and gpus is {self.gpus:g}; leave one of them out")
        return self

    @classmethod
    def parse(cls, args: Mapping[str, Any]) -> DeploySettings:
        """The settings from a file or a command; raises `InvalidRequest` for the first wrong field."""
        try:
            settings = cls.model_validate(_plain(args))
        except ValidationError as error:
            raise _explained(cls, error) from None
        settings.server("127.0.0.1", keys=False)  # what the server's own settings refuse
        return settings

    @property
    def entry(self) -> ModelEntry:
        """The model as the server takes it."""
        entry = ModelEntry.parse(self.model)
        return ModelEntry(entry.name, entry.source, self.vision, tuple(self.adapters.items()))

    @property
    def max_requests(self) -> int:
        """Requests that a replica takes; its engine refuses what is too much for it, with a reason."""
        return self.max_running + self.max_queue + SPARE_REQUESTS

    def server(self, host: str, keys: bool = True) -> Settings:
        """The settings of the server in each replica, behind proxies that listen on `host`.

        Keys are read where the replica runs, so that they are not among what Ray keeps of a deployment.
        """
        device = "cuda" if self.gpus and self.device == "auto" else self.device
        return Settings.of(
            vars(self),
            models=(self.entry,),
            host=host,
            port=0,
            api_keys=_keys(self.api_key_file, "api") if keys else (),
            admin_keys=_keys(self.admin_key_file, "admin") if keys else (),
            origins=self.allow_origins,
            hosts=self.allow_hosts,
            repack="shared" if self.share_weights else "auto",
            device=device,
        )


SHARED = [name for name in BY_NAME if name in DeploySettings.model_fields and name != "threads"]


def _keys(file: str | None, kind: str) -> tuple[str, ...]:
    return api_keys((), None if file is None else Path(file), kind)


def _plain(args: Mapping[str, Any]) -> dict[str, Any]:
    """A file's lists as the tuples that the fields are."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in args.items()}


def _explained(cls: type[BaseModel], error: ValidationError) -> InvalidRequest:
    first = error.errors()[0]
    where = [
        str(part) for part in first["loc"] if not str(part).startswith(("int", "literal", "constrained"))
    ]
    name = ".".join(where)
    if name in SHARED:
        try:
            BY_NAME[name].check(first["input"])
        except InvalidRequest as refused:
            return refused
    if first["type"] == "value_error":
        return InvalidRequest(str(first["ctx"]["error"]), param=name or None)
    if first["type"] == "extra_forbidden":
        known = ", ".join(sorted(cls.model_fields))
        return InvalidRequest(f"there is no setting {name!r}; there are {known}", param=name)
    if first["type"] == "missing":
        return InvalidRequest(f"{name} is missing; it takes {_taken(cls, where)}", param=name)
    value = first["input"]
    return InvalidRequest(f"{name} takes {_taken(cls, where)}, not {value!r}", param=name, value=value)


def _taken(cls: type[BaseModel], where: list[str]) -> str:
    if len(where) > 1 and where[0] == "autoscaling":
        return _taken(Autoscaling, where[1:])
    field = cls.model_fields.get(where[0]) if where else None
    return (field.description if field is not None else None) or "another value"

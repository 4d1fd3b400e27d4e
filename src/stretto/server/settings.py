"""The operator's settings: models, address, keys, limits. Checked when they are made."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from stretto.engine.params import check_combinations, request_params
from stretto.errors import InvalidRequest
from stretto.options.generating import BY_NAME, OPTIONS
from stretto.options.keywords import ServeOptions
from stretto.options.loading import DISK
from stretto.options.option import check_number, taken_by
from stretto.options.serving import BY_NAME as BY_SERVE
from stretto.options.serving import LIMITS, SERVE
from stretto.server.http.hosts import ANY, LOCAL, is_loopback, parse_host
from stretto.text.loading import template_source
from stretto.weights.hub.names import HF_PREFIX

# What the operator sets for requests that say nothing about it: `--default`, `--chat-template-kwargs`.

NAMES = tuple(option.name for option in taken_by(OPTIONS, "default"))


def parse_defaults(given: Sequence[str]) -> dict[str, Any]:
    """Options from `NAME=VALUE`, checked.

    >>> parse_defaults(["temperature=0.6", "top_k=20"])
    {'temperature': 0.6, 'top_k': 20}
    """
    options: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if name not in NAMES or not equals:
            raise InvalidRequest(
                f"--default takes NAME=VALUE with one of {', '.join(NAMES)}, not {text[:100]!r}",
                param="default",
            )
        try:
            options[name] = BY_NAME[name].read(value)
        except ValueError:
            raise InvalidRequest(
                f"--default {name} must be a number, not {value[:100]!r}", param=name
            ) from None
    check_defaults(options)
    return options


def parse_arguments(text: str | None) -> dict[str, Any]:
    """Arguments of chat templates, from an object in JSON.

    >>> parse_arguments('{"enable_thinking": false}')
    {'enable_thinking': False}
    """
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidRequest(
            '--chat-template-kwargs takes an object in JSON, as {"enable_thinking": false}, '
            f"not {text[:100]!r}",
            param="chat_template_kwargs",
        )
    return found


def check_defaults(options: Mapping[str, Any]) -> None:
    """Raise for options that no request could have."""
    check_combinations(options)
    request_params(options, 1 << 31)


_NAME = re.compile(r"[^/=]+|[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(:[\w.-]+)?")  # before the "=" of NAME=MODEL


@dataclass(frozen=True)
class ModelEntry:
    """A model to serve: the name that requests give, and what `stretto.load` gets.

    >>> ModelEntry.parse("small=./models/m.gguf")
    ModelEntry(name='small', source='./models/m.gguf', vision=None, adapters=())
    """

    name: str
    source: str
    vision: str | None = None  # the mmproj file of its image encoder
    adapters: tuple[tuple[str, str], ...] = ()  # (name, path) each
    backend: str | None = field(default=None, repr=False)  # in place of the server's
    template: str | None = field(default=None, repr=False)  # Jinja, in place of the file's chat template

    @classmethod
    def parse(cls, text: str) -> ModelEntry:
        """Parse `NAME=MODEL`, or a model without a name: it is named by itself, a file by its stem.

        A name may be `org/name` or `org/name:tag`, unless the whole text is the path of a file.
        """
        name, equals, source = text.partition("=")
        is_path = "/" in name and Path(text).exists()
        if not equals or is_path or name.startswith(HF_PREFIX) or (name and not _NAME.fullmatch(name)):
            name, source = "", text
        if not source:
            raise InvalidRequest(f"--model {text!r} names no model; give a name, a path or NAME=MODEL")
        if not name:
            is_path = not source.startswith(HF_PREFIX) and (
                "/" in source or source.endswith((".gguf", ".onnx"))
            )
            name = Path(source).stem if is_path else source
        return cls(name, source)

    @staticmethod
    def with_vision(entries: Sequence[ModelEntry], files: Sequence[str]) -> tuple[ModelEntry, ...]:
        """The models with image encoders: `files` are `NAME=FILE`, or just a file if there is one model."""
        by_name = {entry.name: entry for entry in entries}
        for text in files:
            name, equals, file = text.partition("=")
            if not equals and len(by_name) == 1:
                name, file = next(iter(by_name)), text
            if name not in by_name or not file:
                raise InvalidRequest(f"--vision takes NAME=FILE with the name of a --model, not {text!r}")
            by_name[name] = replace(by_name[name], vision=file)
        return tuple(by_name[entry.name] for entry in entries)

    @staticmethod
    def with_templates(entries: Sequence[ModelEntry], given: Sequence[str]) -> tuple[ModelEntry, ...]:
        """The models with chat templates: `NAME=TEMPLATE`, or a template alone if there is one model."""
        by_name = {entry.name: entry for entry in entries}
        for text in given:
            name, equals, template = text.partition("=")
            if not equals or name not in by_name:
                if len(by_name) > 1:
                    raise InvalidRequest(
                        f"--chat-template takes NAME=FILE with the name of a --model, not {text[:100]!r}"
                    )
                name, template = next(iter(by_name)), text
            by_name[name] = replace(by_name[name], template=template_source(template))
        return tuple(by_name[entry.name] for entry in entries)


@dataclass(frozen=True)
class RequestLimits:
    """Limits on one request; sizes in bytes, times in seconds."""

    body: int = 16 << 20
    bodies: int = 256 << 20  # of all requests together
    blob: int = 1 << 38  # a file for /api/create, which goes to the disk
    head: int = 32 << 10  # request line and headers
    head_seconds: float = 10.0  # until they have come
    body_seconds: float = 60.0  # until the rest has come
    read_seconds: float = 120.0  # that a client may let an answer wait, unread
    values: int = 1 << 18  # in a body of JSON: numbers, texts, lists, fields
    prompt: int = 1_000_000  # characters
    prompts: int = 64  # in one request
    n: int = 16
    images: int = 8
    all_images: int = 64  # of all requests together
    image: int = 8 << 20
    pixels: int = 16_000_000
    audio_seconds: float = 1800.0
    schema: int = 64 << 10  # characters of a schema or grammar
    tools: int = 128
    seconds: float = 600.0  # of a whole request
    pins: int = 16
    responses: int = 256  # of one caller that are kept
    response_bytes: int = 64 << 20  # of these together
    streams: int = 4  # resumable ones of one caller that nobody reads
    stream_bytes: int = 4 << 20  # of one that are kept
    stream_seconds: float = 60.0  # that one is kept without a reader
    files: int = 256  # of one caller, for batches
    file_bytes: int = 256 << 20  # of these together
    batches: int = 16  # of one caller that have not ended
    saved_sequences: int = 64  # of one caller
    saved_bytes: int = 4 << 30  # of these together
    connections: int = 1024

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise InvalidRequest(f"the limit {item.name!r} must be above 0, not {value!r}")


@dataclass(frozen=True)
class KeyLimits:
    """What a key may have: its weight beside others, requests at once, tokens a minute, cells of prompts."""

    weight: float = 1.0
    requests: int | None = None
    tokens: int | None = None
    cells: int | None = None


NO_KEY_LIMITS = KeyLimits()
_KEY_LIMITS = {"weight": None, **{name: BY_SERVE[f"key_{name}"] for name in ("requests", "tokens", "cells")}}


def parse_key(text: str, usual: KeyLimits) -> tuple[str, KeyLimits]:
    """A key, and its limits: those behind it, others as usual.

    >>> parse_key("k-123 weight=2 requests=4", KeyLimits(tokens=1000))
    ('k-123', KeyLimits(weight=2.0, requests=4, tokens=1000, cells=None))
    """
    key, *words = text.split()
    found: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in _KEY_LIMITS or name in found:
            raise InvalidRequest(
                "an API key must be printable ASCII without spaces; only weight=, requests=, tokens= and "
                f"cells= stand behind it, each once, not {word[:100]!r}",
                param="api_key",
            )
        try:
            found[name] = float(value) if name == "weight" else int(value)
        except ValueError:
            raise InvalidRequest(f"{name}= behind a key must be a number, not {value[:100]!r}") from None
        if name == "weight":
            check_number(name, found[name], 0.01, 100.0)
        else:
            BY_SERVE[f"key_{name}"].check(found[name], name)
    return key, replace(usual, **found)


@dataclass(frozen=True)
class Settings(ServeOptions):
    """All settings. `memory` is the limit for all loaded models together; None: most of the free memory.

    >>> Settings((ModelEntry.parse("smollm2"),)).loopback
    True
    """

    models: tuple[ModelEntry, ...]
    api_keys: tuple[str, ...] = ()
    admin_keys: tuple[str, ...] = ()  # keys that may also administrate: load and unload models, see all cells
    defaults: Mapping[str, Any] = field(default_factory=dict)  # options of requests that do not say them
    repeat_guard: bool = field(default=True, kw_only=True)  # for requests that do not say
    template_arguments: Mapping[str, Any] = field(default_factory=dict)  # of templates that read them
    limits: RequestLimits = field(default_factory=RequestLimits)

    @classmethod
    def of(cls, options: Mapping[str, Any], **others: Any) -> Settings:
        """The settings of a command or a deployment, with limits on requests among its options."""
        limits = RequestLimits(**{name: options[option] for option, name in LIMITS.items()})
        named = {
            one.name: options[one.name] for one in SERVE if one.name not in LIMITS and one.name in options
        }
        lists = {name: tuple(value) for name, value in named.items() if isinstance(value, list)}
        return cls(limits=limits, **{**named, **lists, **others})

    def __post_init__(self) -> None:
        for option in SERVE:
            if option.name not in LIMITS:
                option.check(getattr(self, option.name), option.flag.split("/")[0])
        if not self.models:
            raise InvalidRequest("there is no model to serve; give --model")
        names = [entry.name for entry in self.models]
        for name in names:
            if names.count(name) > 1:
                raise InvalidRequest(f"two models are called {name!r}; give one of them as NAME=MODEL")
        if self.slot_path is not None and not self.slot_path.is_dir():
            raise InvalidRequest(f"--slot-save-path {self.slot_path} is no folder; make it first")
        check_defaults(self.defaults)
        if not all(self.addresses):
            raise InvalidRequest(f"--host takes addresses with commas between them, not {self.host!r}")
        for key in (*self.api_keys, *self.admin_keys):
            if not key.strip() or not key.isascii() or not key.isprintable():
                raise InvalidRequest("an API key must be printable ASCII without spaces, and not empty")
        if len(self.keys) < len(self.api_keys) + len(self.admin_keys):
            raise InvalidRequest(
                "a key is both an --api-key and an --admin-key, or given twice; once is enough"
            )
        if self.api_keys and self.no_auth:
            raise InvalidRequest("--api-key and --no-auth contradict each other; give one of them")
        if not self.loopback and not (self.api_keys or self.admin_keys or self.no_auth):
            raise InvalidRequest(
                f"{self.host} can be reached from elsewhere; set --api-key (or STRETTO_API_KEY), or say "
                "--no-auth to serve without keys"
            )
        for host in self.hosts:
            if parse_host(host) != host:
                raise InvalidRequest(
                    f"--allow-host takes a name in lower case and without a port, as box.lan, not {host!r}"
                )
        for origin in self.origins:
            if origin not in (ANY, LOCAL) and ("://" not in origin or origin.endswith("/")):
                raise InvalidRequest(
                    "--allow-origin takes an origin like https://example.org, localhost for all of this "
                    f"machine, or '*' for all, not {origin!r}"
                )

    def loading(self, entry: ModelEntry) -> dict[str, Any]:
        """The options of `stretto.load` for a model, besides `repack`, which its memory may decide."""
        return {
            "backend": entry.backend or self.backend,
            "device": self.device,
            "threads": self.threads,
            "cells": self.cells,
            "kv": self.kv,
            "precision": self.precision,
            "experts": self.experts,
            "gpu_memory": self.gpu_memory,
        }

    @cached_property
    def keys(self) -> dict[str, tuple[bool, KeyLimits]]:
        """All keys: whether each is an admin's, and its limits."""
        usual = self.key_limits
        found: dict[str, tuple[bool, KeyLimits]] = {}
        for is_admin, texts in ((False, self.api_keys), (True, self.admin_keys)):
            for key, limits in (parse_key(text, usual) for text in texts):
                found[key] = is_admin, limits
        return found

    @property
    def key_limits(self) -> KeyLimits:
        """The limits of a caller whose key says nothing else."""
        return KeyLimits(requests=self.key_requests, tokens=self.key_tokens, cells=self.key_cells)

    @property
    def disk_cache(self) -> dict[str, Any]:
        """The options of `stretto.load` for prompts on disk."""
        return {option.name: getattr(self, option.name) for option in DISK}

    @property
    def cache_limits(self) -> tuple[int, int]:
        """Bytes of prompts on disk, in all and written in a day."""
        return self.cache_size, self.cache_writes

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return all(is_loopback(host.strip("[]")) for host in self.addresses)

    @property
    def addresses(self) -> list[str]:
        """The addresses to listen on."""
        return [host.strip() for host in self.host.split(",")]


def api_keys(given: Sequence[str] | None, file: Path | None, kind: str = "api") -> tuple[str, ...]:
    """The keys from the command line, a file (one a line) and STRETTO_API_KEY, or those of another kind."""
    keys = list(given or ())
    if file is not None:
        try:
            lines = [line.strip() for line in file.read_text().splitlines()]
        except (OSError, UnicodeError) as error:
            raise InvalidRequest(f"--{kind}-key-file {file}: {error}") from None
        if not any(lines):
            raise InvalidRequest(f"--{kind}-key-file {file}: there is no key in it")
        keys += filter(None, lines)
    if key := os.environ.get(f"STRETTO_{kind.upper()}_KEY"):
        keys.append(key)
    return tuple(dict.fromkeys(keys))

"""The state that all requests of a server share, and who sends them."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import Counter, OrderedDict, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, zip_longest
from secrets import token_bytes
from typing import Any, NamedTuple, Protocol, TypeVar

from fastapi import Request

from stretto.engine.limits import COMMON_SHARE, Share
from stretto.engine.metrics import HISTORY_SECONDS
from stretto.engine.request import Progress
from stretto.loading.disk_cache import open_store
from stretto.server.http.errors import CLIENT_GONE, ApiError
from stretto.server.http.registry import Opener, Registry
from stretto.server.settings import NO_KEY_LIMITS, KeyLimits, RequestLimits, Settings

Part = TypeVar("Part")

# Callers: who sends a request, by its key. Keys are tenants, and administration needs an admin key.
#
# The guard finds out who is calling, before anything else of a request is read; endpoints ask `get_caller`.
# Without any key everybody is one and the same caller, who administrates a server that only this machine can
# reach.

CALLER = "stretto.caller"  # key in a scope


@dataclass(frozen=True)
class Caller:
    """A sender of requests.

    The name is a keyed hash of the key, "" without keys: it says nothing about the key, and changes with
    every start of the server. The salt keeps a caller's prompts in the prefix cache apart from others'; it
    is "" where they are shared. `shares`: its cells may be others' too, so only those of its running requests
    are known to be its own; an admin sees all of them anyway. The label is for the log: "key-2" or "admin-1",
    by the order in which keys are given. `share`: how its requests take turns with those of others.
    """

    name: str = ""
    admin: bool = False
    salt: str = ""
    shares: bool = False
    label: str = ""
    share: Share = COMMON_SHARE
    limits: KeyLimits = NO_KEY_LIMITS


class Callers:
    """The callers that the settings allow, by their keys."""

    def __init__(self, settings: Settings) -> None:
        keys = settings.keys
        self._several = len(keys) + settings.no_auth > 1
        self._share = settings.share_prefixes
        # Keys whose prompts are on disk have salts of their own that stay the same after a restart; a single
        # one too, since there may have been another one before.
        on_disk = settings.cache == "disk" and settings.cache_size > 0 and bool(keys) and not self._share
        self._store = open_store(settings.cache_dir, *settings.cache_limits) if on_disk else None
        self.are_apart = on_disk or (self._several and not self._share)  # each has prefixes of its own
        self._secret = token_bytes(32)
        self._known: dict[bytes, Caller] = {}
        self._keys: dict[str, bytes] = {}  # by the names of their callers
        numbers = {False: count(1), True: count(1)}
        for key, (admin, limits) in keys.items():
            digest = self._digest(key.encode())
            label = f"{'admin' if admin else 'key'}-{next(numbers[admin])}"
            caller = self._known[digest] = self._caller(digest.hex()[:16], admin, limits, label, key)
            self._keys[caller.name] = key.encode()
        self.need_keys = bool(keys) and not settings.no_auth
        self.nobody = self._caller("", not keys and settings.loopback, settings.key_limits)

    def _caller(self, name: str, admin: bool, limits: KeyLimits, label: str = "", key: str = "") -> Caller:
        salt = name if self.are_apart else ""
        if self._store is not None and key:
            salt = self._store.salt(key)
        shares = self._several and self._share and not admin
        share = Share(name, limits.weight, limits.cells)
        return Caller(name, admin, salt, shares, label, share, limits)

    def find(self, authorization: bytes, key: bytes = b"") -> Caller:
        """The caller with an Authorization header; raises unless it holds a known key, where one is needed.

        `key` is that of an `x-api-key` header, as Anthropic's clients send it; Authorization goes first.
        Keys are compared by their keyed hashes, so the time it takes tells nothing about them.
        """
        if key and not authorization:
            authorization = b"Bearer " + key
        if not self._known or (not authorization and not self.need_keys):
            return self.nobody
        scheme, _, key = authorization.partition(b" ")
        caller = self._known.get(self._digest(key.strip()))
        if caller is None or scheme.lower() != b"bearer":
            reason = "this API key is not right" if authorization else "there is no API key"
            raise ApiError(
                401, f"{reason}; send Authorization: Bearer KEY, or x-api-key: KEY", code="invalid_api_key"
            )
        return caller

    def owners(self, secret: bytes) -> dict[str, Caller]:
        """All callers, by names that stay the same over restarts: keyed hashes of their keys."""
        found = {
            hmac.digest(secret, self._keys[caller.name], "sha256").hex()[:32]: caller
            for caller in self._known.values()
        }
        return {"nobody": self.nobody, **found}

    def _digest(self, key: bytes) -> bytes:
        return hmac.digest(self._secret, key, "sha256")


# Responses that are kept, so that others can go on with them: bounded for each caller, oldest out first.
#
# What is kept are items and answers as JSON, in memory. The tokens behind them stay in the prefix cache as
# those of any request do, so going on with a response computes only what is new, as long as they are there.


@dataclass(frozen=True)
class Kept:
    """A response, the items of its own input, and those of the conversation up to its end."""

    response: dict[str, Any]
    inputs: tuple[Any, ...]
    items: tuple[Any, ...]
    n_bytes: int  # of the conversation and the response, as JSON


class ResponseStore:
    """The responses of all callers; each finds its own only."""

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        self._kept: dict[str, OrderedDict[str, Kept]] = {}  # by caller and id, the least recently used first

    def save(self, caller: str, kept: Kept) -> None:
        """Keep a response; the oldest of its caller make room for it."""
        own = self._kept.setdefault(caller, OrderedDict())
        own[kept.response["id"]] = kept
        while len(own) > self._limits.responses or _n_bytes(own) > self._limits.response_bytes:
            own.popitem(last=False)

    def find(self, caller: str, name: str, param: str) -> Kept:
        """A response by its id; raises if the caller has none with it, or not any more."""
        own = self._kept.get(caller, OrderedDict())
        if name not in own:
            message = (
                f"{param}: there is no response {name[:64]!r}; it was not stored, or too many came after it"
            )
            raise ApiError(404, message, param=param, code="not_found")
        own.move_to_end(name)
        return own[name]

    def names(self, most: int) -> list[str]:
        """The ids of so many responses, those of each caller from the latest on; any thread may ask."""
        for _ in range(8):
            try:
                own = [list(reversed(kept)) for kept in list(self._kept.values())]
            except RuntimeError:  # one was stored in this moment
                continue
            return [name for row in zip_longest(*own) for name in row if name is not None][:most]
        return []

    def remove(self, caller: str, name: str) -> None:
        """Forget a response."""
        self.find(caller, name, "response_id")
        del self._kept[caller][name]


def _n_bytes(own: OrderedDict[str, Kept]) -> int:
    return sum(kept.n_bytes for kept in own.values())


# Answers by the second, for the last minutes: written when there is one, so an idle server costs nothing.


@dataclass
class AnswerSecond:
    """The answers of a second, and CPU time up to the first of them: of the process and the event loop."""

    second: int  # of time.perf_counter
    process: float
    loop: float
    n: int = 0
    n_4xx: int = 0
    n_5xx: int = 0


class AnswerHistory:
    """The last `HISTORY_SECONDS` seconds in which there were answers; used by the event loop's thread."""

    def __init__(self) -> None:
        self.seconds: deque[AnswerSecond] = deque(maxlen=HISTORY_SECONDS)
        self.n_4xx = self.n_5xx = 0

    def count(self, status: int) -> None:
        """Count an answer."""
        second = int(time.perf_counter())
        if not self.seconds or self.seconds[-1].second != second:
            self.seconds.append(AnswerSecond(second, time.process_time(), time.thread_time()))
        last = self.seconds[-1]
        last.n += 1
        if 400 <= status < CLIENT_GONE:
            last.n_4xx += 1
            self.n_4xx += 1
        elif status >= 500:
            last.n_5xx += 1
            self.n_5xx += 1


class Traffic:
    """Counters of requests and answers; the guard updates them."""

    def __init__(self) -> None:
        self.stopping = False  # new requests are refused
        self.active = 0  # requests under way
        self.body_bytes = 0  # of all bodies in memory
        self.answered: Counter[tuple[str, int]] = Counter()  # by route and status
        self.answers = AnswerHistory()

    def count(self, path: str, status: int) -> None:
        """Count an answer."""
        self.answered[path, status] += 1
        self.answers.count(status)


class Running(Protocol):
    """The part of a generation that the server itself uses."""

    id: str
    path: str
    caller: Caller
    since: float
    n_images: int

    @property
    def model(self) -> str:
        """The name of its model."""

    @property
    def progress(self) -> Progress:
        """How far it is."""

    @property
    def cache_difference(self) -> dict[str, Any]:
        """Where its prompt leaves a cached one, as `usage` has it; empty if it does not."""

    def stop(self) -> None:
        """Cancel its texts."""

    def cancel(self) -> None:
        """End it by its caller's or the operator's word."""


class Download(Protocol):
    """The part of a download that the server itself uses."""

    def stop(self) -> None:
        """End it soon."""

    async def wait(self, seconds: float) -> None:
        """Wait until it has ended, that long at most."""


class Job(NamedTuple):
    """A response that is made while its client does not wait."""

    generation: Running
    task: asyncio.Task[None]


class State:
    """Settings, models, and running generations."""

    def __init__(self, settings: Settings, opener: Opener | None = None) -> None:
        self.settings = settings
        self.callers = Callers(settings)
        self.registry = Registry(settings, opener)
        self.responses = ResponseStore(settings.limits)
        self.generations: set[Running] = set()
        self.jobs: dict[tuple[str, str], Job] = {}  # by caller and id of the response
        self.pull: Download | None = None  # the download under way; there is at most one
        self.traffic = Traffic()
        self.reader = ThreadPoolExecutor(1, "stretto-cells")  # copies tables of cells for those who look
        self.labels: dict[str, str] = {}  # of all metrics: which replica this is, if it is one
        self.started = time.monotonic()  # the clock on the wall may jump
        self._parts: dict[type, Any] = {}

    def part(self, kind: type[Part]) -> Part:
        """The state that one protocol alone has, made when it is first asked for."""
        if kind not in self._parts:
            self._parts[kind] = kind()
        part: Part = self._parts[kind]
        return part

    def stop(self) -> None:
        """Refuse new requests."""
        self.traffic.stopping = True

    def cancel_all(self) -> None:
        """Cancel all running generations, and the download."""
        if self.pull is not None:
            self.pull.stop()
        for generation in list(self.generations):
            generation.stop()

    async def wait_for_jobs(self, seconds: float) -> None:
        """Wait until no response is made any more, that long at most."""
        if tasks := [job.task for job in self.jobs.values()]:
            await asyncio.wait(tasks, timeout=seconds)


def get_state(request: Request) -> State:
    """The state of the server that a request came to."""
    state: State = request.app.state.stretto
    return state


def get_caller(request: Request) -> Caller:
    """Who sent a request."""
    caller: Caller = request.scope[CALLER]
    return caller


def require_admin(request: Request) -> None:
    """Raise unless an administrator sent the request."""
    if not get_caller(request).admin:
        raise ApiError(
            403,
            "this is administration and needs an admin key; the operator sets one with --admin-key",
            code="admin_only",
        )

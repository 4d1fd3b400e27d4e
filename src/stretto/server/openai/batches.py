"""`/v1/files` and `/v1/batches`: many requests in one file of JSON lines, answered beside live requests.

The lines are requests to this server's own endpoints. They run through the same code as live ones, with a
lower priority: a few at a time, one batch of each caller. Answers are appended to a file as they come; a
batch that a stop of the server has interrupted goes on at the next start.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import re
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from secrets import token_hex
from typing import IO, Annotated, Any, Literal

from fastapi import Query, Request
from pydantic import Field
from starlette.responses import FileResponse, Response
from starlette.types import ASGIApp, Scope

from stretto.engine.limits import CURRENT_SHARE
from stretto.errors import StrettoError
from stretto.server.generation.fields import LABEL, Body, Name
from stretto.server.generation.generation import PRIORITY, REQUEST_ID
from stretto.server.http.bodies import form_file, form_schema, make_router, opened_form, parse_json
from stretto.server.http.errors import (
    ApiError,
    Json,
    field_error,
    is_full,
    note_error,
    translate,
    write_error,
)
from stretto.server.http.logs import log_request
from stretto.server.http.state import CALLER, Caller, State, get_caller
from stretto.server.http.streaming import ask_app
from stretto.server.openai.batch_store import (
    BATCH_SECONDS,
    ENDED,
    ENDS,
    WINDOW_SECONDS,
    BatchStore,
    Record,
    missing,
)

log = logging.getLogger("stretto.server")

AT_ONCE = 4  # requests of all batches that run at once
LOW = -1000  # their priority
MAX_LINES = 50_000  # of a batch
LOOK_SECONDS = 2.0  # between looks for batches that another server has left
BUSY = (429, 503)  # statuses of a request that is tried again

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
Limit = Annotated[int, Query(ge=1, le=10_000, description="At most so many of them.")]
After = Annotated[str, Query(max_length=64, description="Those behind the one with this id.")]
Purpose = Annotated[str, Query(max_length=64, description="Those for this alone.")]
Order = Annotated[Literal["asc", "desc"], Query(description="The oldest or the latest first.")]

router = make_router("OpenAI")


class Expiry(Body):
    """When files are removed."""

    anchor: Literal["created_at"] = Field(description="Counted from when it was made.")
    seconds: Annotated[int, Field(ge=3600, le=30 * 86400, description="So many seconds later.")]


class BatchRequest(Body):
    """`POST /v1/batches`."""

    input_file_id: Name = Field(description="The id of a file of JSON lines, one request each.")
    endpoint: Endpoint = Field(description="The endpoint that all of them are for.")
    completion_window: Literal["24h"] = Field(description="What has not been answered by then is not.")
    metadata: Annotated[dict[str, str], Field(max_length=16, description=LABEL)] | None = None
    output_expires_after: Annotated[Expiry, Field(description="Of the files of answers.")] | None = None


@router.post(
    "/v1/files",
    openapi_extra=form_schema(
        file={"type": "string", "format": "binary", "description": "JSON lines."},
        purpose={"type": "string", "enum": ["batch"], "description": "For batches."},
    ),
)
async def upload(request: Request) -> Response:
    """Keep a file for batches."""
    async with opened_form(request, max_fields=8) as form:
        file = form_file(form)
        if form.get("purpose") != "batch":
            raise field_error("purpose", "purpose must be batch; files are for nothing else here")
        allowed = ("file", "purpose", "expires_after[anchor]", "expires_after[seconds]")
        for name in form:
            if name not in allowed:
                raise field_error(name[:80], f"{name[:80]!r} is no field here; leave it out")
        later = {}
        if (seconds := form.get("expires_after[seconds]")) is not None:
            is_number = isinstance(seconds, str) and re.fullmatch("[0-9]{1,7}", seconds) is not None
            if not is_number or not 3600 <= int(str(seconds)) <= 30 * 86400:
                message = "expires_after[seconds] must be from 3600 to 2592000"
                raise field_error("expires_after", message)
            later = {"seconds": float(str(seconds))}
        name, data = (file.filename or "file.jsonl")[:200], await file.read()
    batches, owner = _asked(request)
    kept = await asyncio.to_thread(batches.store.add_file, owner, name, "batch", data, **later)
    return Json(kept)


@router.get("/v1/files")
async def files(
    request: Request, limit: Limit = 10_000, after: After = "", purpose: Purpose = "", order: Order = "desc"
) -> Response:
    """The caller's files."""
    batches, owner = _asked(request)
    found = await asyncio.to_thread(batches.store.records, owner, "file")
    found = [one for one in found if purpose in ("", one["purpose"])]
    return Json(_page(found if order == "asc" else found[::-1], limit, after))


@router.get("/v1/files/{name}")
async def file(name: str, request: Request) -> Response:
    """A file's record."""
    batches, owner = _asked(request)
    return Json(await asyncio.to_thread(_found, batches.store, owner, name, "file"))


@router.get("/v1/files/{name}/content")
async def content(name: str, request: Request) -> Response:
    """A file's content."""
    batches, owner = _asked(request)
    await asyncio.to_thread(_found, batches.store, owner, name, "file")
    return FileResponse(batches.store.path(owner, name, "data"), media_type="application/jsonl")


@router.delete("/v1/files/{name}")
async def delete_file(name: str, request: Request) -> Response:
    """Delete a file."""
    batches, owner = _asked(request)
    await asyncio.to_thread(_found, batches.store, owner, name, "file")
    await asyncio.to_thread(batches.store.delete, owner, name)
    return Json({"id": name, "object": "file", "deleted": True})


@router.post("/v1/batches")
async def create(body: BatchRequest, request: Request) -> Response:
    """Answer all requests in a file, some time within a day."""
    batches, owner = _asked(request)
    return Json(_shown(await asyncio.to_thread(batches.create, owner, body)))


@router.get("/v1/batches")
async def list_batches(request: Request, limit: Limit = 20, after: After = "") -> Response:
    """The caller's batches, the latest first."""
    batches, owner = _asked(request)
    found = await asyncio.to_thread(batches.store.records, owner, "batch")
    return Json(_page([_shown(one) for one in reversed(found)], limit, after))


@router.get("/v1/batches/{name}")
async def batch(name: str, request: Request) -> Response:
    """How far a batch is."""
    batches, owner = _asked(request)
    return Json(_shown(await asyncio.to_thread(_found, batches.store, owner, name, "batch")))


@router.post("/v1/batches/{name}/cancel")
async def cancel(name: str, request: Request) -> Response:
    """End a batch; what has been answered stays."""
    batches, owner = _asked(request)
    return Json(_shown(await asyncio.to_thread(batches.cancel, owner, name)))


@router.delete("/v1/batches/{name}")
async def delete_batch(name: str, request: Request) -> Response:
    """Delete a batch that has ended, with the files of its answers."""
    batches, owner = _asked(request)
    record = await asyncio.to_thread(_found, batches.store, owner, name, "batch")
    if record["status"] not in ENDED:
        raise ApiError(409, f"{name} is {record['status']}; cancel it first", code="in_use")
    await asyncio.to_thread(batches.store.delete, owner, name)
    return Json({"id": name, "object": "batch", "deleted": True})


class Batches:
    """The batches of a server: made by its endpoints, run by tasks of its event loop."""

    def __init__(self, state: State, store: BatchStore) -> None:
        self._state = state
        self.store = store
        self._owners: dict[str, Caller] | None = None
        self._app: ASGIApp | None = None
        self._wake = asyncio.Event()
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by owner
        self._groups: dict[str, _Group] = {}  # the lines that run, by the id of their batch
        self._runner: asyncio.Task[None] | None = None
        self._lock: IO[bytes] | None = None
        self._writing = threading.Lock()  # of records: a batch may be cancelled while an answer is counted
        self._loop: asyncio.AbstractEventLoop | None = None

    # -- endpoints --

    def owners(self) -> dict[str, Caller]:
        """All callers by the names that their folders have."""
        if self._owners is None:
            self._owners = self._state.callers.owners(self.store.secret())
        return self._owners

    def find_owner(self, caller: Caller) -> str:
        """The name of a caller's folder."""
        return next(name for name, one in self.owners().items() if one.name == caller.name)

    def create(self, owner: str, body: BatchRequest) -> Record:
        """A new batch, which has failed if its file is not right."""
        open_ones = [one for one in self.store.records(owner, "batch") if one["status"] not in ENDED]
        if len(open_ones) >= self._state.settings.limits.batches:
            message = f"{len(open_ones)} batches have not ended; wait for one, or cancel it"
            raise ApiError(429, message, code="over_quota", retry_after=60)
        _found(self.store, owner, body.input_file_id, "file")
        now = int(time.time())
        issues, n_lines = self._check(owner, body)
        record: Record = {
            "id": f"batch-{token_hex(12)}",
            "object": "batch",
            "endpoint": body.endpoint,
            "errors": {"object": "list", "data": issues} if issues else None,
            "input_file_id": body.input_file_id,
            "completion_window": body.completion_window,
            "status": "failed" if issues else "validating",
            "output_file_id": None,
            "error_file_id": None,
            "created_at": now,
            "expires_at": now + WINDOW_SECONDS,
            "failed_at": now if issues else None,
            "request_counts": {"total": n_lines, "completed": 0, "failed": 0},
            "metadata": body.metadata,
            "gone_at": now + BATCH_SECONDS,
            "keep_seconds": body.output_expires_after.seconds if body.output_expires_after else BATCH_SECONDS,
        }
        self.store.write(owner, record)
        self._look()
        return record

    def cancel(self, owner: str, name: str) -> Record:
        """Ask a batch to end."""
        with self._writing:
            record = _found(self.store, owner, name, "batch")
            if record["status"] not in (*ENDED, "cancelling"):
                record |= {"status": "cancelling", "cancelling_at": int(time.time())}
                self.store.write(owner, record)
        if self._loop is not None and (group := self._groups.get(name)) is not None:
            self._loop.call_soon_threadsafe(group.cancel)
        self._look()
        return record

    def _look(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake.set)

    def _check(self, owner: str, body: BatchRequest) -> tuple[list[Record], int]:
        """What is wrong with the lines of a file, at most ten, and how many lines there are."""
        issues: list[Record] = []
        names: set[str] = set()
        number = 0
        for number, line in enumerate(_lines(self.store, owner, body.input_file_id), 1):
            try:
                asked = parse_json(line, self._state.settings.limits)
                wrong = _wrong(asked, body.endpoint, names)
            except ApiError as error:
                wrong = error.message
            if wrong:
                issues.append({"code": "invalid_request", "line": number, "message": wrong, "param": None})
            if len(issues) >= 10 or number > MAX_LINES:
                break
        if number > MAX_LINES:
            message = f"there are more than {MAX_LINES:,} lines; make several batches"
            issues.append({"code": "too_many_lines", "line": number, "message": message, "param": None})
        if not number:
            issues.append({"code": "empty_file", "line": None, "message": "the file is empty", "param": None})
        return issues, number

    # -- running --

    def start(self, app: ASGIApp) -> None:
        """Run batches, those that an earlier server has left too."""
        self._app, self._loop = app, asyncio.get_running_loop()
        self._runner = asyncio.create_task(self._run())

    async def end(self) -> None:
        """Stop; what has not been answered is asked again by the next server."""
        tasks = [task for task in (self._runner, *self._tasks.values()) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5.0)
        if self._lock is not None:
            self._lock.close()

    async def _run(self) -> None:
        while True:
            has_any = self.store.home.is_dir()
            if has_any and self._has_lock():
                for owner in await asyncio.to_thread(self._waiting):
                    if owner not in self._tasks:
                        task = self._tasks[owner] = asyncio.create_task(self._run_owner(owner))
                        task.add_done_callback(partial(self._ended, owner))
            self._wake.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), LOOK_SECONDS if has_any else None)

    def _ended(self, owner: str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(owner, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("batches stopped until the next look", exc_info=error)

    def _has_lock(self) -> bool:
        """Whether this process is the one that runs the batches in this folder."""
        if self._lock is None:
            file = (self.store.home / ".lock").open("ab")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.close()
                return False
            self._lock = file
        return True

    def _waiting(self) -> list[str]:
        """The owners, among the callers of today, that have a batch to run."""
        known = self.owners()
        return [owner for owner in self.store.owners() if owner in known and self._next(owner)]

    def _next(self, owner: str) -> Record | None:
        found = (one for one in self.store.records(owner, "batch") if one["status"] not in ENDED)
        return next(found, None)

    async def _run_owner(self, owner: str) -> None:
        """Run an owner's batches, one after the other."""
        while (record := await asyncio.to_thread(self._next, owner)) is not None:
            try:
                await self._run_batch(owner, record)
            except (StrettoError, ApiError, OSError, ValueError) as error:  # a full disk, a file that is gone
                is_disk = isinstance(error, OSError) and is_full(error)
                words = translate(error).message if is_disk else str(error)
                issue = {"code": "server_error", "line": None, "message": words[:500], "param": None}
                record["errors"] = {"object": "list", "data": [issue]}
                await asyncio.to_thread(self._finish, owner, record, "failed")

    async def _run_batch(self, owner: str, record: Record) -> None:
        store, name = self.store, record["id"]
        if record["status"] == "validating":
            record |= {"status": "in_progress", "in_progress_at": int(time.time())}

            def begin() -> None:
                with self._writing:
                    self._is_over(owner, record)
                    store.write(owner, record)

            await asyncio.to_thread(begin)
        answered = await asyncio.to_thread(store.read_answered, owner, name)
        done = set().union(*answered.values())
        counted = record["request_counts"]
        counted |= {"completed": len(answered["output"]), "failed": len(answered["error"])}
        lines = await asyncio.to_thread(lambda: list(_lines(store, owner, record["input_file_id"])))
        waiting = iter(lines)

        async def work() -> None:
            for line in waiting:
                asked = json.loads(line)
                if asked["custom_id"] in done:
                    continue
                async with self._turns:
                    if await asyncio.to_thread(self._is_over, owner, record):
                        return
                    await self._answer(owner, record, asked)

        group = self._groups[name] = _Group()
        try:
            async with group:
                for _ in range(AT_ONCE):
                    group.add(work())
        finally:
            del self._groups[name]
        await asyncio.to_thread(self._is_over, owner, record)
        is_cancelled = record["status"] == "cancelling"
        is_whole = counted["completed"] + counted["failed"] >= counted["total"]
        status = "completed" if is_whole else "cancelled" if is_cancelled else "expired"
        await asyncio.to_thread(self._finish, owner, record, status)

    def _is_over(self, owner: str, record: Record) -> bool:
        """Whether nothing more is to be asked: it was cancelled (the record says so then), or is late."""
        known = self.store.find(owner, record["id"])
        if known["status"] == "cancelling":
            record |= {"status": "cancelling", "cancelling_at": known["cancelling_at"]}
        return bool(record["status"] == "cancelling" or time.time() > record["expires_at"])

    async def _answer(self, owner: str, record: Record, asked: Record) -> None:
        """Ask one line, and write down what came of it."""
        while True:
            status, body, name = await self._ask(self.owners()[owner], asked)
            if status not in BUSY or await asyncio.to_thread(self._is_over, owner, record):
                break
            await asyncio.sleep(1.0)
        is_answered = status < 400
        response = {"status_code": status, "request_id": name, "body": body}
        line = {"id": f"batch_req_{token_hex(12)}", "custom_id": asked["custom_id"], "response": response}
        record["request_counts"]["completed" if is_answered else "failed"] += 1

        def keep() -> None:
            kind = "output" if is_answered else "error"
            with self._writing:
                if record["status"] in ENDED:  # it was cancelled in this moment
                    return
                self.store.append(owner, record["id"], kind, {**line, "error": None})
                self._is_over(owner, record)
                self.store.write(owner, record)

        await asyncio.to_thread(keep)

    async def _ask(self, caller: Caller, asked: Record) -> tuple[int, Any, str]:
        """The answer of this server to a request that nobody has sent: its status, body and id."""
        path, name = asked["url"], f"req-batch-{token_hex(6)}"
        body = json.dumps(asked["body"]).encode()
        scope: Scope = {"method": "POST", "path": path, CALLER: caller, REQUEST_ID: name, PRIORITY: LOW}
        scope["stretto"] = {}
        CURRENT_SHARE.set(caller.share)
        status, since = 500, time.monotonic()
        assert self._app is not None
        try:
            status, _, answer = await ask_app(self._app, scope, body)
            return status, json.loads(answer), name
        except Exception as error:
            found = translate(error)
            note_error(scope["stretto"], found)
            status = found.status
            return status, write_error(found, path), name
        finally:
            log_request(self._state.settings, "POST", path, caller, name, since, status, scope["stretto"])

    def _finish(self, owner: str, record: Record, status: str) -> None:
        """Make files of the answers, and say that it has ended."""
        with self._writing:
            answered = self.store.read_answered(owner, record["id"])
            counts = {"completed": len(answered["output"]), "failed": len(answered["error"])}
            record["request_counts"] |= counts
            for kind in ENDS:
                path = self.store.path(owner, record["id"], kind)
                if path.is_file():
                    name = f"{record['id']}_{kind}.jsonl"
                    kept = self.store.add_file(owner, name, "batch_output", path, record["keep_seconds"])
                    record[f"{kind}_file_id"] = kept["id"]
            record |= {"status": status, f"{status}_at": int(time.time())}
            self.store.write(owner, record)


class _Group:
    """Tasks that end together: the first that fails ends the others, and `cancel` ends all."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self._is_cancelled = False

    def add(self, work: Any) -> None:
        self._tasks.append(asyncio.create_task(work))

    def cancel(self) -> None:
        self._is_cancelled = True
        for task in self._tasks:
            task.cancel()

    async def __aenter__(self) -> _Group:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await asyncio.gather(*self._tasks)
        except asyncio.CancelledError:
            if not self._is_cancelled:  # the server ends
                raise
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)


def _asked(request: Request) -> tuple[Batches, str]:
    """The batches of a server, and the folder of the caller."""
    batches: Batches = request.app.state.batches
    return batches, batches.find_owner(get_caller(request))


def _found(store: BatchStore, owner: str, name: str, kind: str) -> Record:
    """A record of a kind; raises if there is none, or it has expired."""
    known = {one["id"]: one for one in store.records(owner, kind)}
    if name not in known:
        raise missing(name)
    return known[name]


def _shown(record: Record) -> Record:
    return {name: value for name, value in record.items() if name not in ("gone_at", "keep_seconds")}


def _page(records: list[Record], limit: int, after: str) -> Record:
    names = [record["id"] for record in records]
    records = records[names.index(after) + 1 :] if after in names else records
    shown = records[:limit]
    ends = {"first_id": shown[0]["id"], "last_id": shown[-1]["id"]} if shown else {}
    return {"object": "list", "data": shown, "has_more": len(records) > limit, **ends}


def _lines(store: BatchStore, owner: str, name: str) -> Iterator[bytes]:
    """The lines of a file that are not empty."""
    with store.path(owner, name, "data").open("rb") as file:
        for line in file:
            if line.strip():
                yield line


def _wrong(asked: Any, endpoint: str, names: set[str]) -> str:
    """What is wrong with a line, in a sentence; nothing if it is right."""
    if not isinstance(asked, dict) or not isinstance(asked.get("body"), dict):
        return "a line is an object with custom_id, method, url and body, which is an object"
    if more := asked.keys() - {"custom_id", "method", "url", "body"}:
        return f"{min(map(str, more))[:60]!r} is no field of a line; leave it out"
    name = asked.get("custom_id")
    if not isinstance(name, str) or not 0 < len(name) <= 512:
        return "custom_id must be a text of 1 to 512 characters"
    if name in names:
        return f"custom_id {name[:60]!r} stands in another line too; give each its own"
    names.add(name)
    if asked.get("method") != "POST" or asked.get("url") != endpoint:
        return f"method must be POST and url {endpoint}, the endpoint of the batch"
    if asked["body"].get("stream") or asked["body"].get("background"):
        return "answers in a batch are not streamed, and not made in the background; leave that out"
    return ""

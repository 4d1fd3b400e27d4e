"""JSON bodies: read and validated within bounds, so that none holds up the requests of others.

Values, fields of objects and digits of numbers are counted before anything is parsed, natively and without
the interpreter's lock, and a list fails at its first wrong value (`schemas.Body`): each wrong value costs as
much as a hundred right ones. Large bodies are read one after the other in a thread of their own: several at
once would take turns with the event loop and fill the threads that prompts of others need. That thread shares
the interpreter, whose lock a parser keeps until it is done. So it parses pieces, as large as what is read on
the event loop, and rests after each of them for as long as it took: others get the interpreter soon, and half
of its time, however many large bodies come.

Forms with a file, which two endpoints take, are opened here too.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar, get_type_hints

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from stretto import _native
from stretto.server.generation.fields import ForModel
from stretto.server.http.errors import ApiError, explain_errors, field_error
from stretto.server.settings import RequestLimits

Model = TypeVar("Model", bound=BaseModel)

MAX_FIELDS = 2048  # of one object
MAX_DIGITS = 100  # of a number
MAX_DEPTH = 512  # of lists and objects in one another, in a body that is read in pieces
SMALL_BYTES = 2048  # a body that cannot have too many of anything
PIECE_BYTES = 32 << 10  # up to which a body is read on the event loop, or parsed without a rest
READER = ThreadPoolExecutor(1, "stretto-server-body")
REST = 1.0  # that the reader pauses after a piece, in times of what it took
MEMBERS, LIST, OBJECT, CLOSE = range(4)  # parts of a body, as the native core has them
SPACE = b" \t\n\r"  # of JSON
# Fields that the protocols have and this server does not: empty, they ask for nothing.
_EMPTY_WORDS = (
    "access_programs audio compaction container context_management conversation diagnostics fallbacks image "
    "mcp_servers moderation plugins prompt prompt_cache_options skills thread web_search_options"
)
EMPTY_FIELDS = frozenset(_EMPTY_WORDS.split())
UNREADABLE = "the body is no JSON that can be read"


async def read_body(model: type[Model], data: bytes, limits: RequestLimits) -> Model:
    """The body of a request as a model; `ApiError` says what is wrong with it."""
    if len(data) <= PIECE_BYTES:
        return validate(model, parse_json(data, limits))
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(READER, TURNS.read, model, data, limits)
    if not isinstance(found, ApiError):
        return found
    try:
        raise found
    finally:
        del found  # the error has this frame in its traceback: the two would keep the body


class Turns:
    """Reads one large body after the other, with rests."""

    def __init__(self) -> None:
        self._rested = 0.0  # when the reader may go on, by the monotonic clock
        self._worked = 0.0  # the processor time of the thread when its last rest ended

    def read(self, model: type[Model], data: bytes, limits: RequestLimits) -> Model | ApiError:
        """The model, or the error that refuses the body."""
        self._rest()
        try:
            return _read_or_refuse(model, data, limits, self.pause)
        finally:
            self._note_work()

    def pause(self) -> None:
        """Rest for as long as the work since the last rest took."""
        self._note_work()
        self._rest()

    def _note_work(self) -> None:
        self._rested = time.monotonic() + REST * (time.thread_time() - self._worked)

    def _rest(self) -> None:
        time.sleep(max(0.0, self._rested - time.monotonic()))
        self._worked = time.thread_time()


TURNS = Turns()


def _read_or_refuse(
    model: type[Model], data: bytes, limits: RequestLimits, pause: Callable[[], None]
) -> Model | ApiError:
    """The model, or the error without what was parsed, which it would hold until the event loop sends it."""
    try:
        return validate(model, parse_json(data, limits, pause))
    except ApiError as error:
        error.__context__ = None
        return error.with_traceback(None)


def parse_json(data: bytes, limits: RequestLimits, pause: Callable[[], None] = lambda: None) -> Any:
    """The value of a JSON text; raises if it is none, or has too many values or fields.

    `pause` is called after each piece of a large one.
    """
    if not data:
        return None
    try:
        pieces: list[tuple[int, int, int]] = []
        if len(data) > min(SMALL_BYTES, limits.values):
            if (encoding := json.detect_encoding(data)) != "utf-8":
                data = data.decode(encoding, "surrogatepass").encode("utf-8", "surrogatepass")
            pieces = _checked_pieces(data, limits.values)
        return assemble(data, pieces, pause) if pieces else json.loads(data)
    except json.JSONDecodeError as error:
        raise ApiError(400, f"the body is no JSON: {error.msg}", code="invalid_json") from None
    except (ValueError, RecursionError):  # bytes that are no text, numbers of too many digits, too deep
        raise ApiError(400, UNREADABLE, code="invalid_json") from None


def _checked_pieces(data: bytes, max_values: int) -> list[tuple[int, int, int]]:
    """The pieces of a text, none if it is one; raises if there is too much of anything in it."""
    n, n_fields, n_digits, is_whole, pieces = _native.json_outline(data, PIECE_BYTES, MAX_DEPTH)
    if n > max_values:
        raise _over_limit(f"about {n:,} values; at most {max_values:,}")
    if n_fields > MAX_FIELDS:
        raise _over_limit(f"an object with {n_fields:,} fields; at most {MAX_FIELDS:,}")
    if n_digits > MAX_DIGITS:  # they take time by the square of their number
        raise _over_limit(f"a number of {n_digits:,} characters; at most {MAX_DIGITS}")
    if len(data) > PIECE_BYTES and not is_whole:
        raise ApiError(400, f"{UNREADABLE}: it does not end, or is too deep", code="invalid_json")
    return pieces


def _over_limit(excess: str) -> ApiError:
    return ApiError(400, f"the body has {excess} are taken", code="over_limit")


def assemble(data: bytes, pieces: list[tuple[int, int, int]], pause: Callable[[], None]) -> Any:
    """The value of a JSON text that is parsed piece by piece; the same as of the whole, or the same error.

    The pieces are cut at brackets and commas, whatever stands between them: that is parsed here.
    """
    open_containers: list[Any] = []
    value: Any = None
    for (part, begin, end), (next_part, *_) in zip(pieces, [*pieces[1:], (CLOSE, 0, 0)], strict=True):
        piece = data[begin:end]
        inside: Any = open_containers[-1] if open_containers else None
        if part == MEMBERS:
            members = json.loads(_in(b"{}" if isinstance(inside, dict) else b"[]", piece))
            if not members and (inside or next_part != CLOSE):
                raise ValueError("no member between two commas")
            if isinstance(inside, dict):
                inside.update(members)
            else:
                inside.extend(members)
            pause()
        elif part == CLOSE:
            if piece.strip(SPACE):
                raise ValueError("a bracket is followed by neither a comma nor another bracket")
            value = open_containers.pop()
        else:
            child: Any = {} if part == OBJECT else []
            if isinstance(inside, dict):
                (name,) = json.loads(_in(b"{}", piece + b"null"))
                inside[name] = child
            elif piece.strip(SPACE):
                raise ValueError("no comma before a bracket")
            elif inside is not None:
                inside.append(child)
            open_containers.append(child)
    return value


def _in(brackets: bytes, members: bytes) -> str:
    """The text of a container with these members."""
    return (brackets[:1] + members + brackets[1:]).decode("utf-8", "surrogatepass")


def validate(model: type[Model], value: Any) -> Model:
    """A JSON value as a model; fields of other servers that are empty mean nothing."""
    if isinstance(value, dict):
        for name in EMPTY_FIELDS & value.keys() - model.model_fields.keys():
            if value[name] in (None, [], {}, ""):
                del value[name]
    try:
        return model.model_validate(value)
    except ValidationError as error:
        issues = error.errors(include_url=False, include_context=False)
        known = [field.alias or name for name, field in model.model_fields.items()]
        raise explain_errors(
            [{**one, "loc": ("body", *one["loc"])} for one in issues], value, known
        ) from None


def form_schema(**properties: dict[str, Any]) -> dict[str, Any]:
    """What the contract says of a form with a file; the first two fields are required."""
    schema = {"type": "object", "required": list(properties)[:2], "properties": properties}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


@asynccontextmanager
async def opened_form(request: Request, max_fields: int) -> AsyncIterator[FormData]:
    """The form of a request, with one file at most, which is there while the block lasts."""
    try:
        form = await request.form(max_files=1, max_fields=max_fields)
    except HTTPException as error:
        raise ApiError(400, f"the body is no form: {error.detail}", code="invalid_body") from None
    try:
        yield form
    finally:
        await form.close()


def form_file(form: FormData) -> UploadFile:
    """The file of a form."""
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise field_error("file", "file: the form needs a file with this name", "missing")
    return file


# Endpoints with a body of JSON: FastAPI finds them, and does not read the body.


class BodyRoute(APIRoute):
    """A route that reads the body within bounds and gives it to the endpoint with the request.

    FastAPI's own validation knows no bounds and runs on the event loop. The guard gives bodies in one piece.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The function that answers a request; only endpoints of a body and the request have it read here."""
        endpoint, model = self.endpoint, find_body_model(self.endpoint)
        if model is None:
            return super().get_route_handler()

        async def handle(request: Request) -> Response:
            state = request.app.state.stretto
            body = await read_body(model, (await request.receive())["body"], state.settings.limits)
            if isinstance(body, ForModel) and not body.model:
                body.model = state.registry.first(body.verb)
            response: Response = await endpoint(body, request)
            return response

        return handle


def find_body_model(endpoint: Callable[..., Any]) -> type[BaseModel] | None:
    """The schema of the body, of an endpoint that takes a body and the request, and nothing else."""
    if list(inspect.signature(endpoint).parameters) != ["body", "request"]:
        return None
    model: type[BaseModel] = get_type_hints(endpoint)["body"]
    return model


def make_router(tag: str) -> APIRouter:
    """A router for endpoints of a group in the documents, whose bodies are read within bounds."""
    return APIRouter(tags=[tag], route_class=BodyRoute)

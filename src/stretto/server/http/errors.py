"""Errors as HTTP answers, in the shape that clients expect, with the field that is wrong."""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive

from stretto import errors
from stretto.options.names import OURS
from stretto.options.option import field_remedy
from stretto.text.template import GENERATE_INSTEAD

# Fields that other servers have, and what they are called here, for the errors about unknown ones.

FIELDS = {
    "adapter": "lora",
    "template": "chat_template_kwargs",
    "continues": "continue_token_ids",
    "reasoning_budget": "thinking_budget_tokens",
    "thinking_budget": "thinking_budget_tokens",
}
"""Options of the library, and the fields of a request that set them."""

# What to send instead, where another name is not the whole answer, and the field that this needs.
ADVICE = {
    "do_sample": ("temperature", "temperature 0 always takes the most probable token"),
    "enable_thinking": ("chat_template_kwargs", 'send chat_template_kwargs: {"enable_thinking": false}'),
    "options": ("temperature", "its fields stand beside the others here: temperature, top_p, seed …"),
    "reasoning": ("reasoning_effort", "send reasoning_effort, or thinking_budget_tokens for a number"),
    "system": ("messages", 'send it as the first message, with "role": "system"'),
    "think": ("reasoning_effort", 'send reasoning_effort: "none", or another'),
}


def remedy(name: str, known: Collection[str]) -> str:
    """What to do about an unknown field: its name here, or to leave it out."""
    field, advice = ADVICE.get(name, ("", ""))
    if field in known:
        return advice
    ours = OURS.get(name, name)
    ours = FIELDS.get(ours, ours)
    if ours in known:
        return f"it is {ours} here"
    near = get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else "leave it out"


log = logging.getLogger("stretto.server")

RETRY_SECONDS = 2  # value of Retry-After
INVALID = "invalid_request_error"
SERVER = "server_error"
ANTHROPIC_PATH = "/v1/messages"
ANTHROPIC_TYPES = {  # by status
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}

NO_THREADS = "thread_unsupported_request"  # on which Anthropic's clients send whole conversations instead

VERSIONED = ("/v1/", "/stretto/")  # other paths of OpenAI's shape are llama-server's
LLAMA_TYPES: dict[int | str, str] = {  # by code, or by status
    "context_length_exceeded": "exceed_context_size_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    501: "not_supported_error",
    503: "unavailable_error",
}

CLIENT_GONE = 499  # a status that no client gets, and no error
ERROR_STATUS = "error_status"  # of a request's notes: what became of an answer whose head was sent

COMPLETE_INSTEAD = "/v1/completions continues a prompt of your own"  # by a model without a chat template
RAW_INSTEAD = 'POST /api/generate with "raw": true continues a prompt of your own'

MAX_QUOTED = 300  # characters of a message that come from a request


class ApiError(Exception):
    """An answer other than 200: status, message, the field it is about, a code for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        facts: dict[str, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after
        self.facts = facts or {}  # numbers for programs, beside the message


class ClientGone(ApiError):
    """The client has disconnected, and reads no answer; the log says so."""

    def __init__(self) -> None:
        super().__init__(CLIENT_GONE, "the client has disconnected", code="client_closed_request")


async def gone(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Json(Response):
    """An answer in JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """As `dumps` writes it."""
        return dumps(content).encode()


def dumps(value: Any) -> str:
    """A value as JSON, without spaces, in ASCII."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def field_error(param: str, message: str, code: str = "invalid_value", status: int = 400) -> ApiError:
    """A field, or fields together, that a request cannot have."""
    return ApiError(status, message, param=param, code=code)


@contextmanager
def blame_field(param: str, code: str = "invalid_value") -> Iterator[None]:
    """Make errors of Stretto in the block ones about a field."""
    try:
        yield
    except errors.StrettoError as error:
        raise field_error(param, f"{param}: {error}", code) from None


def unsupported(message: str, param: str) -> ApiError:
    """A field that this server knows and cannot serve."""
    return field_error(param, message, "unsupported")


def write_error(error: ApiError, path: str) -> dict[str, Any]:
    """The JSON body: OpenAI's shape, Ollama's under `/api/`, Anthropic's under `/v1/messages`.

    Without `/v1` the types of errors are llama-server's.
    """
    if path.startswith("/api/"):
        return {"error": error.message.replace(COMPLETE_INSTEAD, RAW_INSTEAD)}
    if path.startswith(ANTHROPIC_PATH):
        kind = ANTHROPIC_TYPES.get(error.status, INVALID if error.status < 500 else "api_error")
        named = not error.param or error.param in error.message  # there is no field for it
        message = error.message if named else f"{error.param}: {error.message}"
        details = (
            {"details": {"error_code": NO_THREADS, "unsupported": []}} if error.code == NO_THREADS else {}
        )
        return {"type": "error", "error": {"type": kind, "message": message, **details}}
    kind = INVALID if error.status < 500 else SERVER
    if not path.startswith(VERSIONED):
        kind = LLAMA_TYPES.get(error.code or "", LLAMA_TYPES.get(error.status, kind))
    return {
        "error": {
            "message": error.message,
            "type": kind,
            "param": error.param,
            "code": error.code,
            **error.facts,
        }
    }


def answer(error: ApiError, path: str) -> Response:
    """The error as an answer."""
    headers = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return Json(write_error(error, path), error.status, headers)


def note_error(notes: dict[str, Any], error: ApiError) -> None:
    """Put an error into the log line of its request."""
    notes["error"] = error.code or "error"
    notes["message"] = error.message[:MAX_QUOTED]
    notes[ERROR_STATUS] = error.status


def translate(error: BaseException, prompt: str | None = None, grammar: str | None = "grammar") -> ApiError:
    """Any exception as an `ApiError`; `prompt` and `grammar` are the fields that hold them."""
    message = str(error).replace(GENERATE_INSTEAD, COMPLETE_INSTEAD)
    match error:
        case ApiError():
            return error
        case errors.GrammarsBusy():
            return ApiError(503, message, code="grammars_busy", retry_after=RETRY_SECONDS)
        case errors.ShareFull():
            return ApiError(429, message, param=error.param, code="key_limit", retry_after=RETRY_SECONDS)
        case errors.QueueFull():
            return ApiError(429, message, code="queue_full", retry_after=RETRY_SECONDS)
        case errors.CacheFull():
            if error.n_needed is not None:  # its own message names the sequences of others
                message = f"the cache is full: {error.n_needed} cells are needed, {error.n_free} are free; "
                message += "try again later, or shorten the prompt"
            return ApiError(429, message, code="cache_full", retry_after=RETRY_SECONDS)
        case errors.InvalidGrammar():
            param = "tools" if error.param == "tools" else grammar
            return ApiError(400, message, param=param, code="invalid_grammar")
        case errors.ContextOverflow() | errors.Unsupported() | errors.InvalidRequest():
            param = (prompt or error.param) if error.param in _INPUT else error.param
            param = FIELDS.get(param or "", param)
            return ApiError(
                400,
                _context_words(error, message),
                param=param,
                code=_CODES.get(type(error)),
                facts=_context_facts(error),
            )
        case errors.Cancelled():
            return ApiError(503, message, code="cancelled", retry_after=RETRY_SECONDS)
        case errors.ModelError():
            return ApiError(503, message, code="model_unavailable")
        case MemoryError():
            return ApiError(
                503, "there is not enough memory", code="out_of_memory", retry_after=RETRY_SECONDS
            )
        case OSError() if is_full(error):
            log.error("the disk is full: %s", error)
            message = "the disk of this server is full; its operator has to make room"
            return ApiError(503, message, code="out_of_resources", retry_after=RETRY_SECONDS)
        case OSError() if error.errno in _EXHAUSTED:
            message = f"the server lacks what it needs for this: {error.strerror}"
            return ApiError(503, message, code="out_of_resources", retry_after=RETRY_SECONDS)
    log.error("a bug: %s", type(error).__name__, exc_info=error)
    return ApiError(
        500, "something went wrong here that should not; the log says more", code="internal_error"
    )


def is_full(error: OSError) -> bool:
    """Whether a disk, or a quota on it, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


# No memory, no descriptors: it passes, and is no bug.
_EXHAUSTED = {errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN}
_INPUT = (
    "prompt",
    "prompts",
    "text",
    "texts",
    "ids",
)  # parameters of ours that each endpoint has under a name of its own
_CODES = {errors.ContextOverflow: "context_length_exceeded", errors.Unsupported: "unsupported"}


def _context_words(error: Exception, message: str) -> str:
    """The message of a prompt that is too long, with the words by which clients know such errors."""
    if not isinstance(error, errors.ContextOverflow) or error.limit is None:
        return message
    return (
        f"{message}: the request exceeds the available context size, the maximum context length is "
        f"{error.limit} tokens"
    )


def _context_facts(error: Exception) -> dict[str, int]:
    """The numbers of a prompt that is too long, by llama-server's names."""
    if not isinstance(error, errors.ContextOverflow):
        return {}
    found = {"n_prompt_tokens": error.n_tokens, "n_ctx": error.limit}
    return {name: number for name, number in found.items() if number is not None}


def install(app: FastAPI) -> None:
    """Let the app answer every error in the right shape."""

    def said(request: Request, error: ApiError) -> Response:
        note_error(request.scope.setdefault("stretto", {}), error)
        return answer(error, request.url.path)

    async def answer_error(request: Request, error: Exception) -> Response:
        return said(request, translate(error))

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return said(request, explain_errors(error.errors(), error.body))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = request.url.path
        if error.status_code == 404:
            return said(request, ApiError(404, f"there is no {path[:MAX_QUOTED]} here", code="not_found"))
        if error.status_code == 405:
            message = f"{request.method} cannot be used on {path[:MAX_QUOTED]}"
            response = said(request, ApiError(405, message, code="method_not_allowed"))
            response.headers.update(error.headers or {})
            return response
        return said(request, ApiError(error.status_code, str(error.detail)))

    async def gone(request: Request, error: Exception) -> Response:
        assert isinstance(error, ClientGone)
        return Response(status_code=error.status)

    for kind in (ApiError, errors.StrettoError):
        app.add_exception_handler(kind, answer_error)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(ClientGone, gone)
    app.add_exception_handler(Exception, answer_error)


def explain_errors(errors: Sequence[Any], body: Any, known: Collection[str] = ()) -> ApiError:
    """The error of an invalid body, from those that the validator has found: its most important problem.

    `known` are the body's fields, one of which may be meant by an unknown one.
    """
    issues = [(_path(one, body), one) for one in errors]
    param, first = min(issues, key=_rank)
    if not param:
        return ApiError(400, "the body must be a JSON object with the fields that /docs lists")
    if first["type"] == "extra_forbidden":
        message = f"{param} is no field that is known here; {remedy(param, known)}"
        return field_error(param, message, "unknown_field")
    if first["type"] == "missing":
        return field_error(param, f"{param} is missing", "missing_field")
    reasons = [one["msg"].removeprefix("Value error, ") for path, one in issues if path == param]
    message = ", or ".join(dict.fromkeys(f"{text[:1].lower()}{text[1:]}" for text in reasons))
    given = first.get("input")
    given = given[:MAX_QUOTED] if isinstance(given, str) else given
    shown = f"; it is {given!r:.60}" if isinstance(given, (str, int, float, bool, type(None))) else ""
    advice = field_remedy(param, given, known)
    return field_error(param, f"{param}: {message}{shown}{advice}")


def _rank(issue: tuple[str, Any]) -> tuple[bool, bool, int]:
    """The order of issues: a `type` that is not known explains the others, then come unknown fields."""
    one = issue[1]
    is_type = one["type"] == "literal_error" and one["loc"][-1] == "type"
    return not is_type, one["type"] != "extra_forbidden", -len(one["loc"])


def _path(one: Any, body: Any) -> str:
    """The path of the invalid field in the body, without the union branches that the validator names."""
    path, here = "", body
    loc = one["loc"]
    if loc[:1] in (("query",), ("path",)):
        return str(loc[-1])[:MAX_QUOTED]
    for part in loc[1:]:
        if isinstance(part, int) and isinstance(here, list) and part < len(here):
            path, here = f"{path}[{part}]", here[part]
        elif isinstance(here, dict) and part in here:
            path, here = f"{path}.{part}", here[part]
    if one["type"] == "missing":
        path += f".{loc[-1]}"
    return path.lstrip(".")[:MAX_QUOTED]

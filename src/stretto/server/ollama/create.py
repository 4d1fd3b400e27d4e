"""`/api/create` and `/api/blobs`: models made by Ollama's clients, from models that are here or from files.

A model made from another one is a name with a system message and parameters of its own (`ollama_names.py`).
One made from a file, or quantised, has weights of its own: they are stored as those of a fetched model.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import Path as PathParameter
from fastapi import Request
from starlette.responses import Response

from stretto.errors import InvalidRequest, StrettoError
from stretto.models import read_spec
from stretto.quantize import quantize_model
from stretto.quantize.choice import find_mix
from stretto.server.http.bodies import make_router, validate
from stretto.server.http.errors import ApiError, ClientGone, blame_field, field_error, translate
from stretto.server.http.pulls import Pull
from stretto.server.http.state import State, get_state, require_admin
from stretto.server.ollama.models import progress_response, require_new, statuses
from stretto.server.ollama.schemas import CreateRequest
from stretto.server.ollama.store import Blobs, Made, MadeModels, check_name, plain, read_digest, rebase
from stretto.server.settings import ModelEntry, RequestLimits
from stretto.weights import hub
from stretto.weights.files import hash_files
from stretto.weights.gguf import GGUF
from stretto.weights.hub.catalogue import CATALOGUE
from stretto.weights.hub.names import is_name
from stretto.weights.hub.store import Model, Store

# Modelfiles, which older clients of Ollama send to `/api/create`: instructions as fields of a request.

IGNORED = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\n|$)")
INSTRUCTION = re.compile(
    r"[ \t]*(?:(?P<pair>PARAMETER|MESSAGE)[ \t]+(?P<key>\S+)|(?P<name>[A-Z]+))[ \t]+"
    r'(?P<value>"""(?:[^"]|"(?!""))*"""|"[^"\n]*"|[^\n]*)[ \t]*(?:\n|$)',
    re.IGNORECASE,
)
TEXTS = ("from", "system", "template", "license")


def parse_modelfile(text: str) -> dict[str, Any]:
    """The fields of a request to `/api/create`.

    >>> parse_modelfile("FROM smollm2\\nPARAMETER temperature 0.5\\nSYSTEM You are Mario.")
    {'from': 'smollm2', 'parameters': {'temperature': 0.5}, 'system': 'You are Mario.'}
    """
    found: dict[str, Any] = {}
    at = 0
    while at < len(text):
        if ignored := IGNORED.match(text, at):
            at = ignored.end()
            continue
        line = INSTRUCTION.match(text, at)
        if line is None:
            raise _wrong(f"{text[at:].splitlines()[0][:80]!r} is no instruction")
        if line["value"].startswith('"""') and not (
            len(line["value"]) >= 6 and line["value"].endswith('"""')
        ):
            raise _wrong(f"{line['value'][:80]!r} has no closing quotes")
        at, name, value = line.end(), (line["pair"] or line["name"]).lower(), _unquoted(line["value"])
        if name == "message":
            found.setdefault("messages", []).append({"role": line["key"].lower(), "content": value})
        elif name == "parameter" and line["key"] == "stop":
            found.setdefault("parameters", {}).setdefault("stop", []).append(value)
        elif name == "parameter":
            found.setdefault("parameters", {})[line["key"]] = _typed(value)
        elif name in TEXTS:
            found[name] = value
        else:
            raise _wrong(f"{name.upper()} is not supported here")
    if "from" not in found:
        raise _wrong("FROM is missing")
    return found


def _unquoted(value: str) -> str:
    for quote in ('"""', '"'):
        if len(value) >= 2 * len(quote) and value.startswith(quote) and value.endswith(quote):
            return value[len(quote) : -len(quote)]
    return value.strip()


def _typed(value: str) -> int | float | bool | str:
    """The number or the truth value that a parameter is, as the options of a request have it."""
    if value in ("true", "false"):
        return value == "true"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            pass
    return value


def _wrong(why: str) -> ApiError:
    return field_error("modelfile", f"modelfile: {why}")


MAX_UPLOADS = 4  # at once
PIECE_BYTES = 1 << 20  # that are written at a time
CREATED = "created from "  # begins the source of a stored model that was made here

Digest = Annotated[
    str,
    PathParameter(
        pattern="^sha256[:-][0-9a-f]{64}$", description="sha256: and the SHA-256 of the file, in 64 digits."
    ),
]
Report = Callable[[int, int, str], None]

router = make_router("Ollama")


@router.head("/api/blobs/{digest}")
async def has_blob(digest: Digest, request: Request) -> Response:
    """Whether a file is here: 200 or 404."""
    require_admin(request)
    if await asyncio.to_thread(get_state(request).part(Blobs).find, digest) is None:
        raise ApiError(404, f"there is no file {digest[:100]} here", param="digest", code="not_found")
    return Response(status_code=200)


@router.post(
    "/api/blobs/{digest}",
    status_code=201,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def send_blob(digest: Digest, request: Request) -> Response:
    """Take a file for `files` of /api/create; its digest is compared."""
    require_admin(request)
    state, sha256 = get_state(request), read_digest(digest)
    limits, blobs = state.settings.limits, state.part(Blobs)
    given = request.headers.get("content-length", "")
    length = int(given) if given.isdigit() else None
    if length is not None and length > limits.blob:
        raise _too_large(length, limits)
    if await asyncio.to_thread(blobs.find, f"sha256:{sha256}") is not None:
        async for _ in _pieces(request, limits):  # a client that still sends would miss the answer
            pass
        return Response(status_code=200)
    if blobs.n_uploads >= MAX_UPLOADS:
        raise ApiError(
            429, f"{MAX_UPLOADS} files are being sent already; wait for one", code="busy", retry_after=10
        )
    blobs.n_uploads += 1
    try:
        upload = await asyncio.to_thread(blobs.begin, digest, length)
        try:
            async for piece in _pieces(request, limits):
                await asyncio.to_thread(upload.write, piece)
            await asyncio.to_thread(upload.finish)
        finally:
            await asyncio.to_thread(upload.discard)
    finally:
        blobs.n_uploads -= 1
    return Response(status_code=201)


async def _pieces(request: Request, limits: RequestLimits) -> AsyncIterator[bytes]:
    """The body in pieces; raises for one that is too large, or stops coming."""
    held, n_bytes, more = bytearray(), 0, True
    while more:
        try:
            message = await asyncio.wait_for(request.receive(), limits.body_seconds)
        except asyncio.TimeoutError:
            raise ApiError(408, f"nothing of the body came for {limits.body_seconds:g} s") from None
        if message["type"] != "http.request":
            raise ClientGone
        held += message.get("body", b"")
        n_bytes += len(message.get("body", b""))
        more = message.get("more_body", False)
        if n_bytes > limits.blob:
            raise _too_large(n_bytes, limits)
        if len(held) >= PIECE_BYTES or (held and not more):
            yield bytes(held)
            held.clear()


def _too_large(n: int, limits: RequestLimits) -> ApiError:
    return ApiError(
        413, f"the file has {n:,} bytes or more; at most {limits.blob:,} are taken", code="body_too_large"
    )


@dataclass(frozen=True)
class _Weights:
    """The file that a model with weights of its own is made from."""

    path: Path
    entry: ModelEntry  # what to serve
    origin: str  # the file's digest, or the name of a model
    mix: str | None  # to be quantised to


@router.post("/api/create")
async def create(body: CreateRequest, request: Request) -> Response:
    """Make a model from one that is here, or from a GGUF file, with a system message and parameters."""
    require_admin(request)
    state, name = get_state(request), plain(body.wanted)
    if body.modelfile is not None:
        fields = await asyncio.to_thread(parse_modelfile, body.modelfile)
        given = body.model_dump(exclude_unset=True, by_alias=True, exclude={"modelfile"})
        body = validate(CreateRequest, {**fields, **given})
    check_name(name)
    require_new(state, name)
    weights, base = await _basis(body, name, state)
    texts = [body.license] if isinstance(body.license, str) else body.license or []
    own = Made(
        name,
        base.base,
        system=body.system or "",
        template=body.template or "",
        license="\n".join(texts),
        parameters=body.parameters.model_dump(exclude_none=True) if body.parameters else {},
        messages=[message.model_dump(exclude_none=True) for message in body.messages or []],
    )
    made = rebase(own, name, base)
    if weights is None:
        await asyncio.to_thread(state.part(MadeModels).add, made)
        return await progress_response(
            statuses("reading model metadata", "writing manifest", "success"), body.stream
        )
    made = replace(made, base=name)
    state.part(MadeModels).check(made)
    store = Store.default()
    started = Pull(
        state,
        weights.entry,
        partial(_store, store, weights, state.settings.threads),
        undo=partial(store.remove, weights.entry.source),
    )
    return await progress_response(_making(started, made, state), body.stream, started)


async def _basis(body: CreateRequest, name: str, state: State) -> tuple[_Weights | None, Made]:
    """The weights that are to be stored, if there are any, and what the model is made from otherwise."""
    if body.quantize is not None:
        with blame_field("quantize"):
            find_mix(body.quantize)
    if (digest := _digest(body)) is not None:
        field = "from" if body.files is None else "files"
        path = await asyncio.to_thread(state.part(Blobs).find, digest)
        if path is None:
            raise field_error(
                field, f"{field}: there is no file {digest} here; send it to POST /api/blobs/{digest} first"
            )
        await asyncio.to_thread(_check_file, path, field)
        entry = ModelEntry(name, stored_name(name, state))
        return _Weights(path, entry, digest, body.quantize), Made(name, name)
    if body.from_ is None:
        raise field_error(
            "from",
            "from is missing: a model that is here; or files, with the digest of a GGUF file",
            "missing_field",
        )
    served, base = state.part(MadeModels).resolve(body.from_, state.registry)
    if body.quantize is None:
        return None, base
    if served.is_task or not served.path.is_file():
        raise field_error("quantize", f"quantize needs a GGUF file, which {served.name} is not")
    entry = replace(served.entry, name=name, source=stored_name(name, state), adapters=())
    return _Weights(served.path, entry, served.name, body.quantize), base


def _digest(body: CreateRequest) -> str | None:
    """The digest of the file that a model is made from; in modelfiles it is FROM @sha256:…"""
    begins = (body.from_ or "").removeprefix("@")
    if body.files is None:
        return f"sha256:{read_digest(begins, 'from')}" if begins.startswith("sha256:") else None
    if body.from_ is not None:
        raise field_error("files", "from and files both say what the model is made from; give one")
    if len(body.files) != 1:
        raise field_error(
            "files",
            "files: one GGUF file makes a model. Image encoders are given to the server by --vision, and "
            "folders of safetensors are converted by `stretto convert`",
            "unsupported",
        )
    return f"sha256:{read_digest(next(iter(body.files.values())), 'files')}"


def _check_file(path: Path, field: str) -> None:
    """Raise for a file that is no model."""
    try:
        with GGUF(path) as file:
            read_spec(file)
    except StrettoError as error:
        raise field_error(
            field, f"{field}: this is no GGUF file of a model that can be run: {error}"
        ) from None


def stored_name(name: str, state: State) -> str:
    """The name in the store of a model that is made here; raises for one that means another model there."""
    stored = name.lower().replace(":", "-")
    if not is_name(stored) or stored.endswith((".gguf", ".onnx")):
        raise field_error(
            "model", f"{name!r} is no name for a stored model; take a shorter one without an ending"
        )
    if stored in hub.packaged_models() or stored in CATALOGUE:
        raise field_error(
            "model", f"{stored} is a model that can be fetched; give another name", "name_taken", status=409
        )
    for served in state.registry.models.values():
        if served.entry.source == stored:  # A:b and a-b would be one file
            raise field_error(
                "model",
                f"{name} would be stored as {stored}, as {served.name} is; give another name",
                "name_taken",
                status=409,
            )
    return stored


def _store(store: Store, weights: _Weights, threads: int | None, report: Report) -> Model:
    """Store the weights, quantised if that is asked for; in a thread, and whole or not at all."""
    name, mix = weights.entry.source, weights.mix
    with store.fetching(name) as staged:
        known = store.find(name)
        if known is not None and not known.source.startswith(CREATED):
            raise ApiError(409, f"{name} is in the store already; give another name", param="model")
        target = staged / f"{name}.gguf"
        if mix is None:
            sha256 = read_digest(weights.origin)
            link(weights.path, target)
        else:
            words = f"quantizing to {mix}"
            _quantize(weights.path, target, mix, threads, lambda done, n: report(done, n, words))
            report(0, 0, "verifying the file")
            sha256 = hash_files(target)
        source = f"{CREATED}{weights.origin}"
        made = Model(name, target, source, target.stat().st_size, sha256, verified=True)
        report(0, 0, "storing the file")  # raises if the client has gone
        return store.publish(made, staged)


def _quantize(
    path: Path, target: Path, mix: str, threads: int | None, progress: Callable[[int, int], None]
) -> None:
    try:
        quantize_model(path, target, mix, threads=threads, progress=progress)
    except InvalidRequest as error:
        if error.param != "allow_requantize":
            raise
        message = f"quantize: the weights are quantised already, and {mix} of them would lose twice; "
        message += "make the model from an F16, BF16 or F32 file, or leave quantize out"
        raise field_error("quantize", message) from None


def link(source: Path, target: Path) -> None:
    """Have the same file under another name, or a copy where the system has no links."""
    try:
        os.link(source, target)
    except OSError:  # the file system has no links
        shutil.copyfile(source, target)


async def _making(started: Pull, made: Made, state: State) -> AsyncIterator[dict[str, Any]]:
    """The progress of a model with weights of its own; `made` is what it has besides, if that is anything."""
    yield {"status": "parsing GGUF"}
    async for event in started.events():
        if "error" in event:
            yield {"error": event["error"]["message"]}
        elif "done" not in event:
            yield {"status": event["status"], "total": event["total"], "completed": event["completed"]}
        else:
            yield {"status": "writing manifest"}
            try:
                if made == Made(made.name, made.name):  # an older model of this name is replaced all the same
                    await asyncio.to_thread(state.part(MadeModels).remove, made.name)
                else:
                    await asyncio.to_thread(state.part(MadeModels).add, made)
                yield {"status": "success"}
            except Exception as error:
                yield {"error": translate(error).message}

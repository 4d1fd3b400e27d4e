"""`/v1/sequences`: sequences in a client's hands: fork, append, edit, generate, score, save, close.

Open sequences and what they may hold are in own/open_sequences.py.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from secrets import randbits
from typing import Annotated, Any, Literal

from fastapi import Request
from pydantic import Field
from starlette.responses import Response

from stretto.engine.sequence import begin_edit, finish_edit
from stretto.engine.types import Edit, EditMode
from stretto.errors import SnapshotError
from stretto.llm import LLM
from stretto.server.generation.answer import Streamed, clamp_logprob, long_json
from stretto.server.generation.chat import encode_chat, rename_fields
from stretto.server.generation.fields import (
    AdapterName,
    Body,
    ForModel,
    Number,
    Samplers,
    TemplateArguments,
    Text,
    TokenId,
    Tokens,
    within,
)
from stretto.server.generation.generation import Generation, unless_gone
from stretto.server.generation.options import check_at_most, check_prompts, named_grammar, plain_options
from stretto.server.generation.requests import ChatRequest, GrammarField, Message, Tool
from stretto.server.http.bodies import make_router
from stretto.server.http.errors import ApiError, Json, field_error, translate
from stretto.server.http.keys import Keys
from stretto.server.http.registry import choose_adapter
from stretto.server.http.state import State, get_caller, get_state
from stretto.server.own.open_sequences import (
    OpenSequence,
    SequenceAnswer,
    check_count,
    describe,
    get_open,
    in_thread,
    new_id,
    reserve_cells,
    usage,
)
from stretto.weights.hub.store import Store, explain_disk_errors, require_space

router = make_router("Stretto")

SPARE_BYTES = 64 << 20  # that must stay free on the disk
MAX_CONTINUATIONS = 1024
AHEAD_TOKENS = 256  # new ones of an approximate edit that are computed before it

SAVED_NAME = re.compile("[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
SavedName = Annotated[str, Field(pattern=f"^{SAVED_NAME.pattern}$")]
Position = Annotated[int, Field(ge=0, lt=1 << 31)]
Mode = Literal["recompute", "shift", "heal"]
MODE = (
    "What becomes of later tokens: recompute (exact), shift (keys are rotated, approximate), heal (shift, "
    "and compute those next to the edit and the last ones again)."
)


def in_path(name: str, description: str) -> dict[str, Any]:
    """What the contract says of a part of the path, for endpoints that take a body and the request."""
    schema = {"type": "string", "maxLength": 64}
    found = {"name": name, "in": "path", "required": True, "description": description, "schema": schema}
    return {"parameters": [found]}


BY_ID = in_path("sequence_id", "Id of the open sequence.")


# -- bodies --


class CreateSequence(ForModel):
    """`POST /v1/sequences`: a sequence of a prompt, of a conversation, or one that was saved."""

    prompt: Text | Tokens | None = Field(None, description="What it begins with; special tokens are parsed.")
    messages: Annotated[list[Message], Field(min_length=1, max_length=2048)] | None = Field(
        None, description="A conversation that it begins with, in the model's format, up to the answer."
    )
    tools: list[Tool] | None = Field(None, description="Functions that the conversation may call.")
    chat_template_kwargs: TemplateArguments | None = None
    restore: SavedName | None = Field(None, description="Name of a saved sequence, in place of a prompt.")
    seed: Annotated[int, within("seed", ge=-(1 << 63))] | None = None
    lora: AdapterName | None = Field(None, description="An adapter of the model, by name.")
    compute: bool = Field(False, description="Compute it now, and not when it is first needed.")


class ForkSequence(Body):
    """`POST /v1/sequences/ID/fork`."""

    n: Annotated[int, Field(ge=1, le=1 << 16)] = Field(1, description="How many forks.")
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] | None = Field(
        None, description="Seed of the first, the next has the next number; without one, seeds are random."
    )


class Content(Body):
    """Text or tokens, of which exactly one is given."""

    text: Text | None = Field(None, description="Text to put there.")
    tokens: Tokens | None = Field(None, description="Tokens to put there, in place of text.")
    special: bool = Field(False, description="Special tokens that are spelt out in the text are tokens.")


class AppendTokens(Content):
    """`POST /v1/sequences/ID/append`."""


class ReplaceTokens(Content):
    """`POST /v1/sequences/ID/replace`."""

    start: Position = Field(description="Position of the first token that is replaced.")
    stop: Position = Field(description="Position behind the last one.")
    mode: Mode = Field("recompute", description=MODE)


class InsertTokens(Content):
    """`POST /v1/sequences/ID/insert`."""

    at: Position = Field(description="Position of the token that they are put in front of.")
    mode: Mode = Field("recompute", description=MODE)


class RemoveTokens(Body):
    """`POST /v1/sequences/ID/remove`."""

    start: Position = Field(description="Position of the first token that goes.")
    stop: Position = Field(description="Position behind the last one.")
    mode: Mode | Literal["hole"] = Field(
        "recompute", description=f"{MODE} hole: they keep their positions, and nothing is computed."
    )


class ContinueSequence(Samplers):
    """`POST /v1/sequences/ID/generate`."""

    max_tokens: Annotated[int, within("max_tokens")] | None = None
    min_tokens: Annotated[int, within("min_tokens")] | None = None
    n: Annotated[int, within("n")] = Field(
        1, description="Texts. One is appended to the sequence; of several none is."
    )
    seed: Annotated[int, within("seed", ge=-(1 << 63))] | None = None
    stop_tokens: Annotated[list[TokenId], Field(max_length=64)] | None = None
    ignore_eos: bool | None = None
    repetition_penalty: Annotated[Number, within("repetition_penalty")] | None = None
    timeout: Annotated[Number, within("timeout")] | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(
        None, description="Log-probabilities of the tokens, and so many alternatives."
    )
    grammar: GrammarField | Text | None = Field(
        None, description="What the text has to look like; a text is a grammar in GBNF."
    )
    json_schema: dict[str, Any] | None = Field(None, description="A schema that the text has to fit.")
    stream: bool = Field(False, description="Send the tokens as they come.")


Continuation = Text | Tokens


class ScoreContinuations(Body):
    """`POST /v1/sequences/ID/score`."""

    continuations: Annotated[list[Continuation], Field(min_length=1, max_length=MAX_CONTINUATIONS)] = Field(
        description="Texts or tokens behind the sequence, which stays as it is."
    )


class SaveSequence(Body):
    """`POST /v1/sequences/ID/save`."""

    name: SavedName = Field(
        description="Its name among the caller's saved sequences; an older one is replaced."
    )


# -- what every request does --


async def begin(request: Request) -> tuple[Generation, OpenSequence]:
    """The sequence of a request, its alone until the generation is closed."""
    state = get_state(request)
    opened, seconds = get_open(state), state.settings.sequence_seconds
    caller, name = get_caller(request), request.path_params["sequence_id"]
    entry = opened.find(caller.name, name, seconds)
    if entry.is_used:
        raise ApiError(
            409,
            f"sequence {entry.id} is used by another request of yours; wait for it, or fork it before",
            param="sequence_id",
            code="in_use",
            retry_after=1,
        )
    entry.is_used = True
    try:
        generation = await unless_gone(
            request, Generation.begin(request, entry.served.name), Generation.close
        )
    except BaseException:
        opened.rest(entry, seconds)
        raise
    generation.on_close = lambda: opened.rest(entry, seconds)
    if entry.is_gone:
        generation.close()
        opened.forget(entry)
        opened.find(caller.name, name, seconds)
    return generation, entry


@asynccontextmanager
async def using(request: Request, field: str = "text") -> AsyncIterator[tuple[Generation, OpenSequence]]:
    """`begin` for a block; errors are about `field`."""
    generation, entry = await begin(request)
    try:
        yield generation, entry
    except Exception as error:
        raise translate(error, field) from error
    finally:
        generation.close()


async def compute(request: Request, generation: Generation, entry: OpenSequence, fork: Any = None) -> None:
    """Compute what is pending in a sequence, or in a fork of it, together with the requests that run."""
    sequence = entry.sequence if fork is None else fork
    if n_pending := sequence.n_pending:
        is_new = n_pending == len(sequence)
        if fork is None:
            await reserve_cells(generation, get_state(request), "sequence_id", 0, entry)
        work = asyncio.wait_for(generation.lease.llm.alogits([sequence]), generation.left)
        try:
            await unless_gone(request, work)
        except asyncio.TimeoutError:
            raise ApiError(
                503, "the sequence was not computed before the time limit", code="timeout", retry_after=10
            ) from None
        finally:
            n_cached = sequence.n_cached if is_new else 0
            count_tokens(request, n_pending - sequence.n_pending - n_cached, n_cached)


def count_tokens(request: Request, n_computed: int, n_cached: int = 0) -> None:
    """Count tokens of a caller's sequence that were computed, or found in the cache, for its limits."""
    use = get_state(request).part(Keys).of(get_caller(request))
    use.count(prompt=max(0, n_computed), cached=n_cached)


async def read_content(state: State, llm: LLM, body: Content) -> list[int]:
    """The tokens of a body's text or tokens."""
    if (body.text is None) == (body.tokens is None):
        raise field_error("text", "text: give either text or tokens", "missing_field")
    given: Any = body.text if body.tokens is None else body.tokens
    check_prompts("text" if body.tokens is None else "tokens", [given], state.settings.limits)
    if body.tokens is not None:
        return body.tokens
    if body.special:
        return await in_thread(state, lambda: llm.tokenizer.encode(given, special=True, bos=False))
    return await in_thread(state, lambda: llm.tokenizer.encode(given))


async def answer(state: State, generation: Generation, entry: OpenSequence, **facts: Any) -> Response:
    """A sequence after a request."""
    seconds = state.settings.sequence_seconds
    found = await in_thread(
        state, lambda: {"sequence": describe(entry, seconds), **facts, "usage": usage(entry)}
    )
    return Json({**found, "timings": generation.spent()})


# -- endpoints --


@router.post("/v1/sequences")
async def create(body: CreateSequence, request: Request) -> Response:
    """Open a sequence: with a prompt, a conversation, or one that was saved."""
    state, caller = get_state(request), get_caller(request)
    settings, opened = state.settings, get_open(state)
    given = [name for name in ("prompt", "messages", "restore") if getattr(body, name) is not None]
    if len(given) > 1:
        raise field_error(given[1], f"{given[1]}: give one of prompt, messages and restore")
    if body.messages is None and (body.tools is not None or body.chat_template_kwargs is not None):
        name = "tools" if body.tools is not None else "chat_template_kwargs"
        raise field_error(name, f"{name} is for conversations; give messages, or leave it out")
    check_count(state, caller, 1, "model")
    field = given[0] if given else "prompt"
    if body.prompt is not None:
        check_prompts("prompt", [body.prompt], settings.limits)
    generation = await unless_gone(request, Generation.begin(request, body.model), Generation.close)
    try:
        llm, options = generation.lease.llm, {} if body.lora is None else {"adapter": body.lora}
        choose_adapter(options, generation.lease)
        salt = caller.salt or None
        if body.restore is not None:
            path = await find_saved(request, body.restore, "restore")
            n_cells = path.stat().st_size // max(1, llm.backend.cell_bytes)
            await reserve_cells(generation, state, field, n_cells)
            sequence = await in_thread(state, lambda: restored(llm, path, salt))
        else:
            ids = await read_start(body, generation, request)
            await reserve_cells(generation, state, field, len(ids))
            seed = None if body.seed is None else body.seed % (1 << 64)
            sequence = await in_thread(
                state, lambda: llm.sequence(ids, seed, cache_salt=salt, adapter=options.get("adapter"))
            )
        entry = OpenSequence(
            new_id(),
            caller.name,
            body.model,
            generation.lease.model,
            llm,
            sequence,
            int(time.time()),
            adapter=options.get("adapter"),
        )
        check_count(state, caller, 1, "model")  # others may have come meanwhile
        opened.add(entry, settings.sequence_seconds)
        opened.coming.pop(generation, None)
        if body.compute:
            entry.is_used = True
            try:
                await compute(request, generation, entry)
            except BaseException:  # nobody gets its id
                opened.forget(entry)
                await in_thread(state, entry.sequence.close)
                raise
            finally:
                opened.rest(entry, settings.sequence_seconds)
        return await answer(state, generation, entry)
    except Exception as error:
        raise translate(error, field) from error
    finally:
        opened.coming.pop(generation, None)
        generation.close()


async def read_start(body: CreateSequence, generation: Generation, request: Request) -> list[int]:
    """The tokens that a sequence begins with."""
    llm = generation.lease.llm
    if body.messages is not None:
        names = ("model", "messages", "tools", "chat_template_kwargs")
        given = {name: getattr(body, name) for name in names if getattr(body, name) is not None}
        return await encode_chat(ChatRequest.model_validate(given), generation, request)
    if isinstance(body.prompt, str):
        prompt = body.prompt
        return await in_thread(get_state(request), lambda: llm.tokenizer.encode(prompt, special=True))
    return body.prompt or []


@router.get("/v1/sequences")
async def list_sequences(request: Request) -> Response:
    """The open sequences of the caller."""
    state = get_state(request)
    settings = state.settings
    entries = get_open(state).of(get_caller(request).name)
    data = await in_thread(state, lambda: [describe(one, settings.sequence_seconds) for one in entries])
    limits = {"sequences": settings.max_sequences, "idle_seconds": settings.sequence_seconds}
    return Json({"object": "list", "data": data, "limits": limits})


@router.get("/v1/sequences/saved")
async def list_saved(request: Request) -> Response:
    """The saved sequences of the caller."""
    found = list_files(await saved_folder(request))
    data = [
        {"name": path.name.removesuffix(SUFFIX), "bytes": status.st_size, "saved_at": int(status.st_mtime)}
        for path, status in sorted(found)
    ]
    return Json({"object": "list", "data": data})


@router.delete("/v1/sequences/saved/{name}")
async def delete_saved(name: str, request: Request) -> Response:
    """Delete a saved sequence of the caller."""
    (await find_saved(request, name)).unlink(missing_ok=True)
    return Json({"name": name, "deleted": True})


@router.get("/v1/sequences/{sequence_id}")
async def read(sequence_id: str, request: Request) -> Response:
    """An open sequence with its tokens, their positions and its text."""
    state = get_state(request)
    seconds = state.settings.sequence_seconds
    entry = get_open(state).find(get_caller(request).name, sequence_id, seconds)
    found = await in_thread(state, lambda: describe(entry, seconds, is_whole=True))
    return await long_json(found, 3 * found["tokens"])


@router.delete("/v1/sequences/{sequence_id}")
async def close(sequence_id: str, request: Request) -> Response:
    """Close a sequence; a request that uses it ends."""
    state = get_state(request)
    opened = get_open(state)
    entry = opened.find(get_caller(request).name, sequence_id, state.settings.sequence_seconds)
    opened.forget(entry)
    await in_thread(state, entry.sequence.close)
    return Json({"id": entry.id, "object": "sequence", "closed": True})


@router.post("/v1/sequences/{sequence_id}/fork", openapi_extra=BY_ID)
async def fork(body: ForkSequence, request: Request) -> Response:
    """Open sequences with the same past, which share its cells; what is pending is computed once, before."""
    state, caller = get_state(request), get_caller(request)
    opened, seconds = get_open(state), state.settings.sequence_seconds
    check_at_most("n", body.n, state.settings.max_sequences)
    check_count(state, caller, body.n, "n")
    async with using(request) as (generation, entry):
        await compute(request, generation, entry)
        first = randbits(62) if body.seed is None else body.seed

        def work() -> list[Any]:
            return [entry.sequence.fork(seed=first + index) for index in range(body.n)]

        made = await in_thread(state, work)
        try:
            check_count(state, caller, body.n, "n")
        except ApiError:
            await in_thread(state, lambda: [one.close(park=False) for one in made])
            raise
        forks = [entry.new_fork(sequence) for sequence in made]
        for one in forks:
            opened.add(one, seconds)
        told = await in_thread(state, lambda: [describe(one, seconds) for one in forks])
        return await answer(state, generation, entry, forks=told)


@router.post("/v1/sequences/{sequence_id}/append", openapi_extra=BY_ID)
async def append(body: AppendTokens, request: Request) -> Response:
    """Append text or tokens; they are computed when they are first needed."""
    state = get_state(request)
    async with using(request) as (generation, entry):
        ids = await read_content(state, entry.llm, body)
        await reserve_cells(generation, state, "text", len(ids), entry)
        await in_thread(state, lambda: entry.sequence.append(ids))
        return await answer(state, generation, entry)


@router.post("/v1/sequences/{sequence_id}/replace", openapi_extra=BY_ID)
async def replace(body: ReplaceTokens, request: Request) -> Response:
    """Put text or tokens in the place of others; later ones move."""
    return await _edit(request, body.start, body.stop, body.mode, body)


@router.post("/v1/sequences/{sequence_id}/insert", openapi_extra=BY_ID)
async def insert(body: InsertTokens, request: Request) -> Response:
    """Put text or tokens in front of a token; later ones move."""
    with rename_fields({"start": "at"}):
        return await _edit(request, body.at, body.at, body.mode, body)


@router.post("/v1/sequences/{sequence_id}/remove", openapi_extra=BY_ID)
async def remove(body: RemoveTokens, request: Request) -> Response:
    """Remove tokens; later ones move up, or stay where they are with a hole."""
    return await _edit(request, body.start, body.stop, body.mode)


async def _edit(
    request: Request, start: int, stop: int, mode: EditMode | Literal["hole"], body: Content | None = None
) -> Response:
    state = get_state(request)
    async with using(request) as (generation, entry):
        sequence, made = entry.sequence, None
        ids = [] if body is None else await read_content(state, entry.llm, body)
        at = None if mode == "hole" else start
        await reserve_cells(generation, state, "text" if ids else "start", len(ids), entry, at)
        if mode == "hole" or sequence.edit_mode == "hole":  # pending tokens are computed first
            await compute(request, generation, entry)
        if mode != "hole" and len(ids) >= AHEAD_TOKENS:
            made = await compute_ahead(request, generation, entry, start, stop, ids, mode)
        n_pending = sequence.n_pending

        def work() -> Edit:
            if mode == "hole":
                found: Edit = sequence.remove(start, stop)
                return found
            return finish_edit(sequence, start, stop, ids, mode, made)

        done = await in_thread(state, work)
        n_computed = done.added + done.recomputed - (sequence.n_pending - n_pending)
        count_tokens(request, n_computed - (0 if made is None else len(ids)))
        return await answer(state, generation, entry, edit=asdict(done))


async def compute_ahead(
    request: Request,
    generation: Generation,
    entry: OpenSequence,
    start: int,
    stop: int,
    ids: list[int],
    mode: EditMode,
) -> Any:
    """A sequence with new tokens behind those before them, computed in turns with what else runs.

    The edit shares its cells: it would compute them at once, and all others would wait. None if it computes
    none of them.
    """
    made = await in_thread(get_state(request), lambda: begin_edit(entry.sequence, start, stop, ids, mode))
    if made is None:
        return None
    try:
        await compute(request, generation, entry, made)
    except BaseException:
        await in_thread(get_state(request), lambda: made.close(park=False))
        raise
    return made


@router.post("/v1/sequences/{sequence_id}/generate", openapi_extra=BY_ID)
async def generate(body: ContinueSequence, request: Request) -> Response:
    """Continue a sequence: one text is appended to it, several leave it as it is."""
    state = get_state(request)
    limits = state.settings.limits
    check_at_most("n", body.n, min(limits.n, state.settings.max_running))
    options = {**plain_options(body), "n": body.n if body.n > 1 else None}  # None: it is continued
    if body.seed is not None:
        options["seed"] = body.seed % (1 << 64)
    if body.top_k == -1:
        options["top_k"] = 0
    if body.logprobs is not None:
        options["logprobs"] = max(1, body.logprobs)
    options |= named_grammar(body.grammar, body.json_schema, limits)
    generation, entry = await begin(request)
    try:
        options["adapter"] = entry.adapter or {}
        if body.n == 1:
            await reserve_text(generation, state, entry, options)
        made = SequenceAnswer(generation, entry, state, body.logprobs)
        await unless_gone(request, generation.start([entry.sequence], {**options, "reasoning": False}))
        if body.stream:
            return Streamed(made, generation.texts)
        results = await unless_gone(request, generation.results())
        whole = await in_thread(state, lambda: made.whole(results))
        n_values = sum(len(result.tokens) for result in results) * (1 + (body.logprobs or 0))
        generation.close()
        return await long_json(whole, n_values)
    except BaseException as error:
        generation.close()
        if isinstance(error, Exception):
            raise translate(error, "sequence_id") from error
        raise


async def reserve_text(
    generation: Generation, state: State, entry: OpenSequence, options: dict[str, Any]
) -> None:
    """Reserve cells for a text behind a sequence: all that are left if it is not said how many."""
    most = options.get("max_tokens", state.settings.defaults.get("max_tokens"))
    room = await reserve_cells(generation, state, "max_tokens", 1 if most is None else most, entry)
    if most is None and room + 1 < entry.llm.context_length - entry.sequence.position:
        options["max_tokens"] = room + 1
        entry.most += room


@router.post("/v1/sequences/{sequence_id}/score", openapi_extra=BY_ID)
async def score(body: ScoreContinuations, request: Request) -> Response:
    """The log-probabilities of continuations of a sequence, computed together; it stays as it is."""
    state = get_state(request)
    limits = state.settings.limits
    check_prompts("continuations", body.continuations, limits, most=MAX_CONTINUATIONS)
    async with using(request, "continuations") as (generation, entry):
        llm = generation.lease.llm

        def work() -> list[list[int]]:
            return [llm.tokenizer.encode(one) if isinstance(one, str) else one for one in body.continuations]

        several = await in_thread(state, work)
        await compute(request, generation, entry)
        scoring = asyncio.wait_for(llm.ascore(entry.sequence, several), generation.left)
        try:
            scores = await unless_gone(request, scoring)
        except asyncio.TimeoutError:
            raise ApiError(
                503, "the texts were not scored before the time limit", code="timeout", retry_after=10
            ) from None
        count_tokens(request, sum(len(ids) - 1 for ids in several))
        data = []
        for index, (ids, numbers) in enumerate(zip(several, scores, strict=True)):
            logprobs = [clamp_logprob(float(number)) for number in numbers]
            data.append({"index": index, "token_ids": ids, "logprobs": logprobs, "total": sum(logprobs)})
        found = await in_thread(state, lambda: {"sequence": describe(entry, state.settings.sequence_seconds)})
        told = {**found, "data": data, "usage": usage(entry), "timings": generation.spent()}
        return await long_json(told, 2 * sum(map(len, several)))


# -- saved sequences: files of a caller, which outlive the server --

SUFFIX = ".safetensors"


async def saved_folder(request: Request) -> Path:
    """The folder of a caller, by a keyed hash of its key that stays the same over restarts."""
    state, batches, caller = get_state(request), request.app.state.batches, get_caller(request)
    owner: str = await asyncio.to_thread(batches.find_owner, caller)
    return Store.default().home / "sequences" / str(state.settings.port) / owner


def list_files(folder: Path) -> list[tuple[Path, os.stat_result]]:
    """The saved sequences in a folder; others may be deleted meanwhile."""
    found = []
    for path in folder.glob(f"*{SUFFIX}") if folder.is_dir() else ():
        with suppress(FileNotFoundError):
            found.append((path, path.stat()))
    return found


async def find_saved(request: Request, name: str, param: str = "name") -> Path:
    """The file of a saved sequence; raises if the caller has none of this name."""
    path = (await saved_folder(request)) / f"{name}{SUFFIX}"
    if not SAVED_NAME.fullmatch(name) or not path.is_file():
        raise ApiError(
            404,
            f"there is no saved sequence {name[:64]!r} of yours; GET /v1/sequences/saved lists them",
            param=param,
            code="not_found",
        )
    return path


def restored(llm: LLM, path: Path, salt: str | None) -> Any:
    """The sequence of a file; other prompts do not share its cells."""
    try:
        return llm.restore(path, cache_salt=salt)
    except SnapshotError as error:
        reason = str(error).removeprefix(f"{path}: ")
        raise field_error(
            "restore", f"restore: {path.name.removesuffix(SUFFIX)} cannot be restored: {reason}"
        ) from None


@router.post("/v1/sequences/{sequence_id}/save", openapi_extra=BY_ID)
async def save(body: SaveSequence, request: Request) -> Response:
    """Write a sequence with its K and V to a file of the caller, from which it can be opened again."""
    state = get_state(request)
    limits, folder = state.settings.limits, await saved_folder(request)
    path = folder / f"{body.name}{SUFFIX}"
    async with using(request, "name") as (generation, entry):
        await compute(request, generation, entry)
        n_bytes = len(entry.sequence) * entry.llm.backend.cell_bytes

        def work() -> int:
            with explain_disk_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
                folder.parent.chmod(0o700)  # it holds what callers have asked
                others = [status for one, status in list_files(folder) if one != path]
                held = sum(status.st_size for status in others)
                for value, most, unit in (
                    (len(others) + 1, limits.saved_sequences, "saved sequences"),
                    (held + n_bytes, limits.saved_bytes, "bytes of saved sequences"),
                ):
                    if value > most:
                        raise field_error(
                            "name",
                            f"name: it would be {value:,} {unit}, and at most {most:,} are kept; delete some "
                            "with DELETE /v1/sequences/saved/NAME",
                            "over_quota",
                            status=413,
                        )
                require_space(folder, n_bytes + SPARE_BYTES)
                entry.sequence.save(path)
                return path.stat().st_size

        size = await in_thread(state, work)
        return await answer(state, generation, entry, saved={"name": body.name, "bytes": size})

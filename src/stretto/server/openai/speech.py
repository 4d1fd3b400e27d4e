"""`/v1/audio/transcriptions`: OpenAI's endpoint for speech, a form with a file."""

from __future__ import annotations

from typing import Any, cast

from fastapi import Request
from starlette.datastructures import FormData
from starlette.responses import PlainTextResponse, Response

from stretto.server.generation.generation import Generation
from stretto.server.generation.vectors import call
from stretto.server.http.bodies import form_file, form_schema, make_router, opened_form
from stretto.server.http.errors import Json, field_error
from stretto.tasks import Transcript
from stretto.tasks.results import srt, vtt

router = make_router("OpenAI")

FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
FIELDS = ("file", "model", "response_format", "language", "temperature", "timestamp_granularities[]")
SCHEMA = form_schema(
    file={"type": "string", "format": "binary", "description": "A WAV file."},
    model={"type": "string", "maxLength": 256, "description": "A model's name."},
    response_format={
        "type": "string",
        "enum": list(FORMATS),
        "description": "What the answer is; json, if not given.",
    },
)


@router.post("/v1/audio/transcriptions", openapi_extra=SCHEMA)
async def transcriptions(request: Request) -> Response:
    """Write down the speech in a file."""
    async with opened_form(request, max_fields=16) as form:
        model, kind = _checked(form)
        language = str(form.get("language") or "") or None
        audio = await form_file(form).read()

    async def prepare(generation: Generation) -> list[bytes]:
        known: tuple[str, ...] = getattr(generation.lease.llm, "languages", ("en",))
        if language is not None and language not in known:
            raise field_error("language", f"language must be one that the model knows: {', '.join(known)}")
        return [audio]

    def work(llm: Any, inputs: list[bytes]) -> Transcript:
        more = {} if language is None else {"language": language}
        return cast(Transcript, llm.transcribe(inputs[0], **more))

    transcript, timings = await call(request, model, "transcribe", prepare, work, "file")
    return write_transcript(transcript, kind, timings)


def _checked(form: FormData) -> tuple[str, str]:
    """The model's name and the format of the answer."""
    for name in form:
        if name not in FIELDS:
            raise field_error(name[:80], f"{name[:80]!r} is no field here; there are {', '.join(FIELDS)}")
    model, kind = form.get("model"), form.get("response_format") or "json"
    if not isinstance(model, str) or not 0 < len(model) <= 256:
        raise field_error("model", "model: the form needs the name of a model", "missing")
    if not isinstance(kind, str) or kind not in FORMATS:
        raise field_error("response_format", f"response_format must be one of {', '.join(FORMATS)}")
    if form.get("temperature") not in (None, "", "0", "0.0"):
        raise field_error("temperature", "temperature must be 0: the most probable text is written")
    return model, kind


def write_transcript(transcript: Transcript, kind: str, timings: dict[str, float]) -> Response:
    """The transcript in one of OpenAI's formats."""
    if kind == "text":
        return PlainTextResponse(transcript.text + "\n")
    if kind == "srt":
        return PlainTextResponse(srt(transcript))
    if kind == "vtt":
        return PlainTextResponse(vtt(transcript))
    whole: dict[str, Any] = {"text": transcript.text}
    if kind == "verbose_json":
        segments = [
            {"id": number, "start": one.start, "end": one.end, "text": one.text}
            for number, one in enumerate(transcript.segments)
        ]
        whole |= {
            "task": "transcribe",
            "language": "english",
            "duration": transcript.duration,
            "segments": segments,
        }
    return Json({**whole, "timings": timings})

"""`/docs`: the OpenAPI document as a page, made here. It loads nothing from anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from stretto.options.documenting import MEANINGS
from stretto.options.generating import PARALLEL_OWN

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}"
    "h2{border-top:1px solid #ccc;padding-top:1em}code{background:#f2f2f2;padding:0 .2em}"
    "table{border-collapse:collapse}td,th{text-align:left;vertical-align:top;padding:.15em 1em .15em 0}"
    "summary{cursor:pointer}"
)
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(document: dict[str, Any]) -> str:
    """The page."""
    return "\n".join(_page(document))


def _page(document: dict[str, Any]) -> Iterator[str]:
    info = document["info"]
    yield f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(info['title'])}</title>"
    yield f"<style>{STYLE}</style><h1>{escape(info['title'])} {escape(info['version'])}</h1>"
    yield f"<p>{escape(info.get('description', ''))} For programs: <a href=openapi.json>openapi.json</a>.</p>"
    tag = None
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if operation.get("tags", [None])[0] != tag:
                tag = operation["tags"][0]
                yield f"<h2>{escape(tag)}</h2>"
            summary = escape(operation.get("description", "").split("\n\n")[0])
            yield f"<details><summary><code>{method.upper()} {escape(path)}</code> {summary}</summary>"
            yield from _fields(document, operation)
            yield "</details>"
    yield "<h2>Objects</h2>"
    for name, schema in sorted(document.get("components", {}).get("schemas", {}).items()):
        summary = escape(_summary(schema))
        yield f"<details id={escape(name)}><summary><code>{escape(name)}</code> {summary}</summary>"
        yield from _table(schema)
        yield "</details>"
    yield "</html>"


def _fields(document: dict[str, Any], operation: dict[str, Any]) -> Iterator[str]:
    for parameter in operation.get("parameters", []):
        yield f"<p><code>{escape(parameter['name'])}</code> in the {escape(parameter['in'])}</p>"
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    if "$ref" in body:
        schema = document["components"]["schemas"][body["$ref"].rsplit("/", 1)[-1]]
        yield from _table(schema)


def _table(schema: dict[str, Any]) -> Iterator[str]:
    required = schema.get("required", [])
    yield "<table>"
    for name, field in schema.get("properties", {}).items():
        must = ", required" if name in required else ""
        yield (
            f"<tr><td><code>{escape(name)}</code><td>{_kind(field)}{must}"
            f"<td>{escape(field.get('description', '') or _inner(field))}"
        )
    yield "</table>"


def _kind(field: dict[str, Any]) -> str:
    """The type of a field, in words."""
    if "$ref" in field:
        name = field["$ref"].rsplit("/", 1)[-1]
        return f"<a href=#{escape(name)}>{escape(name)}</a>"
    if options := field.get("anyOf") or field.get("oneOf"):
        return " or ".join(dict.fromkeys(_kind(option) for option in options if option.get("type") != "null"))
    if "const" in field:
        return escape(repr(field["const"]))
    if "enum" in field:
        return escape(", ".join(map(repr, field["enum"])))
    if field.get("type") == "array":
        return f"list of {_kind(field.get('items', {}))}"
    low, high = field.get("minimum", field.get("exclusiveMinimum")), field.get("maximum")
    ends = f" from {low:g}" if low is not None else ""
    ends += f" to {high:g}" if high is not None else ""
    return escape(f"{field.get('type', 'any')}{ends}")


def _summary(schema: dict[str, Any]) -> str:
    return str(schema.get("description", "")).split("\n\n")[0]


# Descriptions of the fields in the OpenAPI document that their schemas do not describe themselves.
#
# An option that the library has too is described by the library's own table (`stretto.options`). The others
# are here, by field, or by schema and field where the same name means different things.

MODEL = "Name of a model, as /v1/models lists it."
NOT_SUPPORTED = "Not supported: only the value that means nothing is taken."
FROM_CLIENTS = "Taken from clients that send it; without effect."
VALIDATION = ("HTTPValidationError", "ValidationError")  # FastAPI's own; errors here have another shape

FIELDS = {
    "arguments": "The arguments of the call.",
    "call_id": "The id of the call.",
    "choices": "The texts, one of which is written.",
    "content": "Text of the message, or a list of parts: texts and images.",
    "context": NOT_SUPPORTED,
    "description": "What it is for, to be read by the model.",
    "dimensions": "Keep the first numbers of a vector only, for models that were trained for it.",
    "disable_parallel_tool_use": "At most one call in an answer; with any, the default.",
    "documents": "The texts to sort.",
    "echo": "Return the prompt before the text.",
    "effort": "How much the model should think, where its chat template takes that.",
    "encoding_format": "Vectors as lists of numbers, or as base64 of float32.",
    "format": '"json", or a JSON schema that the answer has to fit.',
    "function": "The function.",
    "id": "An id.",
    "images": "Images of the message, in base64.",
    "input": "A text, several texts, or token ids.",
    "instructions": "The system message.",
    "json_schema": "The schema and its name.",
    "keep_alive": "Models stay until memory is needed; 0 unloads.",
    "logit_bias": "Token ids, with what is added to their logits.",
    "logprobs": "Log-probabilities of the tokens.",
    "media_type": "The kind of content: image/png, text/plain and the like.",
    "messages": "The conversation, oldest message first.",
    "model": MODEL,
    "n": "Generate so many texts of each prompt.",
    "name": "A name.",
    "options": "Sampling options.",
    "parallel_tool_calls": "Whether one answer may have several calls; by default unless it has to have one.",
    "parameters": "JSON schema of the arguments.",
    "pattern": "The regular expression.",
    "previous_response_id": "The response that this one continues.",
    "prompt": "A text, or token ids; several of them where lists are taken.",
    "query": "What the documents should answer.",
    "raw": "The prompt is not put into the chat template.",
    "refusal": "What a model said instead of an answer; part of earlier messages.",
    "repeat_guard": "End a text that repeats itself: its last 400 tokens or more are one passage, four times "
    "at least. On by default, unless the operator has turned it off.",
    "repeat_penalty": MEANINGS["repetition_penalty"],
    "role": "Whose message it is.",
    "schema": "A JSON schema.",
    "seed": "The same seed gives the same tokens; a fresh one, if not given.",
    "source": "Where the content is: in the request, or at a URL.",
    "stop": "Texts that end the answer; they are not part of it.",
    "stop_sequences": "Texts that end the answer; they are not part of it.",
    "stream": "Send the answer piece by piece.",
    "stream_options": "Options of a stream.",
    "strict": "The schema is binding in any case; if true, objects have only properties that are named.",
    "system": "The system message.",
    "text": "Text, or token ids where they are taken.",
    "thinking": "What the model thought before it answered, in earlier messages.",
    "tokens": "Token ids.",
    "tool_call_id": "The id of the call that the message answers.",
    "tool_calls": "The calls that the assistant made.",
    "tool_choice": "Whether a tool must be called, or which one.",
    "tool_name": "The tool whose answer this is.",
    "tools": "Functions that the model may call.",
    "top_logprobs": "So many of the most probable tokens at each place, with log-probabilities.",
    "truncation": 'Only "disabled": nothing is cut off in silence.',
    "type": "The kind of this object.",
}

OF_SCHEMAS = {
    "AllowedTools.mode": "Whether one of them must be called.",
    "AnthropicTool.input_schema": "JSON schema of the arguments.",
    "Base64Source.data": "The image, in base64.",
    "CacheControl.ttl": "Without effect: prompts stay cached until memory is needed.",
    "ChatRequest.modalities": "Answers are texts.",
    "ChatRequest.response_format": "Any text, a JSON object, or JSON of a schema.",
    "CompletionRequest.logprobs": "So many of the most probable tokens with log-probabilities.",
    "ContextManagement.edits": "Only an empty list: nothing is cut off in silence.",
    "CountRequest.output_config": "The form of the answer; it has no tokens of its own.",
    "CreateRequest.license": "Licence to show.",
    "CreateRequest.parameters": "Sampling options that requests need not give.",
    "DocumentBlock.title": "Title, for the model to read.",
    "ExtraFile.filename": "Name of the file.",
    "Function.description": "What the function does, for the model to read.",
    "GenerateRequest.prompt": "The prompt; without one the model is only loaded.",
    "ImageBlock.source": "The image: in base64, or at a URL if the operator allows that.",
    "ImagePart.image_url": "The image.",
    "ImageUrl.url": "A data: URL, or http(s) if the operator allows that.",
    "AudioPart.input_audio": "The sound.",
    "InputAudio.data": "The bytes of a file, in base64.",
    "InfillRequest.input_extra": "Other files of the project, for the model to read.",
    "InfillRequest.input_prefix": "Text before the gap.",
    "InfillRequest.input_suffix": "Text behind the gap.",
    "InputImage.file_id": NOT_SUPPORTED,
    "InputImage.image_url": "A data: URL, or http(s) if the operator allows that.",
    "JsonSchema.description": "What the answer is, for people.",
    "LarkGrammar.grammar": "The grammar.",
    "Message.annotations": NOT_SUPPORTED,
    "Message.audio": NOT_SUPPORTED,
    "Message.name": "Name of the author, where the chat template shows it.",
    "Message.reasoning_content": "What the model thought before it answered, in earlier messages.",
    "MessagesRequest.output_config": "The form of the answer, and how much to think.",
    "OllamaCopyRequest.destination": "The new name.",
    "OllamaCopyRequest.source": "The model to be copied.",
    "OllamaFunctionCall.index": "Place among the calls of the message.",
    "OllamaMessage.content": "Text of the message.",
    "OllamaToolCall.id": "Id of the call, which its answer names.",
    "PlainSource.data": "The text.",
    "ReasoningItem.summary": "What the model thought, in earlier responses.",
    "RedactedBlock.data": "Thoughts that cannot be read; left out of the prompt.",
    "ResponseRequest.include": "More that the response should have.",
    "ResponseRequest.max_output_tokens": "Generate at most so many tokens.",
    "ResultItem.output": "The result of the call.",
    "SchemaText.description": "What the answer is, for people.",
    "StreamOptions.include_usage": "Send one more event with the numbers of tokens.",
    "ToolCall.id": "Id of the call, which its answer names.",
    "ToolResultBlock.tool_use_id": "The id of the call that this answers.",
    "ToolUseBlock.id": "Id of the call, which its result names.",
    "UrlSource.url": "An http(s) URL, if the operator allows that.",
}
FIELDS |= dict.fromkeys(
    ("allowed_callers", "annotations", "citations", "defer_loading", "detail", "speed", "verbose"),
    FROM_CLIENTS,
)
OF_SCHEMAS |= dict.fromkeys(
    (
        "ExtraFile.time",
        "OllamaPullRequest.insecure",
        "ReasoningConfig.mode",
        "Thinking.display",
        "ToolUseBlock.caller",
    ),
    FROM_CLIENTS,
)
OF_SCHEMAS |= dict.fromkeys(
    ("Function.name", "FunctionCall.name", "NamedFunction.name", "OllamaFunctionCall.name"),
    "Name of the function.",
)
OF_SCHEMAS |= {f"ParallelRequest.{option.name}": option.meaning for option in PARALLEL_OWN}

PARAMETERS = {
    "cell": "Index of a cell.",
    "cells": "Send the table of cells too, whenever it has changed.",
    "model": MODEL,
    "stream": "Send it as a stream of events.",
}
PATH_PARAMETERS = {  # by how the path begins
    "/v1/batches/": "Id of the batch.",
    "/v1/files/": "Id of the file.",
    "/v1/responses/": "Id of the response.",
    "/v1/sequences/saved/": "Name of the saved sequence.",
    "/v1/sequences/": "Id of the open sequence.",
    "/slots/": "Number of the slot, as id_slot of a request.",
    "/stretto/pins/": "Name of the pin.",
    "/stretto/requests/": "The request's x-request-id.",
    "/stretto/streams/": "The stream's id: the header x-stretto-stream of its answer.",
    "/v1/models/": MODEL,
}


def describe(document: dict[str, Any]) -> dict[str, Any]:
    """An OpenAPI document whose fields and parameters all have descriptions."""
    schemas = document.get("components", {}).get("schemas", {})
    for name in VALIDATION:
        schemas.pop(name, None)
    for path, methods in document["paths"].items():
        for operation in methods.values():
            operation["responses"].pop("422", None)
            for parameter in operation.get("parameters", ()):
                of_path = next(
                    (text for begin, text in PATH_PARAMETERS.items() if path.startswith(begin)), ""
                )
                of_path = of_path if parameter["in"] == "path" else ""
                parameter.setdefault("description", of_path or PARAMETERS.get(parameter["name"], ""))
    for name, schema in schemas.items():
        for field, about in schema.get("properties", {}).items():
            if not about.get("description"):
                about["description"] = _inner(about) or description(name, field)
    return document


def description(schema: str, field: str) -> str:
    """The description of a field, or "" if nothing is known about it."""
    found = OF_SCHEMAS.get(f"{schema}.{field}") or FIELDS.get(field) or MEANINGS.get(field)
    return found or ""


def _inner(about: dict[str, Any]) -> str:
    """The description of the one type that an optional field has."""
    return " ".join(one["description"] for one in about.get("anyOf", ()) if "description" in one)

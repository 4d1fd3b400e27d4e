"""Descriptions of the fields in the OpenAPI document that their schemas do not describe themselves.

An option that the library has too is described by the library's own table (`stretto.options`). The others are
here, by field, or by schema and field where the same name means different things.
"""

from __future__ import annotations

from typing import Any

from stretto.options.documenting import MEANINGS
from stretto.options.parallel import OWN

MODEL = "Name of a model, as /v1/models lists it."
NOT_SUPPORTED = "Not supported: only the value that means nothing is taken."
FROM_CLIENTS = "Taken from clients that send it; without effect."
VALIDATION = ("HTTPValidationError", "ValidationError")  # FastAPI's own; errors here have another shape

FIELDS = {
    "arguments": "The arguments of the call.",
    "choices": "The texts, one of which is written.",
    "content": "Text of the message, or a list of parts: texts and images.",
    "context": NOT_SUPPORTED,
    "dimensions": "Keep the first numbers of a vector only, for models that were trained for it.",
    "documents": "The texts to sort.",
    "echo": "Return the prompt before the text.",
    "encoding_format": "Vectors as lists of numbers, or as base64 of float32.",
    "format": '"json", or a JSON schema that the answer has to fit.',
    "function": "The function.",
    "images": "Images of the message, in base64.",
    "input": "A text, several texts, or token ids.",
    "json_schema": "The schema and its name.",
    "keep_alive": "Models stay until memory is needed; 0 unloads.",
    "logit_bias": "Token ids, with what is added to their logits.",
    "logprobs": "Log-probabilities of the tokens.",
    "max_completion_tokens": "Generate at most so many tokens; the newer name of max_tokens.",
    "messages": "The conversation, oldest message first.",
    "model": MODEL,
    "n": "Generate so many texts of each prompt.",
    "name": "A name.",
    "options": "Sampling options.",
    "parallel_tool_calls": "Whether one answer may have several calls.",
    "pattern": "The regular expression.",
    "prompt": "A text, or token ids; several of them where lists are taken.",
    "query": "What the documents should answer.",
    "raw": "The prompt is not put into the chat template.",
    "refusal": "What a model said instead of an answer; part of earlier messages.",
    "repeat_penalty": MEANINGS["repetition_penalty"],
    "role": "Whose message it is.",
    "schema": "A JSON schema.",
    "seed": "The same seed gives the same tokens; a fresh one, if not given.",
    "service_tier": FROM_CLIENTS,
    "stop": "Texts that end the answer; they are not part of it.",
    "store": "Answers are never stored.",
    "stream": "Send the answer piece by piece.",
    "stream_options": "Options of a stream.",
    "strict": "Whether the schema is binding.",
    "suffix": NOT_SUPPORTED,
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
    "type": "The kind of this object.",
    "verbose": FROM_CLIENTS,
}

OF_SCHEMAS = {
    "ChatRequest.modalities": "Answers are texts.",
    "ChatRequest.response_format": "Any text, a JSON object, or JSON of a schema.",
    "CompletionRequest.logprobs": "So many of the most probable tokens with log-probabilities.",
    "Function.description": "What the function does, for the model to read.",
    "Function.name": "Name of the function.",
    "Function.parameters": "JSON schema of the arguments.",
    "FunctionCall.name": "Name of the function.",
    "GenerateRequest.template": NOT_SUPPORTED,
    "GenerateRequest.prompt": "The prompt; without one the model is only loaded.",
    "ImagePart.image_url": "The image.",
    "ImageUrl.detail": FROM_CLIENTS,
    "ImageUrl.url": "A data: URL, or http(s) if the operator allows that.",
    "JsonSchema.description": "What the answer is, for people.",
    "JsonSchema.name": "Name of the schema.",
    "LarkGrammar.grammar": "The grammar.",
    "Message.annotations": NOT_SUPPORTED,
    "Message.audio": NOT_SUPPORTED,
    "Message.function_call": "Not supported; use tool_calls.",
    "Message.name": "Name of the author, where the chat template shows it.",
    "Message.reasoning_content": "What the model thought before it answered, in earlier messages.",
    "NamedFunction.name": "Name of the function.",
    "OllamaFunctionCall.index": "Place among the calls of the message.",
    "OllamaFunctionCall.name": "Name of the function.",
    "OllamaMessage.content": "Text of the message.",
    "OllamaToolCall.id": "Id of the call, which its answer names.",
    "Options.num_ctx": "Refused if the context is smaller.",
    "StreamOptions.include_obfuscation": NOT_SUPPORTED,
    "StreamOptions.include_usage": "Send one more event with the numbers of tokens.",
    "ToolCall.id": "Id of the call, which its answer names.",
}
OF_SCHEMAS |= {f"ParallelRequest.{option.name}": option.meaning for option in OWN}

PARAMETERS = {
    "cell": "Index of a cell.",
    "cells": "Send the changes of the table of cells too.",
    "model": MODEL,
    "since": "The version of the cells that the client has from an earlier connection.",
}
PATH_PARAMETERS = {
    "/stretto/pins/{name}": "Name of the pin.",
    "/stretto/requests/{name}": "The request's x-request-id.",
    "/v1/models/{name}": MODEL,
}


def described(document: dict[str, Any]) -> dict[str, Any]:
    """An OpenAPI document whose fields and parameters all have descriptions."""
    schemas = document.get("components", {}).get("schemas", {})
    for name in VALIDATION:
        schemas.pop(name, None)
    for path, methods in document["paths"].items():
        for operation in methods.values():
            operation["responses"].pop("422", None)
            for parameter in operation.get("parameters", ()):
                of_path = PATH_PARAMETERS.get(path, "") if parameter["in"] == "path" else ""
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

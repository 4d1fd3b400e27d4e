"""From a request's body to what routing looks at. Bodies are hostile, and nothing here raises.

Where the model's tokenizer is known, the keys are those of token blocks, as replicas report them. Elsewhere
they are hashes of the text, which the router remembers by itself: enough to send a conversation where it was
before, but not to know what has been evicted since.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from stretto.deploy.holdings import Ask
from stretto.deploy.prefixes import KEY_BYTES, block_keys, chain, saved_key, seed, tenant_of
from stretto.deploy.prompts import TextModel

MAX_EXACT_BYTES = 256 << 10  # of a body whose tokens are made; they take about 1 ms for each 10 KB
MAX_PARSED_BYTES = 2 << 20  # of a body that is parsed at all
BLOCK_BYTES = 256  # of text, in a block
MAX_NAME = 256  # characters of a model, a session
TEXT_FIELDS = ("tools", "functions", "system", "instructions", "messages", "prompt", "input", "query", "text")

Models = Mapping[str, TextModel]


def ask_of(data: bytes, models: Models, session: str = "", tenant: bytes = b"") -> Ask:
    """What routing looks at in a body."""
    session = session[:MAX_NAME]
    try:
        body = _parsed(data)
    except Exception:
        body = None
    if body is None:  # no JSON, or the beginning of a body that is longer than HAProxy's buffer
        session = session or _digest_text(data[:4096])
        return Ask(_byte_keys(data, "", tenant), session, is_exact=False)
    saved = _saved(body)
    model = body.get("model")
    name = model[:MAX_NAME] if isinstance(model, str) else ""
    if len(data) <= MAX_EXACT_BYTES and not body.get("lora"):
        try:
            keys = _exact(body, name, models, tenant)
        except Exception:
            keys = None  # the replica will say what is wrong with it
        if keys is not None:
            return Ask(keys, session, saved)
    try:
        keys = _text_keys(body, name, tenant)
    except Exception:
        keys = []
    return Ask(keys, session or _own_session(body), saved, is_exact=False)


def bearer(authorization: str) -> bytes:
    """The tenant of an Authorization header."""
    scheme, _, key = authorization.partition(" ")
    return tenant_of(key.strip()) if scheme.lower() == "bearer" and key.strip() else b""


def _parsed(data: bytes) -> dict[str, Any] | None:
    if not data or len(data) > MAX_PARSED_BYTES:
        return None
    body = json.loads(data)
    return body if isinstance(body, dict) else None


def _exact(body: dict[str, Any], name: str, models: Models, tenant: bytes) -> list[int] | None:
    """The keys of the prompt's tokens; None if the model's tokenizer is not known."""
    base, adapter = name, ""
    if base not in models:
        base, _, adapter = name.rpartition(":")
    model = models.get(base)
    if model is None:
        return None
    return chain(seed(base, adapter, tenant), model.tokens(body))


def _text_keys(body: dict[str, Any], name: str, tenant: bytes) -> list[int]:
    """A chain of hashes over the text of the fields that a prompt is made of."""
    pieces: list[str] = []
    for field in TEXT_FIELDS:
        value = body.get(field)
        if isinstance(value, str):
            pieces.append(value)
        elif isinstance(value, list):
            pieces += (one if isinstance(one, str) else json.dumps(one) for one in value)
        elif value is not None:
            pieces.append(json.dumps(value))
    return _byte_keys("\0".join(pieces).encode("utf-8", "replace"), name, tenant)


def _byte_keys(data: bytes, name: str, tenant: bytes) -> list[int]:
    start = blake2b(seed(name, "", tenant), digest_size=KEY_BYTES, person=b"text").digest()
    return block_keys(start, data, BLOCK_BYTES)


def _saved(body: dict[str, Any]) -> int | None:
    name = body.get("previous_response_id")
    return saved_key(name[:MAX_NAME]) if isinstance(name, str) and name else None


def _own_session(body: dict[str, Any]) -> str:
    """A name for the conversation that the body itself gives."""
    for field in ("prompt_cache_key", "session_id"):
        if isinstance(name := body.get(field), str) and name:
            return name[:MAX_NAME]
    return ""


def _digest_text(data: bytes) -> str:
    return blake2b(data, digest_size=KEY_BYTES).hexdigest() if data else ""

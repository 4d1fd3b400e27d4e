"""Long answers: written as JSON in a thread and piece by piece, so that others get their turn."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response

from stretto.server.errors import Json, dumps

PIECE_VALUES = 4096  # written at a time, in a few milliseconds


async def long_json(content: Any, n_values: int) -> Response:
    """An answer in JSON with about so many values."""
    if n_values <= PIECE_VALUES:
        return Json(content)
    body = await asyncio.to_thread(lambda: pieces(content).encode())
    return Response(body, media_type=Json.media_type)


def pieces(value: Any) -> str:
    """`dumps`, by many calls instead of one; nothing else runs while one does."""
    if isinstance(value, dict):
        return "{" + ",".join([f"{dumps(name)}:{pieces(inner)}" for name, inner in value.items()]) + "}"
    if not isinstance(value, list) or not value:
        return dumps(value)
    n = PIECE_VALUES
    if isinstance(value[0], (dict, list)):
        inner = value[0].values() if isinstance(value[0], dict) else value[0]
        if any(isinstance(one, (dict, list)) for one in inner) or len(inner) > PIECE_VALUES:
            return "[" + ",".join([pieces(inner) for inner in value]) + "]"
        n = PIECE_VALUES // max(1, len(inner))  # small records are written together
    return "[" + ",".join([dumps(value[at : at + n])[1:-1] for at in range(0, len(value), n)]) + "]"

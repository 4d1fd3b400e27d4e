"""Callers: who sends a request, by its key."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request

CALLER = "stretto.caller"  # key in a scope


@dataclass(frozen=True)
class Caller:
    """A sender of requests; `view` is the salt of the sequences that it may see, None for all."""

    name: str = ""
    admin: bool = False
    salt: str = ""
    view: str | None = ""


NOBODY = Caller("", True, "", None)


def caller_of(request: Request) -> Caller:
    """Who sent a request."""
    caller: Caller = request.scope.get(CALLER, NOBODY)
    return caller

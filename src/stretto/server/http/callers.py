"""Callers: who sends a request, by its key. Keys are tenants, and administration needs an admin key.

The guard finds out who is calling, before anything else of a request is read; endpoints ask `caller_of`.
Without any key everybody is one and the same caller, who administrates a server that only this machine can
reach.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from itertools import count
from secrets import token_bytes

from fastapi import Request

from stretto.server.http.errors import ApiError
from stretto.server.settings import Settings

CALLER = "stretto.caller"  # key in a scope


@dataclass(frozen=True)
class Caller:
    """A sender of requests.

    The name is a keyed hash of the key, "" without keys: it says nothing about the key, and changes with
    every start of the server. The salt keeps a caller's prompts in the prefix cache apart from others'; it
    is "" where they are shared. `shares`: its cells may be others' too, so only those of its running requests
    are known to be its own; an admin sees all of them anyway. The label is for the log: "key-2" or "admin-1",
    by the order in which keys are given.
    """

    name: str = ""
    admin: bool = False
    salt: str = ""
    shares: bool = False
    label: str = ""


class Callers:
    """The callers that the settings allow, by their keys."""

    def __init__(self, settings: Settings) -> None:
        keys = dict.fromkeys(settings.api_keys, False) | dict.fromkeys(settings.admin_keys, True)
        self._several = len(keys) + settings.no_auth > 1
        self._share = settings.share_prefixes
        self.are_apart = self._several and not self._share  # each has prefixes of its own
        self._secret = token_bytes(32)
        self._known: dict[bytes, Caller] = {}
        self._keys: dict[str, bytes] = {}  # by the names of their callers
        numbers = {False: count(1), True: count(1)}
        for key, admin in keys.items():
            digest = self._digest(key.encode())
            label = f"{'admin' if admin else 'key'}-{next(numbers[admin])}"
            caller = self._known[digest] = self._caller(digest.hex()[:16], admin, label)
            self._keys[caller.name] = key.encode()
        self.need_keys = bool(keys) and not settings.no_auth
        self.nobody = self._caller("", admin=not keys and settings.loopback)

    def _caller(self, name: str, admin: bool, label: str = "") -> Caller:
        salt = name if self.are_apart else ""
        shares = self._several and self._share and not admin
        return Caller(name, admin, salt, shares, label)

    def find(self, authorization: bytes, key: bytes = b"") -> Caller:
        """The caller with an Authorization header; raises unless it holds a known key, where one is needed.

        `key` is that of an `x-api-key` header, as Anthropic's clients send it; Authorization goes first.
        Keys are compared by their keyed hashes, so the time it takes tells nothing about them.
        """
        if key and not authorization:
            authorization = b"Bearer " + key
        if not self._known or (not authorization and not self.need_keys):
            return self.nobody
        scheme, _, key = authorization.partition(b" ")
        caller = self._known.get(self._digest(key.strip()))
        if caller is None or scheme.lower() != b"bearer":
            reason = "this API key is not right" if authorization else "there is no API key"
            raise ApiError(
                401, f"{reason}; send Authorization: Bearer KEY, or x-api-key: KEY", code="invalid_api_key"
            )
        return caller

    def owners(self, secret: bytes) -> dict[str, Caller]:
        """All callers, by names that stay the same over restarts: keyed hashes of their keys."""
        found = {
            hmac.digest(secret, self._keys[caller.name], "sha256").hex()[:32]: caller
            for caller in self._known.values()
        }
        return {"nobody": self.nobody, **found}

    def _digest(self, key: bytes) -> bytes:
        return hmac.digest(self._secret, key, "sha256")


def caller_of(request: Request) -> Caller:
    """Who sent a request."""
    caller: Caller = request.scope[CALLER]
    return caller


def require_admin(request: Request) -> None:
    """Raise unless an administrator sent the request."""
    if not caller_of(request).admin:
        raise ApiError(
            403,
            "this is administration and needs an admin key; the operator sets one with --admin-key",
            code="admin_only",
        )

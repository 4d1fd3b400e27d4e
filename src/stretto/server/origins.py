"""Web pages that may use the server, by their Origin header: our own, and those that the operator allows.

A page from elsewhere is refused unless `--allow-origin` names it. With `--allow-origin '*'` every page may
ask, as with llama-server, and its browser may read the answers; `--allow-origin localhost` means every page
that this machine itself serves, at any port. Without keys such pages are no administrators, whatever others
on this machine are.
"""

from __future__ import annotations

from collections.abc import Collection

from stretto.server.errors import ApiError
from stretto.server.hosts import host_of, is_loopback

ANY = "*"
LOCAL = "localhost"
METHODS = b"GET, POST, DELETE"
HEADERS = b"authorization, content-type, x-api-key, anthropic-version, anthropic-beta"
Header = tuple[bytes, bytes]


def check_origin(origin: str, host: str, allowed: Collection[str]) -> bool:
    """Whether a page is one from elsewhere; raises if it may not ask."""
    scheme, separator, netloc = origin.partition("://")
    is_web = bool(separator) and scheme in ("http", "https")
    if is_web and netloc == host:
        return False
    if origin in allowed or ANY in allowed:
        return True
    if LOCAL in allowed and is_web and is_loopback(host_of(netloc) or ""):
        return True
    if is_web and host_of(netloc) is None:
        raise ApiError(400, f"the Origin header {origin[:100]!r} is no origin", code="invalid_origin")
    raise ApiError(
        403, "pages from elsewhere may not use this server; --allow-origin allows one", code="wrong_origin"
    )


def is_wide(allowed: Collection[str]) -> bool:
    """Whether pages may ask that the operator did not name one by one."""
    return ANY in allowed or LOCAL in allowed


def answer_headers(origin: bytes) -> list[Header]:
    """Headers that let a browser show an answer to its page."""
    return [(b"access-control-allow-origin", origin), (b"vary", b"origin")]


def preflight_headers(allowed: Collection[str]) -> list[Header]:
    """Headers that tell a browser what its page may do; those of llama-server, where many may ask."""
    if not is_wide(allowed):
        return [(b"access-control-allow-methods", METHODS), (b"access-control-allow-headers", HEADERS)]
    return [
        (b"access-control-allow-credentials", b"true"),
        (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
        (b"access-control-allow-headers", b"*"),
    ]

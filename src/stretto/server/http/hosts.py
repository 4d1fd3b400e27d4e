"""Names that a server answers to: against web pages that reach it under a name of their own (DNS rebinding).

A page at `evil.example` may let that name point to 127.0.0.1 and then read what it likes, because to the
browser it is the page's own server. Its Host header tells such a request apart: it has the page's name.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection

from stretto.server.http.errors import ApiError

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?")
_PORT = re.compile(r"(:[0-9]{1,5})?")


def parse_host(header: str) -> str | None:
    """The host in a Host header, without its port and in lower case; None if it is none.

    >>> parse_host("[::1]:8080"), parse_host("Localhost:80"), parse_host("[")
    ('::1', 'localhost', None)
    """
    if header.startswith("["):
        inside, bracket, port = header[1:].partition("]")
        is_host = bracket == "]" and _address(inside) is not None and ":" in inside
        return inside.lower() if is_host and _PORT.fullmatch(port) else None
    name, colon, port = header.partition(":")
    return name.lower() if _NAME.fullmatch(name) and _PORT.fullmatch(colon + port) else None


def is_loopback(host: str) -> bool:
    """Whether a host is this machine: `localhost`, or an address that says so itself.

    >>> is_loopback("127.0.0.1"), is_loopback("127.0.0.1.evil.example"), is_loopback("127.evil.example")
    (True, False, False)
    """
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def is_literal(host: str) -> bool:
    """Whether a host is an address rather than a name, which somebody could let point anywhere."""
    return _address(host) is not None


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


# Web pages that may use the server, by their Origin header: our own, and those that the operator allows.
#
# A page from elsewhere is refused unless `--allow-origin` names it. With `--allow-origin '*'` every page
# may ask, as with llama-server, and its browser may read the answers; `--allow-origin localhost` means
# every page that this machine itself serves, at any port. Without keys such pages are no administrators,
# whatever others on this machine are.

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
    if LOCAL in allowed and is_web and is_loopback(parse_host(netloc) or ""):
        return True
    if is_web and parse_host(netloc) is None:
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

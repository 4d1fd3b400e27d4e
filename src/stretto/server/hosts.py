"""Names that a server answers to: against web pages that reach it under a name of their own (DNS rebinding).

A page at `evil.example` may let that name point to 127.0.0.1 and then read what it likes, because to the
browser it is the page's own server. Its Host header tells such a request apart: it has the page's name.
"""

from __future__ import annotations

import ipaddress
import re

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?")
_PORT = re.compile(r"(:[0-9]{1,5})?")


def host_of(header: str) -> str | None:
    """The host in a Host header, without its port and in lower case; None if it is none.

    >>> host_of("[::1]:8080"), host_of("Localhost:80"), host_of("[")
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

"""Images in requests: from `data:` URLs, and from the network if the operator allows that.

A URL of a request may not lead to where the client itself cannot go. So a name is resolved first, every
address it has must be a public one, and the connection goes to that very address: a name that means something
else a moment later changes nothing. Redirects are followed the same way, a few times.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import http.client
import ipaddress
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from urllib.parse import SplitResult, urljoin, urlsplit

from stretto import Image
from stretto.errors import InvalidRequest
from stretto.server.errors import ApiError, unsupported
from stretto.server.settings import RequestLimits, Settings

REDIRECTS = 3
PORTS = {"http": 80, "https": 443}
PIECE = 1 << 16
FETCHING = ThreadPoolExecutor(8, "stretto-fetch")


async def from_url(url: str, param: str, settings: Settings) -> Image:
    """The image that a part of a message names. Nothing but these two kinds of URL is ever opened.

    Fetching has threads of its own: a site that does not answer holds up nobody who wants nothing from it.
    """
    limits = settings.limits
    if url[:5].lower() == "data:":
        _check_size(len(url) * 3 // 4, param, limits)
        return await asyncio.to_thread(_opened, url, param, limits)
    if not settings.remote_images:
        raise unsupported(f"{param}: only data: URLs are taken; the operator has not allowed others", param)
    data = await asyncio.get_running_loop().run_in_executor(FETCHING, fetch, url, param, limits.image)
    return await asyncio.to_thread(_opened, data, param, limits)


async def from_base64(text: str, param: str, settings: Settings) -> Image:
    """An image as Ollama's clients send it."""
    _check_size(len(text) * 3 // 4, param, settings.limits)
    return await asyncio.to_thread(_decoded, text, param, settings.limits)


def _decoded(text: str, param: str, limits: RequestLimits) -> Image:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ApiError(400, f"{param}: this is not base64", param=param, code="invalid_value") from None
    return _opened(data, param, limits)


def _opened(source: str | bytes, param: str, limits: RequestLimits) -> Image:
    try:
        return Image.open(source, max_pixels=limits.pixels)
    except InvalidRequest as error:
        raise ApiError(400, f"{param}: {error}", param=param, code="invalid_image") from None


def _check_size(n: int, param: str, limits: RequestLimits) -> None:
    if n > limits.image:
        said = f"{param}: the image has {n:,} bytes; at most {limits.image:,} are served"
        raise ApiError(400, said, param=param, code="over_limit")


def fetch(url: str, param: str, most: int, seconds: float = 10.0) -> bytes:
    """The bytes behind a public URL; `ApiError` names the field and says what is wrong with it."""
    deadline = time.monotonic() + seconds
    for _ in range(REDIRECTS + 1):
        parts = _split(url, param)
        address = public_address(parts.hostname or "", parts.port or PORTS[parts.scheme], param)
        try:
            found = _get(parts, address, param, most, deadline)
        except (OSError, http.client.HTTPException) as error:
            raise ApiError(
                400, f"{param}: {parts.hostname} cannot be read: {error}", param=param, code="fetch_failed"
            ) from None
        if isinstance(found, bytes):
            return found
        url = urljoin(url, found)
    raise ApiError(400, f"{param}: more than {REDIRECTS} redirects", param=param, code="fetch_failed")


def public_address(host: str, port: int, param: str) -> tuple[str, int]:
    """Where a name leads; refused unless every address it has is public."""
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        raise ApiError(
            400, f"{param}: there is no host {host[:100]!r}", param=param, code="fetch_failed"
        ) from None
    for text in found:
        if not is_public(text):
            raise ApiError(
                400, f"{param}: {host[:100]} is not a public address", param=param, code="private_address"
            )
    return min(found, key=lambda text: (":" in text, text)), port


def is_public(text: str) -> bool:
    """Whether an address is one of the open network, also where it is wrapped into another.

    >>> is_public("93.184.216.34"), is_public("::ffff:127.0.0.1")
    (True, False)
    """
    address = ipaddress.ip_address(text.split("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if inner is not None:
            return is_public(str(inner))
        if address in NAT64:
            return is_public(str(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)))
        if address.is_site_local:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def _split(url: str, param: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        fine = parts.scheme in PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine or parts.username is not None or not url.isascii() or not url.isprintable() or " " in url:
        raise ApiError(
            400, f"{param}: {url[:80]!r} is no http or https URL", param=param, code="invalid_value"
        )
    return parts


def _get(parts: SplitResult, address: tuple[str, int], param: str, most: int, deadline: float) -> bytes | str:
    """The body, or where it has moved to."""
    left = _left(deadline, param)
    connection = http.client.HTTPConnection(
        parts.hostname or "", parts.port or PORTS[parts.scheme], timeout=left
    )
    link = socket.create_connection(address, timeout=left)
    try:
        if parts.scheme == "https":
            link = ssl.create_default_context().wrap_socket(link, server_hostname=parts.hostname)
        connection.sock = link
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", path, headers={"user-agent": "stretto", "accept": "image/*"})
        with closing(connection.getresponse()) as answer:
            return _taken(answer, link, parts, param, most, deadline)
    finally:
        connection.close()
        link.close()


def _taken(
    answer: http.client.HTTPResponse,
    link: socket.socket,
    parts: SplitResult,
    param: str,
    most: int,
    deadline: float,
) -> bytes | str:
    moved = answer.headers.get("location")
    if answer.status in (301, 302, 303, 307, 308) and moved:
        return moved
    if answer.status != 200:
        said = f"{param}: {parts.hostname} answered with {answer.status}"
        raise ApiError(400, said, param=param, code="fetch_failed")
    return _read(answer, link, param, most, deadline)


def _read(
    answer: http.client.HTTPResponse, link: socket.socket, param: str, most: int, deadline: float
) -> bytes:
    pieces: list[bytes] = []
    n = 0
    while True:
        link.settimeout(_left(deadline, param))
        piece = answer.read1(PIECE)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
        n += len(piece)
        if n > most:
            raise ApiError(
                400, f"{param}: the image has more than {most:,} bytes", param=param, code="over_limit"
            )


def _left(deadline: float, param: str) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise ApiError(400, f"{param}: fetching it took too long", param=param, code="fetch_failed")
    return left

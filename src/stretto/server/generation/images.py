"""Images and sounds in requests: from `data:` URLs, and from the network if the operator allows that.

Against server-side request forgery a name is resolved first, all its addresses must be public, and the
connection goes to the checked address, so DNS rebinding changes nothing. Redirects are followed the same way,
a few times.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import http.client
import ipaddress
import math
import socket
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import closing, suppress
from functools import partial
from typing import TypeVar
from urllib.parse import SplitResult, urljoin, urlsplit

from stretto import Audio, Image
from stretto.audio.clip import decode_base64
from stretto.server.http.errors import ApiError, blame_field, field_error, unsupported
from stretto.server.settings import RequestLimits, Settings
from stretto.vision.apart import DecodingPool
from stretto.vision.image import decode_url

MAX_REDIRECTS = 3
PORTS = {"http": 80, "https": 443}
CHUNK_BYTES = 1 << 16
FETCH_POOL = ThreadPoolExecutor(8, "stretto-fetch")
N_DECODERS = 2  # processes; those that wait for one have a thread each
DECODE_THREADS = ThreadPoolExecutor(2 * N_DECODERS, "stretto-decode")
DECODERS = DecodingPool(N_DECODERS)

Source = TypeVar("Source", str, bytes)
Medium = TypeVar("Medium", Image, Audio)


async def from_url(url: str, param: str, settings: Settings) -> Image:
    """The image at a `data:` or http(s) URL. No other kind of URL is ever opened.

    Downloads have a thread pool of their own: a site that does not answer delays no other requests.
    """
    limits = settings.limits
    if url[:5].lower() == "data:":
        _check_size(len(url) * 3 // 4, param, limits)
        return await _in_pool(_from_data_url, url, param, limits)
    if not settings.remote_images:
        raise unsupported(f"{param}: only data: URLs are taken; the operator has not allowed others", param)
    data = await asyncio.get_running_loop().run_in_executor(FETCH_POOL, fetch, url, param, limits.image)
    return await _in_pool(_opened, data, param, limits)


async def from_base64(text: str, param: str, settings: Settings) -> Image:
    """An image as Ollama's clients send it."""
    _check_size(len(text) * 3 // 4, param, settings.limits)
    return await _in_pool(_decoded, text, param, settings.limits)


async def from_audio(text: str, param: str, settings: Settings, max_seconds: float) -> Audio:
    """A sound of at most so many seconds, in base64 as OpenAI's clients send it."""
    return await _in_pool(partial(_heard, max_seconds=max_seconds), text, param, settings.limits)


def _heard(text: str, param: str, limits: RequestLimits, max_seconds: float) -> Audio:
    with blame_field(param, "invalid_audio"):
        return Audio.open(decode_base64(text), max_seconds=max_seconds)


async def _in_pool(
    work: Callable[[Source, str, RequestLimits], Medium], source: Source, param: str, limits: RequestLimits
) -> Medium:
    """Run in the threads that wait for decoders: texts need those of the event loop."""
    return await asyncio.get_running_loop().run_in_executor(DECODE_THREADS, work, source, param, limits)


def _from_data_url(url: str, param: str, limits: RequestLimits) -> Image:
    with blame_field(param, "invalid_image"):
        data = decode_url(url)
    return _opened(data, param, limits)


def _decoded(text: str, param: str, limits: RequestLimits) -> Image:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise field_error(param, f"{param}: this is not base64") from None
    return _opened(data, param, limits)


def _opened(data: bytes, param: str, limits: RequestLimits) -> Image:
    try:
        with blame_field(param, "invalid_image"):
            return Image(DECODERS.decode(data, limits.pixels))
    except OSError as error:  # no descriptors or no memory for a process
        message = f"{param}: no image can be decoded now: {error.strerror or error}"
        raise ApiError(503, message, param=param, code="overloaded", retry_after=1) from None


def _check_size(n: int, param: str, limits: RequestLimits) -> None:
    if n > limits.image:
        message = f"{param}: the image has {n:,} bytes; at most {limits.image:,} are served"
        raise field_error(param, message, "over_limit")


def fetch(url: str, param: str, most: int, seconds: float = 10.0) -> bytes:
    """Download the bytes of a public URL; `ApiError` names the field and the reason."""
    deadline = time.monotonic() + seconds
    for _ in range(MAX_REDIRECTS + 1):
        parts = _split(url, param)
        address = public_address(parts.hostname or "", parts.port or PORTS[parts.scheme], param, deadline)
        try:
            body = _get(parts, address, param, most, deadline)
        except (OSError, http.client.HTTPException) as error:
            raise field_error(
                param, f"{param}: {parts.hostname} cannot be read: {error}", "fetch_failed"
            ) from None
        if isinstance(body, bytes):
            return body
        url = urljoin(url, body)
    raise field_error(param, f"{param}: more than {MAX_REDIRECTS} redirects", "fetch_failed")


def public_address(host: str, port: int, param: str, deadline: float = math.inf) -> tuple[str, int]:
    """The address of a host; refused unless all its addresses are public."""
    try:
        addresses = _resolve(host, port, param, deadline)
    except (OSError, UnicodeError):
        raise field_error(param, f"{param}: there is no host {host[:100]!r}", "fetch_failed") from None
    for text in addresses:
        if not is_public(text):
            raise field_error(param, f"{param}: {host[:100]} is not a public address", "private_address")
    return min(addresses, key=lambda text: (":" in text, text)), port


def _resolve(host: str, port: int, param: str, deadline: float) -> set[str]:
    """The addresses of a host; the system's resolver has no deadline, so its thread may be left."""
    future: Future[set[str]] = Future()

    def work() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            future.set_result({str(info[4][0]) for info in found})
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="stretto-resolve", daemon=True).start()
    left = deadline - time.monotonic()
    try:
        return future.result(None if left == math.inf else max(0.0, left))
    except FutureTimeout:
        _left(deadline, param)
        raise


def is_public(text: str) -> bool:
    """Whether an address is public, also if it is an IPv4 address inside an IPv6 one.

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
        is_http = parts.scheme in PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_http = False
    if not is_http or parts.username is not None or not url.isascii() or not url.isprintable() or " " in url:
        raise field_error(param, f"{param}: {url[:80]!r} is no http or https URL")
    return parts


def _get(parts: SplitResult, address: tuple[str, int], param: str, most: int, deadline: float) -> bytes | str:
    """The body, or the location of a redirect.

    The socket's own timeout counts from the last byte, so a site that drips could hold a thread for ever: a
    timer shuts the connection at the deadline, whatever is being read.
    """
    left = _left(deadline, param)
    connection = http.client.HTTPConnection(
        parts.hostname or "", parts.port or PORTS[parts.scheme], timeout=left
    )
    link = socket.create_connection(address, timeout=left)
    links = [link]
    timer = threading.Timer(_left(deadline, param), _shut, [links])
    timer.daemon = True
    timer.start()
    try:
        if parts.scheme == "https":
            link = ssl.create_default_context().wrap_socket(link, server_hostname=parts.hostname)
            links.append(link)
        connection.sock = link
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", path, headers={"user-agent": "stretto", "accept": "image/*"})
        with closing(connection.getresponse()) as answer:
            return _body_or_location(answer, parts, param, most, deadline)
    except (OSError, ValueError, http.client.HTTPException):
        _left(deadline, param)  # if it was the timer, that is the reason
        raise
    finally:
        timer.cancel()
        connection.close()
        link.close()


def _shut(links: list[socket.socket]) -> None:
    """End what is being read or written, from another thread; the descriptor stays its owner's."""
    with suppress(OSError):
        socket.socket.shutdown(links[-1], socket.SHUT_RDWR)


def _body_or_location(
    answer: http.client.HTTPResponse, parts: SplitResult, param: str, most: int, deadline: float
) -> bytes | str:
    location = answer.headers.get("location")
    if answer.status in (301, 302, 303, 307, 308) and location:
        return location
    if answer.status != 200:
        message = f"{param}: {parts.hostname} answered with {answer.status}"
        raise field_error(param, message, "fetch_failed")
    return _read(answer, param, most, deadline)


def _read(answer: http.client.HTTPResponse, param: str, most: int, deadline: float) -> bytes:
    pieces: list[bytes] = []
    n = 0
    while piece := answer.read1(CHUNK_BYTES):
        _left(deadline, param)
        pieces.append(piece)
        n += len(piece)
        if n > most:
            raise field_error(param, f"{param}: the image has more than {most:,} bytes", "over_limit")
    _left(deadline, param)  # or else the end may be the timer's
    return b"".join(pieces)


def _left(deadline: float, param: str) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise field_error(param, f"{param}: fetching it took too long", "fetch_failed")
    return left

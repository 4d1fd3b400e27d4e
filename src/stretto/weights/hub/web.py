"""HTTP for the Hub and for links: redirects, tokens, retries, and errors that say what to do.

    web = Web("https://huggingface.co", token)
    web.json("/api/models/org/repo?blobs=true")
    with web.open("/org/repo/resolve/main/model.gguf", {"Range": "bytes=0-99"}) as answer:
        answer.read(100)

The standard library's client is used: it knows the proxies of the environment and the system's certificates.
The token goes to the Hub's own host; a redirect to another host is followed without it.
"""

from __future__ import annotations

import json
import os
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from stretto.errors import PullError

DEFAULT_ENDPOINT = "https://huggingface.co"
TIMEOUT_SECONDS = 30.0
BACKOFF_SECONDS = 1.0  # before the second attempt; doubled each time
ATTEMPTS = 5
OFFLINE_ATTEMPTS = 2  # where there is nobody at all: whoever is offline should not wait
MAX_WAIT_SECONDS = 120.0  # a server that asks for more is not waited for
MAX_REDIRECTS = 8
MAX_JSON_BYTES = 64 << 20

Wait = Callable[[float], None]  # waits that many seconds, or raises to stop


class Answer:
    """A server's answer: status, body, and headers by lower-case names, with the redirects' own ones."""

    def __init__(self, response: Any, url: str, linked: Mapping[str, str]) -> None:
        self.status: int = response.status
        self.url = url
        self.headers: dict[str, str] = {**linked, **_headers(response)}
        self._response = response

    def read(self, most: int) -> bytes:
        """The next bytes, as many as have come and at most `most`; empty at the end."""
        data: bytes = self._response.read1(most)
        return data

    @property
    def length(self) -> int | None:
        """The announced length of the body."""
        text = self.headers.get("content-length", "")
        return int(text) if text.isdecimal() else None

    def close(self) -> None:
        """Close the connection."""
        self._response.close()

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Unreachable(PullError):
    """There is no server at all: no network, or a wrong address."""


class Broken(Exception):
    """A connection that failed or a server that asks to come back; `seconds` is how long to wait, if said."""

    def __init__(self, message: str, seconds: float | None = None, attempts: int = ATTEMPTS) -> None:
        super().__init__(message)
        self.seconds = seconds
        self.attempts = attempts  # that are worth it


class Web:
    """Requests to one host and to where it redirects."""

    def __init__(
        self, endpoint: str = DEFAULT_ENDPOINT, token: str | None = None, seconds: float = TIMEOUT_SECONDS
    ) -> None:
        self.endpoint = endpoint.rstrip("/")
        self._token = token
        self._seconds = seconds
        from stretto.weights.hub.transport import Client  # see there

        self._client = Client()

    @classmethod
    def hub(cls, seconds: float = TIMEOUT_SECONDS) -> Web:
        """The Hub that the environment names, with its token."""
        if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
            raise PullError("HF_HUB_OFFLINE is set; unset it to use the Hub")
        return cls(os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT, _token(), seconds)

    def open(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        """One request, redirects followed; `Broken` if it may work later, `PullError` if not."""
        url = path if "://" in path else self.endpoint + path
        linked: dict[str, str] = {}
        for _ in range(MAX_REDIRECTS):
            answer = self._once(url, headers or {}, linked)
            if answer.status not in (301, 302, 303, 307, 308):
                return self._checked(answer)
            answer.close()
            linked |= {name: text for name, text in answer.headers.items() if name.startswith("x-")}
            target = urllib.parse.urljoin(url, answer.headers.get("location", ""))
            _check_redirect(url, target)
            url = target
        raise PullError(f"{_shown(url)}: more than {MAX_REDIRECTS} redirects")

    def json(self, path: str, wait: Wait = time.sleep) -> dict[str, Any]:
        """The JSON object of an address."""

        def fetch() -> bytes:
            with self.open(path) as answer:
                return read_all(answer, MAX_JSON_BYTES)

        try:
            value = json.loads(retrying(fetch, wait))
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise PullError(f"{_shown(self.endpoint + path)}: the answer is no JSON object; is it a Hub?")
        return value

    def _checked(self, answer: Answer) -> Answer:
        """The answer, if it is a success or says that a range was wrong."""
        if answer.status in (200, 206, 416):
            return answer
        answer.close()
        status, url = answer.status, _shown(answer.url)
        if status == 429 or status >= 500:
            raise Broken(f"{url} answers {status}", _retry_after(answer.headers.get("retry-after")))
        remedy = "the server refuses the request"
        if _origin(answer.url) == _origin(self.endpoint):
            code = answer.headers.get("x-error-code", "GatedRepo" if status == 403 else "")
            remedy = _remedy(status, code, self._token is not None)
        raise PullError(f"{remedy} ({url} answers {status})")

    def _once(self, url: str, headers: Mapping[str, str], linked: Mapping[str, str]) -> Answer:
        _check_address(url)
        sent = {"User-Agent": "stretto", "Accept-Encoding": "identity", **headers}
        if self._token is not None and _origin(url) == _origin(self.endpoint):
            sent["Authorization"] = f"Bearer {self._token}"
        from stretto.weights.hub.transport import FAILURES

        try:
            return Answer(self._client.open(url, sent, self._seconds), url, linked)
        except FAILURES as error:
            reason = getattr(error, "reason", None) or error
            raise Broken(f"{_shown(url)} cannot be reached ({reason})", attempts=OFFLINE_ATTEMPTS) from None
        except ValueError as error:  # an address that cannot be
            raise PullError(f"{_shown(url)}: {error}") from None


def retrying(fetch: Callable[[], Any], wait: Wait = time.sleep) -> Any:
    """Call `fetch` until it succeeds, a few times; `PullError` in the end."""
    for attempt in range(ATTEMPTS):
        try:
            return fetch()
        except Broken as broken:
            pause(broken, attempt, wait)
    raise AssertionError("unreachable")


def pause(broken: Broken, attempt: int, wait: Wait) -> None:
    """Wait before the next attempt; raise if this was the last, or if the server asks for too long."""
    seconds = BACKOFF_SECONDS * 2**attempt if broken.seconds is None else broken.seconds
    if attempt + 1 >= broken.attempts or seconds > MAX_WAIT_SECONDS:
        remedy = "check the network and the proxy, or try again later"
        if broken.seconds is not None:
            remedy = f"it asks to wait {seconds:,.0f} seconds; try again then, or log in for higher limits"
        kind = PullError if broken.attempts == ATTEMPTS else Unreachable
        raise kind(f"{broken}; {remedy}") from None
    wait(seconds)


def read_all(answer: Answer, most: int) -> bytes:
    """The whole body; `PullError` if it is longer than `most`, `Broken` if it is cut off."""
    chunks, size = [], 0
    with connection(answer.url):
        while chunk := answer.read(1 << 16):
            chunks.append(chunk)
            size += len(chunk)
            if size > most:
                raise PullError(f"{_shown(answer.url)}: more than {most} bytes")
    if answer.length is not None and size < answer.length:
        raise Broken(f"{_shown(answer.url)} sent {size} of {answer.length} bytes")
    return b"".join(chunks)


@contextmanager
def connection(url: str) -> Iterator[None]:
    """A block in which errors of the connection become `Broken`."""
    from stretto.weights.hub.transport import BROKEN

    try:
        yield
    except BROKEN as error:
        raise Broken(f"the connection to {_shown(url)} broke ({error or type(error).__name__})") from None


def _remedy(status: int, code: str, has_token: bool) -> str:
    if code == "GatedRepo":
        token = "with the account of your token" if has_token else "then set HF_TOKEN to a token of yours"
        return f"its owner asks for consent: accept the terms on the model's page, {token}"
    if code == "EntryNotFound":
        return "the repository has no such file; look at its list of files"
    if code == "RevisionNotFound":
        return "the repository has no such revision"
    if status in (401, 404):
        token = "" if has_token else ", or set HF_TOKEN"
        return f"no such repository, or a private one: check the name{token}"
    return "the server refuses the request"


def _retry_after(text: str | None) -> float | None:
    """Seconds to wait, of a number or a date."""
    if text is None:
        return None
    with suppress(ValueError):
        return max(0.0, float(int(text)))
    from stretto.weights.hub.transport import parse_date

    with suppress(ValueError, TypeError, OverflowError):
        return max(0.0, parse_date(text).timestamp() - time.time())
    return None


def _token() -> str | None:
    """The token of the environment, or the one that `hf auth login` has stored."""
    home = os.environ.get("HF_HOME") or os.path.join(  # noqa: PTH118  # "~" is expanded below
        os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface"
    )
    token = os.environ.get("HF_TOKEN", "").strip()
    if not token and not os.environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        with suppress(OSError, ValueError, RuntimeError):
            path = Path(os.environ.get("HF_TOKEN_PATH") or Path(home) / "token").expanduser()
            token = path.read_bytes()[:1024].decode("ascii").strip()
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise PullError("HF_TOKEN has characters that no token has; set it again")
    return token or None


def _headers(response: Any) -> dict[str, str]:
    return {name.lower(): str(text) for name, text in response.headers.items()}


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def _check_address(url: str) -> None:
    """Raise for an address that is neither https, nor http on this machine, nor the configured Hub's."""
    try:
        parts = urllib.parse.urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise PullError(f"{_shown(url)} is no http or https address")


def _check_redirect(source: str, target: str) -> None:
    """Raise for a redirect from https to http."""
    _check_address(target)
    if source.startswith("https:") and not target.startswith("https:"):
        raise PullError(f"{_shown(source)} redirects to {_shown(target)}, which is not encrypted")


def _shown(url: str) -> str:
    """An address without its query, which may hold a signature, and printable."""
    return repr(url.partition("?")[0][:200])[1:-1]

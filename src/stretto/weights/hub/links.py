"""Files behind addresses, of the Hub or of any server: read by range, resumed, verified.

    web = Web.hub()                                     # HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE, … are obeyed
    web.json("/api/models/org/repo?blobs=true")
    download(web, remote, store_folder / "key", report, wait)   # the path of the whole file

Requests go through huggingface_hub's session: it knows the proxies and certificates of the environment, and
whatever a program has set by `set_client_factory`. The token goes to the Hub's own host, and to no other that
it redirects to. The library's own downloads begin again after an interruption; here bytes go into a `.part`
file, whose ETag is in a `.json` file beside it, and the next download continues where it stopped if the
server still has the same file (Range, If-Range).
"""

from __future__ import annotations

import email.utils
import hashlib
import json
import re
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from huggingface_hub import constants, get_session, get_token, hf_raise_for_status
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from stretto.errors import PullError
from stretto.weights.files import atomic_write, read_records
from stretto.weights.hub.store import require_space

TIMEOUT_SECONDS = 30.0
BACKOFF_SECONDS = 1.0  # before the second attempt; doubled each time
ATTEMPTS = 5
OFFLINE_ATTEMPTS = 2  # where there is nobody at all: whoever is offline should not wait
MAX_WAIT_SECONDS = 120.0  # a server that asks for more is not waited for
MAX_REDIRECTS = 8
MAX_JSON_BYTES = 64 << 20
CHUNK_BYTES = 1 << 20

_FAILURES: type[Exception] = HfHubHTTPError.__bases__[0]  # HTTPError of httpx, or of httpx2 since 2.0
_SHA256 = re.compile(r"[0-9a-f]{64}")
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")

Answer = Any  # a response of httpx
Wait = Callable[[float], None]  # waits that many seconds, or raises to stop
Report = Callable[[int], None]  # bytes of this file that are here


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository; `address` is where it is, `nbytes` and the hashes are what the server says."""

    path: str
    address: str
    nbytes: int | None = None
    sha256: str | None = None
    git_id: str | None = None  # of a small file: the SHA-1 of its Git object


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

    def __init__(self, endpoint: str, *, is_hub: bool = False, seconds: float = TIMEOUT_SECONDS) -> None:
        self.endpoint = endpoint.rstrip("/")
        self._is_hub = is_hub
        self._seconds = seconds
        self._token = _token() if is_hub else None

    @classmethod
    def hub(cls, seconds: float = TIMEOUT_SECONDS) -> Web:
        """The Hub that the environment names, with its token."""
        return cls(constants.ENDPOINT or constants.HUGGINGFACE_CO_URL_HOME, is_hub=True, seconds=seconds)

    @contextmanager
    def open(self, path: str, headers: Mapping[str, str] | None = None) -> Iterator[Answer]:
        """One request, redirects followed; `Broken` if it may work later, `PullError` if not."""
        url = path if "://" in path else self.endpoint + path
        sent = {"User-Agent": "stretto", "Accept-Encoding": "identity", **(headers or {})}
        if self._token is not None and _origin(url) == _origin(self.endpoint):
            sent["Authorization"] = f"Bearer {self._token}"
        answer = self._follow(url, sent)
        try:
            self._check(answer)
            yield answer
        finally:
            answer.close()

    def json(self, path: str, wait: Wait = time.sleep) -> dict[str, Any]:
        """The JSON object of an address."""

        def fetch() -> bytes:
            data = bytearray()
            with self.open(path) as answer:
                for chunk in _chunks(answer):
                    data += chunk
                    if len(data) > MAX_JSON_BYTES:
                        raise PullError(f"{_shown(answer.url)}: more than {MAX_JSON_BYTES} bytes")
            return bytes(data)

        try:
            value = json.loads(retrying(fetch, wait))
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise PullError(f"{_shown(self.endpoint + path)}: the answer is no JSON object; is it a Hub?")
        return value

    def _follow(self, url: str, headers: Mapping[str, str]) -> Answer:
        """The answer at the end of redirects, with their `x-` headers where it has none of its own."""
        _check_address(url)
        client, linked = get_session(), dict[str, str]()
        try:
            request = client.build_request("GET", url, headers=headers, timeout=self._seconds)
        except Exception as error:  # an address that cannot be
            raise PullError(f"{_shown(url)}: {error}") from None
        for _ in range(MAX_REDIRECTS):
            try:
                answer = client.send(request, stream=True, follow_redirects=False)
            except OfflineModeIsEnabled:
                raise PullError("HF_HUB_OFFLINE is set; unset it to use the Hub") from None
            except _FAILURES as error:
                message = f"{_shown(request.url)} cannot be reached ({error})"
                raise Broken(message, attempts=OFFLINE_ATTEMPTS) from None
            if answer.next_request is None:
                for name, text in linked.items():
                    answer.headers.setdefault(name, text)
                return answer
            answer.close()
            linked |= {name: text for name, text in answer.headers.items() if name.startswith("x-")}
            check_redirect(str(request.url), str(answer.next_request.url))
            request = answer.next_request  # without the token, if it is another host's
        raise PullError(f"{_shown(url)}: more than {MAX_REDIRECTS} redirects")

    def _check(self, answer: Answer) -> None:
        """Raise unless the answer is a success or says that a range was wrong."""
        status, url = answer.status_code, _shown(answer.url)
        if status in (200, 206, 416):
            return
        if status == 429 or status >= 500:
            raise Broken(f"{url} answers {status}", _retry_after(answer.headers.get("retry-after")))
        is_own = self._is_hub and _origin(str(answer.url)) == _origin(self.endpoint)
        remedy = "there is no such file" if status in (404, 410) else "the server refuses the request"
        if is_own:
            remedy = _remedy(answer, self._token is not None)
        raise PullError(f"{remedy} ({url} answers {status})")


def retrying(fetch: Callable[[], Any], wait: Wait = time.sleep) -> Any:
    """Call `fetch` until it succeeds, a few times; `PullError` in the end."""
    for attempt in range(ATTEMPTS):
        try:
            return fetch()
        except Broken as broken:
            _pause(broken, attempt, wait)
    raise AssertionError("unreachable")


def _pause(broken: Broken, attempt: int, wait: Wait) -> None:
    """Wait before the next attempt; raise if this was the last, or if the server asks for too long."""
    seconds = BACKOFF_SECONDS * 2**attempt if broken.seconds is None else broken.seconds
    if attempt + 1 >= broken.attempts or seconds > MAX_WAIT_SECONDS:
        remedy = "check the network and the proxy, or try again later"
        if broken.seconds is not None:
            remedy = f"it asks to wait {seconds:,.0f} seconds; try again then, or log in for higher limits"
        kind = PullError if broken.attempts == ATTEMPTS else Unreachable
        raise kind(f"{broken}; {remedy}") from None
    wait(seconds)


def _chunks(answer: Answer) -> Iterator[bytes]:
    """The body as it comes; `Broken` if the connection breaks."""
    try:
        yield from answer.iter_raw()
    except _FAILURES as error:
        raise Broken(
            f"the connection to {_shown(answer.url)} broke ({error or type(error).__name__})"
        ) from None


def _remedy(answer: Answer, has_token: bool) -> str:
    """What to do about an answer of the Hub."""
    status = answer.status_code
    try:
        hf_raise_for_status(answer)
    except EntryNotFoundError:
        return "the repository has no such file; look at its list of files"
    except RevisionNotFoundError:
        return "the repository has no such revision"
    except _FAILURES as error:
        if isinstance(error, GatedRepoError) or status == 403:
            token = "with the account of your token" if has_token else "then set HF_TOKEN to a token of yours"
            return f"its owner asks for consent: accept the terms on the model's page, {token}"
        if isinstance(error, RepositoryNotFoundError) or status in (401, 404):
            token = "" if has_token else ", or set HF_TOKEN"
            return f"no such repository, or a private one: check the name{token}"
    return "the server refuses the request"


def _retry_after(text: str | None) -> float | None:
    """Seconds to wait, of a number or a date."""
    if text is None:
        return None
    with suppress(ValueError):
        return max(0.0, float(int(text)))
    with suppress(ValueError, TypeError, OverflowError):
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    return None


def _token() -> str | None:
    """The token of the environment, or the one that `hf auth login` has stored."""
    if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
        return None
    try:
        token = get_token() or ""
    except (OSError, ValueError):  # the stored one cannot be read
        return None
    except Exception as error:  # an exchange of tokens that the environment asks for
        raise PullError(f"there is no token for the Hub: {error}") from None
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise PullError("HF_TOKEN has characters that no token has; set it again")
    return token or None


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def _check_address(url: str) -> None:
    """Raise for an address that is neither https nor http."""
    try:
        parts = urllib.parse.urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise PullError(f"{_shown(url)} is no http or https address")


def check_redirect(source: str, target: str) -> None:
    """Raise for a redirect from https to http."""
    _check_address(target)
    if source.startswith("https:") and not target.startswith("https:"):
        raise PullError(f"{_shown(source)} redirects to {_shown(target)}, which is not encrypted")


def _shown(url: object) -> str:
    """An address without its query, which may hold a signature, and printable."""
    return repr(str(url).partition("?")[0][:200])[1:-1]


# -- files --


def make_key(remote: RemoteFile) -> str:
    """The name of a file's download: the same content has the same one, wherever it comes from."""
    return remote.sha256 or hashlib.sha256(f"{remote.address} {remote.git_id}".encode()).hexdigest()


def with_facts(web: Web, remote: RemoteFile, wait: Wait) -> RemoteFile:
    """The file with its size and hash, asked from the server unless they are known."""
    if remote.nbytes is not None and (remote.sha256 or remote.git_id):
        return remote

    def ask() -> Answer:
        # Not HEAD: storage hosts sign addresses for GET only.
        with web.open(remote.address, {"Range": "bytes=0-0"}) as answer:
            return answer

    answer: Answer = retrying(ask, wait)
    linked = answer.headers.get("x-linked-size", "")
    size = _announced(answer)
    size = int(linked) if linked.isdecimal() else size
    etag = (answer.headers.get("x-linked-etag") or answer.headers.get("etag", "")).strip('"').lower()
    if remote.nbytes is None and (size is None or size < 0):
        raise PullError(f"{remote.path}: the server does not say how large it is")
    return replace(
        remote,
        nbytes=size if remote.nbytes is None else remote.nbytes,
        sha256=remote.sha256 or (etag if _SHA256.fullmatch(etag) else None),
    )


def read_range(web: Web, remote: RemoteFile, first: int, count: int) -> bytes:
    """Bytes of a file, `count` of them or as many as there are; `Broken` if they do not all come."""
    with web.open(remote.address, {"Range": f"bytes={first}-{first + count - 1}"}) as answer:
        if answer.status_code == 416:
            return b""
        if answer.status_code == 206 and _range(answer)[0] != first:
            raise PullError(f"{remote.path}: the server sends another range than it was asked for")
        skip = first if answer.status_code == 200 else 0  # a server without ranges sends it all
        data = bytearray()
        for chunk in _chunks(answer):
            data += chunk[skip:]
            skip = max(0, skip - len(chunk))
            if len(data) >= count:
                break
    if len(data) < count and (remote.nbytes is None or first + len(data) < remote.nbytes):
        raise Broken(f"{remote.path}: the server sent {len(data)} of {count} bytes")
    return bytes(data[:count])


def download(web: Web, remote: RemoteFile, place: Path, report: Report, wait: Wait) -> Path:
    """Fetch a file whose size is known to `place`.part, from where an earlier attempt stopped."""
    part, failures = place.with_name(f"{place.name}.part"), 0
    part.touch()
    while True:
        before = _size(part)
        try:
            if before != remote.nbytes:
                _stream(web, remote, part, report)
            return part
        except Broken as broken:
            failures = 0 if _size(part) > before else failures + 1
            _pause(broken, failures, wait)


def discard_download(place: Path) -> None:
    """Remove what a download has left."""
    for ending in (".part", ".json"):
        place.with_name(place.name + ending).unlink(missing_ok=True)


def verify(part: Path, remote: RemoteFile, shown: str, whole: hashlib._Hash, report: Report) -> str:
    """The file's SHA-256, if size and hash are those that are published; `whole` gets its bytes too."""
    size = _size(part)
    if size != remote.nbytes:
        raise PullError(f"{shown} arrived with {size} of {remote.nbytes} bytes; pull it again")
    digest, git = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with part.open("rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            whole.update(chunk)
            if remote.git_id:
                git.update(chunk)
            report(source.tell())
    if remote.sha256 and digest.hexdigest() != remote.sha256:
        raise PullError(
            f"{shown} arrived with SHA-256 {digest.hexdigest()} instead of {remote.sha256}; pull it again"
        )
    if remote.git_id and git.hexdigest() != remote.git_id:
        raise PullError(
            f"{shown} arrived with Git's hash {git.hexdigest()} instead of {remote.git_id}; pull it again"
        )
    return digest.hexdigest()


def _stream(web: Web, remote: RemoteFile, part: Path, report: Report) -> None:
    """Append what is missing, or begin again if the server has another file now."""
    total = remote.nbytes or 0
    start, etag = _resume_point(part, remote)
    headers = {"Range": f"bytes={start}-"} if start else {}
    if start and etag:
        headers["If-Range"] = etag
    with web.open(remote.address, headers) as answer:
        status = answer.status_code
        if status == 416 or (status == 206 and _range(answer)[0] != start):
            part.unlink(missing_ok=True)
            raise Broken(f"{remote.path}: the server cannot continue the download")
        start = start if status == 206 else 0
        announced = _announced(answer)
        if announced is not None and announced != total:
            raise PullError(
                f"{remote.path}: the server sends {announced} bytes, and {total} are listed; pull it again"
            )
        require_space(part.parent, total - start)
        with part.open("r+b" if start else "wb") as file:
            file.truncate(start)
            file.seek(start)
            _remember(part, answer.headers.get("etag", ""))
            report(start)
            for chunk in _chunks(answer):
                start += len(chunk)
                if start > total:
                    raise PullError(
                        f"{remote.path}: more than the {total} bytes that are listed; pull it again"
                    )
                file.write(chunk)
                report(start)
    if start < total:
        raise Broken(f"{remote.path}: the connection ended after {start} of {total} bytes")


def _resume_point(part: Path, remote: RemoteFile) -> tuple[int, str]:
    """How many bytes are here, and the ETag that they came with; none if they cannot be continued."""
    size, etag = _size(part), ""
    with suppress(OSError, ValueError):
        etag = str(read_records(part.with_suffix(".json")).get("etag", ""))
    is_strong = etag.startswith('"') and etag.isascii() and etag.isprintable()
    is_sure = is_strong or remote.sha256 or remote.git_id
    if size >= (remote.nbytes or 0) or not is_sure:
        return 0, ""
    return size, etag if is_strong else ""


def _remember(part: Path, etag: str) -> None:
    with atomic_write(part.with_suffix(".json"), durable=False) as file:
        file.write(json.dumps({"etag": etag}).encode())


def _range(answer: Answer) -> tuple[int, int]:
    """The first byte and the size of the whole, of a partial answer; (-1, -1) if it does not say."""
    match = _RANGE.fullmatch(answer.headers.get("content-range", ""))
    return (int(match[1]), int(match[3])) if match else (-1, -1)


def _announced(answer: Answer) -> int | None:
    """The size of the whole file; -1 if a partial answer does not say, None if a whole one does not."""
    if answer.status_code == 206:
        return _range(answer)[1]
    length = answer.headers.get("content-length", "")
    return int(length) if length.isdecimal() else None


def _size(part: Path) -> int:
    try:
        return part.stat().st_size
    except FileNotFoundError:
        return 0

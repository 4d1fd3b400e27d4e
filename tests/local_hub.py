"""A model hub on this machine, for tests: the list of files, redirects to a storage host, ranges, faults."""

import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import huggingface_hub
import huggingface_hub.constants

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".gguf", ".safetensors", ".bin")  # what is stored with its SHA-256, on another host


class Hub(ThreadingHTTPServer):
    """Serves `files`, org/repo/path each. Storage is the same server by another name, so another host.

    `faults` are used up, one for each request to storage: a status, or a function that is given the handler
    and the bytes to send and sends them. `lies` change the entries of the list, `gated` and `private` are
    repositories; `token` is the one that opens them.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {}
        self.lies = {}
        self.faults = []
        self.api_faults = []
        self.gated, self.private = set(), set()
        self.token = "hf_secret"
        self.license = None
        self.has_ranges = True
        self.etag = None  # of storage; by default made of the content
        self.requests = []  # (method and path, headers)
        self.go = threading.Event()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def storage(self):
        return f"http://localhost:{self.server_address[1]}/storage"

    def paths(self, start=""):
        return [path for path, _ in self.requests if path.startswith(start)]

    def stored(self):
        """The ranges that were asked from storage; None for a whole file."""
        return [headers.get("Range") for path, headers in self.requests if path.startswith("/storage")]

    def server_close(self):
        """Close it to clients that are connected, too."""
        super().server_close()
        huggingface_hub.close_session()

    def handle_error(self, request, client_address):
        """A client that leaves in the middle is what we are here for."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *args):
        """Say nothing."""

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append((path, dict(self.headers)))
        words = path.strip("/").split("/")
        if words[0] == "storage":
            return self.stored("/".join(words[1:]))
        is_api = words[0] == "api"
        repo = "/".join(words[2:4] if is_api else words[:2])
        known = any(name.startswith(f"{repo}/") for name in self.server.files)
        may = self.headers.get("Authorization") == f"Bearer {self.server.token}"
        if is_api and self.server.api_faults:
            return self.fault(self.server.api_faults.pop(0))
        if not known or (repo in self.server.private and not may):
            return self.send(401 if not may else 404, b"", {"X-Error-Code": "RepoNotFound"})
        if is_api:
            return self.api(repo, words[5] if len(words) > 5 else "main")
        if repo in self.server.gated and not may:
            return self.send(401, b"", {"X-Error-Code": "GatedRepo"})
        return self.resolve(repo, "/".join(words[4:]))

    def send(self, status, body, headers=None):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def fault(self, fault, *args):
        if callable(fault):
            return fault(self, *args)
        status, headers = fault if isinstance(fault, tuple) else (fault, {})
        return self.send(status, b"no", headers)

    def api(self, repo, revision):
        if revision not in ("main", "v1.0", COMMIT):
            return self.send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        siblings = []
        for name, data in self.server.files.items():
            if name.startswith(f"{repo}/"):
                entry = {"rfilename": name.removeprefix(f"{repo}/"), "size": len(data)}
                if name.endswith(LARGE):
                    sha = hashlib.sha256(data).hexdigest()
                    entry["lfs"] = {"sha256": sha, "size": len(data), "pointerSize": 130}
                else:
                    entry["blobId"] = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
                siblings.append({**entry, **self.server.lies.get(name, {})})
        card = {"license": self.server.license} if self.server.license else {}
        info = {"id": repo, "sha": COMMIT, "cardData": card, "siblings": siblings}
        return self.send(200, json.dumps(info).encode(), {"Content-Type": "application/json"})

    def resolve(self, repo, path):
        name = f"{repo}/{path}"
        if name not in self.server.files:
            return self.send(404, b"", {"X-Error-Code": "EntryNotFound"})
        data = self.server.files[name]
        if not name.endswith(LARGE):
            return self.send(200, data, {"X-Repo-Commit": COMMIT})
        linked = {
            "Location": f"{self.server.storage}/{name}?signature=xyz",
            "X-Linked-Size": str(len(data)),
            "X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
        }
        return self.send(302, b"", linked)

    def stored(self, name):
        data = self.server.files.get(name)
        if data is None:
            return self.send(404, b"")
        etag = self.server.etag or f'"{hashlib.md5(data).hexdigest()}"'
        start, stop = 0, len(data)
        asked = self.headers.get("Range") if self.server.has_ranges else None
        if self.headers.get("If-Range", etag) != etag:
            asked = None
        headers = {"ETag": etag}
        if asked:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(int(last) + 1 if last else len(data), len(data))
            if start >= len(data):
                return self.send(416, b"")
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        if self.server.faults:
            return self.fault(self.server.faults.pop(0), data[start:stop], headers)
        return self.send(206 if asked else 200, data[start:stop], headers)


def cut(handler, data, headers):
    """Announce everything, and send half of it."""
    handler.send_response(206 if "Content-Range" in headers else 200)
    for name, value in {"Content-Length": str(len(data)), **headers}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(data[: len(data) // 2])
    handler.wfile.flush()
    handler.close_connection = True


def fine(handler, data, headers):
    """Send it as it should be."""
    handler.send(206 if "Content-Range" in headers else 200, data, headers)


def stall(handler, data, headers):
    """Send half, wait for the test, and send the rest."""
    handler.send_response(206 if "Content-Range" in headers else 200)
    for name, value in {"Content-Length": str(len(data)), **headers}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(data[: len(data) // 2])
    handler.wfile.flush()
    handler.server.go.wait(60)
    handler.wfile.write(data[len(data) // 2 :])


@contextmanager
def serving(monkeypatch):
    """A hub in a thread of its own, which the environment names.

    huggingface_hub reads the environment when it is imported: of this process its constants are set.
    """
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_TOKEN_PATH", "HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with Hub() as hub:
        settings = {"HF_ENDPOINT": hub.url, "HF_HOME": "/nonexistent", "NO_PROXY": "*", "no_proxy": "*"}
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        read = {"ENDPOINT": hub.url, "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_IMPLICIT_TOKEN": False}
        read |= dict.fromkeys(("HF_TOKEN_PATH", "HF_STORED_TOKENS_PATH"), "/nonexistent/token")
        for name, value in read.items():
            monkeypatch.setattr(huggingface_hub.constants, name, value)
        huggingface_hub.close_session()  # made of the proxies of the environment
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            hub.go.set()
            hub.shutdown()
            thread.join()

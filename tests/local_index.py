"""A package index on this machine, for tests: tiny wheels and their server."""

import hashlib
import io
import threading
import zipfile
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import numpy as np

from stretto.weights.hub import catalogue
from stretto.weights.hub.catalogue import Member, ModelDefaults, Package, PackagedModel
from stretto.weights.hub.names import Reference
from stretto.weights.writer import write_gguf

# What a command needs to find the server and nothing else, whatever the machine is set up to use.
BARE_PIP = {
    "PIP_CONFIG_FILE": "/dev/null",
    "PIP_NO_CACHE_DIR": "1",
    "PIP_RETRIES": "0",
    "PIP_TIMEOUT": "20",
    "NO_PROXY": "*",
    "no_proxy": "*",
}
PIP_SETTINGS = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX")


def tiny_gguf(folder: Path) -> bytes:
    """A complete file of a megabyte that does not compress, so that it is fetched in several pieces."""
    path = folder / "tiny.gguf"
    metadata = {
        "general.architecture": "llama",
        "general.name": "Tiny",
        "llama.context_length": 4096,
        "llama.embedding_length": 64,
        "llama.block_count": 2,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
    }
    weights = np.random.default_rng(0).random((4096, 64), np.float32)
    write_gguf(path, metadata, {"token_embd.weight": weights})
    return path.read_bytes()


def make_wheel(folder: Path, package: str, members: dict[str, bytes]) -> Path:
    """A wheel with these members, as pip wants it."""
    stem = f"{package.replace('-', '_')}-1.0"
    path = folder / f"{stem}-py3-none-any.whl"
    about = f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
    tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        archive.writestr(f"{stem}.dist-info/METADATA", about)
        archive.writestr(f"{stem}.dist-info/WHEEL", tags)
        archive.writestr(f"{stem}.dist-info/RECORD", "")
    return path


def tiny_entry(wheels: Path, gguf: bytes, n_pieces: int = 1) -> PackagedModel:
    """A model `tiny` of the catalogue, cut into `n_pieces` wheels that lie in `wheels`."""
    cuts = [len(gguf) * number // n_pieces for number in range(n_pieces + 1)]
    made = []
    for number, (start, stop) in enumerate(pairwise(cuts)):
        package = f"stretto-tiny-part{number}"
        members = {"tiny/piece": gguf[start:stop], "tiny/LICENSE": b"Do as you like.\n"}
        path = make_wheel(wheels, package, members)
        notices = (("tiny/LICENSE", "LICENSE"),) if number == 0 else ()
        member = Member("tiny/piece", "tiny.gguf", stop - start)
        made.append(Package("pypi", package, "1.0", path.stat().st_size, (member,), notices))
    sha256 = hashlib.sha256(gguf).hexdigest()
    terms = ("MIT", "https://example.org")
    return PackagedModel("tiny", "gguf", "Tiny", catalogue.CHATS, *terms, tuple(made), sha256)


def install(entry: str) -> None:
    """Make the entry with this `repr` the catalogue: for processes that a test starts."""
    types = (Member, ModelDefaults, Package, PackagedModel, Reference)
    made = eval(entry, {one.__name__: one for one in types})
    catalogue.PACKAGED = {made.name: made}


class Server(ThreadingHTTPServer):
    """Serves the wheels of a folder as an index.

    With `stall`, half of a wheel is sent and the rest when `go` is set; `asked` is set when it was asked for.
    """

    daemon_threads = True

    def __init__(self, wheels: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.wheels = wheels
        self.stall = False
        self.asked, self.go = threading.Event(), threading.Event()
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address) -> None:
        """A client that was killed in the middle is what we are here for."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *args) -> None:
        """Say nothing."""

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        kind, _, rest = self.path.lstrip("/").partition("/")
        if kind == "simple":
            stem = rest.strip("/").replace("-", "_")
            links = [
                f'<a href="/wheels/{w.name}">{w.name}</a>' for w in self.server.wheels.glob(f"{stem}-*.whl")
            ]
            self.send("".join(links).encode(), body, {"Content-Type": "text/html"}, 200 if links else 404)
        else:
            self.wheel((self.server.wheels / Path(rest).name).read_bytes())

    def send(self, data: bytes, body: bool, headers: dict[str, str], status: int = 200) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def wheel(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        half = len(data) // 2 if self.server.stall else len(data)
        self.wfile.write(data[:half])
        self.wfile.flush()
        self.server.asked.set()
        if self.server.stall:
            self.server.go.wait(120)
            self.wfile.write(data[half:])


@contextmanager
def serving(wheels: Path):
    """A server in a thread of its own."""
    with Server(wheels) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.go.set()
            server.shutdown()
            thread.join()


def zip_bytes(members: dict[str, bytes]) -> bytes:
    """An archive in memory."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()

"""Images from the network: only where the client itself could go, and never more than asked for."""

import socket
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from stretto.server.generation import images
from stretto.server.http.errors import ApiError

PRIVATE = [
    "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0", "100.64.0.1",
    "224.0.0.1", "255.255.255.255",
    "::1", "::", "fe80::1", "fc00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
    "2002:7f00:1::", "64:ff9b::7f00:1", "192.0.2.1", "240.0.0.1", "fe80::1%eth0",
    "fec0::1", "::127.0.0.1", "64:ff9b:1::a00:1", "2001:0:4136:e378:8000:63bf:80ff:fffe", "198.18.0.1",
]  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_not_public(address):
    assert not images.is_public(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_public_addresses_are(address):
    assert images.is_public(address)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/x.png",
        "http://localhost:8080/v1/models",
        "http://[::1]/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://169.254.169.254/latest/meta-data",
    ],
)
def test_urls_that_lead_inside_are_refused(url):
    with pytest.raises(ApiError) as refused:
        images.fetch(url, "image", 1000)
    assert refused.value.code in ("private_address", "fetch_failed")
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://x/y",
        "http://",
        "//x",
        "http://a b/",
        "http://u:p@x.example/",
        "http://x:99999/",
    ],
)
def test_what_is_no_url_is_refused(url):
    with pytest.raises(ApiError, match="no http or https URL"):
        images.fetch(url, "image", 1000)


def test_a_name_is_refused_if_any_of_its_addresses_is_private(monkeypatch):
    def resolve(host, port, **options):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in ("8.8.8.8", "10.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(ApiError, match="not a public address"):
        images.fetch("http://both.example/", "image", 1000)


class Pictures(BaseHTTPRequestHandler):
    hosts: ClassVar[list[str]] = []  # by which names it was asked

    def do_GET(self):
        self.hosts.append(self.headers["host"])
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("location", "/here")
            self.end_headers()
        elif self.path == "/inside":
            self.send_response(302)
            self.send_header("location", "http://10.0.0.1/")
            self.end_headers()
        elif self.path == "/round":
            self.send_response(302)
            self.send_header("location", "/round")
            self.end_headers()
        elif self.path == "/slow":
            self.send_response(200)
            self.end_headers()
            for _ in range(20):
                self.wfile.write(b"x")
                self.wfile.flush()
                time.sleep(0.1)
        elif self.path == "/none":
            self.send_error(404)
        else:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"pixels" * 100)

    def log_message(self, *args):
        pass


@pytest.fixture
def site(monkeypatch):
    """A site that counts as public, on this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pictures)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setattr(images, "is_public", lambda text: text == "127.0.0.1")
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_picture_is_fetched_also_where_it_has_moved(site):
    assert images.fetch(f"{site}/here", "image", 1000) == b"pixels" * 100
    assert images.fetch(f"{site}/moved", "image", 1000) == b"pixels" * 100


def test_the_address_that_was_checked_is_the_one_that_is_asked(site, monkeypatch):
    """A name that means something else when it is asked for again leads nowhere else."""
    real, port, asked = socket.getaddrinfo, int(site.rsplit(":", 1)[1]), []

    def resolve(host, port, *args, **options):
        if host != "rebound.example":
            return real(host, port, *args, **options)
        asked.append(host)
        address = "127.0.0.1" if len(asked) == 1 else "10.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    Pictures.hosts.clear()
    assert images.fetch(f"http://rebound.example:{port}/here", "image", 1000) == b"pixels" * 100
    assert asked == ["rebound.example"]
    assert Pictures.hosts == [f"rebound.example:{port}"]
    asked.clear()
    with pytest.raises(ApiError, match="not a public address"):  # a redirect is resolved and checked anew
        images.fetch(f"http://rebound.example:{port}/moved", "image", 1000)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/inside", "private_address"),
        ("/round", "fetch_failed"),
        ("/none", "fetch_failed"),
        ("/slow", "fetch_failed"),
    ],
)
def test_what_cannot_be_fetched_is_refused(site, path, code):
    with pytest.raises(ApiError) as refused:
        images.fetch(f"{site}{path}", "image", 1000, seconds=0.5)
    assert (refused.value.code, refused.value.param) == (code, "image")


def test_a_picture_that_is_too_large_is_not_read_to_its_end(site):
    with pytest.raises(ApiError, match="more than 500 bytes"):
        images.fetch(f"{site}/here", "image", 500)


def drips(link):
    """Sends a head that never ends, a byte at a time."""
    link.recv(1000)
    with suppress(OSError):
        link.sendall(b"HTTP/1.1 200 OK\r\n")
        for byte in b"x-never: ends\r\n" * 100:
            link.sendall(bytes([byte]))
            time.sleep(0.05)


def drips_chunks(link):
    link.recv(1000)
    with suppress(OSError):
        link.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for byte in b"0000000000000001\r\nx\r\n" * 60:
            link.sendall(bytes([byte]))
            time.sleep(0.05)


@pytest.mark.parametrize("talk", [drips, drips_chunks])
def test_a_site_that_drips_is_cut_off_at_the_deadline(talk, monkeypatch):
    monkeypatch.setattr(images, "is_public", lambda text: True)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            link, _ = server.accept()
            with link:
                talk(link)

        thread = threading.Thread(target=serve)
        thread.start()
        begun = time.monotonic()
        with pytest.raises(ApiError, match="took too long"):
            images.fetch(f"http://127.0.0.1:{server.getsockname()[1]}/", "image", 1000, seconds=0.5)
        assert time.monotonic() - begun < 30  # it would drip for over a minute
        thread.join()


def test_a_resolver_that_hangs_is_left_at_the_deadline(monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: released.wait(60) and [])
    try:
        with pytest.raises(ApiError, match="took too long"):
            images.fetch("http://slow.example/", "image", 1000, seconds=0.2)
    finally:
        released.set()

"""Downloads from the Hub that are interrupted, redirected, refused, or not what was announced."""

import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import huggingface_hub.constants
import pytest

import local_hub
import local_index
from stretto.errors import PullError
from stretto.weights import hub
from stretto.weights.hub import heads, links, store

NAME = "hf:org/repo/tiny.gguf"
FILE = "org/repo/tiny.gguf"
TESTS = Path(__file__).parent.parent


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setattr(links, "BACKOFF_SECONDS", 0.0)
    monkeypatch.setattr(heads, "FIRST_BYTES", 1 << 16)
    with local_hub.serving(monkeypatch) as server:
        server.files = {FILE: local_index.tiny_gguf(tmp_path)}
        yield server


def partial(home):
    return sorted(path.suffix for path in (home / "partial").iterdir())


def bodies(server):
    """The ranges that were asked for after the head's."""
    return server.stored()[1:]


def test_an_interrupted_pull_is_continued_by_the_next(server, store_home):
    server.faults = [local_hub.fine, local_hub.stall]

    def interrupt(done, total, what):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hub.pull(NAME, progress=interrupt)
    assert partial(store_home) == [".json", ".part"]
    (part,) = (store_home / "partial").glob("*.part")
    done = part.stat().st_size
    assert 0 < done < len(server.files[FILE])
    assert hub.models() == []
    assert list((store_home / "staging").iterdir()) == []
    server.go.set()
    server.requests.clear()
    assert hub.pull(NAME).path.read_bytes() == server.files[FILE]
    assert bodies(server) == [f"bytes={done}-"]
    assert [headers["If-Range"] for _, headers in server.requests if "If-Range" in headers]
    assert partial(store_home) == []


@pytest.mark.parametrize("has_ranges", [True, False])
def test_a_connection_that_breaks_is_opened_again(server, has_ranges):
    server.has_ranges = has_ranges
    server.faults = [local_hub.fine, local_hub.cut, local_hub.cut, 502]
    assert hub.pull(NAME).verified
    ranges = bodies(server)
    assert (len(ranges), ranges[0]) == (4, None)
    assert all(asked.startswith("bytes=") for asked in ranges[1:])


def test_a_file_that_has_changed_is_fetched_from_its_beginning(server, store_home, tmp_path):
    server.faults = [local_hub.fine, local_hub.cut, *[503] * 9]
    with pytest.raises(PullError, match="answers 503"):
        hub.pull(NAME)
    server.faults = []
    server.etag = '"another"'  # the server says that it is not the same any more
    assert hub.pull(NAME).verified
    assert hub.models()[0].path.read_bytes() == server.files[FILE]


def test_a_damaged_part_is_found_and_not_kept(server, store_home):
    server.faults = [local_hub.fine, local_hub.cut, *[503] * 9]
    with pytest.raises(PullError):
        hub.pull(NAME)
    server.faults = []
    (part,) = (store_home / "partial").glob("*.part")
    with part.open("r+b") as file:
        file.seek(1000)
        file.write(b"\xff" * 100)
    with pytest.raises(PullError, match=r"arrived with SHA-256 .* pull it again"):
        hub.pull(NAME)
    assert partial(store_home) == []
    assert hub.pull(NAME).verified


def test_what_is_here_already_needs_no_more_room(server, store_home, monkeypatch):
    server.faults = [local_hub.fine, local_hub.cut, *[503] * 9]
    with pytest.raises(PullError):
        hub.pull(NAME)
    server.faults = []
    usage, room = shutil.disk_usage(store_home), len(server.files[FILE]) // 2 + 1000
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=room))
    assert hub.pull(NAME).verified
    with pytest.raises(PullError, match="make room"):
        hub.pull(NAME, force=True)


def test_a_part_that_is_longer_than_the_file_begins_again(server, store_home):
    (store_home / "partial").mkdir(parents=True)
    sha256 = hashlib.sha256(server.files[FILE]).hexdigest()
    (store_home / "partial" / f"{sha256}.part").write_bytes(bytes(2 << 20))
    assert hub.pull(NAME).verified


def lying(length):
    def send(handler, data, headers):
        handler.send(200, data[:length] + bytes(max(0, length - len(data))), {"ETag": headers["ETag"]})

    return send


@pytest.mark.parametrize("length", [1000, (1 << 20) + (1 << 16)])
def test_wrong_sizes_are_refused(server, length):
    server.faults = [local_hub.fine, lying(length)]
    with pytest.raises(
        PullError, match=f"the server sends {length} bytes, and {len(server.files[FILE])} are listed"
    ):
        hub.pull(NAME)
    assert hub.models() == []


def test_a_wrong_hash_is_not_kept(server, store_home):
    server.lies[FILE] = {"lfs": {"sha256": "0" * 64, "size": len(server.files[FILE])}}
    with pytest.raises(PullError, match=f"{NAME} arrived with SHA-256 .* instead of 0000"):
        hub.pull(NAME)
    assert partial(store_home) == []


def test_another_range_than_was_asked_for_is_not_written(server):
    def shifted(handler, data, headers):
        total = len(handler.server.files[FILE])
        handler.send(206, bytes(10), {"Content-Range": f"bytes 0-9/{total}", "ETag": headers["ETag"]})

    server.faults = [local_hub.fine, local_hub.cut, shifted]
    assert hub.pull(NAME).verified


def test_the_server_is_given_the_time_it_asks_for(server):
    server.api_faults = [(429, {"Retry-After": "0"}), 503]
    server.faults = [(429, {"Retry-After": "0"})]
    assert hub.pull(NAME).verified
    assert len(server.paths("/api/")) == 3


@pytest.mark.parametrize("after", ["100000", "Fri, 01 Jan 2100 00:00:00 GMT"])
def test_a_server_that_asks_for_too_long_is_not_waited_for(server, after):
    server.api_faults = [(429, {"Retry-After": after})]
    with pytest.raises(PullError, match=r"answers 429; it asks to wait [\d,]+ seconds"):
        hub.pull(NAME)
    assert len(server.requests) == 1


def test_waiting_for_a_server_can_be_stopped(server):
    server.faults = [(503, {"Retry-After": "60"})]

    def stop(done, total, what):
        if what == "waiting for the server":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hub.pull(NAME, progress=stop)


def test_a_few_failures_are_enough(server):
    server.api_faults = [500] * 20
    with pytest.raises(PullError, match="answers 500; check the network and the proxy, or try again later"):
        hub.pull(NAME)
    assert len(server.requests) == links.ATTEMPTS


# -- tokens --


def test_gated_repositories_say_what_to_do(server, monkeypatch):
    server.gated = {"org/repo"}
    with pytest.raises(
        PullError,
        match=f"{NAME} could not be fetched: .*accept the terms on the model's page, then set HF_TOKEN",
    ):
        hub.pull(NAME)
    monkeypatch.setenv("HF_TOKEN", "hf_of_another")
    with pytest.raises(PullError, match="with the account of your token"):
        hub.pull(NAME)
    monkeypatch.setenv("HF_TOKEN", server.token)
    assert hub.pull(NAME).verified


def test_a_token_goes_to_the_hub_and_nowhere_else(server, monkeypatch, tmp_path):
    server.private = {"org/repo"}
    (tmp_path / "token").write_text(f"{server.token}\n")
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    assert hub.pull(NAME).verified
    sent = {path.split("/")[1]: headers.get("Authorization") for path, headers in server.requests}
    assert sent == {"api": f"Bearer {server.token}", "org": f"Bearer {server.token}", "storage": None}


def test_a_token_that_cannot_be_one_is_refused_and_not_shown(server, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_a\nX-Evil: 1")
    with pytest.raises(PullError, match="HF_TOKEN has characters") as caught:
        hub.pull(NAME)
    assert "Evil" not in str(caught.value)
    assert server.requests == []


PULL = f"from stretto.weights import hub; print(hub.pull({NAME!r}).verified)"


@pytest.mark.parametrize("place", ["HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME"])
def test_the_variables_of_huggingface_hub_are_those_that_count(server, tmp_path, place):
    """In a process of its own, as the library reads them when it is imported."""
    server.private = {"org/repo"}
    (tmp_path / "token").write_text(f"{server.token}\n")
    value = {"HF_TOKEN": server.token, "HF_TOKEN_PATH": str(tmp_path / "token"), "HF_HOME": str(tmp_path)}
    environment = {**os.environ, place: value[place]}

    def pull(**more):
        command = [sys.executable, "-c", PULL]
        return subprocess.run(command, env={**environment, **more}, text=True, capture_output=True)

    asked = len(server.requests)
    assert "HF_HUB_OFFLINE is set; unset it to use the Hub" in pull(HF_HUB_OFFLINE="1").stderr
    assert "set HF_TOKEN" in pull(HF_HUB_DISABLE_IMPLICIT_TOKEN="1").stderr
    assert len(server.requests) == asked + 1
    assert pull().stdout == "True\n"


# -- redirects --


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("file:///etc/passwd", "is no http or https address"),
        ("ftp://example.org/x", "is no http or https address"),
        ("", "redirects"),
    ],
)
def test_redirects_that_lead_nowhere_good_are_refused(server, monkeypatch, target, message):
    def redirect(self, repo, path):
        self.send(302, b"", {"Location": target or self.path})

    monkeypatch.setattr(local_hub.Handler, "resolve", redirect)
    with pytest.raises(PullError, match=message):
        hub.pull(NAME)


def test_https_is_not_left():
    with pytest.raises(PullError, match="which is not encrypted"):
        links.check_redirect("https://a.org/x", "http://b.org/x?signature=1")
    links.check_redirect("https://a.org/x", "https://b.org/x")


def test_relative_redirects_are_followed(server, monkeypatch):
    monkeypatch.setattr(
        local_hub.Handler,
        "resolve",
        lambda self, repo, path: self.send(307, b"", {"Location": f"/storage/{repo}/{path}"}),
    )
    assert hub.pull(NAME).verified


def test_an_answer_that_is_no_list_is_refused(server):
    server.api_faults = [lambda handler: handler.send(200, b"<html>log in</html>")]
    with pytest.raises(PullError, match="is no JSON object; is it a Hub"):
        hub.pull(NAME)
    server.api_faults = [lambda handler: handler.send(200, b'{"siblings": 7}')]
    with pytest.raises(PullError, match="names no commit"):
        hub.pull(NAME)


# -- two at once --


def test_two_names_of_one_content_share_a_download(server, store_home):
    server.files["org/other/copy.gguf"] = server.files[FILE]
    server.faults = [local_hub.fine, local_hub.stall]
    results = []
    threads = [
        threading.Thread(target=lambda name=name: results.append(hub.pull(name)))
        for name in (NAME, "hf:org/other/copy.gguf")
    ]
    threads[0].start()
    while len(server.stored()) < 2:
        time.sleep(0.01)
    threads[1].start()
    server.go.set()
    for thread in threads:
        thread.join(60)
    assert {model.sha256 for model in results} == {hashlib.sha256(server.files[FILE]).hexdigest()}
    assert len(results) == 2


def test_the_second_of_two_processes_waits_and_finds_it_there(server, store_home):
    server.faults = [local_hub.fine, local_hub.stall]
    code = f"""
from stretto.weights import hub
print(hub.pull({NAME!r}, progress=lambda done, total, what: print(what, flush=True)).sha256)
"""
    start = [sys.executable, "-c", code]
    options = {"env": {**os.environ, "PYTHONPATH": str(TESTS)}, "text": True, "stdout": subprocess.PIPE}
    with subprocess.Popen(start, **options) as first:
        while len(server.stored()) < 2:
            time.sleep(0.02)
        with subprocess.Popen(start, **options) as second:
            assert [second.stdout.readline() for _ in range(2)] == [
                "asking the server\n",
                "waiting for another pull of it\n",
            ]
            server.go.set()
            outputs = [process.communicate(timeout=60)[0] for process in (first, second)]
    sha256 = hashlib.sha256(server.files[FILE]).hexdigest()
    assert [output.splitlines()[-1] for output in outputs] == [sha256, sha256]
    assert len(bodies(server)) == 1


def test_downloads_that_nobody_continues_are_removed_in_the_end(server, store_home):
    place = store_home / "partial"
    place.mkdir(parents=True)
    for name in ("old", "new"):
        (place / f"{name}.part").write_bytes(b"x")
    ago = time.time() - (store.PARTIAL_DAYS + 1) * 86400
    os.utime(place / "old.part", (ago, ago))
    hub.pull(NAME)
    assert [path.name for path in place.iterdir()] == ["new.part"]

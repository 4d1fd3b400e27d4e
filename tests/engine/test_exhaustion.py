"""No memory, no space on the disk, no descriptors, a clock that jumps: one call fails, the rest goes on."""

import os
import subprocess
import sys
import threading
import time

import httpx
import pytest

from serving import mock, serving
from stretto.testing import mock_llm
from tiny_models import FOLDER

BEGIN = """
import os, resource, sys
from pathlib import Path
import numpy as np
import stretto
from stretto.backends.native import NativeBackend
from stretto.errors import InvalidRequest, SnapshotError, StrettoError
from stretto.llm import LLM
from stretto.models import read_spec
from stretto.testing import byte_tokenizer
from stretto.weights.gguf import GGUF

file, folder = GGUF(sys.argv[1]), Path(sys.argv[2])
spec = read_spec(file)
llm = LLM(NativeBackend(file, spec, 64, 2), byte_tokenizer(), fingerprint=lambda: "tiny")
prompt = [1, 2, 3]
before = llm.generate(prompt, max_tokens=4, temperature=0).tokens
sequence = llm.sequence(prompt)
sequence.logits
llm.cells.check()  # imports what it needs
import stretto.engine.saving
stretto.Image

def limit(kind, value):
    resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))

def raised(kinds, call):
    try:
        call()
    except kinds as error:
        return str(error)
    raise SystemExit("nothing was raised")
"""

END = """
assert llm.generate(prompt, max_tokens=4, temperature=0).tokens == before
llm.cells.check()
llm.close()
print("done")
"""

NO_MEMORY = """
used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
limit(resource.RLIMIT_AS, used + (64 << 20))
raised((MemoryError, StrettoError), lambda: NativeBackend(file, spec, 1 << 22, 2))
raised((MemoryError, StrettoError), lambda: stretto.Image.open(b"P6 8000 8000 255 " + bytes(3 << 20)))
"""

NO_SPACE = """
limit(resource.RLIMIT_FSIZE, 512)
message = raised(SnapshotError, lambda: sequence.save(folder / "saved"))
assert "cannot be written" in message, message
assert not list(folder.iterdir())
"""

NO_DESCRIPTORS = """
limit(resource.RLIMIT_NOFILE, len(os.listdir("/proc/self/fd")))
held = []
try:
    while True:
        held.append(os.open(sys.argv[1], os.O_RDONLY))
except OSError:
    pass
message = raised(SnapshotError, lambda: sequence.save(folder / "saved"))
assert "Too many open files" in message, message
message = raised(StrettoError, lambda: GGUF(sys.argv[1]))
assert "Too many open files" in message, message
raised(InvalidRequest, lambda: stretto.Image.open(sys.argv[1]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits as Linux has them")
@pytest.mark.parametrize(
    "story", [NO_MEMORY, NO_SPACE, NO_DESCRIPTORS], ids=["no memory", "no space", "no descriptors"]
)
def test_what_is_missing_fails_one_call(story, tmp_path):
    command = [sys.executable, "-c", BEGIN + story + END, str(FOLDER / "llama.gguf"), str(tmp_path)]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr


def test_a_request_without_memory_fails_and_the_others_go_on():
    llm = mock_llm("abcdef", cells=64)
    forward = llm.backend.forward

    def poor(batch):
        if len(batch) > 20:
            raise MemoryError
        return forward(batch)

    llm.backend.forward = poor
    with serving(lambda entry: llm) as server, httpx.Client(base_url=server.url, timeout=60) as web:
        failed = web.post("/v1/completions", json={"model": "mock", "prompt": "x" * 40, "max_tokens": 4})
        assert (failed.status_code, failed.json()["error"]["code"]) == (503, "out_of_memory")
        fine = web.post("/v1/completions", json={"model": "mock", "prompt": "x", "max_tokens": 4})
        assert fine.json()["choices"][0]["text"] == "abcd"
        llm.cells.check()


def test_a_full_disk_is_said_as_it_is():
    llm = mock_llm("abc", cells=64)

    def full(batch):
        raise OSError(28, os.strerror(28))

    llm.backend.forward = full
    with serving(lambda entry: llm) as server:
        answer = httpx.post(f"{server.url}/v1/completions", json={"model": "mock", "prompt": "x"}, timeout=60)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "out_of_resources"


@pytest.mark.parametrize("jump", [-1e9, 1e9])
def test_a_clock_that_jumps_ends_nothing_and_keeps_nothing(jump, monkeypatch):
    real, jumped = time.time, threading.Event()
    monkeypatch.setattr(time, "time", lambda: real() + (jump if jumped.is_set() else 0))
    with serving(mock("abcdefgh", 0.02)) as server, httpx.Client(base_url=server.url, timeout=60) as web:
        request = {"model": "mock", "prompt": "x", "max_tokens": 8, "timeout": 50}
        results = []
        thread = threading.Thread(target=lambda: results.append(web.post("/v1/completions", json=request)))
        thread.start()
        time.sleep(0.05)
        jumped.set()
        thread.join()
        assert results[0].json()["choices"][0]["text"] == "abcdefgh"
        assert 0 <= web.get("/health").json()["uptime"] < 1e6
        late = web.post("/v1/completions", json=request | {"timeout": 0.01})
        assert late.status_code != 200 or late.json()["choices"][0]["finish_reason"] != "stop"

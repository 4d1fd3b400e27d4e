"""A process that forks after loading: the child refuses with a reason, closes, exits; the parent goes on."""

import subprocess
import sys
from pathlib import Path

import pytest

TINY = Path(__file__).parents[1] / "data" / "tiny" / "llama.gguf"
SECONDS = 120  # a hang is the failure; a busy machine is not

BEGIN = """
import os, sys, threading, time, warnings
warnings.simplefilter("ignore")
import stretto
from stretto.backends.native import NativeBackend
from stretto.errors import InvalidRequest
from stretto.llm import LLM
from stretto.models import read_spec
from stretto.testing import byte_tokenizer
from stretto.weights.gguf import GGUF

def load(threads):
    file = GGUF(sys.argv[1])
    return LLM(NativeBackend(file, read_spec(file), 64, threads), byte_tokenizer())

llm = load(3)
before = llm.generate([1, 2, 3], max_tokens=4, temperature=0).tokens
sequence = llm.sequence([1, 2, 3])

def refused(call):
    try:
        call()
    except InvalidRequest as error:
        assert "forked" in str(error), error
    else:
        raise SystemExit(3)

def check_refusals():
    refused(lambda: llm.generate([1, 2], max_tokens=2))
    refused(lambda: sequence.logits)
    batch = stretto.Batch()
    batch.add(1, 0, (5,))
    refused(lambda: llm.forward(batch))
    llm.close()

def wait(child):
    assert os.waitpid(child, 0)[1] == 0
"""

PLAIN = """
child = os.fork()
if not child:
    check_refusals()
    sys.exit(0)  # by way of the interpreter's end, which frees the model
wait(child)
"""

WHILE_GENERATING = """
def generate():
    while not done:
        llm.generate([1, 2, 3], max_tokens=50, temperature=0)

done = False
threads = [threading.Thread(target=generate) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(5):
    time.sleep(0.03)
    child = os.fork()
    if not child:
        check_refusals()
        sys.exit(0)
    wait(child)
done = True
for thread in threads:
    thread.join()
"""

MULTIPROCESSING = """
import multiprocessing

def work(number):
    try:
        return llm.generate([1, 2], max_tokens=2).tokens
    except InvalidRequest as error:
        return str(error)

with multiprocessing.get_context("fork").Pool(2) as pool:
    assert all("forked" in answer for answer in pool.map(work, range(4)))
"""

PRE_FORK = """
workers = []
for _ in range(2):
    child = os.fork()
    if not child:  # each worker has a model of its own
        own = load(2)
        assert own.generate([1, 2, 3], max_tokens=4, temperature=0).tokens == before
        refused(lambda: llm.generate([1, 2], max_tokens=2))
        sys.exit(0)
    workers.append(child)
for child in workers:
    wait(child)
"""

END = """
assert llm.generate([1, 2, 3], max_tokens=4, temperature=0).tokens == before
llm.close()
print("done")
"""


@pytest.mark.parametrize(
    "story",
    [PLAIN, WHILE_GENERATING, MULTIPROCESSING, PRE_FORK],
    ids=["plain", "while threads generate", "multiprocessing", "pre-fork"],
)
def test_a_forked_child_refuses_and_exits(story):
    ran = subprocess.run(
        [sys.executable, "-c", BEGIN + story + END, str(TINY)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr

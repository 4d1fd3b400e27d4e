"""Prompts on disk: the first answer after `kill -9` and a restart, and what writing costs and takes.

    python benchmarks/disk_cache.py smollm2 qwen2.5-coder-1.5b --tokens 4000 --rounds 3

`restart`: a server gets a prompt of random tokens and answers with one. Five seconds later it is killed; another
one, with the model loaded, gets the prompt again. Both answers must be the same text, and the blocks must have
the bytes of the new cells.

`writing`: in one process four texts decode while shorter requests end beside them, whose cells are written; the
rounds with and without a store take turns. The ratio is of the tokens a second of all texts.
"""

import argparse
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx

import stretto

WAIT_SECONDS = 5.0  # within which blocks are on disk
SERVE = [sys.executable, "-m", "stretto", "serve"]


@contextmanager
def serving(model, folder, threads):
    """The address of a server with the model loaded; it is killed at the end."""
    command = [*SERVE, f"m={model}", "--port", "0", "--no-socket", "--cache-dir", str(folder)]
    command += ["--threads", str(threads)] if threads else []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            address = process.stdout.readline().split()[-1]
            ask(address, list(range(100, 110)))
            yield address
        finally:
            process.send_signal(signal.SIGKILL)


def ask(address, prompt):
    """Seconds until one token is answered, its text, and how many of the prompt's were cached."""
    body = {"model": "m", "prompt": prompt, "max_tokens": 1, "temperature": 0}
    begun = time.perf_counter()
    answer = httpx.post(f"{address}/v1/completions", json=body, timeout=600)
    seconds = time.perf_counter() - begun
    answer.raise_for_status()
    found = answer.json()
    return seconds, found["choices"][0]["text"], found["usage"]["prompt_tokens_details"]["cached_tokens"]


def restart(model, n_tokens, threads, seed):
    """Seconds of computing and of reading a prompt, and bytes written for each byte of its cells."""
    prompt = random.Random(seed).choices(range(100, 30_000), k=n_tokens)
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "prefixes"
        with serving(model, folder, threads) as address:
            computed, text, _ = ask(address, prompt)
            time.sleep(WAIT_SECONDS)
        nbytes = sum(path.stat().st_size for path in folder.glob("*/*"))
        with serving(model, folder, threads) as address:
            read, again, cached = ask(address, prompt)
    assert (again, cached) == (text, (n_tokens - 1) // 64 * 64), (text, again, cached)
    return computed, read, nbytes, cached


def tokens_a_second(llm, seed, seconds=6.0):
    """The tokens of four texts that decode, while requests of 200 tokens end beside them, one a second."""
    made = random.Random(seed)
    streams = [
        llm.stream(made.choices(range(100, 30_000), k=50), max_tokens=4000, ignore_eos=True) for _ in range(4)
    ]
    stop = threading.Event()

    def beside():
        while not stop.wait(1.0):
            llm.generate(made.choices(range(100, 30_000), k=200), max_tokens=1)

    for stream in streams:
        next(stream)
    thread = threading.Thread(target=beside)
    begun, n = time.perf_counter(), 0
    thread.start()
    while time.perf_counter() - begun < seconds:
        for stream in streams:
            next(stream)
            n += 1
    speed = n / (time.perf_counter() - begun)
    stop.set()
    for stream in streams:
        stream.cancel()
    thread.join()
    llm.cache.clear()
    return speed


def writing(model, rounds, threads):
    """The speed with a store for each of without, and the bytes that were written."""
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "prefixes"
        plain = stretto.load(model, threads=threads, cells=16384)
        storing = stretto.load(model, threads=threads, cells=16384, cache="disk", cache_dir=folder)
        with plain, storing:
            ratios = []
            for seed in range(rounds):
                pair = [(storing, 0.0), (plain, 0.0)]
                pair = pair if seed % 2 else pair[::-1]
                speeds = {id(llm): tokens_a_second(llm, seed) for llm, _ in pair}
                ratios.append(speeds[id(storing)] / speeds[id(plain)])
            return ratios, storing.cache.disk().bytes_written


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--only", choices=("restart", "writing"))
    given = parser.parse_args()
    for model in given.models:
        if given.only != "writing":
            rows = [restart(model, given.tokens, given.threads, seed) for seed in range(given.rounds)]
            computed, read = (statistics.median(row[i] for row in rows) for i in (0, 1))
            nbytes, cached = rows[0][2:]
            with stretto.load(model, cells=256) as llm:
                ratio = nbytes / (llm.backend.cell_bytes * cached)
            found = {"computed": computed, "read": read, "percent": 100 * read / computed, "bytes": ratio}
            print(json.dumps({"model": model, "tokens": given.tokens, **found}), flush=True)
        if given.only != "restart":
            ratios, nbytes = writing(model, given.rounds, given.threads)
            found = {"speed": statistics.median(ratios), "all": ratios, "written": nbytes}
            print(json.dumps({"model": model, **found}), flush=True)


if __name__ == "__main__":
    main()

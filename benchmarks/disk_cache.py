"""Prompts on disk: the first answer after `kill -9` and a restart, and what writing costs and takes.

    python benchmarks/disk_cache.py smollm2 qwen2.5-coder-1.5b --tokens 4000 --rounds 3

`restart`: a server gets a prompt of random tokens and answers with one. Five seconds later it is killed;
another one, with the model loaded, gets the prompt again. Both answers must be the same text, and the blocks
must have the bytes of the new cells.

`writing`: four texts decode while shorter requests end beside them, whose cells are written; rounds with and
without a store take turns, and the ratio is of their seconds for the same work.
"""

import argparse
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
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


def seconds_of(llm, seed, n_requests=6):
    """Seconds of one piece of work: four texts of 160 tokens, and requests of 130 that end meanwhile."""
    made = random.Random(seed)
    prompts = [made.choices(range(100, 30_000), k=50) for _ in range(4)]
    others = [made.choices(range(100, 30_000), k=130) for _ in range(n_requests)]
    begun = time.perf_counter()
    streams = [llm.stream(prompt, max_tokens=160, ignore_eos=True) for prompt in prompts]
    for number in range(160):
        for stream in streams:
            next(stream)
        if number % 25 == 5 and others:
            llm.generate(others.pop(), max_tokens=1)
    seconds = time.perf_counter() - begun
    llm.cache.clear()
    return seconds


def writing(model, rounds, threads):
    """Seconds with a store for each without, and the bytes that were written."""
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "prefixes"
        plain = stretto.load(model, threads=threads, cells=8192)
        storing = stretto.load(model, threads=threads, cells=8192, cache="disk", cache_dir=folder)
        with plain, storing:
            ratios = []
            for seed in range(rounds):
                pair = [storing, plain] if seed % 2 else [plain, storing]
                seconds = {id(llm): seconds_of(llm, seed) for llm in pair}
                ratios.append(seconds[id(storing)] / seconds[id(plain)])
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
            found = {"seconds": statistics.median(ratios), "all": ratios, "written": nbytes}
            print(json.dumps({"model": model, **found}), flush=True)


if __name__ == "__main__":
    main()

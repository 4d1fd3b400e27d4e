"""What replicas cost: `stretto serve` beside one and two replicas on Ray, through HAProxy and Ray's proxy.

    python benchmarks/deploy.py [--clients 16] [--tokens 48] [--rounds 3] [--only haproxy-2] [--first]

Each way is started, warmed up and loaded in turns; tokens a second, CPU time a token (all processes, and the
replicas alone), and memory (PSS, so that what is shared counts once). The second replica's own bytes are the
PSS that it adds to the machine. Ratios are of medians, measured side by side; a busy machine makes them
useless, unless `--first` gives the benchmark's session priority over all others (Linux, as root; start it by
`setsid -w`). Real-time priority does not serve: a replica that computes keeps HAProxy and clients waiting.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from stretto.deploy import cluster
from stretto.weights import hub

MARK = "STRETTO_BENCH_MARK"
TICKS = os.sysconf("SC_CLK_TCK")
REPORT_SECONDS = 2.5  # until a router has heard that the requests of the last round have ended
STRETTO = [sys.executable, "-c", "from stretto.cli import main; main()"]
WAYS = {  # replicas, threads of each, what answers, clients as a multiple of --clients
    "direct-2": (1, 2, "serve", 1),
    "haproxy-2": (2, 1, "haproxy", 1),
    "python-2": (2, 1, "python", 1),
    "haproxy-1": (1, 1, "haproxy", 1),
    "haproxy-2-both-full": (2, 1, "haproxy", 2),  # each replica has as many clients as one alone
}


def marked(mark: str) -> Iterator[tuple[int, str]]:
    """The processes whose environment has the mark: their numbers and commands."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                yield int(folder.name), words.strip()
        except OSError:
            continue


def usage(mark: str) -> dict[int, tuple[str, float, int, int]]:
    """By process: its command, CPU seconds, PSS and private bytes."""
    found = {}
    for pid, words in marked(mark):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in rollup if line.endswith("kB")}
        private = sizes.get("Private_Clean", 0) + sizes.get("Private_Dirty", 0)
        found[pid] = words, (int(fields[11]) + int(fields[12])) / TICKS, sizes.get("Pss", 0), private
    return found


def put_first(pids: Iterable[int]) -> None:
    """Give the scheduling groups of these processes all that they want; others get the rest."""
    for pid in pids:
        Path(f"/proc/{pid}/autogroup").write_text("-20")


def is_replica(words: str) -> bool:
    return "ServeReplica" in words and "router" not in words


async def ask(web: httpx.AsyncClient, number: int, tokens: int) -> int:
    body = {
        "model": "smollm2",
        "messages": [
            {"role": "user", "content": f"Tell me about the number {number}, and why people like it."}
        ],
        "max_tokens": tokens,
        "seed": number,
        "stream": True,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }
    n = 0
    async with web.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data: {") and '"usage":{' in line:
                n = json.loads(line[6:])["usage"]["completion_tokens"]
    return n


async def loaded(url: str, clients: int, tokens: int, first: int) -> tuple[int, float]:
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as web:
        started = time.perf_counter()
        n = await asyncio.gather(*(ask(web, first + i, tokens) for i in range(clients)))
        return sum(n), time.perf_counter() - started


@contextmanager
def running(way: str, port: int) -> Iterator[tuple[str, str]]:
    """A server or a cluster; gives its URL and its mark."""
    replicas, threads, kind, _ = WAYS[way]
    mark, path = f"{way}-{os.getpid()}", hub.resolve("smollm2")
    environment = {**os.environ, MARK: mark}
    common = [
        "--model",
        f"smollm2={path}",
        "--threads",
        str(threads),
        "--port",
        str(port),
        "--cells",
        "16384",
    ]
    url = f"http://127.0.0.1:{port}"
    if kind == "serve":
        words = [*STRETTO, "serve", *common, "--max-running", "128", "--memory", "8GB"]
        server = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            server.stdout.readline()
            yield url, mark
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)
        return
    with tempfile.TemporaryDirectory() as home:
        environment["STRETTO_HOME"] = home
        try:
            words = ["--replicas", str(replicas), "--set", "max_running=128", "--proxy", kind]
            subprocess.run(
                [*STRETTO, "deploy", "up", *common, *words], env=environment, check=True, timeout=300
            )
            yield url, mark
        finally:
            cluster.end_head(Path(home) / "deploy")


def measured(way: str, options: argparse.Namespace) -> dict[str, object]:
    with running(way, options.port) as (url, mark):
        if options.first:
            put_first([os.getpid(), *usage(mark)])
        for first in (0, 100):  # with the first reports the router loads its tokenizer
            asyncio.run(loaded(url, 8, 8, first))
            time.sleep(REPORT_SECONDS)
        rates, all_cpu, own_cpu = [], [], []
        clients = WAYS[way][3] * options.clients
        for i in range(options.rounds):
            time.sleep(REPORT_SECONDS)
            before = usage(mark)
            tokens, seconds = asyncio.run(loaded(url, clients, options.tokens, 1000 * (i + 1)))
            spent = {
                pid: (words, cpu - before.get(pid, ("", 0.0, 0, 0))[1])
                for pid, (words, cpu, _, _) in usage(mark).items()
            }
            rates.append(tokens / seconds)
            all_cpu.append(1e3 * sum(cpu for _, cpu in spent.values()) / tokens)
            ours = [cpu for words, cpu in spent.values() if is_replica(words)] or [
                sum(c for _, c in spent.values())
            ]
            own_cpu.append(1e3 * sum(ours) / tokens)
        end = usage(mark)
        return {
            "way": way,
            "tokens_per_second": round(statistics.median(rates), 1),
            "rounds": [round(rate) for rate in rates],
            "cpu_ms_token": round(statistics.median(all_cpu), 3),
            "replica_cpu_ms_token": round(statistics.median(own_cpu), 3),
            "pss_mb": round(sum(pss for _, _, pss, _ in end.values()) / 1e6),
            "replica_private_mb": [
                round(own / 1e6) for words, _, _, own in end.values() if is_replica(words)
            ],
            "processes": len(end),
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--port", type=int, default=8421)
    parser.add_argument("--only", default=",".join(WAYS))
    parser.add_argument("--first", action="store_true", help="before all other processes")
    options = parser.parse_args()
    found = {}
    for way in options.only.split(","):
        found[way] = measured(way, options)
        print(json.dumps(found[way]), flush=True)
    for name, one, other, key in (
        ("haproxy-2 / direct-2, tokens a second", "haproxy-2", "direct-2", "tokens_per_second"),
        ("python-2 / direct-2, tokens a second", "python-2", "direct-2", "tokens_per_second"),
        ("two replicas / one, tokens a second", "haproxy-2-both-full", "haproxy-1", "tokens_per_second"),
        ("one / two replicas, their CPU a token", "haproxy-1", "haproxy-2-both-full", "replica_cpu_ms_token"),
    ):
        if one in found and other in found:
            print(f"{name}: {float(str(found[one][key])) / float(str(found[other][key])):.2f}")


if __name__ == "__main__":
    main()

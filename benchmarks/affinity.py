"""Routing by prefixes on live replicas: hit rates, balance, the router's cost, beside Ray's own ways.

    python benchmarks/affinity.py --replicas 2 4 --out benchmarks/raw/affinity.json

200 conversations of 4 turns each, all with the same system prompt, their turns in a random order; 16 clients
take turns from one list. Policies: `prefix` and `round robin` through HAProxy and our ingress, `ray` is Ray's
default (power of two choices in its Python proxy), `one` is a single replica with all the cells, whose hit
rate is the measure. Each run starts a cluster of its own on this machine. CPU time is that of the processes
between client and replica: proxy, HAProxy and router.

`--route` measures what asking the router adds to a request: the same POST through HAProxy and directly.
"""

import argparse
import asyncio
import collections
import http.client
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from talks import LIVE, shuffled

HERE = Path(__file__).parent
MARK = "STRETTO_AFFINITY_RUN"
TICK = os.sysconf("SC_CLK_TCK")
FIRST_PORT = 30_000  # of replicas, which HAProxy talks to
WORDS = ["river", "stone", "lantern", "orchard", "violin", "harbor", "winter", "copper", "meadow", "thunder"]
SYSTEM = "You are a careful assistant who answers in plain words and says so whenever it is not sure at all. "


def text(rng, n_tokens):
    """About so many tokens of text that nobody else says."""
    return " ".join(f"{rng.choice(WORDS)} {rng.randrange(100)}" for _ in range(n_tokens // 4))


def cluster(policy, replicas, cells, port, model, folder):
    """Hold a cluster until stdin ends: its own process, since Ray reads its environment once."""
    if policy != "ray":
        os.environ["RAY_SERVE_ENABLE_HA_PROXY"] = "1"
        os.environ["RAY_SERVE_INGRESS_REQUEST_ROUTER_FORWARD_BODY"] = "1"
    ha = f"{folder}/ha"
    os.environ.update(
        RAY_USAGE_STATS_ENABLED="0",
        RAY_worker_niceness="0",
        RAY_SERVE_HAPROXY_CONFIG_FILE_LOC=f"{ha}/haproxy.cfg",
        RAY_SERVE_HAPROXY_SOCKET_PATH=f"{ha}/admin.sock",
        RAY_SERVE_HAPROXY_SERVER_STATE_BASE=ha,
        RAY_SERVE_HAPROXY_SERVER_STATE_FILE=f"{ha}/state",
        RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH=f"{ha}/metrics.sock",
        RAY_SERVE_HAPROXY_NBTHREAD="1",
        PYTHONPATH=str(HERE),
    )
    import logging

    import ray
    from ray import serve

    from affinity_replica import Replica

    ray.init(
        num_cpus=8,
        include_dashboard=False,
        object_store_memory=100 << 20,
        _temp_dir=folder,
        logging_level=logging.ERROR,
        log_to_driver=bool(os.environ.get("AFFINITY_LOG")),
    )
    serve.start(
        http_options={"host": "127.0.0.1", "port": port},
        logging_config={"log_level": "WARNING", "enable_access_log": False},
    )
    options = {"num_replicas": replicas, "max_ongoing_requests": 256, "ray_actor_options": {"num_cpus": 1}}
    deployment = serve.deployment(serve.ingress()(Replica), name="stretto")
    if policy == "ray":
        application = deployment.options(**options).bind(model, cells)
    else:
        from stretto.deploy.router import attach_router, configure

        kind = "round robin" if policy == "round robin" else "prefix"
        application = attach_router(deployment.options(**configure(options, policy=kind)).bind(model, cells))
    serve.run(application, name="app", route_prefix="/")
    print("READY", flush=True)
    for line in sys.stdin:
        if line.strip() == "figures" and policy != "ray":
            handle = serve.get_deployment_handle("router", "app")
            print(json.dumps(handle.figures.remote().result()), flush=True)
    serve.shutdown()
    ray.shutdown()


def usage(mark):
    """CPU seconds of the processes of a run, by what they are."""
    found = collections.Counter()
    for folder in Path("/proc").iterdir():
        try:
            if (
                not folder.name.isdigit()
                or f"{MARK}={mark}".encode() not in (folder / "environ").read_bytes()
            ):
                continue
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        kinds = {"ServeReplica:app:stretto": "replicas", "ServeReplica:app:router": "router"}
        kinds |= {"haproxy": "haproxy", "ProxyActor": "proxy", "HAProxyManager": "proxy"}
        kind = next((kind for key, kind in kinds.items() if key in words), "ray")
        found[kind] += (int(fields[11]) + int(fields[12])) / TICK
    return found


async def ask(port, body):
    """(seconds to the first token, replica, usage) of a stream."""
    data = json.dumps(body).encode()
    begun, first, name, used, tokens = time.perf_counter(), None, "", {}, []
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n"
    writer.write(f"{head}Content-Type: application/json\r\nConnection: close\r\n\r\n".encode() + data)
    status = int((await reader.readline()).split()[1])
    while line := (await reader.readline()).strip():
        if line.lower().startswith(b"x-stretto-replica:"):
            name = line.split(b":", 1)[1].strip().decode()
    while line := await reader.readline():
        if status != 200:
            raise RuntimeError(f"{status}: {line[:200]!r}")
        if line.startswith(b"data: {"):
            chunk = json.loads(line[6:])
            if chunk.get("choices") and (piece := chunk["choices"][0]["delta"].get("content")):
                first = first or time.perf_counter() - begun
                tokens.append(piece)
            used = chunk.get("usage") or used
    writer.close()
    return first or time.perf_counter() - begun, name, used, "".join(tokens)


async def load(port, model, n_talks, clients, answer=None):
    """All conversations; a row for each request."""
    waiting, busy, rows = shuffled(LIVE, n_talks), set(), []
    rng = random.Random(1)
    system = [{"role": "system", "content": SYSTEM * (LIVE.system // 20)}]
    said = {turn.talk: list(system) for turn in waiting}

    async def client():
        while waiting:
            turn = next((turn for turn in waiting if turn.talk not in busy), None)
            if turn is None:
                await asyncio.sleep(0.01)
                continue
            waiting.remove(turn)
            busy.add(turn.talk)
            messages = said[turn.talk]
            messages.append({"role": "user", "content": text(rng, turn.prompt)})
            body = {"model": model, "messages": messages, "temperature": 0}
            body["max_tokens"] = answer or turn.answer
            body |= {"stream": True, "ignore_eos": True, "stream_options": {"include_usage": True}}
            first, name, used, heard = await ask(port, body)
            messages.append({"role": "assistant", "content": heard})
            cached = used["prompt_tokens_details"]["cached_tokens"]
            rows.append((first, name, used["prompt_tokens"], cached, used["completion_tokens"], turn.talk))
            busy.discard(turn.talk)

    await asyncio.gather(*(client() for _ in range(clients)))
    return rows


def post(port, body):
    """The answer to a small POST, on a connection of its own."""
    web = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    web.request("POST", "/stretto/tokenize", body, {"Content-Type": "application/json", "Host": "localhost"})
    answer = web.getresponse().read()
    web.close()
    return json.loads(answer)


def posts(port, body, n):
    """Milliseconds of such POSTs, one after the other."""
    times = []
    for _ in range(n):
        begun = time.perf_counter()
        post(port, body)
        times.append(1e3 * (time.perf_counter() - begun))
    return times


def run(policy, replicas, args):
    mark, folder = (
        f"m{os.getpid()}-{policy.replace(' ', '')}-{replicas}",
        tempfile.mkdtemp(prefix="aff", dir="/tmp"),
    )
    cells = args.cells * (args.one if policy == "one" else 1)
    words = [sys.executable, __file__, "--hold", policy, str(replicas), str(cells), folder]
    words += ["--port", str(args.port), "--model", args.model]
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, MARK: mark}
    )
    try:
        for line in process.stdout:
            if "READY" in line:
                break
        asyncio.run(load(args.port, args.model, 4, 4))  # connections, tokenizers
        time.sleep(3)
        before, begun = usage(mark), time.perf_counter()
        rows = asyncio.run(load(args.port, args.model, args.talks, args.clients, args.answer))
        seconds, after = time.perf_counter() - begun, usage(mark)
        found = figures(rows, seconds, after - before)
        found = {"policy": policy, "replicas": replicas, "cells": cells, "talks": args.talks, **found}
        found |= {"clients": args.clients, "answer": args.answer or int(LIVE.answer)}
        if policy != "ray":
            process.stdin.write("figures\n")
            process.stdin.flush()
            asked = json.loads(process.stdout.readline())
            found["by_tokens"] = round(asked["by_tokens"] / asked["requests"], 3)
            found["route_ms"] = [round(1e3 * asked[key], 2) for key in ("p50", "p99")]
        if args.route:
            found |= route_cost(args.port, args.model)
        return found
    finally:
        process.stdin.close()
        process.wait(120)


def figures(rows, seconds, cpu):
    prompt, cached, tokens = (sum(row[n] for row in rows) for n in (2, 3, 4))
    counts = collections.Counter(row[1] for row in rows)
    replicas = collections.defaultdict(list)  # of each conversation, turn by turn
    for row in rows:
        replicas[row[5]].append(row[1])
    pairs = [pair for names in replicas.values() for pair in itertools.pairwise(names)]
    first = sorted(row[0] for row in rows)
    between = sum(cpu[kind] for kind in ("router", "haproxy", "proxy"))
    return {
        "requests": len(rows),
        "hit_rate": round(cached / prompt, 3),
        "moved": round(sum(a != b for a, b in pairs) / len(pairs), 3),
        "requests_ratio": round(max(counts.values()) / min(counts.values()), 2),
        "first_token_ms": [round(1e3 * first[int(q * (len(first) - 1))]) for q in (0.5, 0.95)],
        "seconds": round(seconds, 1),
        "prompt_tokens": round(prompt / len(rows)),
        "cpu_ms_per_token": round(1e3 * between / tokens, 3),
        "cpu_ms_per_request": round(1e3 * between / len(rows), 2),
        "cpu": {kind: round(value, 2) for kind, value in cpu.items()},
    }


def is_replica(port, body):
    """Whether a replica listens there, and not the router or nobody."""
    try:
        return "tokens" in post(port, body)
    except OSError:
        return False


def route_cost(port, model):
    """Medians of a POST through HAProxy and the router, and directly to a replica; by turns."""
    body = json.dumps({"model": model, "text": text(random.Random(2), 2000)}).encode()
    direct = next(at for at in range(FIRST_PORT, FIRST_PORT + 100) if is_replica(at, body))
    times = collections.defaultdict(list)
    for _ in range(10):
        for way, at in {"through": port, "direct": direct}.items():
            times[way] += posts(at, body, 20)
    return {"post_ms": {way: round(statistics.median(found), 2) for way, found in times.items()}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--policy", nargs="+", default=["prefix", "ray", "round robin"])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--cells", type=int, default=65_536, help="of each replica")
    parser.add_argument(
        "--one", type=int, default=0, help="measure a single replica, with so many times the cells"
    )
    parser.add_argument("--talks", type=int, default=200)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--answer", type=int, help="tokens of each answer, in place of 8")
    parser.add_argument("--port", type=int, default=8131)
    parser.add_argument("--route", action="store_true")
    parser.add_argument("--out", type=Path, help="runs are added to those in it")
    parser.add_argument("--hold", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.hold:
        policy, replicas, cells, folder = args.hold
        cluster(policy, int(replicas), int(cells), args.port, args.model, folder)
        return
    runs = json.loads(args.out.read_text())["runs"] if args.out and args.out.exists() else []
    plan = [("one", 1)] if args.one else [(policy, n) for n in args.replicas for policy in args.policy]
    for policy, n in plan:
        runs.append(run(policy, n, args))
        print(json.dumps(runs[-1]), flush=True)
        if args.out:
            args.out.write_text(json.dumps({"model": args.model, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""`stretto serve` under load: throughput, latencies, what the server costs beside the model, and a soak.

    python benchmarks/serve.py                                  # 1, 8, 32, 128 streaming clients
    python benchmarks/serve.py --peer 'build/llama-server -m M.gguf -c 65536 -np 128 -t 2 --port 8099' \\
                               --peer-address http://127.0.0.1:8099 --peer-model any
    python benchmarks/serve.py --soak 1800                      # 30 minutes at the limit, clients vanish

Each client asks for one stream after the other, with a prompt of its own that begins as all do. The peer is
any server with OpenAI's API; it gets the same requests, in turns with ours, and only one of them runs at a
time. The processor time of the server outside `forward` is that of the thread that serves, of its helpers,
and of the thread that steps the engine without what it spends in the backend, by the emitted token. A table
goes to stdout, all figures to --out.

llama.cpp's own server, built for this processor from the source in llama-cpp-python's sdist:

    pip download --no-binary :all: --no-deps llama-cpp-python && tar xf llama_cpp_python-*.tar.gz
    cmake -S llama_cpp_python-*/vendor/llama.cpp -B build -DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF
    cmake --build build --target llama-server -j 2              # build/bin/llama-server
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from pathlib import Path

from load.client import get, stream
from load.process import cpu_seconds, ours, peer
from load.soak import soak

STORY = "You are a careful assistant who answers in plain words and never invents facts. "
OUTSIDE = 150.0  # µs of processor time for a token, at most


def body(model, number, tokens, is_ours):
    extra = {"ignore_eos": True} if is_ours else {"ignore_eos": True, "cache_prompt": True}
    return {
        "model": model,
        "messages": [
            {"role": "system", "content": STORY},
            {"role": "user", "content": f"Tell me about the number {number}, and why people like it."},
        ],
        "max_tokens": tokens,
        "temperature": 0.8,
        "seed": number,
        "stream": True,
        **extra,
    }


async def load(address, model, clients, requests, tokens, is_ours):
    """So many clients at once, each with so many requests: what all of them heard."""

    async def client(number):
        return [
            await stream(address, "/v1/chat/completions", body(model, number * 1000 + i, tokens, is_ours))
            for i in range(requests)
        ]

    begun = time.perf_counter()
    heard = await asyncio.gather(*(client(number) for number in range(clients)))
    return [one for several in heard for one in several], time.perf_counter() - begun


def quantile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def figures(heard, seconds):
    first = [one.times[0] for one in heard if one.times]
    between = [b - a for one in heard for a, b in zip(one.times, one.times[1:], strict=False)]
    n_tokens = sum(len(one.times) for one in heard)
    errors = [one.error or f"status {one.status}" for one in heard if one.error or one.status != 200]
    return {
        "requests": len(heard),
        "errors": len(errors),
        "first_error": errors[0] if errors else None,
        "tokens": n_tokens,
        "tokens_per_second": n_tokens / seconds,
        "first_ms": [1e3 * quantile(first, share) for share in (0.5, 0.99)],
        "between_ms": [1e3 * quantile(between, share) for share in (0.5, 0.99)],
    }


def outside(before, after, model, n_tokens):
    """µs of processor time for a token, outside of `forward`."""
    spent = {key: after["cpu"][key] - before["cpu"][key] for key in ("loop", "helpers", "steps")}
    old, new = (stats["models"][model]["engine"]["forward_cpu"] for stats in (before, after))
    spent["steps"] -= new - old
    return {name: 1e6 * seconds / max(1, n_tokens) for name, seconds in spent.items()}


async def measure(address, pid, model, clients, given, is_ours):
    requests = max(1, given.requests // clients)
    await load(address, model, clients, 1, 8, is_ours)  # warm
    before = await get(address, "/stretto/stats") if is_ours else None
    cpu = cpu_seconds(pid)
    heard, seconds = await load(address, model, clients, requests, given.tokens, is_ours)
    found = figures(heard, seconds)
    found["cpu_per_token_us"] = 1e6 * (cpu_seconds(pid) - cpu) / max(1, found["tokens"])
    if is_ours:
        after = await get(address, "/stretto/stats")
        found["outside_us"] = outside(before, after, model, found["tokens"])
    return found


def rounds(given):
    """All measurements: for each number of clients and each round ours, then the peer's."""
    results = []
    for clients in given.clients:
        for number in range(given.rounds):
            options = [
                "--model",
                given.model,
                "--cells",
                str(given.cells),
                "--max-running",
                str(max(64, clients)),
            ]
            options += ["--threads", str(given.threads)] if given.threads else []
            servers = [("stretto", ours(*options), True, given.model)]
            if given.peer:
                servers.append(("peer", peer(given.peer, given.peer_address), False, given.peer_model))
            for name, server, is_ours, model in servers:
                with server as (address, pid):
                    found = asyncio.run(measure(address, pid, model, clients, given, is_ours))
                results.append({"server": name, "clients": clients, "round": number, **found})
                print(line(results[-1]), file=sys.stderr)
    return results


def line(found):
    ours_too = found.get("outside_us")
    cost = f", {sum(ours_too.values()):.0f} µs a token outside forward" if ours_too else ""
    return (
        f"{found['server']}, {found['clients']} clients: {found['tokens_per_second']:.0f} tok/s, first "
        f"token {found['first_ms'][0]:.0f} ms, between {found['between_ms'][0]:.1f} ms, "
        f"{found['errors']} errors{cost}"
    )


def table(results):
    """A row for each number of clients: medians of the rounds."""

    def middle(server, clients, value):
        values = [value(one) for one in results if (one["server"], one["clients"]) == (server, clients)]
        return statistics.median(values) if values else None

    head = (
        "clients",
        "server",
        "errors",
        "tok/s",
        "ratio",
        "TTFT p50/p99, ms",
        "between p50/p99, ms",
        "µs outside",
    )
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for clients in dict.fromkeys(one["clients"] for one in results):
        base = middle("peer", clients, lambda one: one["tokens_per_second"])
        for server in dict.fromkeys(one["server"] for one in results):

            def of(value, server=server, clients=clients):
                return middle(server, clients, value)

            speed = of(lambda one: one["tokens_per_second"])
            ratio = f"**{speed / base:.2f}**" if base and server == "stretto" else ""
            cost = of(lambda one: sum(one.get("outside_us", {}).values())) if server == "stretto" else None
            cells = (
                clients, server, sum(one["errors"] for one in results if one["clients"] == clients
                                     and one["server"] == server),
                f"{speed:.0f}", ratio,
                f"{of(lambda one: one['first_ms'][0]):.0f} / {of(lambda one: one['first_ms'][1]):.0f}",
                f"{of(lambda one: one['between_ms'][0]):.1f} / {of(lambda one: one['between_ms'][1]):.1f}",
                f"{cost:.0f}" if cost is not None else "",
            )  # fmt: skip
            yield "| " + " | ".join(map(str, cells)) + " |"


def run_soak(given):
    """With few cells, so that all of them are soon in use, and a short queue."""
    options = ["--model", given.model, "--cells", "2048", "--max-running", "16", "--max-queue", "16"]
    with ours(*options) as (address, pid):
        wrong, found = asyncio.run(soak(address, pid, given.model, 40, given.soak, given.tokens))
    print(json.dumps(found))
    for text in wrong:
        print(f"wrong: {text}")
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument(
        "--clients", type=lambda text: [int(n) for n in text.split(",")], default=[1, 8, 32, 128]
    )
    parser.add_argument(
        "--requests", type=int, default=128, help="of all clients together, at least one each"
    )
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cells", type=int, default=32768)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--peer", help="the command line of another server")
    parser.add_argument("--peer-address", default="http://127.0.0.1:8099")
    parser.add_argument("--peer-model", default="any")
    parser.add_argument(
        "--soak", type=float, metavar="SECONDS", help="instead of all that: vanishing clients"
    )
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.soak:
        return run_soak(given)
    results = rounds(given)
    if given.out:
        given.out.write_text(json.dumps(results, indent=1) + "\n")
    print("\n".join(table(results)))
    dear = [one for one in results if "outside_us" in one and sum(one["outside_us"].values()) > OUTSIDE]
    for one in dear:
        print(f"over {OUTSIDE:.0f} µs a token outside forward: {line(one)}", file=sys.stderr)
    return 1 if any(one["errors"] for one in results) else 0


if __name__ == "__main__":
    sys.exit(main())

"""`stretto serve` under load: throughput, latencies, what the server costs beside the model, and a soak.

    python benchmarks/serve.py                                  # 1, 8, 32, 128 streaming clients
    python benchmarks/serve.py --threads 2 --peer \\
        'llama-server -m {model} -c 65536 -np 128 -t 2 --port 8099'
    python benchmarks/serve.py --peer http://127.0.0.1:8099     # one that runs already
    python benchmarks/serve.py --soak 30                        # minutes at the limit; clients vanish

Each client asks for one stream after the other, with a prompt of its own that begins as all do. The peer is
any server with OpenAI's API; it gets the same requests. Both start anew in every round, by turns, and never
run at the same time. `{model}` in its command is the path of the file that ours serves.

Processor time outside `forward`, by the emitted token, is that of the thread that serves (`loop`), of its
helpers, and of the thread that steps the engine without what it spends in the backend's forward passes
(`steps`: scheduling, sampling, detokenizing). The other threads of the process are the backend's; they
compute, or spin for a moment while they wait: `pool` and `forward`, beside it in the JSON. A table goes to
stdout, all figures to benchmarks/raw.

llama.cpp's own server, from the source in llama-cpp-python's sdist:

    pip download --no-binary :all: --no-deps llama-cpp-python && tar xf llama_cpp_python-*.tar.gz
    cmake -S llama_cpp_python-*/vendor/llama.cpp -B build -DCMAKE_BUILD_TYPE=Release
    cmake --build build --target llama-server -j 2              # build/bin/llama-server
"""

import argparse
import asyncio
import json
import platform
import re
import signal
import sys
import time
from pathlib import Path

from load.client import get, stream
from load.process import cpu_seconds, ours, peer
from load.report import OUTSIDE, figures, line, table
from load.soak import soak
from peers.bench import Others, raw_file
from stretto import hardware
from stretto.server.settings import ModelEntry
from stretto.weights import hub

STORY = "You are a careful assistant who answers in plain words and never invents facts. "
PARTS = ("loop", "helpers", "steps")


def body(model, number, tokens):
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
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }


async def load(address, model, clients, requests, tokens):
    """So many clients at once, each with so many requests: what all of them heard."""

    async def client(number):
        return [
            await stream(address, "/v1/chat/completions", body(model, number * 1000 + i, tokens))
            for i in range(requests)
        ]

    begun = time.perf_counter()
    heard = await asyncio.gather(*(client(number) for number in range(clients)))
    return [one for several in heard for one in several], time.perf_counter() - begun


def outside(before, after, model, n_tokens):
    """µs of processor time for a token: outside of `forward` by thread, and what was left out."""
    spent = {key: after["cpu"][key] - before["cpu"][key] for key in ("process", *PARTS)}
    old, new = (stats["models"][model]["engine"]["forward_cpu"] for stats in (before, after))
    spent["forward"] = new - old
    spent["steps"] -= spent["forward"]
    spent["pool"] = spent.pop("process") - sum(spent.values())
    each = {name: 1e6 * seconds / max(1, n_tokens) for name, seconds in spent.items()}
    return {name: each[name] for name in PARTS}, {name: each[name] for name in ("forward", "pool")}


async def measure(address, pid, model, clients, given, is_ours):
    await load(address, model, clients, 1, 8)  # warm
    before = await get(address, "/stretto/stats") if is_ours else None
    cpu, requests = cpu_seconds(pid), -(-given.requests // clients)
    heard, seconds = await load(address, model, clients, requests, given.tokens)
    found = figures(heard, seconds)
    found["cpu_per_token_us"] = 1e6 * (cpu_seconds(pid) - cpu) / max(1, found["tokens"])
    if is_ours:
        after = await get(address, "/stretto/stats")
        found["outside_us"], found["inside_us"] = outside(before, after, model, found["tokens"])
    return found


def servers(given):
    """(name, how to start it, whether it is ours, what it calls the model)."""
    most = str(max(64, *given.clients))
    options = ["--model", given.model, "--cells", str(given.cells), "--max-running", most]
    options += ["--threads", str(given.threads)] if given.threads else []
    options += ["--device", given.device] if given.device else []
    entry = ModelEntry.parse(given.model)
    yield "stretto", lambda: ours(*options), True, entry.name
    if given.peer:
        command = given.peer.replace("{model}", str(hub.resolve(entry.source)))
        port = re.search(r"--port[ =](\d+)", command)
        address = f"http://127.0.0.1:{port[1] if port else 8080}"
        yield "peer", lambda: peer(command, address), False, given.peer_model


def rounds(given):
    """All measurements: in each round both servers, first the one that was second before."""
    results, both = [], list(servers(given))
    for number in range(given.rounds):
        for name, start, is_ours, model in both if number % 2 == 0 else both[::-1]:
            with start() as (address, pid):
                for clients in given.clients:
                    found = asyncio.run(measure(address, pid, model, clients, given, is_ours))
                    results.append({"server": name, "clients": clients, "round": number, **found})
                    print(line(results[-1]), file=sys.stderr, flush=True)
    return results


def compare(given):
    others, begun = Others(), time.monotonic()
    results = rounds(given)
    cpu = hardware.probe(measure=False).cpu
    document = {
        "command": " ".join(["python", "benchmarks/serve.py", *sys.argv[1:]]),
        "cpu": cpu,
        "system": platform.platform(),
        "seconds": round(time.monotonic() - begun),
        "others": round(others.share(), 3),
        "results": results,
    }
    out = given.out or raw_file("serve", cpu)
    out.write_text(json.dumps(document, indent=1) + "\n")
    print("\n".join(table(results)))
    print(f"in {document['seconds']} s; others used {document['others']:.0%} of the processors")
    dear = [one for one in results if "outside_us" in one and sum(one["outside_us"].values()) > OUTSIDE]
    for one in dear:
        print(f"over {OUTSIDE:.0f} µs a token outside forward: {line(one)}", file=sys.stderr)
    return 1 if any(one["errors"] for one in results) else 0


def run_soak(given):
    """With few cells, so that all of them are soon in use, and a short queue."""
    options = ["--model", given.model, "--cells", "2048", "--max-running", "16", "--max-queue", "16"]
    options += ["--threads", str(given.threads)] if given.threads else []
    with ours(*options) as (address, pid):
        wrong, found = asyncio.run(soak(address, pid, given.model, 40, 60 * given.soak, given.tokens))
    print(json.dumps(found))
    for text in wrong:
        print(f"wrong: {text}")
    return 1 if wrong else 0


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers end too
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument(
        "--clients", type=lambda text: [int(n) for n in text.split(",")], default=[1, 8, 32, 128]
    )
    parser.add_argument("--requests", type=int, default=48, help="of all clients, at least one each")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cells", type=int, default=32768)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--device", help="that runs the model (default: by measurement)")
    parser.add_argument("--peer", metavar="COMMAND", help="another server: its command line, or its address")
    parser.add_argument("--peer-model", default="any", help="what it calls the model")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="instead of all that")
    parser.add_argument("--out", type=Path, help="where all figures go (default: benchmarks/raw)")
    given = parser.parse_args()
    return run_soak(given) if given.soak else compare(given)


if __name__ == "__main__":
    sys.exit(main())

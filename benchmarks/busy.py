"""Speed on a busy machine: 0, 1, 2 and 4 busy processes beside it, ours and llama.cpp by turns.

    python benchmarks/busy.py --peer PEER/bin/python --rounds 5 --threads 2

PEER is an environment of its own with `llama-cpp-python`; without --peer only ours is measured. Each busy
process is a loop that never waits. In every round all numbers of busy processes take their turn, so that each
is compared with the quiet machine of the same round. The table goes to stdout, all samples to --out.
"""

import argparse
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from peers.bench import Others, finish, note, raw_file
from peers.process import Process
from stretto import hardware
from stretto.weights import hub

HERE = Path(__file__).parent
SETTLE_SECONDS = 0.3  # until the scheduler has spread new processes over the cores
GOALS = {1: 0.40, 2: 0.30, 4: 0.15}  # of the quiet speed


def tests(args):
    """Name → (job, tokens that it makes)."""
    return {
        "decode": ({"do": "decode", "tokens": args.tokens}, args.tokens),
        "prefill": ({"do": "prefill", "prompt": args.prompt}, args.prompt),
        "batch": (
            {"do": "batch", "sequences": args.sequences, "prompt": 64, "tokens": args.steps},
            args.sequences * args.steps,
        ),
    }


@contextmanager
def busy(count):
    """So many processes that compute all the time."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        time.sleep(SETTLE_SECONDS)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(args, workers):
    """A sample for each round, test, number of busy processes and engine."""
    model, samples = str(hub.resolve(args.model)), []
    for number in range(args.rounds + 1):  # the first warms up
        for test, (job, count) in tests(args).items():
            if args.only and test not in args.only:
                continue
            for n_busy in args.busy if number else (0,):
                for name, worker in workers.items():
                    note(f"round {number} of {args.rounds}: {test}, {n_busy} busy, {name}")
                    request = {
                        **job,
                        "threads": args.threads,
                        "seed": number,
                        "model": model,
                        "warm": not number,
                    }
                    with busy(n_busy):
                        seconds = worker.ask(request)["seconds"]
                    if number:
                        key = {"round": number, "test": test, "busy": n_busy, "engine": name}
                        samples.append({**key, "rate": count / seconds})
    return samples


def rates(document, test, n_busy, engine):
    """Tokens a second, and the share of the same round's quiet speed: medians."""
    chosen = [s for s in document["samples"] if (s["test"], s["engine"]) == (test, engine)]
    quiet = {s["round"]: s["rate"] for s in chosen if s["busy"] == 0}
    found = [s for s in chosen if s["busy"] == n_busy]
    if not found:
        return None
    return median(s["rate"] for s in found), median(s["rate"] / quiet[s["round"]] for s in found)


def markdown(document):
    """The table: a row for each test and number of busy processes."""
    engines = list(dict.fromkeys(sample["engine"] for sample in document["samples"]))
    yield f"`{document['command']}`, {document['cpu']}, {document['threads']} threads, {document['model']}"
    yield ""
    yield (
        "| | busy processes | "
        + " | ".join(f"{engine}, tok/s (of quiet)" for engine in engines)
        + " | goal |"
    )
    yield "|---" * (len(engines) + 3) + "|"
    for test in dict.fromkeys(sample["test"] for sample in document["samples"]):
        for n_busy in document["busy"]:
            cells = [rates(document, test, n_busy, engine) for engine in engines]
            shown = " | ".join("" if cell is None else f"{cell[0]:.0f} ({cell[1]:.0%})" for cell in cells)
            goal = f"{GOALS[n_busy]:.0%}" if n_busy in GOALS else ""
            yield f"| {test} | {n_busy} | {shown} | {goal} |"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", help="the Python that has llama-cpp-python")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=hardware.usable_cores())
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1, 2, 4], help="processes; 0 is needed")
    parser.add_argument("--tokens", type=int, default=384, help="decoded in a measurement")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--steps", type=int, default=48, help="of a batch")
    parser.add_argument("--only", nargs="+", choices=["decode", "prefill", "batch"])
    parser.add_argument("--out", type=Path, help="where all samples go (default: raw/, by processor)")
    return parser.parse_args()


def main():
    args = arguments()
    cpu = hardware.probe(measure=False).cpu
    commands = {"stretto": [sys.executable, str(HERE / "peers" / "stretto_worker.py")]}
    if args.peer:
        commands["llama.cpp"] = [args.peer, str(HERE / "peers" / "llamacpp_worker.py")]
    document = {
        "command": f"python benchmarks/busy.py --rounds {args.rounds} --threads {args.threads}"
        + (" --peer PEER/bin/python" if args.peer else ""),
        "cpu": cpu,
        "model": args.model,
        "threads": args.threads,
        "busy": args.busy,
    }
    others = Others()
    with ExitStack() as stack:
        workers = {name: stack.enter_context(Process(command)) for name, command in commands.items()}
        document["samples"] = measure(args, workers)
    finish(document, others, args.out or raw_file("busy", cpu), markdown)


if __name__ == "__main__":
    main()

"""Requests of mixed lengths, together and one after another, beside llama.cpp.

    python benchmarks/batch.py --peer PEER/bin/python --rounds 5 --threads 2

Each request is a stream of its own with its own length, as users would start them. llama.cpp gets all
prompts, then decodes all that have not finished, through its C functions without sampling, on the same file
and on its own re-quantisation to Q4_0, with flash attention on and off; the best counts. Figures are
generated tokens a second, prompts included in the time. Also the Python part of a step.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import stretto
from peers.process import Process
from stretto.weights import hub

HERE = Path(__file__).parent
WIDTHS = 1, 2, 4, 8, 16, 32


def requests(count, seed):
    """(tokens of the prompt, tokens to generate) of each request."""
    rng = random.Random(seed)
    return [(rng.randint(32, 192), rng.randint(32, 192)) for _ in range(count)]


def prompts(wanted, seed, n_vocab):
    rng = random.Random(seed)
    return [rng.choices(range(100, n_vocab - 100), k=prompt) for prompt, _ in wanted]


def together(llm, wanted, seed):
    """Seconds until all have finished."""
    llm.cache.clear()
    texts = prompts(wanted, seed, llm.spec.n_vocab)
    begun = time.perf_counter()
    streams = [
        llm.stream(text, max_tokens=tokens, ignore_eos=True, temperature=0)
        for text, (_, tokens) in zip(texts, wanted, strict=True)
    ]
    for stream in streams:
        assert len(stream.result.tokens) > 0
    return time.perf_counter() - begun


def one_after_another(llm, wanted, seed):
    llm.cache.clear()
    texts = prompts(wanted, seed, llm.spec.n_vocab)
    begun = time.perf_counter()
    for text, (_, tokens) in zip(texts, wanted, strict=True):
        llm.generate(text, max_tokens=tokens, ignore_eos=True, temperature=0)
    return time.perf_counter() - begun


def python_time(llm, count, steps=64):
    """Microseconds of a step that are neither forward pass nor sampling."""
    llm.cache.clear()
    streams = [
        llm.stream([5 + i], max_tokens=steps + 8, ignore_eos=True, temperature=0) for i in range(count)
    ]
    for _ in range(4):
        next(streams[0])
    metrics = llm.metrics
    before = metrics.python, metrics.steps
    for _ in range(steps):
        next(streams[0])
    found = 1e6 * (metrics.python - before[0]) / (metrics.steps - before[1])
    for stream in streams:
        stream.cancel()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", help="the Python that has llama-cpp-python")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--widths", type=int, nargs="*", default=WIDTHS)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir(), "stretto-bench"))
    parser.add_argument("--out", type=Path, default=HERE / "raw" / "batch.json")
    args = parser.parse_args()
    model = str(hub.resolve("smollm2"))
    found = {}
    with ExitStack() as stack:
        llm = stack.enter_context(stretto.load(model, threads=args.threads, cells=16384))
        peer, files = None, {}
        if args.peer:
            peer = stack.enter_context(Process([args.peer, str(HERE / "peers" / "llamacpp_worker.py")]))
            args.cache.mkdir(parents=True, exist_ok=True)
            files = {"same file": model, "its Q4_0": str(args.cache / "smollm2-q4_0.gguf")}
            if not Path(files["its Q4_0"]).exists():
                peer.ask({"do": "quantize", "model": model, "to": files["its Q4_0"]})
        for width in args.widths:
            wanted = requests(width, width)
            total = sum(tokens for _, tokens in wanted)
            entry = found[width] = {"together": [], "alone": [], "python": []}
            for number in range(args.rounds + 1):  # the first warms up
                a, b = together(llm, wanted, number), one_after_another(llm, wanted, number)
                theirs = {}
                for name, path in files.items():
                    for flash in (True, False):
                        job = {"do": "mixed", "model": path, "threads": args.threads, "requests": wanted}
                        answer = peer.ask({**job, "seed": number, "flash": flash})
                        theirs[f"{name}, flash {'on' if flash else 'off'}"] = total / answer["seconds"]
                if number:
                    entry["together"].append(total / a)
                    entry["alone"].append(total / b)
                    entry["python"].append(python_time(llm, width))
                    for name, speed in theirs.items():
                        entry.setdefault(name, []).append(speed)
            if peer:
                peer.ask({"do": "close"})
    options = f"--rounds {args.rounds} --threads {args.threads} --widths {' '.join(map(str, args.widths))}"
    command = f"python benchmarks/batch.py {'--peer PEER/bin/python ' if peer else ''}{options}"
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"command": command, "tokens a second": found}, indent=1) + "\n")
    print(f"`{command}`\n")
    print("| requests | together | one after another | ratio | llama.cpp's best | ratio | Python a step |")
    print("|---|---|---|---|---|---|---|")
    for width, entry in found.items():
        middle = {name: statistics.median(samples) for name, samples in entry.items()}
        best = max((v for k, v in middle.items() if "flash" in k), default=0.0)
        ratio = f"**{middle['together'] / best:.2f}**" if best else "–"
        print(
            f"| {width} | {middle['together']:.0f} | {middle['alone']:.0f} "
            f"| {middle['together'] / middle['alone']:.2f} | {best:.0f} | {ratio} "
            f"| {middle['python']:.0f} µs |"
        )


if __name__ == "__main__":
    main()

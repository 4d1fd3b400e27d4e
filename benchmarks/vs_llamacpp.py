"""Stretto beside llama.cpp, side by side in one run: A-B-A-B, only one of them computing at a time.

    python benchmarks/vs_llamacpp.py --peer PEER/bin/python --rounds 5 --threads 2

PEER is an environment of its own with `llama-cpp-python`, built from source for this processor. Stretto is
measured through public calls with greedy sampling; llama.cpp through its C functions without sampling, as its
own llama-bench does it, with flash attention on and off, and the better counts. SmolLM2 is measured against
llama.cpp on the same file and on llama.cpp's own re-quantisation of it to Q4_0. Every sample of ours stands
right before the sample of theirs that it is compared with. The table goes to stdout, all samples to --out.

The machine has to be quiet: threads that wait for each other suffer from every neighbour, and llama.cpp's
suffer most. What others used of the processors meanwhile stands under the table.
"""

import argparse
import re
import shlex
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from make_model import SHAPES, make
from peers.bench import Others, finish, note, raw_file
from peers.process import Process
from peers.report import markdown
from stretto import hardware
from stretto.weights import hub

HERE = Path(__file__).parent
TEXT = "Once upon a time there was"
SMOLLM2, GEMMA3, QWEN2 = "SmolLM2 135M Q4_1", "Gemma 3 270M Q4_K_M", "Qwen2.5 0.5B shape Q4_0"
CODER = "Qwen2.5-Coder 1.5B Q4_K_M"
SAME, Q4_0 = "same file", "its Q4_0"


@dataclass
class Test:
    """What is measured: a job for both, and the ways in which the peer may do it."""

    model: str
    name: str
    job: dict
    count: int  # tokens of a measurement; 0: the seconds themselves
    ways: list = field(default_factory=lambda: [{"flash": True}, {"flash": False}])
    files: tuple = (SAME,)
    ours: dict = field(default_factory=dict)
    fresh: bool = False  # in processes that have done nothing before


def tests(args):
    n, both = args.tokens, (SAME, Q4_0)
    decode = {"do": "decode", "tokens": n}
    deep = {**decode, "depth": args.depth}
    batch = {"do": "batch", "sequences": args.sequences, "prompt": n, "tokens": n}
    prefill = {"do": "prefill", "prompt": args.prompt}
    first = {"do": "first_token", "text": TEXT}
    name = f"decode at depth {args.depth}, K/V"
    found = [
        Test(SMOLLM2, f"decode {n}", decode, n, files=both),
        Test(SMOLLM2, f"prefill {args.prompt}", prefill, args.prompt, files=both),
        Test(SMOLLM2, f"{name} f16", deep, n, files=both),
        Test(SMOLLM2, f"{name} 8 bits", deep, n, files=both, ours={"kv": "q8"}),
        Test(SMOLLM2, f"{args.sequences} sequences", batch, n * args.sequences, files=both),
        Test(SMOLLM2, "load to first token", first, 0, files=both, fresh=True),
        Test(GEMMA3, f"decode {n}", decode, n),
        Test(QWEN2, f"decode {n}", decode, n),
        Test(CODER, f"decode {n}", decode, n),
        Test(CODER, f"prefill {args.prompt}", prefill, args.prompt),
        Test(CODER, "prefill 4096", {"do": "prefill", "prompt": 4096}, 4096, [{"flash": True}]),
        Test(CODER, f"{name} f16", deep, n),
        Test(CODER, "decode at depth 8192, K/V f16", {**decode, "depth": 8192}, n, [{"flash": True}]),
        Test(CODER, f"{args.sequences} sequences", batch, n * args.sequences),
        Test(CODER, "load", {"do": "load_only"}, 0, fresh=True),
        Test(CODER, "load to first token", first, 0, fresh=True),
    ]
    found[3].ways.append({"flash": True, "kv": "q8"})  # 8 bits for both, and f16 if that is faster for them
    wanted = [test for test in found if not args.only or re.search(args.only, f"{test.model} {test.name}")]
    return sorted(wanted, key=lambda test: [SMOLLM2, GEMMA3, QWEN2, CODER].index(test.model))


def model_files(names, folder, peer):
    """(model, variant) → path; what has to be made is made once and kept."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    if SMOLLM2 in names:
        found[SMOLLM2, SAME] = hub.resolve("smollm2")
        found[SMOLLM2, Q4_0] = requantised = folder / "smollm2-q4_0.gguf"
        if not requantised.exists():
            peer.ask({"do": "quantize", "model": str(found[SMOLLM2, SAME]), "to": str(requantised)})
    if GEMMA3 in names:
        found[GEMMA3, SAME] = hub.resolve("gemma3-270m")
    if CODER in names:
        found[CODER, SAME] = hub.resolve("qwen2.5-coder-1.5b")
    if QWEN2 in names:
        found[QWEN2, SAME] = shaped = folder / "qwen2.5-0.5b-q4_0.gguf"
        if not shaped.exists():
            make(shaped, SHAPES["qwen2.5-0.5b"])
    return {key: str(path) for key, path in found.items()}


def measure(args, chosen, ours, peer, files):
    """A sample for each round, test, file and way of the peer: ours, then theirs."""
    samples = []
    for model in dict.fromkeys(test.model for test in chosen):
        for number in range(args.rounds + 1):  # the first warms up
            for test in (test for test in chosen if test.model == model):
                for file, way in ((file, way) for file in test.files for way in test.ways):
                    turn = f"round {number} of {args.rounds}" if number else "warming up"
                    note(f"{turn}: {model}, {test.name}, {file}, {way}")
                    job = {**test.job, "threads": args.threads, "seed": number, "warm": not number}
                    for process in (ours, peer) if test.fresh else ():
                        process.restart()
                    a = ours.ask({**job, **test.ours, "model": files[model, SAME]}, idle=peer)
                    b = peer.ask({**job, **way, "model": files[model, file]}, idle=ours)
                    if number:
                        key = {"model": model, "test": test.name, "file": file, "way": way, "round": number}
                        samples.append({**key, "count": test.count, "ours": a, "peer": b})
        for process in (ours, peer):
            process.ask({"do": "close"})
    return samples


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", required=True, help="the Python that has llama-cpp-python")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=hardware.usable_cores())
    parser.add_argument("--tokens", type=int, default=128, help="decoded, and in each prompt of a batch")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--depth", type=int, default=2048)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--only", help="tests whose model and name match this pattern")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir(), "stretto-bench"))
    parser.add_argument("--out", type=Path, help="where all samples go (default: raw/, by processor)")
    return parser.parse_args()


def main():
    args = arguments()
    cpu = hardware.probe(measure=False).cpu
    out = args.out or raw_file("vs_llamacpp", cpu)
    chosen = tests(args)
    others = Others()
    sizes = {
        name: getattr(args, name) for name in ("rounds", "threads", "tokens", "prompt", "depth", "sequences")
    }
    options = " ".join(f"--{name} {value}" for name, value in sizes.items())
    options += f" --only {shlex.quote(args.only)}" if args.only else ""
    with (
        Process([sys.executable, str(HERE / "peers" / "stretto_worker.py")]) as ours,
        Process([args.peer, str(HERE / "peers" / "llamacpp_worker.py")]) as peer,
    ):
        about = peer.ask({"do": "about"})
        document = {
            "command": f"python benchmarks/vs_llamacpp.py --peer PEER/bin/python {options}",
            "cpu": cpu,
            "ours": ours.ask({"do": "about"})["version"],
            "peer": about["version"],
            "system": about["system"],
            **sizes,
        }
        files = model_files({test.model for test in chosen}, args.cache, peer)
        document["samples"] = measure(args, chosen, ours, peer, files)
    finish(document, others, out, markdown)


if __name__ == "__main__":
    main()

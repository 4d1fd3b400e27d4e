"""Models with experts and recurrent layers, beside llama.cpp on the same file: A-B-A-B in one run.

    python benchmarks/architectures.py --peer PEER/bin/python --rounds 5 --threads 2

Files have the shapes of known models, few of their layers and random weights (shapes.py). PEER and the way
both are called are those of vs_llamacpp.py, but Stretto samples (temperature 1 of the 40 best): greedy
tokens of a random model repeat, and with them the experts, whose weights would stay in the caches.
llama.cpp gets random tokens. With --realtime both run before all other processes of the machine (`chrt -f`,
which needs the right to).
"""

import argparse
import re
import shlex
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from peers.bench import Others, finish, note, raw_file
from peers.process import Process
from peers.report import markdown
from shapes import SHAPES, make
from stretto import hardware

HERE = Path(__file__).parent
REALTIME = "chrt", "-f", "20"
WAYS = {"flash": True}, {"flash": False}


def tests(args):
    """(name, job, tokens of a measurement)."""
    n, count = args.tokens, args.sequences
    sampling = {"temperature": 1.0, "top_k": 40}
    batch = {"do": "batch", "sequences": count, "prompt": 32, "tokens": n // 4}
    found = [
        (f"prefill {args.prompt}", {"do": "prefill", "prompt": args.prompt}, {}, args.prompt),
        (f"decode {n}", {"do": "decode", "tokens": n}, {"sampling": sampling}, n),
        (f"{count} sequences", batch, {"sampling": sampling}, count * (n // 4)),
    ]
    return [test for test in found if not args.only or re.search(args.only, test[0])]


def file_of(args, name):
    """A model's name and the path of its file, which is made once and kept."""
    args.cache.mkdir(parents=True, exist_ok=True)
    shape = replace(SHAPES[name], n_layer=args.layers or SHAPES[name].n_layer)
    path = args.cache / f"{name}-{shape.n_layer}.gguf"
    if not path.exists():
        note(f"writing {path}")
        make(path, shape)
    return f"{name}, {shape.n_layer} layers", str(path)


def measure(args, ours, peer):
    """A sample for each round, test and way of the peer: ours, then theirs."""
    samples = []
    for model, path in (file_of(args, name) for name in args.models):
        for number in range(args.rounds + 1):  # the first warms up
            for name, job, own, count in tests(args):
                for way in WAYS:
                    note(f"{model}: round {number} of {args.rounds}, {name}, {way}")
                    request = {
                        **job,
                        "threads": args.threads,
                        "seed": number,
                        "warm": not number,
                        "model": path,
                    }
                    a = ours.ask({**request, **own}, idle=peer)
                    b = peer.ask({**request, **way}, idle=ours)
                    if number:
                        key = {"model": model, "test": name, "file": "same file", "way": way, "round": number}
                        samples.append({**key, "count": count, "ours": a, "peer": b})
        for process in (ours, peer):
            process.ask({"do": "close"})
    return samples


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", choices=[*SHAPES, []], help="all, if none is given")
    parser.add_argument("--peer", required=True, help="the Python that has llama-cpp-python")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=hardware.usable_cores())
    parser.add_argument("--tokens", type=int, default=64, help="decoded; a fourth of them by each of many")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--layers", type=int, help="of the files")
    parser.add_argument("--only", help="tests whose name matches this pattern")
    parser.add_argument("--realtime", action="store_true", help="no other process is in the figures")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir(), "stretto-bench"))
    parser.add_argument("--out", type=Path, help="where all samples go (default: raw/, by processor)")
    args = parser.parse_args()
    args.models = args.models or list(SHAPES)
    return args


def command(args):
    """The command line again, without paths."""
    words = ["python benchmarks/architectures.py", *args.models, "--peer PEER/bin/python"]
    for name in ("rounds", "threads", "tokens", "prompt", "sequences", "layers", "only"):
        value = getattr(args, name)
        words += [f"--{name} {shlex.quote(str(value))}"] if value is not None else []
    return " ".join(words + ["--realtime"] * args.realtime)


def main():
    args = arguments()
    cpu = hardware.probe(measure=False).cpu
    others = Others()
    prefix = list(REALTIME) if args.realtime else []
    with (
        Process([*prefix, sys.executable, str(HERE / "peers" / "stretto_worker.py")]) as ours,
        Process([*prefix, args.peer, str(HERE / "peers" / "llamacpp_worker.py")]) as peer,
    ):
        about = peer.ask({"do": "about"})
        document = {
            "command": command(args),
            "cpu": cpu,
            "ours": ours.ask({"do": "about"})["version"],
            "peer": about["version"],
            "system": about["system"],
            "rounds": args.rounds,
            "threads": args.threads,
            "samples": measure(args, ours, peer),
        }
    finish(document, others, args.out or raw_file("architectures", cpu), markdown)


if __name__ == "__main__":
    main()

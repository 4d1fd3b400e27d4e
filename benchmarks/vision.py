"""Images: how soon the first token comes, and how fast an encoder is beside llama.cpp's.

    python benchmarks/vision.py --peer PEER/bin/python --rounds 5 --threads 2

The time to the first token is measured from a picture's pixels and a question on: with nothing there, with
the picture's vectors in memory or on disk, and with K and V of all but the question. Every sample is checked
by what it encoded and found. The models are one with SmolVLM-256M's dimensions and random weights (made once,
in --cache), whose picture is one tile of 512 × 512, and the shipped `sketch` with SmolLM2.

PEER is an environment of its own with `llama-cpp-python`, built from source with its multimodal library. Both
encode the same tile of the same file, ours right before theirs; its attention is measured both ways, and the
better counts. Without --peer the encoder is measured alone. The tables go to stdout, all samples to --out.
"""

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

import make_mmproj
import make_model
from peers.bench import Others, finish, note, raw_file
from peers.process import Process
from stretto import hardware
from stretto.loading.images import BUNDLED_ENCODERS
from stretto.weights import hub
from stretto.weights.formats import Format

HERE = Path(__file__).parent
CASES = {
    "cold": "nothing is there",
    "memory": "its vectors, in memory",
    "disk": "its vectors, on disk",
    "k/v": "its K and V",
}
SMOLVLM, SKETCH, TINY = "SmolVLM 256M shape", "sketch, SmolLM2 135M", "tiny"
WAYS = ({"flash": False}, {"flash": True})


def models(args):
    """Name → (language model, encoder, pixels along each side of a picture)."""
    args.cache.mkdir(parents=True, exist_ok=True)
    found = {}
    for label, shape, size in ((SMOLVLM, "smolvlm-256m", 512), (TINY, "tiny", 32)):
        if (label == TINY) == args.tiny:
            model, mmproj = (args.cache / f"{shape}-{part}.gguf" for part in ("text", "mmproj"))
            if not model.exists():
                with_tokens = replace(make_model.SHAPES[shape], specials=make_model.AROUND_IMAGES)
                make_model.make(model, with_tokens, Format.Q8_0)
            if not mmproj.exists():
                make_mmproj.make(mmproj, make_mmproj.SPECS[shape])
            found[label] = model, mmproj, size
    if BUNDLED_ENCODERS["sketch"].exists() and not args.tiny:
        found[SKETCH] = hub.resolve("smollm2"), BUNDLED_ENCODERS["sketch"], 128
    return {name: (str(model), str(mmproj), size) for name, (model, mmproj, size) in found.items()}


def first_tokens(args, ours, chosen):
    """A sample for each round, model and case; the first round warms up."""
    samples, cases = [], ours.ask({"do": "about"})["cases"]
    for name, (model, mmproj, size) in chosen.items():
        for number in range(args.rounds + 1):
            for i, case in enumerate(cases):
                note(f"round {number} of {args.rounds}: {name}, {case}")
                job = {"do": "first_token", "model": model, "mmproj": mmproj, "size": size, "case": case}
                answer = ours.ask({**job, "threads": args.threads, "seed": len(CASES) * number + i})
                if number:
                    samples.append({"model": name, "case": case, "round": number, **answer})
    return samples


def encodings(args, ours, peer, chosen):
    """A sample for each round, model and way of the peer: ours, then theirs."""
    samples = []
    for name, (model, mmproj, size) in chosen.items():
        for number in range(args.rounds + 1):
            for way in WAYS if peer else ({},):
                note(f"round {number} of {args.rounds}: {name}, encoder, {way}")
                job = {"do": "encode", "model": model, "mmproj": mmproj, "size": size, "seed": number}
                job["threads"] = args.threads
                sample = {"model": name, "way": way, "round": number, "ours": ours.ask(job, idle=peer)}
                if peer:
                    sample["peer"] = peer.ask({**job, **way}, idle=ours)
                    check(name, sample)
                if number:
                    samples.append(sample)
    return samples


def check(name, sample):
    """Both sides encode the same picture: the lengths of their vectors agree."""
    a, b = (np.array(sample[side]["norms"]) for side in ("ours", "peer"))
    if sample["ours"]["vectors"] != sample["peer"]["vectors"] or not np.allclose(a, b, rtol=0.01):
        raise SystemExit(f"{name}: the vectors differ, {a} and {b}")


def markdown(document):
    """The lines of both tables, with what is needed to repeat them."""
    yield f"{document['cpu']}, {document['threads']} threads; {document['ours']}; {document['peer']}."
    yield f"`{document['command']}`"
    yield ""
    yield "| model | what is there | first token, ms | sooner than cold | rounds | tokens, of them found |"
    yield "|---|---|---|---|---|---|"
    tokens = document["first_tokens"]
    for name in dict.fromkeys(sample["model"] for sample in tokens):
        by_case = {
            case: [sample for sample in tokens if (sample["model"], sample["case"]) == (name, case)]
            for case in CASES
        }
        cold = median(sample["seconds"] for sample in by_case["cold"])
        for case, samples in ((case, samples) for case, samples in by_case.items() if samples):
            seconds = [sample["seconds"] for sample in samples]
            spread = f"{1e3 * min(seconds):.1f} – {1e3 * max(seconds):.1f}"
            found = f"{samples[0]['tokens']}, {samples[0]['cached']}"
            times = f"{1e3 * median(seconds):.1f} | **{cold / median(seconds):.1f} ×** | {spread}"
            yield f"| {name} | {CASES[case]} | {times} | {found} |"
    yield ""
    yield "| encoder | vectors | Stretto, ms | llama.cpp, ms | ratio | rounds | its flash attention |"
    yield "|---|---|---|---|---|---|---|"
    yield from encoder_rows(document["encodings"])
    yield ""
    yield f"Medians of {document['rounds']} rounds. Everything else on the machine used"
    yield f"{document['others']:.0%} of the processors."


def encoder_rows(samples):
    for name in dict.fromkeys(sample["model"] for sample in samples):
        ways = {}
        for sample in (sample for sample in samples if sample["model"] == name):
            ways.setdefault(json.dumps(sample["way"]), []).append(sample)
        vectors = next(iter(ways.values()))[0]["ours"]["vectors"]
        if "{}" in ways:
            ours = median(1e3 * sample["ours"]["seconds"] for sample in ways["{}"])
            yield f"| {name} | {vectors} | {ours:.1f} | – | – | – | – |"
            continue
        peer = {way: median(1e3 * sample["peer"]["seconds"] for sample in ways[way]) for way in ways}
        best = min(peer, key=peer.__getitem__)
        ours = median(1e3 * sample["ours"]["seconds"] for sample in ways[best])
        ratios = [sample["peer"]["seconds"] / sample["ours"]["seconds"] for sample in ways[best]]
        spread = f"{min(ratios):.2f} – {max(ratios):.2f}"
        flash = "on" if json.loads(best)["flash"] else "off"
        figures = f"{ours:.1f} | {peer[best]:.1f} | **{peer[best] / ours:.2f}** | {spread} | {flash}"
        yield f"| {name} | {vectors} | {figures} |"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", help="a Python that has llama-cpp-python with its multimodal library")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=hardware.usable_cores())
    parser.add_argument("--tiny", action="store_true", help="with a tiny model, to try the program out")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir(), "stretto-bench"))
    parser.add_argument("--out", type=Path, help="where all samples go (default: raw/, by processor)")
    return parser.parse_args()


def main():
    args = arguments()
    cpu = hardware.probe(measure=False).cpu
    out = args.out or raw_file("vision", cpu)
    others, chosen = Others(), models(args)
    with ExitStack() as stack:
        workers = HERE / "peers"
        ours = stack.enter_context(Process([sys.executable, str(workers / "stretto_vision.py")]))
        peer = args.peer and stack.enter_context(Process([args.peer, str(workers / "llamacpp_vision.py")]))
        document = {
            "command": f"python benchmarks/vision.py{' --peer PEER/bin/python' if peer else ''}"
            f" --rounds {args.rounds} --threads {args.threads}{' --tiny' if args.tiny else ''}",
            "cpu": cpu,
            "ours": ours.ask({"do": "about"})["version"],
            "peer": "{version} ({system})".format(**peer.ask({"do": "about"})) if peer else "no peer",
            "rounds": args.rounds,
            "threads": args.threads,
            "first_tokens": first_tokens(args, ours, chosen),
            "encodings": encodings(args, ours, peer, chosen),
        }
    finish(document, others, out, markdown)


if __name__ == "__main__":
    main()

"""What a grammar costs: a step with and without by turns; masks and compilation beside llama-cpp-python's.

    python benchmarks/grammar.py --peer PEER/bin/python --rounds 20 --schemas 300 --threads 2
    python benchmarks/grammar.py --only masks --peer PEER/bin/python --schemas 300 --peer-schemas 300

PEER is an environment with `llama-cpp-python`. A step: every sample with a grammar stands next to one
without, in changing order; the cost is what the two of a round differ by. Masks: each schema of `schemas.py`
is compiled, and its masks are taken along a text that fits it, the same text on both sides. The table goes
to stdout, all samples to --out. The machine has to be quiet; what others used of it stands under the table.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import median

from peers.bench import Others, finish, note, raw_file
from peers.process import Process
from schemas import realistic
from stretto import hardware
from stretto.weights import hub

HERE = Path(__file__).parent
MODELS = {"SmolLM2 135M": "smollm2", "Gemma 3 270M": "gemma3-270m"}
BAR = 0.05  # the most a grammar should cost of a step
CASES = [(loop, grammar) for loop in ("python", "fused") for grammar in ("text", "digits")]


def steps(args, ours, paths):
    """Pairs of samples, with a grammar and without; the first round warms up."""
    samples = []
    for model, path in paths.items():
        job = {"do": "decode", "model": path, "threads": args.threads, "tokens": args.tokens}
        for number in range(args.rounds + 1):
            for loop, grammar in CASES:
                note(f"{model}, round {number} of {args.rounds}: {loop}, {grammar}")
                seconds = {}
                for kind in ("none", grammar) if number % 2 else (grammar, "none"):
                    answer = ours.ask({**job, "seed": number, "grammar": kind, "loop": loop})
                    seconds[kind] = answer["seconds"]
                if number:
                    key = {"model": model, "loop": loop, "grammar": grammar, "round": number}
                    samples.append({**key, "without": seconds["none"], "with": seconds[grammar]})
        ours.ask({"do": "close"})
    return samples


def records(args, ours, paths):
    """Tokens a second of JSON whose keys are forced, and of free text."""
    found = []
    for model, path in paths.items():
        job = {
            "do": "decode",
            "model": path,
            "threads": args.threads,
            "tokens": args.tokens,
            "loop": "python",
        }
        pairs = []
        for number in range(args.rounds + 1):
            note(f"{model}, records, round {number} of {args.rounds}")
            pairs.append([ours.ask({**job, "seed": number, "grammar": kind}) for kind in ("none", "records")])
        found.append({"model": model, "rounds": pairs[1:]})
        ours.ask({"do": "close"})
    return found


def walks(args, processes, paths):
    """Both sides along the same texts; the peer, which takes its time, along the first ones."""
    samples = []
    for model, path in paths.items():
        for number, (schema, value) in enumerate(realistic(args.schemas)):
            note(f"{model}, schema {number} of {args.schemas}")
            job = {"do": "walk", "model": path, "threads": args.threads, "schema": schema}
            job["text"] = json.dumps(value, ensure_ascii=False)
            asked = list(processes)[: 2 if number < args.peer_schemas else 1]
            answers = {whose: processes[whose].ask(job) for whose in asked[:: 1 if number % 2 else -1]}
            samples.append({"model": model, "schema": number, **answers})
        for process in processes.values():
            process.ask({"do": "close"})
    return samples


def step_rows(document):
    n = document["tokens"]
    for model in MODELS:
        for loop, grammar in CASES:
            key = (model, loop, grammar)
            found = [s for s in document["steps"] if (s["model"], s["loop"], s["grammar"]) == key]
            if not found:
                continue
            shares = sorted(s["with"] / s["without"] - 1 for s in found)
            half = f"{shares[len(shares) // 4]:+.1%} to {shares[-1 - len(shares) // 4]:+.1%}"
            verdict = "met" if median(shares) < BAR else "missed"
            yield (
                f"| {model} | {loop} | {grammar} | {median(1e3 * s['without'] / n for s in found):.2f} ms "
                f"| {median(1e6 * (s['with'] - s['without']) / n for s in found):+.0f} µs "
                f"| **{median(shares):+.1%}** | {half} | {BAR:.0%}: {verdict} |"
            )


def record_rows(document):
    for found in document["records"]:
        speeds, steps_a_token = [], []
        for plain, guided in found["rounds"]:
            speeds.append((plain["tokens"] / plain["seconds"], guided["tokens"] / guided["seconds"]))
            steps_a_token.append(guided["steps"] / guided["tokens"])
        plain, guided = (median(column) for column in zip(*speeds, strict=True))
        yield (
            f"| {found['model']} | {plain:.0f} tok/s | {guided:.0f} tok/s | **{guided / plain:.2f}** "
            f"| {median(steps_a_token):.2f} |"
        )


def walk_rows(document):
    ours, peer = document["sides"]
    for model in MODELS:
        samples = [sample for sample in document["walks"] if sample["model"] == model]
        asked = [sample for sample in samples if peer in sample]
        both = [sample for sample in asked if "masks" in sample[ours] and "masks" in sample[peer]]
        all_ours = [sample[ours] for sample in samples if "masks" in sample[ours]]
        yield walk_row(model, ours, all_ours, len(samples))
        yield walk_row(model, f"{ours}, where both do", [sample[ours] for sample in both], len(asked))
        yield walk_row(model, peer, [sample[peer] for sample in both], len(asked))


def walk_row(model, whose, answers, n_asked):
    masks = sorted(1e6 * t for answer in answers for t in answer["masks"])
    pushes = [1e6 * t for answer in answers for t in answer["pushes"]]
    compiled = sorted(1e3 * answer["compile"] for answer in answers)
    mean, taking = sum(masks) / len(masks), sum(pushes) / len(pushes)
    return (
        f"| {model} | {whose} | {len(answers)} of {n_asked} | {mean:.1f} "
        f"| {median(masks):.1f} | {at(masks, 0.99):.0f} | {masks[-1]:.0f} | {taking:.1f} "
        f"| {median(compiled):.2f} | {at(compiled, 0.99):.1f} | {compiled[-1]:.1f} |"
    )


def at(values, share):
    return values[min(len(values) - 1, int(share * len(values)))]


def markdown(document):
    yield f"{document['cpu']}, {document['threads']} threads; {document['ours']}; {document['peer']}."
    yield f"`{document['command']}`"
    yield ""
    if "steps" in document:
        yield "| model | loop | grammar | a step without | it adds | share | middle half of rounds | bar |"
        yield "|---|---|---|---|---|---|---|---|"
        yield from step_rows(document)
        yield ""
        yield "| model | free text | records as JSON | ratio | steps a token |"
        yield "|---|---|---|---|---|"
        yield from record_rows(document)
        yield ""
    if "walks" in document:
        yield (
            "| vocabulary | | schemas | mask, mean µs | median | 99 % | most | taking a token, mean µs "
            "| compiling, median ms | 99 % | most |"
        )
        yield "|---|---|---|---|---|---|---|---|---|---|---|"
        yield from walk_rows(document)
        yield ""
    yield f"Medians of {document['rounds']} rounds. All else on the machine used {document['others']:.0%} of"
    yield "the processors."


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", required=True, help="the Python that has llama-cpp-python")
    parser.add_argument("--only", choices=("steps", "masks"), help="a part of it; masks take half an hour")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--schemas", type=int, default=300)
    parser.add_argument("--peer-schemas", type=int, default=60, help="how many of them the peer gets")
    parser.add_argument("--threads", type=int, default=hardware.usable_cores())
    parser.add_argument("--tokens", type=int, default=64, help="decoded in a sample")
    parser.add_argument("--out", type=Path, help="where all samples go (default: raw/, by processor)")
    return parser.parse_args()


def main():
    args = arguments()
    cpu = hardware.probe(measure=False).cpu
    out = args.out or raw_file("-".join(filter(None, ("grammar", args.only))), cpu)
    sizes = {name: getattr(args, name) for name in ("rounds", "schemas", "peer_schemas", "threads", "tokens")}
    chosen = f"--only {args.only} " if args.only else ""
    options = chosen + " ".join(f"--{name.replace('_', '-')} {value}" for name, value in sizes.items())
    paths = {model: str(hub.resolve(name)) for model, name in MODELS.items()}
    others = Others()
    with (
        Process([sys.executable, str(HERE / "peers" / "stretto_grammar.py")]) as ours,
        Process([args.peer, str(HERE / "peers" / "llamacpp_grammar.py")]) as peer,
    ):
        processes = {"Stretto": ours, "llama-cpp-python": peer}
        document = {
            "command": f"python benchmarks/grammar.py --peer PEER/bin/python {options}",
            "cpu": cpu,
            "ours": ours.ask({"do": "about"})["version"],
            "peer": peer.ask({"do": "about"})["version"],
            "sides": list(processes),
            **sizes,
        }
        if args.only != "masks":
            document["steps"] = steps(args, ours, paths)
            document["records"] = records(args, ours, paths)
        if args.only != "steps":
            document["walks"] = walks(args, processes, paths)
    finish(document, others, out, markdown, indent=None)


if __name__ == "__main__":
    main()

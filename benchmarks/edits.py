"""What edits of a conversation cost in quality, by mode: KL to recomputing, and right answers.

    python benchmarks/edits.py --model qwen2.5-coder-1.5b --answers edits.jsonl
    python benchmarks/edits.py --answers edits.jsonl --tables      # of what is there

Synthetic conversations of an agent, 1,000 to 3,000 tokens, from a script and a seed: a task, calls of tools
with long outputs, short answers. One output is replaced by a line, as agents do to save room, in each mode.
Then the same questions are asked behind each: about a fact before the cut, one behind it, one that an answer
behind the cut repeats from the removed output, and one that was in the removed output alone, which nobody can
know any more. KL is that of the next token's distribution, of recomputing to the mode, at the end of the
conversation and at each token of recomputing's answers. Lines of the answers' file are conversations: a run
that was interrupted goes on. The order is such that those of any part of a run are spread over all lengths.
"""

import argparse
import json
import random
import re
import statistics
import time
from pathlib import Path

import numpy as np

import stretto
from stretto.engine import editing
from stretto.evaluation.statistics import clustered_mean, share

ANSWER_TOKENS = 10
KINDS = ("before", "behind", "repeated", "removed")  # of questions
LINE_TOKENS = 14.5  # of a log, with the tokenizer of Qwen 2.5
MARK = "[output removed to save room]"
# "heal" with other numbers of tokens next to the cut and at the end; the library's are the first.
HEALS = {
    "heal": (32, 64),
    "heal 16+0": (16, 0),
    "heal 32+0": (32, 0),
    "heal 64+0": (64, 0),
    "heal 128+0": (128, 0),
    "heal 0+64": (0, 64),
    "heal 0+256": (0, 256),
}
WORDS = (
    *(
        "amber",
        "basil",
        "cedar",
        "delta",
        "ember",
        "fjord",
        "gamma",
        "hazel",
        "indigo",
        "jasper",
        "kelp",
        "lotus",
    ),
    *(
        "maple",
        "nickel",
        "onyx",
        "pearl",
        "quartz",
        "raven",
        "sable",
        "topaz",
        "umber",
        "violet",
        "willow",
        "zinc",
    ),
)
LEVELS, VERBS = ("INFO", "DEBUG", "WARN"), ("started", "polled", "flushed", "retried", "closed", "synced")


def log_lines(rng, n):
    """Lines of a log that say nothing of interest."""
    return [
        f"{rng.choice(LEVELS)} worker-{rng.randrange(40):02d} {rng.choice(VERBS)} {rng.choice(WORDS)} "
        f"in {rng.randrange(2, 900)} ms"
        for _ in range(n)
    ]


def make_conversation(seed):
    """Texts in order, which of them is cut, and questions with their answers by kind."""
    rng = random.Random(seed)
    services = rng.sample(WORDS, 4)
    before, behind, told, removed = (str(rng.randrange(2000, 9999)) for _ in range(4))
    size = rng.randrange(1000, 3001)  # tokens, about

    def tool(service, fact, n):
        lines = log_lines(rng, n)
        lines.insert(rng.randrange(len(lines) // 4, max(1, 3 * len(lines) // 4) + 1), fact)
        return (
            f"<|im_start|>user\n<tool_response>\n{service}.log\n",
            "\n".join(lines),
            "\n</tool_response><|im_end|>\n",
        )

    def call(service):
        arguments = json.dumps({"path": f"{service}.log"})
        return (
            "<|im_start|>assistant\n<tool_call>\n"
            f'{{"name": "read_file", "arguments": {arguments}}}\n</tool_call><|im_end|>\n'
        )

    cut = size // 3  # of the tokens, in the output that is removed
    n_cut, n_rest = int(cut / LINE_TOKENS), int((size - cut - 240) / 2 / LINE_TOKENS)
    facts = f"CONFIG {services[1]} listens on port {told}\nCONFIG {services[2]} listens on port {removed}"
    texts = [
        "<|im_start|>system\nYou are an agent that reads log files of services and answers questions about "
        "them. Answer shortly.<|im_end|>\n",
        f"<|im_start|>user\nService {services[0]} listens on port {before}; the other ports are in the logs. "
        "Read the logs of all services, and remember the ports.<|im_end|>\n",
        call(services[0]),
        "".join(tool(services[0], f"INFO {services[0]} is healthy", max(4, n_rest))),
        call(services[1]),
    ]
    head, output, tail = tool(services[1], facts, max(4, n_cut))
    at = len(texts) + 1
    texts += [
        head,
        output,
        tail
        + f"<|im_start|>assistant\nService {services[1]} listens on port {told}.<|im_end|>\n"
        + call(services[3]),
        "".join(tool(services[3], f"CONFIG {services[3]} listens on port {behind}", max(4, n_rest))),
        "<|im_start|>assistant\nI have read the logs of all services.<|im_end|>\n",
    ]
    asked = {
        "before": (services[0], before),
        "behind": (services[3], behind),
        "repeated": (services[1], told),
        "removed": (services[2], removed),
    }
    questions = {
        kind: (
            f"<|im_start|>user\nOn which port does service {name} listen? Answer with the number alone, or "
            "with “unknown”.<|im_end|>\n<|im_start|>assistant\n",
            value,
        )
        for kind, (name, value) in asked.items()
    }
    return texts, at, questions


def log_softmax(rows):
    rows = rows.astype(np.float64)
    rows -= rows.max(-1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(-1, keepdims=True))


def ask(llm, seq, questions, forced=None):
    """By kind of question: the tokens of the answer, and the rows that they come from; or those `forced`."""
    found, forks = {}, {}
    for kind, ids in questions.items():
        forks[kind] = seq.fork()
        forks[kind].append(ids)
        found[kind] = [], []
    steps = {kind: ANSWER_TOKENS if forced is None else len(forced[kind]) for kind in forks}
    for index in range(max(steps.values(), default=0)):
        open_ones = [kind for kind in forks if index < steps[kind]]
        for kind, row in zip(open_ones, llm.logits([forks[kind] for kind in open_ones]), strict=True):
            token = int(row.argmax()) if forced is None else forced[kind][index]
            found[kind][0].append(int(row.argmax()))
            found[kind][1].append(log_softmax(row))
            if token in llm.tokenizer.end_ids or index + 1 == steps[kind]:
                steps[kind] = index + 1
            else:
                forks[kind].append(token)
    for fork in forks.values():
        fork.close(park=False)
    return found


def divergence(rows, others):
    """The KL of each row of recomputing to that of another mode."""
    return [float((np.exp(row) * (row - other)).sum()) for row, other in zip(rows, others, strict=True)]


def spread(n):
    """The seeds of n conversations, in an order whose every beginning has short, middle and long ones."""
    by_size = sorted(range(n), key=lambda seed: sum(map(len, make_conversation(seed)[0])))
    bits = max(1, (n - 1).bit_length())
    places = sorted(range(n), key=lambda place: f"{place:0{bits}b}"[::-1])
    return [by_size[place] for place in places]


def measure(llm, seed, heals, is_checked):
    """One conversation in all modes; a check compares recomputing's logits with a fresh prompt's."""
    texts, at, asked = make_conversation(seed)
    pieces = [llm.tokenizer.encode(text, special=True, bos=False) for text in texts]
    questions = {
        kind: llm.tokenizer.encode(text, special=True, bos=False) for kind, (text, _) in asked.items()
    }
    start = sum(map(len, pieces[:at]))
    stop, mark = start + len(pieces[at]), llm.tokenizer.encode(MARK)
    llm.cache.clear()
    line = {"seed": seed, "tokens": sum(map(len, pieces)), "cut": stop - start, "modes": {}}
    modes = {"recompute": (0, 0), "shift": (0, 0), **{name: HEALS[name] for name in heals}}
    with llm.sequence([token for piece in pieces for token in piece]) as whole:
        exact = whole.fork()
        for name, (near, last) in modes.items():
            editing.HEAL_NEXT_TOKENS, editing.HEAL_LAST_TOKENS = near, last
            seq = exact if name == "recompute" else whole.fork()
            begun = time.perf_counter()
            edit = seq.replace(start, stop, mark, mode=name.split()[0])
            logits = seq.logits.copy()
            seconds = time.perf_counter() - begun
            if name == "recompute":
                rows = truth = ask(llm, seq, questions)
                end, edited, exact_logits = log_softmax(logits), seq.tokens, logits
            else:
                rows = ask(llm, seq, questions, {kind: ids for kind, (ids, _) in truth.items()})
            # Where a mode's best tokens are those of recomputing's answer, its own answer is that one.
            others = {kind: ids for kind, ids in questions.items() if rows[kind][0] != truth[kind][0]}
            answers = {**truth, **ask(llm, seq, others)}
            said = {
                kind: llm.tokenizer.decode([one for one in ids if one not in llm.tokenizer.end_ids])
                for kind, (ids, _) in answers.items()
            }
            line["modes"][name] = {
                "mode": edit.mode,
                "computed": edit.added + edit.recomputed,
                "seconds": round(seconds, 3),
                "end": divergence([end], [log_softmax(logits)])[0],
                "kl": {kind: divergence(truth[kind][1], rows[kind][1]) for kind in questions},
                "said": said,
                "right": {
                    kind: re.findall(r"\d+", said[kind])[:1] == [value] for kind, (_, value) in asked.items()
                },
            }
            seq.close(park=False)
    llm.cache.clear()
    if is_checked:
        with llm.sequence(edited) as fresh:
            line["fresh"] = fresh.n_cached == 0 and bool((fresh.logits == exact_logits).all())
        llm.cache.clear()
    return line


def percent(n_right, n):
    """A share, and its 95 % confidence interval."""
    found = share(n_right, n)
    return f"{found.value:.0%} ({found.low * 100:.0f}–{found.high * 100:.0f})"


def show(lines):
    """The tables."""
    tokens, cuts = [line["tokens"] for line in lines], [line["cut"] for line in lines]
    checked = [line["fresh"] for line in lines if "fresh" in line]
    print(f"{len(lines)} conversations of {min(tokens):,} to {max(tokens):,} tokens, mean "
          f"{statistics.mean(tokens):,.0f}, {statistics.mean(cuts):,.0f} of them cut.")  # fmt: skip
    print(f"Recomputing has the bits of a fresh prompt in {sum(checked)} of {len(checked)} checked.\n")
    modes = dict.fromkeys(mode for line in lines for mode in line["modes"])
    found = {mode: [line["modes"] for line in lines if mode in line["modes"]] for mode in modes}
    print(
        "| mode | conversations | tokens computed | time | KL at the end | KL in answers | 90 % | highest |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for mode, several in found.items():
        each = [one[mode] for one in several]
        kls = [np.concatenate([*one["kl"].values()]) for one in each]
        mean, values = clustered_mean(kls), np.concatenate(kls)
        row = [
            mode,
            len(each),
            f"{statistics.mean(one['computed'] for one in each):,.0f}",
            f"{statistics.median(one[mode]['seconds'] / one['recompute']['seconds'] for one in several):.1%}",
            f"{statistics.mean(one['end'] for one in each):.4f}",
            f"{mean.value:.4f} ± {(mean.high or mean.value) - mean.value:.4f}",
            f"{np.quantile(values, 0.9):.4f}",
            f"{values.max():.2f}",
        ]
        print(f"| {' | '.join(map(str, row))} |")
    print("\n| mode | before | behind | repeated | removed | answers that are recomputing's |")
    print("|---|---|---|---|---|---|")
    for mode, several in found.items():
        right = [percent(sum(one[mode]["right"][kind] for one in several), len(several)) for kind in KINDS]
        same = [
            one[mode]["said"][kind] == one["recompute"]["said"][kind] for one in several for kind in KINDS
        ]
        print(f"| {mode} | {' | '.join(right)} | {percent(sum(same), len(same))} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="qwen2.5-coder-1.5b")
    parser.add_argument(
        "--answers", type=Path, required=True, help="a line for each conversation; a run goes on there"
    )
    parser.add_argument("--conversations", type=int, default=100)
    parser.add_argument("--heals", nargs="*", choices=HEALS, default=["heal"])
    parser.add_argument("--seconds", type=float, default=1e9, help="end after so many")
    parser.add_argument("--threads", type=int)
    parser.add_argument(
        "--fresh", type=int, default=0, help="conversations that are computed anew, to compare bits"
    )
    parser.add_argument("--tables", action="store_true", help="of what is there; nothing is computed")
    arguments = parser.parse_args()
    path, begun = arguments.answers, time.monotonic()
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    done = {line["seed"] for line in lines}
    left = [seed for seed in spread(arguments.conversations) if seed not in done]
    if left and not arguments.tables:
        options = {"threads": arguments.threads} if arguments.threads else {}
        with stretto.load(arguments.model, cells=8192, **options) as llm, path.open("a") as file:
            for index, seed in enumerate(left):
                if time.monotonic() - begun > arguments.seconds:
                    break
                lines.append(measure(llm, seed, arguments.heals, index < arguments.fresh))
                file.write(json.dumps(lines[-1]) + "\n")
                file.flush()
    show(lines)


if __name__ == "__main__":
    main()

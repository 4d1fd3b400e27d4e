"""Parallel tokens, studied: isolated against visible, widths, costs, pruning, cache strategies.

    python benchmarks/parallel.py --out benchmarks/raw/parallel.json --plots docs/parallel

Everything is measured on SmolLM2 by the native backend. Intervals are 95 % of a bootstrap over prompts.
`--only costs` measures one part again, and leaves the others in the file as they are.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np

import stretto
from stretto.backends.batch import Batch
from stretto.parallel.sets import SetSource, combine, distributions, select
from stretto.sampling.sampler import RandomStream

OPENINGS = [
    "The cat sat", "My favourite colour is", "The best way to", "Once upon a time", "In the morning",
    "She opened the door and", "The capital of France is", "Water boils at", "A good friend", "The old man",
]  # fmt: skip
ENDINGS = ["", " because", ". Then", ", but", " and the", ". It was"]
PROMPTS = [opening + ending for ending in ENDINGS for opening in OPENINGS]
THRESHOLDS = 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5
WIDTHS = range(1, 9)
STEPS = 6  # at least, of which the mean is a sample of costs
PRUNED = {"threshold": 0.05, "prune": 0.8, "prune_after": 4, "max_tokens": 16, "ignore_eos": True}


def interval(values, rng):
    """The mean, and the 2.5th and 97.5th percentile of its bootstrap."""
    array = np.asarray(values, float)
    means = rng.choice(array, (2000, len(array))).mean(axis=1)
    return [float(array.mean()), *np.percentile(means, [2.5, 97.5]).tolist()]


def divergence(p, q):
    """KL(p ‖ q) in nats."""
    p, q = p.astype(float), q.astype(float)
    seen = p > 0
    return float((p[seen] * np.log(p[seen] / np.maximum(q[seen], 1e-300))).sum())


class Past:
    """A prompt in the cache, and what may be done after it; everything is undone when it is let go."""

    def __init__(self, llm, tokens):
        self.llm, self.runner, self.tokens = llm, llm.engine.runner, tokens
        self.sequence = llm.sequence(tokens)
        self.first = distributions(self.sequence.logits[np.newaxis])[0]
        self.lanes = []

    def lane(self):
        """A sequence of the past alone."""
        self.lanes.append(self.runner.new_id())
        self.runner.cells.copy(self.sequence.id, self.lanes[-1])
        return self.lanes[-1]

    def pass_over(self, rows, watched=False):
        """Logits of rows (token, position, sequences), and what each watched row gives to its view."""
        batch = Batch()
        for token, position, sequences in rows:
            row = batch.add(int(token), position, sequences, logits=True)
            if watched:
                batch.watch(row)
        return self.runner.forward(batch), batch

    def close(self):
        for lane in self.lanes:
            self.runner.cells.remove(lane)
        self.sequence.close(park=False)


def place(past, tokens, mode, watched=True):
    """A set after the past: the lane that has all of it, the members' logits, and the batch."""
    whole, position = past.lane(), len(past.tokens)
    if mode == "visible":
        rows = [(token, position, [whole]) for token in tokens]
    else:
        rows = [(token, position, [past.lane(), whole]) for token in tokens]
    logits, batch = past.pass_over(rows, watched)
    return whole, logits, batch


def to_siblings(past, batch):
    """The mean share of attention that members give to each other."""
    own, shares = set(batch.placement.cells.tolist()), []
    for at, row in enumerate(batch.watched):
        view = batch.placement.views[batch.placement.view_of[row]][: batch.placement.lengths[row]]
        others = [i for i, cell in enumerate(view) if cell in own and cell != batch.placement.cells[row]]
        shares.append(batch.attention[at][..., others].sum(axis=-1).mean())
    return float(np.mean(shares))


def modes_compared(llm, prompts, rng):
    """One set after each prompt, then one more token that sees all of it."""
    found = {"kl": [], "top10": [], "attention": [], "kl_later": []}
    for prompt in prompts:
        past = Past(llm, llm.tokenizer.encode(prompt, special=True))
        chosen = select(past.first, 0.05, 8)
        if len(chosen.tokens) > 1:
            nexts, laters = [], []
            for mode in ("isolated", "visible"):
                whole, logits, batch = place(past, chosen.tokens, mode)
                nexts.append(combine(distributions(logits), chosen.weights, "mixture"))
                if mode == "visible":
                    found["attention"].append(to_siblings(past, batch))
                token = int(nexts[0].argmax())
                row, _ = past.pass_over([(token, len(past.tokens) + 1, [whole])])
                laters.append(distributions(row)[0])
            found["kl"].append(divergence(*nexts))
            top = [set(np.argsort(-p)[:10].tolist()) for p in nexts]
            found["top10"].append(len(top[0] & top[1]) / 10)
            found["kl_later"].append(divergence(*laters))
        past.close()
    return {"prompts": len(found["kl"]), **{name: interval(values, rng) for name, values in found.items()}}


def widths(llm, prompts, rng):
    """How wide the steps are, by threshold: the mean of each run, and how many steps are wider than one."""
    found = {}
    for threshold in THRESHOLDS:
        runs = llm.parallel(prompts, threshold=threshold, max_tokens=16, ignore_eos=True)
        found[threshold] = {
            "mean": interval([run.mean_width for run in runs], rng),
            "wider": interval([run.parallel_share for run in runs], rng),
        }
    return found


def pruning(llm, prompts, mode, rng):
    """After a decision: the KL of pruned runs to those without the member at all, and to unpruned ones."""
    found = {"without": [], "unpruned": [], "share": []}
    for prompt in prompts:
        run = llm.parallel(prompt, mode=mode, **PRUNED)
        gone = [step.index for step in run.steps if not all(member.kept for member in step.members)]
        if not gone or gone[0] + PRUNED["prune_after"] >= len(run.steps) - 2:
            continue
        begin = gone[0] + PRUNED["prune_after"] + 1  # the first set that does not see what was pruned
        tokens = llm.tokenizer.encode(prompt, special=True)
        after = {
            how: after_sets(llm, tokens, run.steps[:-1], mode, how)[begin:]
            for how in ("pruned", "without", "unpruned")
        }
        for how in ("without", "unpruned"):
            pairs = zip(after["pruned"], after[how], strict=True)
            found[how].append(float(np.mean([divergence(p, q) for p, q in pairs])))
        found["share"].append(run.n_pruned / sum(step.width for step in run.steps))
    return {"prompts": len(found["share"]), **{name: interval(of, rng) for name, of in found.items()}}


def after_sets(llm, tokens, steps, mode, how):
    """The distribution after each set of a run, which is computed again with the same sets.

    How: "pruned" forgets members where the run did; "without" never has them; "unpruned" keeps them. The
    distribution is the mixture of the members that stayed in the run, in all three.
    """
    runner = llm.engine.runner
    found, sequence = [], SetSource(runner, runner.new_track(tokens, RandomStream(0)))
    runner.run([(sequence, len(tokens))])
    for step in steps:
        members = [member for member in step.members if member.kept or how != "without"]
        sees = np.eye(len(members), dtype=bool) if mode == "isolated" else None
        sequence.push([member.id for member in members], sees)
        runner.run([(sequence, len(members))])
        stay = [i for i, member in enumerate(members) if member.kept]
        weights = np.array([members[i].weight for i in stay])
        each = distributions(sequence.rows)[stay]
        found.append(combine(each, weights / weights.sum(), "mixture"))
        decided = step.index - PRUNED["prune_after"]
        if how == "pruned" and decided >= 0:
            then = steps[decided]
            sequence.prune([(then.position, member.id) for member in then.members if not member.kept])
    sequence.close()
    return found


def costs(llm, rounds):
    """Seconds of a step by width, and how many plain steps that is, in turns: medians, after 100 tokens.

    `forward` are the seconds of a step's pass, with the placing of its cells; 0 is an ordinary request.
    """
    tokens = llm.tokenizer.encode("The cat sat on the mat and looked at the moon. " * 10)[:100]
    metrics = llm.engine.runner.metrics
    times = {width: [] for width in (0, *WIDTHS)}  # 0: an ordinary request, decoding greedily
    forward = {width: [] for width in times}

    def measure(width, stream):
        next(stream)
        next(stream)
        begun, passes, before = time.perf_counter(), metrics.forward, metrics.steps
        while metrics.steps < before + STEPS:  # a path may come several tokens at a time
            next(stream)
        steps = metrics.steps - before
        times[width].append((time.perf_counter() - begun) / steps)
        forward[width].append((metrics.forward - passes) / steps)

    for _ in range(rounds):
        with llm.stream(tokens, temperature=0, ignore_eos=True) as plain:
            measure(0, plain)
        for width in WIDTHS:
            stream = llm.parallel(
                tokens, threshold=1e-9, max_width=width, max_tokens=64, stream=True, ignore_eos=True
            )
            measure(width, stream)
            stream.cancel()
    plain = times.pop(0)
    return {
        "plain_step": statistics.median(plain),
        "seconds": {width: statistics.median(of) for width, of in times.items()},
        "relative": {width: statistics.median(np.divide(of, plain).tolist()) for width, of in times.items()},
        "forward": {width: statistics.median(of) for width, of in forward.items()},
    }


def strategies(llm, prompts, rng):
    """Ways to go on after a set: the KL of the next distribution to the exact one, and the seconds."""
    found = {name: {"kl": [], "seconds": []} for name in STRATEGIES}
    for prompt in prompts:
        past = Past(llm, llm.tokenizer.encode(prompt, special=True))
        chosen = select(past.first, 0.05, 8)
        if len(chosen.tokens) > 1:
            exact = None
            _, logits, _ = place(past, chosen.tokens, "isolated")
            token = int(
                combine(distributions(logits), chosen.weights, "mixture").argmax()
            )  # the same for all
            for name, go_on in STRATEGIES.items():
                begun = time.perf_counter()
                distribution = go_on(past, chosen, token)
                found[name]["seconds"].append(time.perf_counter() - begun)
                exact = distribution if exact is None else exact
                found[name]["kl"].append(divergence(exact, distribution))
        past.close()
    return {
        name: {"kl": interval(of["kl"], rng), "seconds": statistics.median(of["seconds"])}
        for name, of in found.items()
    }


def follow(past, token, whole, position):
    """The distribution after the set and then a token that sees `whole`."""
    row, _ = past.pass_over([(token, position, [whole])])
    return distributions(row)[0]


def merged(past, chosen, token):
    whole, _, _ = place(past, chosen.tokens, "isolated", watched=False)
    return follow(past, token, whole, len(past.tokens) + 1)


def first_only(past, chosen, token):
    """All members are computed, but later tokens find the first one alone."""
    lanes = [past.lane() for _ in chosen.tokens]
    position = len(past.tokens)
    past.pass_over([(t, position, [lane]) for t, lane in zip(chosen.tokens, lanes, strict=True)])
    return follow(past, token, lanes[0], position + 1)


def one_after_another(past, chosen, token):
    """The members as if they were a text: each at a position of its own, seeing those before it."""
    whole, position = past.lane(), len(past.tokens)
    past.pass_over([(t, position + i, [whole]) for i, t in enumerate(chosen.tokens)])
    return follow(past, token, whole, position + len(chosen.tokens))


def reprocess(past, chosen, token):
    """Past and set computed again, in one pass, with an isolation mask made of sets; then the token."""
    whole, rows = _all_again(past, chosen)
    past.pass_over(rows)
    return follow(past, token, whole, len(past.tokens) + 1)


def no_cache(past, chosen, token):
    """Past and set computed again, and for the token everything once more."""
    past.pass_over(_all_again(past, chosen)[1])
    whole, rows = _all_again(past, chosen)
    logits, _ = past.pass_over([*rows, (token, len(past.tokens) + 1, [whole])])
    return distributions(logits[-1:])[0]


def _all_again(past, chosen):
    """The sequence that gets everything, and the rows of past and set."""
    whole, lanes = past.runner.new_id(), [past.runner.new_id() for _ in chosen.tokens]
    past.lanes += [whole, *lanes]
    rows = [(token, i, [whole, *lanes]) for i, token in enumerate(past.tokens)]
    for token, lane in zip(chosen.tokens, lanes, strict=True):
        rows.append((token, len(past.tokens), [lane, whole]))
    return whole, rows


STRATEGIES = {
    "merge by sets": merged,
    "first member's cache only": first_only,
    "one after another": one_after_another,
    "reprocessing": reprocess,
    "no cache": no_cache,
}


STYLE = """<style>
:root { --ground: #ffffff; --ink: #24292f; --mark: #1a7f37 }
@media (prefers-color-scheme: dark) { :root { --ground: #161b22; --ink: #e6edf3; --mark: #7ee787 } }
text { fill: var(--ink) } .ground { fill: var(--ground) } .ink { stroke: var(--ink); fill: none }
.mark { fill: var(--mark) } .curve { stroke: var(--mark); fill: none }
</style>"""


def save(path, title, lines):
    """An SVG that needs nothing to be drawn with, for light and dark pages."""
    head = (
        '<svg xmlns="http://www.w3.org/2000/svg" width="500" height="310" font-family="sans-serif" '
        f'font-size="12" role="img" aria-label="{title}">'
    )
    ground = '<rect class="ground" width="500" height="310" rx="8"/>'
    heading = f'<text x="260" y="20" text-anchor="middle" font-size="14">{title}</text>'
    text = "\n".join([head, f"<title>{title}</title>", STYLE, ground, heading, *lines, "</svg>"])
    path.write_text(text + "\n", "utf-8")


def plot(path, title, points, x_name, y_name):
    """A line through some points."""
    xs, ys = zip(*points, strict=True)
    left, right, low, high = min(xs), max(xs), 0.0, max(ys) * 1.1
    at = [(60 + 400 * (x - left) / (right - left), 260 - 220 * (y - low) / (high - low)) for x, y in points]
    path_of = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    lines = [
        '<path class="ink" d="M60 40V260H460"/>',
        f'<polyline class="curve" points="{path_of}" stroke-width="2"/>',
    ]
    for (x, y), value, name in zip(at, ys, xs, strict=True):
        lines.append(f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
        lines.append(f'<text x="{x:.1f}" y="{y - 8:.1f}" text-anchor="middle">{value:.2f}</text>')
        lines.append(f'<text x="{x:.1f}" y="278" text-anchor="middle">{name:g}</text>')
    lines.append(f'<text x="260" y="300" text-anchor="middle">{x_name}</text>')
    lines.append(f'<text x="15" y="150" transform="rotate(-90 15 150)" text-anchor="middle">{y_name}</text>')
    save(path, title, lines)


def bars(path, title, intervals, x_name):
    """A bar for each name, with the interval of its mean."""
    scale = 220 / max(high for _, _, high in intervals.values())
    lines, height = ['<path class="ink" d="M210 40V270H470"/>'], 220 / len(intervals)
    for i, (name, (mean, low, high)) in enumerate(intervals.items()):
        y = 50 + height * (i + 0.5)
        start, end = 210 + scale * low, 210 + scale * high
        bar = f'x="210" y="{y - height / 4:.1f}" width="{scale * mean:.1f}" height="{height / 2:.1f}"'
        lines.append(f'<rect class="mark" {bar} fill-opacity="0.6"/>')
        lines.append(f'<path class="ink" d="M{start:.1f} {y:.1f}H{end:.1f}"/>')
        lines.append(f'<text x="204" y="{y + 4:.1f}" text-anchor="end">{name}</text>')
        lines.append(f'<text x="{end + 6:.1f}" y="{y + 4:.1f}">{mean:.2f}</text>')
    lines.append(f'<text x="340" y="295" text-anchor="middle">{x_name}</text>')
    save(path, title, lines)


def draw(folder, found):
    """All plots of docs/explanation/parallel-tokens.md."""
    folder.mkdir(parents=True, exist_ok=True)
    modes, pruned = found["modes"], found["pruning"]
    kl = {"next distribution": modes["kl"], "one token later": modes["kl_later"]}
    bars(folder / "modes.svg", "Isolated against visible", kl, "KL, nats")
    means = [(float(threshold), of["mean"][0]) for threshold, of in found["widths"].items()]
    plot(folder / "width.svg", "Members a step", means, "threshold", "mean width")
    relative = [(int(width), times) for width, times in found["costs"]["relative"].items()]
    plot(folder / "cost.svg", "Cost of a step", relative, "width", "times a plain step")
    kl = {f"{mode}, to {how}": pruned[mode][how] for mode in pruned for how in ("without", "unpruned")}
    bars(folder / "pruning.svg", "What pruning leaves behind", kl, "KL, nats")
    kl = {name: of["kl"] for name, of in found["strategies"].items()}
    bars(folder / "strategies.svg", "Errors of cache strategies", kl, "KL to merging by sets, nats")


PARTS = {
    "modes": lambda llm, prompts, rng, rounds: modes_compared(llm, prompts, rng),
    "widths": lambda llm, prompts, rng, rounds: widths(llm, prompts, rng),
    "pruning": lambda llm, prompts, rng, rounds: {
        mode: pruning(llm, prompts, mode, rng) for mode in ("isolated", "visible")
    },
    "costs": lambda llm, prompts, rng, rounds: costs(llm, rounds),
    "strategies": lambda llm, prompts, rng, rounds: strategies(llm, prompts, rng),
}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--prompts", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plots", type=Path)
    asked = parser.parse_args()
    prompts, found = PROMPTS[: asked.prompts], {}
    if asked.out and asked.out.exists() and len(asked.only) < len(PARTS):
        found = json.loads(asked.out.read_text("utf-8"))
    with stretto.load(asked.model, threads=asked.threads, cells=8192, prefix_cache=False) as llm:
        for name in asked.only:
            found[name] = PARTS[name](llm, prompts, np.random.default_rng(0), asked.rounds)
    text = json.dumps(found, indent=2)
    print(text)
    if asked.out:
        asked.out.write_text(text + "\n", "utf-8")
    if asked.plots:
        draw(asked.plots, found)


if __name__ == "__main__":
    main()

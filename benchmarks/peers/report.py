"""The table of a comparison, as Markdown, from its samples.

python benchmarks/peers/report.py benchmarks/raw/FILE.json
"""

import json
import sys
from pathlib import Path
from statistics import median


def figure(count, answer):
    """Tokens a second, or milliseconds where nothing is counted."""
    return count / answer["seconds"] if count else 1e3 * answer["seconds"]


def rows(samples):
    """For each test and file: the peer's best way, figures of both, and ratios (above 1: ours is faster)."""
    groups = {}
    for sample in samples:
        ways = groups.setdefault((sample["model"], sample["test"], sample["file"]), {})
        ways.setdefault(json.dumps(sample["way"]), []).append(sample)
    for (model, test, file), ways in groups.items():
        count = next(iter(ways.values()))[0]["count"]
        sides = {
            way: [[figure(count, sample[side]) for sample in found] for side in ("ours", "peer")]
            for way, found in ways.items()
        }
        better = max if count else min
        way = better(sides, key=lambda way, sides=sides: median(sides[way][1]))
        ours, peer = sides[way]
        ratios = [(a / b if count else b / a) for a, b in zip(ours, peer, strict=True)]
        middle = median(ours) / median(peer) if count else median(peer) / median(ours)
        yield {
            "cells": (model, test, file, "tok/s" if count else "ms"),
            "ours": median(ours),
            "peer": median(peer),
            "ratio": middle,
            "ratios": ratios,
            "way": json.loads(way),
        }


def markdown(document):
    """The lines of the table, with what is needed to repeat it."""
    yield f"{document['cpu']}, {document['threads']} threads; {document['ours']}; {document['peer']}"
    yield f"({document['system']})."
    yield f"`{document['command']}`"
    yield ""
    yield "| model | test | against | | Stretto | llama.cpp | ratio | rounds | its flash attention |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in rows(document["samples"]):
        flash = ("on" if row["way"]["flash"] else "off") + (", K/V 8 bits" if "kv" in row["way"] else "")
        spread = f"{min(row['ratios']):.2f} – {max(row['ratios']):.2f}"
        figures = f"{row['ours']:.1f} | {row['peer']:.1f} | **{row['ratio']:.2f}** | {spread} | {flash}"
        yield f"| {' | '.join(row['cells'])} | {figures} |"
    for test in dict.fromkeys((sample["model"], sample["test"]) for sample in document["samples"]):
        taken = [s for s in document["samples"] if (s["model"], s["test"]) == test and "bytes" in s["ours"]]
        if taken:
            ours, peer = (median(s[side]["bytes"] for s in taken) / 1e6 for side in ("ours", "peer"))
            yield f"\n{', '.join(test)}: {ours:,.0f} MB of memory then, llama.cpp {peer:,.0f} MB."
    answers = [sample[side] for sample in document["samples"] for side in ("ours", "peer")]
    idle = max(1e3 * answer["idle_cpu"] for answer in answers)
    yield ""
    yield f"Ratios above 1: Stretto is faster. Medians of {document['rounds']} rounds; the ratio is that of"
    yield "the medians, then the least and the greatest of the rounds. While one process measured, the other"
    yield f"used at most {idle:.0f} ms of processor time; everything else on the machine used"
    yield f"{document['others']:.0%} of the processors."


if __name__ == "__main__":
    print("\n".join(markdown(json.loads(Path(sys.argv[1]).read_text()))))

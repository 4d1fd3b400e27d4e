"""Draws the losses of one or more runs of train.py, one after the other, as an SVG.

    python training/curve.py OUT/log.csv [OUT2/log.csv …] --csv training/loss.csv --svg training/loss.svg

The CSV holds what was drawn, averaged over 5 seconds. Nothing but Python is needed.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from itertools import pairwise
from math import log10
from pathlib import Path
from statistics import fmean

WIDTH, HEIGHT, EDGE = 720, 320, 44
LOW, HIGH = 0.05, 10.0  # of the losses that are shown
EVERY = 5.0  # seconds in a point
COLOURS = {"loss": "#c2410c", "aux": "#1d4ed8"}
NAMES = {"loss": "answers, by the language model", "aux": "things and letters, by the second teacher"}


def merged(paths: list[Path]) -> list[dict[str, float | str]]:
    """Means over `EVERY` seconds of the losses, the runs' seconds and examples added up."""
    found: list[dict[str, float | str]] = []
    seconds = examples = 0.0
    for run, path in enumerate(paths, 1):
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        buckets = defaultdict(list)
        for row in rows:
            buckets[int(float(row["seconds"]) / EVERY), row["phase"]].append(row)
        for (bucket, phase), several in buckets.items():
            point: dict[str, float | str] = {"run": run, "phase": phase}
            point["seconds"] = seconds + bucket * EVERY
            point["examples"] = examples + int(several[-1]["examples"])
            for name in ("loss", "right", "aux"):
                values = [float(row[name]) for row in several if row[name]]
                point[name] = round(fmean(values), 5) if values else ""
            found.append(point)
        seconds += float(rows[-1]["seconds"])
        examples += int(rows[-1]["examples"])
    return found


def svg(points: list[dict[str, float | str]]) -> str:
    """Both losses over the examples seen, on a logarithmic scale."""
    most = float(points[-1]["examples"])

    def x(examples: float) -> float:
        return EDGE + (WIDTH - 2 * EDGE) * examples / most

    def y(loss: float) -> float:
        part = (log10(min(max(loss, LOW), HIGH)) - log10(LOW)) / (log10(HIGH) - log10(LOW))
        return HEIGHT - EDGE - (HEIGHT - 2 * EDGE) * part

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12"><rect width="100%" height="100%" fill="white"/>'
    ]
    for tick in (0.1, 1.0, 10.0):
        lines.append(
            f'<path d="M{EDGE} {y(tick):.1f}H{WIDTH - EDGE}" stroke="#ddd"/>'
            f'<text x="{EDGE - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>'
        )
    for tick in range(0, int(most) + 1, 500_000):
        lines.append(
            f'<text x="{x(tick):.1f}" y="{HEIGHT - EDGE + 18}" text-anchor="middle">{tick / 1e6:g}</text>'
        )
    lines.append(
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">million pictures; a dashed line: '
        "training went on from saved weights</text>"
    )
    for before, after in pairwise(points):
        if before["run"] != after["run"]:
            at = x(float(before["examples"]))
            lines.append(f'<path d="M{at:.1f} {EDGE}V{HEIGHT - EDGE}" stroke="#999" stroke-dasharray="4"/>')
    for row, (name, colour) in enumerate(COLOURS.items()):
        spots = [(x(float(p["examples"])), y(float(p[name]))) for p in points if p[name] != ""]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in spots)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        lines.append(
            f'<text x="{WIDTH - EDGE}" y="{20 + 16 * row}" text-anchor="end" fill="{colour}">'
            f"loss: {NAMES[name]}</text>"
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


def main() -> None:
    """Merge the logs, and draw them."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("logs", type=Path, nargs="+")
    arguments.add_argument("--csv", type=Path, required=True)
    arguments.add_argument("--svg", type=Path, required=True)
    options = arguments.parse_args()
    points = merged(options.logs)
    with options.csv.open("w", newline="") as file:
        log = csv.DictWriter(file, list(points[0]), lineterminator="\n")
        log.writeheader()
        log.writerows(points)
    options.svg.write_text(svg(points))


if __name__ == "__main__":
    main()

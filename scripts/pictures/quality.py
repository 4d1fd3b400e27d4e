"""Cross-entropy of texts against the compute they took, by way of decoding, from benchmarks/raw."""

import json
from typing import Any

from figures.samples import RAW
from pictures.svg import Canvas

MODELS = {"smollm2": "SmolLM2 135M", "gemma3-270m": "Gemma 3 270M"}
TOP, BOTTOM, WIDTH = 96, 392, 290  # of a panel, in pixels
MOST_ROWS, MOST_NATS = 4.2, 4.0  # at the ends of the axes
# Name, colour, radius of a marker, and the ways with the label of each.
FAMILIES: list[tuple[str, str, float, dict[str, str]]] = [
    ("sampling, best of n", "amber", 0, {"sampling": "1", "best of 2": "2", "best of 4": "4"}),
    (
        "parallel, isolated, threshold 0.25 to 0.05",
        "green",
        5,
        {
            "isolated, 0.25": "",
            "isolated, 0.2": "",  # no room for their labels
            "isolated, 0.15": "0.15",
            "isolated, 0.1": "0.1",
            "isolated, 0.05": "0.05",
        },
    ),
    ("parallel, visible", "soft", 2, {f"visible, {value}": "" for value in ("0.15", "0.1", "0.05")}),
    ("greedy, beams", "blue", 5, {"greedy": "1", "2 beams": "2", "4 beams": "4"}),
]


def quality_by_compute() -> Canvas:
    """Two panels, a model each: rows a token to the right, nats a token upwards."""
    found = json.loads((RAW / "parallel_quality.json").read_text("utf-8"))
    canvas = Canvas(760, 440, "Cross-entropy of texts by compute (lower is better)")
    canvas.text(20, 24, canvas.title, anchor="left", bold=True)
    x = 20.0
    for name, colour, radius, _ in FAMILIES:
        draw_marker(canvas, x + 5, 52, colour, radius)
        canvas.text(x + 16, 52, name, "ink", "left", 12)
        x += 32 + 6.2 * len(name)
    for left, (model, title) in zip((60, 440), MODELS.items(), strict=True):
        draw_panel(canvas, left, title, found[model]["texts"])
    return canvas


def draw_panel(canvas: Canvas, left: float, title: str, texts: dict[str, Any]) -> None:
    """The axes, and a line with intervals for each family."""

    def place(rows: float, nats: float) -> tuple[float, float]:
        x = left + WIDTH * (rows - 0.6) / (MOST_ROWS - 0.6)
        return x, BOTTOM - (BOTTOM - TOP) * nats / MOST_NATS

    canvas.text(left + WIDTH / 2, TOP - 14, title, "ink", "middle", 13, bold=True)
    for nats in range(int(MOST_NATS) + 1):
        x, y = place(0.6, nats)
        canvas.line([(x, y), (x + WIDTH, y)], "frame", 1)
        canvas.text(x - 8, y, str(nats), "ink", "right", 12)
    for rows in range(1, int(MOST_ROWS) + 1):
        canvas.text(place(rows, 0)[0], BOTTOM + 14, str(rows), "ink", "middle", 12)
    canvas.text(left + WIDTH / 2, BOTTOM + 34, "rows computed a token", "ink", "middle", 12)
    canvas.text(left - 24, TOP - 14, "nats a token", "ink", "left", 12)
    for _, colour, radius, ways in FAMILIES:
        points = [place(texts[way]["rows"], texts[way]["own"][0]) for way in ways]
        canvas.line(points, colour)
        for (x, y), (way, label) in zip(points, ways.items(), strict=True):
            low, high = (place(0, nats)[1] for nats in texts[way]["own"][1:])
            canvas.line([(x, low), (x, high)], colour, 3)
            draw_marker(canvas, x, y, colour, radius)
            if label:
                canvas.text(x + 8, y + 11, label, colour, "left", 11)


def draw_marker(canvas: Canvas, x: float, y: float, colour: str, radius: float) -> None:
    """A dot or a square of ten pixels."""
    canvas.box((x - 5, y - 5, 10, 10), colour, "ground", radius)

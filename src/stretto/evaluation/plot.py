"""A plot of a perplexity measurement, as SVG written by hand: no library needed."""

from __future__ import annotations

import math
from html import escape

from stretto.evaluation.perplexity import PerplexityReport

WIDTH, HEIGHT = 720, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 40, 44
MAX_POINTS = 2000  # more windows are averaged in groups: a screen shows no more


def plot_windows(report: PerplexityReport, title: str = "") -> str:
    """An SVG of the mean negative log-likelihood of each window, with the mean and its 95 % interval."""
    values = _thinned(report.windows)
    mean = math.log(report.perplexity.value)
    bounds = (report.perplexity.low, report.perplexity.high)
    band = [math.log(bound) for bound in bounds if bound]  # both or none
    low, high = min([*values, mean, *band]), max([*values, mean, *band])
    pad = 0.08 * (high - low) or 0.5
    low, high = low - pad, high + pad

    def x(index: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (index + 0.5) / len(values)

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)

    parts = [_text(LEFT, 22, title or "Negative log-likelihood by window", "start", 14)]
    for step in range(5):
        value = low + (high - low) * step / 4
        parts.append(_line(LEFT, y(value), WIDTH - RIGHT, y(value), "#ddd"))
        parts.append(_text(LEFT - 6, y(value) + 4, f"{value:.2f}", "end"))
    if len(band) == 2:
        top, height = y(band[1]), y(band[0]) - y(band[1])
        parts.append(
            f'<rect x="{LEFT}" y="{top:.1f}" width="{WIDTH - LEFT - RIGHT}" height="{height:.1f}" '
            'fill="#4a7" fill-opacity="0.2"/>'
        )
    parts.append(_line(LEFT, y(mean), WIDTH - RIGHT, y(mean), "#385"))
    points = " ".join(f"{x(index):.1f},{y(value):.1f}" for index, value in enumerate(values))
    parts.append(f'<polyline points="{points}" fill="none" stroke="#248" stroke-width="1.2"/>')
    if len(values) <= 100:
        parts += [
            f'<circle cx="{x(index):.1f}" cy="{y(value):.1f}" r="2.5" fill="#248"/>'
            for index, value in enumerate(values)
        ]
    caption = f"{len(report.windows)} windows of {report.window} tokens; perplexity {_figure(report)}"
    parts.append(_text((WIDTH + LEFT) / 2, HEIGHT - 14, caption, "middle"))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif">'
    )
    return "\n".join([head, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>', *parts, "</svg>\n"])


def _figure(report: PerplexityReport) -> str:
    made = report.perplexity
    if made.low is None or made.high is None:
        return f"{made.value:.4f}"
    return f"{made.value:.4f} (95 %: {made.low:.4f} to {made.high:.4f})"


def _thinned(values: list[float]) -> list[float]:
    size = -(-len(values) // MAX_POINTS)
    groups = [values[at : at + size] for at in range(0, len(values), size)]
    return [sum(group) / len(group) for group in groups]


def _line(x1: float, y1: float, x2: float, y2: float, color: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"/>'


def _text(x: float, y: float, text: str, anchor: str, size: int = 12) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
    return f'<text {place} fill="#333">{escape(text)}</text>'

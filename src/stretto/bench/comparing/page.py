"""A comparison as one HTML page: a table and a plot for each measure, drawn inline; nothing is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from stretto.bench.comparing.results import MEASURES, Comparison, Standing

WIDTH, LABEL, ROW = 760, 190, 28  # of a plot, of the names in it, and of a bar, in pixels
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 860px; margin: 2em auto; padding: 0 1em }
body { color: #1c2430; background: #fff }
table { border-collapse: collapse; margin: 1em 0; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: .25em .7em; border-bottom: 1px solid #dde3ea }
th:first-child, td:first-child { text-align: left }
small { color: #667 } h2 { font-size: 1.1em; margin: 1.6em 0 .3em } svg { max-width: 100%; height: auto }
@media (prefers-color-scheme: dark) {
body { background: #12161c; color: #dde3ea } th, td { border-color: #333c48 } svg text { fill: #dde3ea } }
"""


def page(comparison: Comparison) -> str:
    """The page, complete in itself."""
    return "\n".join(_parts(comparison))


def number(value: float) -> str:
    """A figure with about three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}" if value >= 10 else f"{value:,.2f}"


def agreement(standing: Standing) -> str:
    """As "63 of 64", or a dash."""
    return "–" if standing.agreed is None else f"{standing.agreed} of {standing.compared}"


def _parts(comparison: Comparison) -> Iterator[str]:
    plan = comparison.plan
    title = escape(f"{comparison.model}: engines compared")
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width">'
    yield f"<title>{title}</title><style>{STYLE}</style></head><body><h1>{title}</h1>"
    yield f"<p>{escape(conditions(comparison))}</p>"
    yield from _table(comparison)
    for measure, (unit, more) in MEASURES.items():
        if any(measure in each.figures for each in comparison.standings):
            better = "more is better" if more else "less is better"
            size = {"prefill": f" of {plan.prompt} tokens", "batch": f" of {plan.sequences} sequences"}
            yield f"<h2>{measure}{size.get(measure, '')} <small>{unit}, {better}</small></h2>"
            yield plot(comparison, measure)
    yield "<h2>Versions</h2><ul>"
    for each in comparison.standings:
        words = ", ".join(filter(None, (each.version, threads(each), each.notes)))
        yield f"<li>{escape(each.name)}: {escape(words)}</li>"
    for skipped in comparison.skipped:
        yield f"<li>{escape(skipped.name)} did not take part: {escape(skipped.reason)}</li>"
    yield "</ul></body></html>"


def conditions(comparison: Comparison) -> str:
    """What the figures depend on, in a sentence or two."""
    plan = comparison.plan
    busy = ""
    if comparison.others is not None:
        busy = f" Everything else used {comparison.others:.0%} of the processors."
    return (
        f"{comparison.cpu}, {plan.n_threads} threads, model of {comparison.nbytes / 1e6:,.1f} MB; medians of "
        f"{plan.rounds} rounds by turns, and the least and greatest; {plan.tokens} tokens decoded, greedily."
        + busy
    )


def threads(standing: Standing) -> str:
    """The threads that a contestant was given."""
    return "its own threads" if standing.threads is None else f"{standing.threads} threads"


def _table(comparison: Comparison) -> Iterator[str]:
    heads = "".join(f"<th>{name}<br><small>{unit}</small></th>" for name, (unit, _) in MEASURES.items())
    yield f"<table><tr><th></th>{heads}<th>same tokens</th></tr>"
    for each in comparison.standings:
        cells = []
        for name in MEASURES:
            figure = each.figures.get(name)
            spread = "" if figure is None else f"{number(figure.low)} – {number(figure.high)}"
            value = "–" if figure is None else number(figure.median)
            cells.append(f"<td>{value}<br><small>{spread}</small></td>")
        yield f"<tr><td>{escape(each.name)}</td>{''.join(cells)}<td>{agreement(each)}</td></tr>"
    yield "</table>"


def plot(comparison: Comparison, measure: str) -> str:
    """Bars from 0 to the median, with a line from the least to the greatest."""
    rows = [each for each in comparison.standings if measure in each.figures]
    most = max(each.figures[measure].high for each in rows) or 1.0
    scale = (WIDTH - LABEL - 90) / most
    parts = [f'<svg viewBox="0 0 {WIDTH} {ROW * len(rows)}" width="{WIDTH}" role="img">']
    for i, each in enumerate(rows):
        figure, top = each.figures[measure], ROW * i
        end, low, high = (LABEL + scale * x for x in (figure.median, figure.low, figure.high))
        color = "#2f6fde" if each.name.startswith("stretto") else "#9aa7b8"
        middle = top + ROW / 2
        parts += [
            f'<text x="{LABEL - 8}" y="{middle + 5}" text-anchor="end" font-size="13">'
            f"{escape(each.name[:28])}</text>",
            f'<rect x="{LABEL}" y="{top + 5}" width="{max(1.0, end - LABEL):.1f}" height="{ROW - 10}" '
            f'rx="3" fill="{color}"/>',
            f'<path d="M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 4}v8M{high:.1f} {middle - 4}v8" '
            'stroke="#e2791b" stroke-width="1.5" fill="none"/>',
            f'<text x="{high + 8:.1f}" y="{middle + 5}" font-size="13">{number(figure.median)}</text>',
        ]
    return "".join([*parts, "</svg>"])

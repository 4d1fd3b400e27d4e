"""The result of a comparison: its samples, what is needed to repeat it, and its page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from html import escape
from statistics import median
from typing import Any

from stretto.bench.comparing.contestants import Skipped
from stretto.errors import InvalidRequest
from stretto.hardware import usable_cores
from stretto.sampling.params import check_integer
from stretto.text.tokenizer import Tokenizer

# The sizes of a comparison, and its prompts: real words, so that servers that take texts get them too.

SHORT = 12  # tokens of the prompts whose continuations are compared
SENTENCES = (
    "The river was high after three days of rain, and nobody had crossed the old bridge since Monday.",
    "Mara counted the boxes twice, wrote the number on the door, and went to look for the foreman.",
    "In the north of the country winters are long, but the summers make up for it with light.",
    "Most engines of that time needed an hour to warm up before they could pull a train.",
    "She had learned to read maps from her uncle, who had drawn some of them himself.",
    "A good recipe says what to do, how long it takes, and how to tell when it is done.",
)


@dataclass(frozen=True)
class ComparePlan:
    """Sizes in tokens: of the prompt that is timed, of the texts, of the prompts of a batch."""

    prompt: int = 512
    tokens: int = 64
    sequences: int = 8
    rounds: int = 3
    threads: int = 0  # 0: as many as there are usable cores

    def __post_init__(self) -> None:
        for each in fields(self):
            least = 0 if each.name in ("sequences", "threads") else 1
            check_integer(each.name, getattr(self, each.name), least, 1 << 20)
        if self.tokens < 2:
            raise InvalidRequest(
                "tokens must be 2 or more, to time what comes after the first", param="tokens"
            )

    @property
    def n_threads(self) -> int:
        """The threads that every engine here gets."""
        return self.threads or usable_cores()

    @property
    def batch_prompt(self) -> int:
        """The length of each prompt of a batch."""
        return min(64, self.prompt)

    @property
    def cells(self) -> int:
        """The tokens that a cache must hold."""
        one = max(self.prompt, SHORT) + self.tokens
        return max(one, self.sequences * (self.batch_prompt + self.tokens)) + 64


class Prompts:
    """Prompts of exact lengths, different in every round and test, so that no cache of prefixes can help."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        start = tokenizer.encode("", special=True)  # BOS, where the model asks for it
        self._start = start[:1] if start[:1] == [tokenizer.bos_id] else []

    def make(self, length: int, seed: int) -> dict[str, Any]:
        """A prompt of so many tokens, as ids and as text."""
        words = f"Report {seed + 1}. "
        index = seed
        ids: list[int] = []
        while len(ids) < length:
            words += SENTENCES[index % len(SENTENCES)] + " "
            index += 1
            ids = self.tokenizer.encode(words.strip())
        ids = ids[:length]
        return {"ids": [*self._start, *ids], "text": self.tokenizer.decode(ids)}


# What is measured, in order: its unit, and whether more is better.
MEASURES: dict[str, tuple[str, bool]] = {
    "load": ("s", False),
    "first token": ("ms", False),
    "prefill": ("tok/s", True),
    "decode": ("tok/s", True),
    "batch": ("tok/s", True),
    "memory": ("MB", False),
}


@dataclass
class Figure:
    """The samples of one measure, one a round."""

    samples: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return median(self.samples)

    @property
    def low(self) -> float:
        """The least of the rounds."""
        return min(self.samples)

    @property
    def high(self) -> float:
        """The greatest of the rounds."""
        return max(self.samples)


@dataclass
class Standing:
    """A contestant's figures; measures that it does not have are left out.

    `agreed` of `compared` first tokens are those of the first contestant, greedily.
    """

    name: str
    version: str = ""
    notes: str = ""
    threads: int | None = None  # None: a server's own
    figures: dict[str, Figure] = field(default_factory=dict)
    agreed: int | None = None
    compared: int = 0

    def add(self, measure: str, value: float) -> None:
        """Add a sample."""
        self.figures.setdefault(measure, Figure()).samples.append(value)


@dataclass
class Comparison:
    """All standings, and what the figures depend on."""

    model: str
    nbytes: int
    cpu: str
    kernels: str
    plan: ComparePlan
    standings: list[Standing]
    skipped: list[Skipped]
    others: float | None = None  # the share of the processors that everything else used

    def as_data(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            **asdict(self),
            "threads": self.plan.n_threads,
            "standings": [
                {
                    **asdict(each),
                    "figures": {
                        name: {
                            "unit": MEASURES[name][0],
                            "median": figure.median,
                            "low": figure.low,
                            "high": figure.high,
                            "samples": figure.samples,
                        }
                        for name, figure in each.figures.items()
                    },
                }
                for each in self.standings
            ],
        }


# A comparison as one HTML page: a table and a plot for each measure, drawn inline; nothing is loaded.


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

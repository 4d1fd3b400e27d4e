"""Perplexity of a model on a text, and how far its distributions are from those of a reference."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import InvalidRequest
from stretto.evaluation.reading import (
    Floats,
    Piece,
    Window,
    check_finite,
    check_same_vocabulary,
    half_scored_windows,
    log_probabilities,
    read_windows,
    strided_windows,
    text_ids,
)
from stretto.evaluation.statistics import (
    Doubles,
    Estimate,
    bootstrap_quantiles,
    clustered_mean,
    token_error,
)
from stretto.llm import LLM

WINDOW = 512
KL_ROWS = 32  # compared at a time, in float64

Progress = Callable[[int, int], None]  # windows that are done, and all of them


@dataclass(frozen=True)
class Comparison:
    """A model beside a reference on the same tokens.

    `log_ratio` is ln(perplexity / the reference's), of pairs of tokens and so with a small error. `kl_max`
    has no interval.
    """

    reference_perplexity: Estimate
    log_ratio: Estimate
    kl_mean: Estimate
    kl_median: Estimate
    kl_99: Estimate
    kl_max: float
    same_top: Estimate  # share of tokens where both have the same most probable token


@dataclass(frozen=True)
class PerplexityReport:
    """The perplexity of a text and, with a reference, the distance from it.

    `perplexity` has an interval over windows; `token_error` is what llama.cpp prints behind ±, which takes
    tokens as independent. `windows` are the mean negative log-likelihoods of each window, in order.
    """

    perplexity: Estimate
    token_error: float | None
    n_tokens: int  # of the text
    n_scored: int
    window: int
    stride: int | None
    windows: list[float]
    comparison: Comparison | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def perplexity(
    llm: LLM,
    text: str | list[int],
    *,
    window: int = WINDOW,
    stride: int | None = None,
    chunks: int | None = None,
    reference: LLM | None = None,
    progress: Progress | None = None,
) -> PerplexityReport:
    """The perplexity of a text, by llama.cpp's windows, or by strided ones if `stride` is given.

    A list of ids is taken as it is. `chunks` reads the first windows only. With a `reference`, a model with
    the same vocabulary, both read each window and their distributions are compared.

    >>> perplexity(llm, text, window=512).perplexity
    """
    ids = text_ids(llm.tokenizer, text) if isinstance(text, str) else list(text)
    if len(ids) < 2:
        raise InvalidRequest(f"the text has {len(ids)} tokens; perplexity needs at least 2", param="text")
    windows = _windows(llm, ids, window, stride)[:chunks]
    if reference is not None:
        check_same_vocabulary(llm, reference)
    tally = _Tally(len(windows), reference is not None)
    models = [llm] if reference is None else [llm, reference]
    done = 0
    for piece in read_windows(models, windows):
        if progress is not None and piece.window > done:
            progress(done := piece.window, len(windows))
        tally.add(piece)
    if progress is not None:
        progress(len(windows), len(windows))
    return tally.report(len(ids), window, stride)


def _windows(llm: LLM, ids: list[int], window: int, stride: int | None) -> list[Window]:
    if stride is not None:
        return strided_windows(ids, window, stride)
    return half_scored_windows(ids, window, llm.tokenizer.bos_id if llm.tokenizer.add_bos else None)


class _Tally:
    """A few numbers for each scored token; logits are gone when a piece has been added."""

    def __init__(self, n_windows: int, compares: bool) -> None:
        self._nll: list[list[Doubles]] = [[] for _ in range(n_windows)]
        self._reference: list[list[Doubles]] = [[] for _ in range(n_windows)]
        self._kl: list[list[Doubles]] = [[] for _ in range(n_windows)]
        self._same: list[list[Doubles]] = [[] for _ in range(n_windows)]
        self._compares = compares

    def add(self, piece: Piece) -> None:
        """Score a piece."""
        mine = piece.rows[0]
        self._nll[piece.window].append(-log_probabilities(mine, piece.targets))
        if self._compares:
            other = piece.rows[1]
            self._reference[piece.window].append(-log_probabilities(other, piece.targets))
            self._kl[piece.window].append(divergence(other, mine))
            same = mine.argmax(axis=1) == other.argmax(axis=1)
            self._same[piece.window].append(same.astype(np.float64))

    def report(self, n_tokens: int, window: int, stride: int | None) -> PerplexityReport:
        """The figures of all pieces."""
        nll = _joined(self._nll)
        made = clustered_mean(nll).exp()
        error = token_error(nll)
        return PerplexityReport(
            perplexity=made,
            token_error=None if error is None else error * made.value,
            n_tokens=n_tokens,
            n_scored=sum(map(len, nll)),
            window=window,
            stride=stride,
            windows=[float(each.mean()) for each in nll],
            comparison=self._comparison(nll) if self._compares else None,
        )

    def _comparison(self, nll: list[Doubles]) -> Comparison:
        reference, kl = _joined(self._reference), _joined(self._kl)
        median, high = bootstrap_quantiles(kl, (0.5, 0.99))
        return Comparison(
            reference_perplexity=clustered_mean(reference).exp(),
            log_ratio=clustered_mean([a - b for a, b in zip(nll, reference, strict=True)]),
            kl_mean=clustered_mean(kl).within(0),
            kl_median=median,
            kl_99=high,
            kl_max=max(float(each.max()) for each in kl),
            same_top=clustered_mean(_joined(self._same)).within(0, 1),
        )


def _joined(pieces: list[list[Doubles]]) -> list[Doubles]:
    return [np.concatenate(each) for each in pieces]


def divergence(reference: Floats, model: Floats) -> Doubles:
    """float64[n]: KL(reference ‖ model) of each pair of rows, in nats."""
    found: NDArray[np.float64] = np.empty(len(reference))
    for at in range(0, len(reference), KL_ROWS):
        part = slice(at, at + KL_ROWS)
        p, q = _log_softmax(reference[part]), _log_softmax(model[part])
        weights = np.exp(p)
        with np.errstate(invalid="ignore"):  # a token of probability 0 adds nothing, whatever the other says
            found[part] = np.where(weights > 0, weights * (p - q), 0.0).sum(axis=1)
    check_finite(found)
    return np.maximum(found, 0.0)  # rounding may leave −1e-17


def _log_softmax(rows: Floats) -> Doubles:
    shifted = rows.astype(np.float64) - rows.max(axis=1, keepdims=True)
    logs: Doubles = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return logs


# A plot of a perplexity measurement, as SVG written by hand: no library needed.

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

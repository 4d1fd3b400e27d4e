"""Samples by turns, on a GPU whose clock is up."""

import time
import traceback
from dataclasses import dataclass, field
from statistics import median

import torch

WARM_SECONDS = 0.03
_burner = []


@dataclass
class Figure:
    """A figure: all samples of one contestant, the goal that it is measured against, and what went wrong."""

    part: str
    test: str
    who: str
    unit: str = "tok/s"
    goal: float | None = None
    samples: list = field(default_factory=list)
    error: str = ""

    @property
    def median(self):
        return median(self.samples) if self.samples else None

    def as_data(self):
        return {**vars(self), "median": self.median}


def warm():
    """Keep the GPU busy for a moment: after a pause its first kernels run at a lower clock."""
    if not torch.cuda.is_available():
        return
    if not _burner:
        _burner.append(torch.ones(4096, 4096, device="cuda", dtype=torch.bfloat16))
    end = time.perf_counter() + WARM_SECONDS
    while time.perf_counter() < end:
        for _ in range(8):
            _burner[0] @ _burner[0]
        torch.cuda.synchronize()


def synchronize():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def turns(figures, rounds, say):
    """Fill the figures, {Figure: function that gives a sample}, by turns; the first turn warms up.

    A contestant that fails is out, with what it said.
    """
    for number in range(rounds + 1):
        for figure, sample in figures.items():
            if figure.error:
                continue
            try:
                warm()
                found = sample()
                if number:
                    figure.samples.append(found)
            except Exception as error:
                figure.error = f"{type(error).__name__}: {error}".splitlines()[0][:200]
                say(traceback.format_exc(limit=-4))
    for figure in figures:
        say(line(figure))
    return list(figures)


def attempt(figure, sample, say):
    """A figure with one sample, of what is measured once."""
    try:
        figure.samples.append(sample())
    except Exception as error:
        figure.error = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        say(traceback.format_exc(limit=-4))
    say(line(figure))
    return figure


def line(figure):
    found = figure.error or f"{figure.median:,.5g} {figure.unit}"
    goal = f" (goal {figure.goal:,g})" if figure.goal else ""
    return f"{figure.part} | {figure.test} | {figure.who}: {found}{goal}"


Figure.__hash__ = object.__hash__

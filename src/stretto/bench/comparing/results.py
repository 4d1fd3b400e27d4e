"""The result of a comparison: all samples by contestant and measure, and what is needed to repeat it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from stretto.bench.comparing.contestants import Skipped
from stretto.bench.comparing.plan import ComparePlan

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

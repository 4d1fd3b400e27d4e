"""The result of a comparison: all samples by contestant and measure, and what is needed to repeat it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
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

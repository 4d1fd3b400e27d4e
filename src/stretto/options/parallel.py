"""Options of `llm.parallel`, which keeps several tokens at a position (stretto docs explanation/parallel)."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from stretto.options.generating import BY_NAME, GENERATE
from stretto.options.option import Option, table, taken_by

OWN = table(
    Option("threshold", "float | Callable[[float], float]", 0.15,
        "Keep every token at least so probable: a number above 0 up to 1, or a function of how much of the "
        "run has passed (Linear, Cosine, Bezier).",
        words="float | schedule"),
    Option("mode", 'Literal["isolated", "visible"] | ArrayLike | Callable[[list[Member]], ArrayLike]',
        "isolated",
        "Whether tokens of one position see each other: no, all, by a boolean matrix, or by a function of "
        "the members that makes one.",
        words='"isolated" | "visible" | matrix | function'),
    Option("max_width", int, 8, "Tokens at one position, at most.", low=1, high=256),
    Option("combine", Literal["mixture", "best"], "mixture",
        "The next distribution is the mixture of those of all members, or that of the best one."),
    Option("prune", float | None, None,
        "Remove members that get less than so many times their set's mean attention; by default none.",
        low=0, high=100, above=True),
    Option("prune_after", int, 4, "How many steps later members are removed.", low=1, high=1 << 20),
    Option("temperature", float, 1.0, "Applied before the threshold; 0 keeps the best token alone.",
        low=0, high=100, least=BY_NAME["temperature"].least),
    Option("delay", int, 16,
        "Which token of a set the text takes is decided so many steps later at most; 0 decides at once.",
        low=0, high=4096),
    at="parallel", commands="parallel", panel="Parallel tokens",
) + table(
    Option("attention", bool | Literal["mean"], False,
        'Keep the attention of every set, by layer and head; "mean": only the mean over these.'),
    at="parallel",
)  # fmt: skip

PARALLEL = (
    Option("stream", bool, False, "Return a stream of steps instead of the result."),
    *OWN,
    *(
        replace(one, type="Callable[[ParallelStep], Any] | None") if one.name == "callback" else one
        for one in taken_by(GENERATE, "parallel")
    ),
)

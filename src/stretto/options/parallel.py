"""Options of `llm.parallel`, which keeps several tokens at a position (stretto docs explanation/parallel)."""

from __future__ import annotations

from stretto.options.generating import SHARED_WITH_PARALLEL
from stretto.options.option import Option

OWN = (
    Option(
        "threshold",
        "float | schedule",
        0.15,
        "Keep every token at least so probable: a number above 0 up to 1, or a function of how much of the "
        "run has passed (Linear, Cosine, Bezier).",
    ),
    Option(
        "mode",
        '"isolated" | "visible" | matrix | function',
        "isolated",
        "Whether tokens of one position see each other: no, all, by a boolean matrix, or by a function of "
        "the members that makes one.",
    ),
    Option("max_width", "int", 8, "Tokens at one position, at most."),
    Option(
        "combine",
        '"mixture" | "best"',
        "mixture",
        "The next distribution is the mixture of those of all members, or that of the best one.",
    ),
    Option(
        "prune",
        "float | None",
        None,
        "Remove members that get less than so many times their set's mean attention; None: remove none.",
    ),
    Option("prune_after", "int", 4, "How many steps later members are removed."),
    Option("temperature", "float", 1.0, "Applied before the threshold; 0 keeps the best token alone."),
    Option(
        "delay",
        "int",
        16,
        "Which token of a set the text takes is decided so many steps later at most; 0 decides at once.",
    ),
    Option(
        "attention",
        'bool | "mean"',
        False,
        'Keep the attention of every set, by layer and head; "mean": only the mean over these.',
    ),
)

PARALLEL = (
    Option("stream", "bool", False, "Return a stream of steps instead of the result."),
    *OWN,
    *SHARED_WITH_PARALLEL,
)

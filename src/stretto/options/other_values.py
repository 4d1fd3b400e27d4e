"""Values that mean "the default" or "no limit" in other libraries, and what to write here.

Errors about values use it: those of `generate` and `load`, and of the server's fields.
"""

from __future__ import annotations

from collections.abc import Collection

_TO_THE_END = "to generate to the end of the context"

ADVICE = {
    ("max_tokens", -1): f"leave max_tokens out {_TO_THE_END}",
    ("seed", -1): "leave seed out for a fresh one",
    ("top_k", -1): "top_k=0 samples among all tokens",
}
FIELDS = {  # of requests; the second is a field that the advice needs
    "max_tokens": (f'send "n_predict": -1 {_TO_THE_END}', "n_predict"),
    "max_completion_tokens": (f'send "n_predict": -1 {_TO_THE_END}', "n_predict"),
    "max_output_tokens": (f"leave it out {_TO_THE_END}", "max_output_tokens"),
}


def value_remedy(name: str, value: object) -> str:
    """The end of an error about a parameter's value: what to write instead, or "".

    >>> value_remedy("top_k", -1)
    '; top_k=0 samples among all tokens'
    """
    if value is None and name.isidentifier():
        return f"; leave {name} out for the default"
    advice = ADVICE.get((name, value)) if isinstance(value, int) else None
    return f"; {advice}" if advice else ""


def field_remedy(name: str, value: object, known: Collection[str]) -> str:
    """The end of an error about a field's value, for a request that has the fields `known`."""
    advice, needed = FIELDS.get(name, ("", ""))
    return f"; {advice}" if value == -1 and needed in known and advice else ""

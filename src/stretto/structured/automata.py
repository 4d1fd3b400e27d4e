"""Sets of texts as expressions with complement and intersection, and the automata of these.

The automaton of an expression has its derivatives as states: what may follow after a character. Used by
`regular`, which reads the patterns of JSON schemas.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

LAST = 0x10FFFF
MAX_STATES = 300  # of an automaton that is looked through
MAX_STEPS = 20_000  # between them
MAX_SIZE = 1_000  # parts of the expression that is a state
MAX_WRITTEN = 64  # states of one that becomes an expression
MAX_LENGTH = 16_000  # of the expression

Ranges = tuple[tuple[int, int], ...]  # of characters: sorted, and apart
# ("none",), ("empty",), ("set", Ranges), ("then", a, b), ("star", a), ("not", a), ("any" | "all", {…})
Node = tuple[Any, ...]

NONE: Node = ("none",)
EMPTY: Node = ("empty",)
ALL: Node = ("not", NONE)


class TooLarge(Exception):
    """An automaton with too many states, or an expression that is too long."""


def ranges(pairs: Iterable[tuple[int, int]]) -> Ranges:
    """Characters from pairs of bounds in any order."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(pairs):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def other(given: Ranges) -> Ranges:
    """All characters but some."""
    found, at = [], 0
    for low, high in given:
        if low > at:
            found.append((at, low - 1))
        at = high + 1
    return (*found, (at, LAST)) if at <= LAST else tuple(found)


def characters(given: Ranges) -> Node:
    """One of some characters."""
    return ("set", given) if given else NONE


def then(left: Node, right: Node) -> Node:
    """One text after another."""
    if left == NONE or right == NONE:
        return NONE
    if left == EMPTY:
        return right
    if right == EMPTY:
        return left
    return then(left[1], then(left[2], right)) if left[0] == "then" else ("then", left, right)


def star(part: Node) -> Node:
    """Any number of texts."""
    return EMPTY if part in (NONE, EMPTY) else part if part[0] == "star" else ("star", part)


def opposite(part: Node) -> Node:
    """All other texts."""
    inner: Node = part[1] if part[0] == "not" else ("not", part)
    return inner


def any_of(parts: Iterable[Node]) -> Node:
    """A text of one of several sets."""
    return _joined("any", parts, NONE, ALL)


def all_of(parts: Iterable[Node]) -> Node:
    """A text of all of several sets."""
    return _joined("all", parts, ALL, NONE)


def _joined(name: str, parts: Iterable[Node], neutral: Node, absorbing: Node) -> Node:
    flat: set[Node] = set()
    for part in parts:
        flat |= part[1] if part[0] == name else {part}
    flat -= {neutral}
    if absorbing in flat or any(opposite(part) in flat for part in flat):
        return absorbing
    if not flat:
        return neutral
    return next(iter(flat)) if len(flat) == 1 else (name, frozenset(flat))


@lru_cache(maxsize=8_192)
def has_empty(node: Node) -> bool:
    """Whether the empty text is in a set."""
    kind = node[0]
    if kind in ("none", "set"):
        return False
    if kind in ("empty", "star"):
        return True
    if kind == "then":
        return has_empty(node[1]) and has_empty(node[2])
    if kind == "not":
        return not has_empty(node[1])
    return (any if kind == "any" else all)(has_empty(part) for part in node[1])


@lru_cache(maxsize=8_192)
def after(node: Node, character: int) -> Node:
    """What may follow a character."""
    kind = node[0]
    if kind in ("none", "empty"):
        return NONE
    if kind == "set":
        return EMPTY if any(low <= character <= high for low, high in node[1]) else NONE
    if kind == "then":
        first = then(after(node[1], character), node[2])
        return any_of([first, after(node[2], character)]) if has_empty(node[1]) else first
    if kind == "star":
        return then(after(node[1], character), node)
    if kind == "not":
        return opposite(after(node[1], character))
    return (any_of if kind == "any" else all_of)(after(part, character) for part in node[1])


@lru_cache(maxsize=8_192)
def _size(node: Node) -> int:
    if node[0] in ("none", "empty", "set"):
        return 1
    return 1 + sum(map(_size, node[1] if node[0] in ("any", "all") else node[1:]))


def _starts(node: Node, found: set[int]) -> None:
    """The characters at which what follows may change."""
    if node[0] == "set":
        found.update(bound for low, high in node[1] for bound in (low, high + 1))
    elif node[0] in ("any", "all"):
        for part in node[1]:
            _starts(part, found)
    else:
        for part in node[1:]:
            _starts(part, found)


def automaton(node: Node) -> dict[Node, dict[Node, Ranges]]:
    """The states, each with the states after it and the characters that lead there; the first is `node`."""
    starts = {0}
    _starts(node, starts)
    bounds = sorted(start for start in starts if start <= LAST)
    pieces = [(low, high - 1) for low, high in zip(bounds, [*bounds[1:], LAST + 1], strict=True)]
    states: dict[Node, dict[Node, Ranges]] = {}
    waiting, n_steps = [node], 0
    while waiting:
        state = waiting.pop()
        if state in states:
            continue
        n_steps += len(pieces)
        if len(states) >= MAX_STATES or n_steps > MAX_STEPS or _size(state) > MAX_SIZE:
            raise TooLarge
        steps: dict[Node, list[tuple[int, int]]] = {}
        for low, high in pieces:
            steps.setdefault(after(state, low), []).append((low, high))
        states[state] = {target: ranges(pairs) for target, pairs in steps.items() if target != NONE}
        waiting += states[state]
    return states


def is_empty(node: Node) -> bool:
    """Whether no text is in a set."""
    return not any(map(has_empty, automaton(node)))


def texts(node: Node, most: int) -> list[str] | None:
    """All texts of a set; None if there are more than `most`."""
    states = automaton(node)
    _minimal(states)  # only those from which a text can end are left
    found: list[str] = []
    waiting = [("", node)] if node in states else []
    while waiting:
        text, state = waiting.pop()
        if len(text) >= len(states):
            return None  # round in a circle
        found += [text] if has_empty(state) else []
        for target, given in states[state].items():
            if len(waiting) + len(found) + sum(high - low + 1 for low, high in given) > most:
                return None
            waiting += [(text + chr(at), target) for low, high in given for at in range(low, high + 1)]
    return sorted(found)


def expression(node: Node) -> str:
    """A regular expression, without anchors, for a set that is not empty: states are taken out one by one."""
    states = automaton(node)
    names = _minimal(states)
    if len(set(names.values())) > MAX_WRITTEN:
        raise TooLarge
    pairs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for state, steps in states.items():
        for target, found in steps.items():
            pairs.setdefault((names[state], names[target]), []).extend(found)
    # -1 is before the first state, -2 behind the last.
    edges = {key: class_of(ranges(found)) for key, found in pairs.items()}
    edges[-1, names[node]] = ""
    edges |= {(names[state], -2): "" for state in states if has_empty(state)}
    left = set(names.values())
    while left:
        chosen = min(left, key=lambda name: (_n_added(edges, name), name))
        left.remove(chosen)
        _take_out(edges, chosen)
    return edges[-1, -2]


def _n_added(edges: dict[tuple[int, int], str], name: int) -> int:
    """The characters that the expressions grow by without a state."""
    into = [len(text) for (a, b), text in edges.items() if b == name != a]
    out = [len(text) for (a, b), text in edges.items() if a == name != b]
    loop = len(edges.get((name, name), ""))
    return sum(into) * (len(out) - 1) + sum(out) * (len(into) - 1) + loop * (len(into) * len(out) - 1)


def _take_out(edges: dict[tuple[int, int], str], name: int) -> None:
    loop = edges.pop((name, name), None)
    middle = "" if loop is None else f"(?:{loop})*"
    into = {a: text for (a, b), text in edges.items() if b == name}
    out = {b: text for (a, b), text in edges.items() if a == name}
    for key in [key for key in edges if name in key]:
        del edges[key]
    for a, before in into.items():
        for b, behind in out.items():
            way = f"{_group(before)}{middle}{_group(behind)}"
            edges[a, b] = f"{edges[a, b]}|{way}" if (a, b) in edges else way
            if len(edges[a, b]) > MAX_LENGTH:
                raise TooLarge


def _group(text: str) -> str:
    return f"(?:{text})" if "|" in text else text


def _minimal(states: dict[Node, dict[Node, Ranges]]) -> dict[Node, int]:
    """Numbers of the states: equal ones have the same. States from which nothing can end are left out."""
    alive = {state for state in states if has_empty(state)}
    while more := {one for one, steps in states.items() if one not in alive and alive & steps.keys()}:
        alive |= more
    for state in list(states):
        if state not in alive:
            del states[state]
    for steps in states.values():
        for target in [target for target in steps if target not in alive]:
            del steps[target]
    names = {state: int(has_empty(state)) for state in states}
    while True:
        keys = {}
        for state, steps in states.items():
            merged: dict[int, list[tuple[int, int]]] = {}
            for target, found in steps.items():
                merged.setdefault(names[target], []).extend(found)
            keys[state] = (names[state], frozenset((name, ranges(found)) for name, found in merged.items()))
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys.values()))}
        if len(numbers) == len(set(names.values())):
            return {state: numbers[key] for state, key in keys.items()}
        names = {state: numbers[key] for state, key in keys.items()}


def class_of(given: Ranges) -> str:
    """A regular expression for one of some characters."""
    if given == ((0, LAST),):
        return r"[\s\S]"
    inverse = other(given)
    sign, shown = (
        ("^", inverse) if len(inverse) < len(given) or (given[-1][1] == LAST and inverse) else ("", given)
    )
    pieces = [
        _character(low) if low == high else f"{_character(low)}-{_character(high)}" for low, high in shown
    ]
    return _character(shown[0][0]) if _is_one(given) else f"[{sign}{''.join(pieces)}]"


def _is_one(given: Ranges) -> bool:
    return len(given) == 1 and given[0][0] == given[0][1]


def _character(code: int) -> str:
    """A character, in a class or outside, as short as it can be in any dialect."""
    if chr(code).isascii() and chr(code).isalnum():
        return chr(code)
    return f"\\x{code:02X}" if code < 256 else f"\\x{{{code:X}}}"

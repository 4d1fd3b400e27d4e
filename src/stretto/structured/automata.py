"""Sets of texts as expressions with complement and intersection, and the automata of these.

The automaton of an expression has its derivatives as states: what may follow after a character. It is made as
far as it is looked at: whether sets overlap is a search of it. Used by `regular`, which reads the patterns of
JSON schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from heapq import heappop, heappush
from itertools import product
from math import prod
from typing import Any

from stretto.structured.workers import check_budget

LAST = 0x10FFFF
MAX_WORK = 1_000_000  # for one automaton: parts of its states, for each class of characters; below 1 s
MAX_WORK_IN_ALL = 4_000_000  # for all automata of a schema
MAX_STATES = 1_000  # of an automaton that is made as a whole
MAX_ALTERNATIVES = 256  # as which one state of a search is looked at

Ranges = tuple[tuple[int, int], ...]  # of characters: sorted, and apart
# ("none",), ("empty",), ("set", Ranges), ("then", (a, b, …)), ("star", a), ("repeat", a, low, high),
# ("not", a), ("any" | "all", {…})
Node = tuple[Any, ...]

NONE: Node = ("none",)
EMPTY: Node = ("empty",)
ALL: Node = ("not", NONE)

_work: ContextVar[list[int] | None] = ContextVar("work", default=None)  # what is left of it


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


def then(*parts: Node) -> Node:
    """One text after another."""
    flat: list[Node] = []
    for one in parts:
        for part in one[1] if one[0] == "then" else (one,):
            is_done = part == EMPTY or (flat and flat[-1] == part and (part == ALL or part[0] == "star"))
            flat += [] if is_done else [part]
    if NONE in flat:
        return NONE
    if not flat:
        return EMPTY
    return flat[0] if len(flat) == 1 else ("then", tuple(flat))


def star(part: Node) -> Node:
    """Any number of texts."""
    return EMPTY if part in (NONE, EMPTY) else part if part[0] == "star" else ("star", part)


def repeat(part: Node, low: int, high: int | None) -> Node:
    """So many texts, or any number from `low` on."""
    if high is None:
        return then(repeat(part, low, low), star(part))
    if high == 0 or part == EMPTY:
        return EMPTY
    if has_empty(part):
        low = 0
    if part == NONE or part[0] == "star" or high == 1:
        return union([EMPTY, part]) if low == 0 else part
    return ("repeat", part, low, high)


def opposite(part: Node) -> Node:
    """All other texts."""
    inner: Node = part[1] if part[0] == "not" else ("not", part)
    return inner


def union(parts: Iterable[Node]) -> Node:
    """A text of one of several sets."""
    return _joined("any", parts, NONE, ALL)


def intersection(parts: Iterable[Node]) -> Node:
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
    if len(flat) == 1:
        return next(iter(flat))
    if name == "all" and max(map(shortest, flat)) > min(map(longest, flat)):
        return NONE
    return (name, frozenset(flat))


@lru_cache(maxsize=8_192)
def has_empty(node: Node) -> bool:
    """Whether the empty text is in a set."""
    kind = node[0]
    if kind in ("none", "set"):
        return False
    if kind in ("empty", "star"):
        return True
    if kind == "repeat":
        return bool(node[2] == 0)  # a part that may be empty is repeated from 0 on
    if kind == "not":
        return not has_empty(node[1])
    return (any if kind == "any" else all)(has_empty(part) for part in node[1])


@lru_cache(maxsize=8_192)
def shortest(node: Node) -> float:
    """A length that all texts of a set have at least."""
    kind = node[0]
    if kind in ("empty", "star"):
        return 0
    if kind == "set":
        return 1
    if kind == "then":
        return sum(map(shortest, node[1]))
    if kind == "repeat":
        return shortest(node[1]) * node[2] if node[2] else 0
    if kind in ("any", "all"):
        return (min if kind == "any" else max)(map(shortest, node[1]))
    return float("inf") if kind == "none" else 0 if has_empty(node) else 1


@lru_cache(maxsize=8_192)
def longest(node: Node) -> float:
    """A length that all texts of a set have at most."""
    kind = node[0]
    if kind in ("none", "empty"):
        return 0
    if kind == "set":
        return 1
    if kind == "then":
        return sum(map(longest, node[1]))
    if kind == "repeat":
        return longest(node[1]) * int(node[3])
    if kind in ("any", "all"):
        return (max if kind == "any" else min)(map(longest, node[1]))
    return float("inf")


@lru_cache(maxsize=8_192)
def after(node: Node, character: int) -> Node:
    """What may follow a character."""
    kind = node[0]
    if kind in ("none", "empty"):
        return NONE
    if kind == "set":
        return EMPTY if any(low <= character <= high for low, high in node[1]) else NONE
    if kind == "then":
        found = []
        for at, part in enumerate(node[1]):
            found.append(then(after(part, character), *node[1][at + 1 :]))
            if not has_empty(part):
                break
        return union(found)
    if kind == "star":
        return then(after(node[1], character), node)
    if kind == "repeat":
        return then(after(node[1], character), repeat(node[1], max(node[2] - 1, 0), node[3] - 1))
    if kind == "not":
        return opposite(after(node[1], character))
    return (union if kind == "any" else intersection)(after(part, character) for part in node[1])


@lru_cache(maxsize=8_192)
def _size(node: Node) -> int:
    if node[0] in ("none", "empty", "set"):
        return 1
    return 1 + sum(map(_size, node[1] if node[0] in ("any", "all", "then") else node[1:2]))


@lru_cache(maxsize=8_192)
def _cost(node: Node) -> int:
    """The work of `after`: the parts of what it makes, or somewhat more."""
    kind = node[0]
    if kind in ("none", "empty", "set"):
        return 1
    if kind in ("any", "all"):
        return _size(node) + sum(map(_cost, node[1]))
    if kind != "then":
        return _size(node) + _cost(node[1])
    found = 0
    for part in node[1]:
        found += _size(node) + _cost(part)
        if not has_empty(part):
            break
    return found


@lru_cache(maxsize=8_192)
def _starts(node: Node) -> frozenset[int]:
    """The characters at which what follows may change."""
    kind = node[0]
    if kind == "set":
        return frozenset(bound for low, high in node[1] for bound in (low, high + 1) if bound <= LAST)
    if kind in ("any", "all"):
        return frozenset().union(*map(_starts, node[1]))
    if kind == "then":
        found: frozenset[int] = frozenset()
        for part in node[1]:
            found |= _starts(part)
            if not has_empty(part):
                break
        return found
    return frozenset() if kind in ("none", "empty") else _starts(node[1])


@contextmanager
def limited_work() -> Iterator[None]:
    """Within it, all automata together are limited as well."""
    token = _work.set([MAX_WORK_IN_ALL])
    try:
        yield
    finally:
        _work.reset(token)


def automaton(node: Node) -> dict[Node, dict[Node, Ranges]]:
    """The states, each with the states after it and the characters that lead there; the first is `node`."""
    states: dict[Node, dict[Node, Ranges]] = {}
    waiting, spend = [node], _meter()
    while waiting:
        state = waiting.pop()
        if len(states) >= MAX_STATES:
            raise TooLarge
        if state not in states:
            states[state] = _steps(state, spend)
            waiting += states[state]
    return states


def is_empty(node: Node) -> bool:
    """Whether no text is in a set.

    A state with alternatives is searched as several, so no automaton is determinised for an intersection.
    Those come first that may be the nearest to an end.
    """
    spend = _meter()
    waiting: list[tuple[float, int, Node]] = []
    noted: set[Node] = set()
    targets: Iterable[Node] = [node]
    while True:
        for state in {part for target in targets for part in _alternatives(target)} - noted:
            if has_empty(state):
                return False
            noted.add(state)
            heappush(waiting, (shortest(state), len(noted), state))
        if not waiting:
            return True
        targets = _steps(heappop(waiting)[2], spend)


def _meter() -> Callable[[int], None]:
    """A function that counts work, and raises when it is too much."""
    left, in_all = [MAX_WORK], _work.get()

    def spend(cost: int) -> None:
        check_budget()
        for budget in (left, in_all or left):
            budget[0] -= cost
            if budget[0] < 0:
                raise TooLarge

    return spend


def _steps(state: Node, spend: Callable[[int], None]) -> dict[Node, Ranges]:
    starts = sorted({0} | _starts(state))
    spend((len(starts) + 1) * _cost(state))
    steps: dict[Node, list[tuple[int, int]]] = {}
    for low, end in zip(starts, [*starts[1:], LAST + 1], strict=True):
        steps.setdefault(after(state, low), []).append((low, end - 1))
    return {target: ranges(pairs) for target, pairs in steps.items() if target != NONE}


@lru_cache(maxsize=8_192)
def _alternatives(node: Node) -> frozenset[Node]:
    """Sets that are a set together."""
    if node[0] == "any":
        return frozenset().union(*map(_alternatives, node[1]))
    if node[0] == "then":
        first, *rest = node[1]
        return frozenset(then(part, *rest) for part in _alternatives(first))
    if node[0] == "all":
        choices = [_alternatives(part) for part in node[1]]
        if prod(map(len, choices)) <= MAX_ALTERNATIVES:
            return frozenset(map(intersection, product(*choices))) - {NONE}
    return frozenset([node])


def has_text(node: Node, text: str) -> bool:
    """Whether a text is in a set."""
    for character in text:
        node = after(node, ord(character))
    return has_empty(node)


# Regular expressions for the sets of texts of `automata`: the states of one are taken out one by one.

MAX_WRITTEN = 128  # states of an automaton that becomes an expression
MAX_LENGTH = 16_000  # of the expression


def list_texts(node: Node, most: int) -> list[str] | None:
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


def write_expression(node: Node) -> str:
    """A regular expression, without anchors, for a set that is not empty: states are taken out one by one."""
    states = automaton(node)
    names = _minimal(states)
    pairs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for state, steps in states.items():
        for target, found in steps.items():
            pairs.setdefault((names[state], names[target]), []).extend(found)
    # -1 is before the first state, -2 behind the last.
    edges = {key: write_class(ranges(found)) for key, found in pairs.items()}
    edges[-1, names[node]] = ""
    edges |= {(names[state], -2): "" for state in states if has_empty(state)}
    left = set(names.values())
    while left:
        chosen = min(left, key=lambda name: (_weight(edges, name), name))
        left.remove(chosen)
        _take_out(edges, chosen)
    return edges[-1, -2]


def _weight(edges: dict[tuple[int, int], str], name: int) -> int:
    """The characters that are added where a state is taken out."""
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
    """Numbers of the states, not too many: equal ones have the same. Those that cannot end are left out."""
    before: dict[Node, list[Node]] = {}
    for state, steps in states.items():
        for target in steps:
            before.setdefault(target, []).append(state)
    alive: set[Node] = set()
    waiting = [state for state in states if has_empty(state)]
    while waiting:
        if (state := waiting.pop()) not in alive:
            alive.add(state)
            waiting += before.get(state, [])
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
        if len(numbers) > MAX_WRITTEN:
            raise TooLarge
        names = {state: numbers[key] for state, key in keys.items()}


def write_class(given: Ranges) -> str:
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

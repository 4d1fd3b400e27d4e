"""Regular expressions for the sets of texts of `automata`: the states of one are taken out one by one."""

from __future__ import annotations

from stretto.structured.automata import LAST, Node, Ranges, TooLarge, automaton, has_empty, other, ranges

MAX_WRITTEN = 128  # states of an automaton that becomes an expression
MAX_LENGTH = 8_000  # of the expression


def expression(node: Node) -> str:
    """A regular expression, without anchors, for a set that is not empty: states are taken out one by one."""
    states = automaton(node)
    names = _minimal(states)
    pairs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for state, steps in states.items():
        for target, found in steps.items():
            pairs.setdefault((names[state], names[target]), []).extend(found)
    # -1 is before the first state, -2 behind the last.
    edges = {key: _class(ranges(found)) for key, found in pairs.items()}
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


def _class(given: Ranges) -> str:
    if given == ((0, LAST),):
        return r"[\s\S]"
    inverse = other(given)
    sign, shown = (
        ("^", inverse) if len(inverse) < len(given) or (given[-1][1] == LAST and inverse) else ("", given)
    )
    pieces = [_literal(low) if low == high else f"{_literal(low)}-{_literal(high)}" for low, high in shown]
    is_one = not sign and len(shown) == 1 and shown[0][0] == shown[0][1]
    return pieces[0] if is_one else f"[{sign}{''.join(pieces)}]"


def _literal(character: int) -> str:
    text = chr(character)
    return text if text.isascii() and text.isalnum() else f"\\x{{{character:X}}}"

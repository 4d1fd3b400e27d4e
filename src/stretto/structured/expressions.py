"""Regular expressions for the sets of texts of `automata`: the states of one are taken out one by one."""

from __future__ import annotations

from stretto.structured.automata import LAST, Node, Ranges, TooLarge, automaton, has_empty, other, ranges

MAX_WRITTEN = 128  # states of an automaton that becomes an expression
MAX_LENGTH = 16_000  # of the expression


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

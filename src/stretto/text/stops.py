"""What ends a text: stop strings, found across token borders and never emitted, and passages that repeat.

An Aho–Corasick automaton reads each character once, however many stop strings there are and however long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

MAX_PERIOD = 256  # tokens of the passage; a longer one may repeat
MIN_COPIES = 4
MIN_TOKENS = 400  # of all copies together: rows of zeros, tables and refrains repeat for good reasons
CHECK_TOKENS = 16  # that are looked at together: at every 16th token a text may be found to repeat itself

_PERIODS = np.arange(MAX_PERIOD, 0, -1)
_WANTED = np.maximum(MIN_COPIES * _PERIODS, MIN_TOKENS) - _PERIODS  # tokens in a row that equal earlier ones


class StopMatcher:
    """Takes text piece by piece and returns the part that can be emitted.

    Text that may be the prefix of a stop string is held back until it is known not to be one.

    >>> matcher = StopMatcher(["END"])
    >>> matcher.push("the E"), matcher.push("N"), matcher.push("T")
    ('the ', '', 'ENT')
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._automaton = _automaton(tuple(stops)) if stops else None
        self._node = 0
        self._held = ""
        self.matched: str | None = None  # the stop string that was found

    def push(self, text: str) -> str:
        """Add text; return the part that can be emitted. After a match all further text is dropped."""
        automaton = self._automaton
        if automaton is None:
            return text
        if self.matched is not None:
            return ""
        n_held = len(self._held)
        self._node, n_read, self.matched = automaton.read(self._node, text)
        text = self._held + text
        if self.matched is not None:
            self._held = ""
            return text[: n_held + n_read - len(self.matched)]
        n_shown = len(text) - automaton.depths[self._node]
        self._held = text[n_shown:]
        return text[:n_shown]

    def pass_by(self, text: str) -> str:
        """Add text that no stop string ends; one that begins in it may still end behind it."""
        automaton, n_read = self._automaton, 0
        if automaton is None:
            return text
        while n_read < len(text):
            self._node, n, _ = automaton.read(self._node, text[n_read:])
            n_read += n
        text = self._held + text
        n_shown = len(text) - automaton.depths[self._node]
        self._held = text[n_shown:]
        return text[:n_shown]

    def flush(self) -> str:
        """The text that was held back, at the end."""
        held, self._held, self._node = self._held, "", 0
        return held


class StopBuffer:
    """Holds back text that is a stop string, or may become one, until more text comes.

    It is for a second reading of a text that ends where `StopMatcher` says, in which some characters stand
    for others (`marks`).

    >>> buffer = StopBuffer(["END"])
    >>> buffer.push("the E"), buffer.push("ND."), buffer.cut()
    ('the ', '', '')
    """

    def __init__(self, stops: Sequence[str], marks: Mapping[str, str] | None = None) -> None:
        self._automaton = _automaton(tuple(stops)) if stops else None
        self._marks = {} if marks is None else marks
        self._node = 0
        self._found = ""  # the first stop string that the last text completed
        self._n_behind = 0  # characters behind it
        self.held = ""

    @property
    def has_match(self) -> bool:
        """Whether the last text completed a stop string."""
        return bool(self._found)

    def push(self, text: str) -> str:
        """Add text; return what comes before the stop strings in it."""
        if self._automaton is None:
            return text
        self._found, n_kept, n_read = "", 0, 0
        plain = "".join([self._marks.get(c, c) for c in text])
        while n_read < len(plain):
            self._node, n, found = self._automaton.read(self._node, plain[n_read:])
            n_read += n
            if found is not None and not self._found:
                self._found, self._n_behind = found, len(plain) - n_read
                n_kept = self._n_behind + len(found)
        self.held += text
        return self._take(max(n_kept, self._automaton.depths[self._node]))

    def cut(self, keeps_stop: bool = False) -> str:
        """The rest of a text that ends at the stop string in the last piece."""
        return self._take(self._n_behind + (0 if keeps_stop else len(self._found)))

    def _take(self, n_left: int) -> str:
        """The held text but its last characters; of a mark all or none."""
        at = len(self.held)
        while n_left > 0:
            at -= 1
            n_left -= len(self._marks.get(self.held[at], "1"))
        text, self.held = self.held[:at], self.held[at:]
        return text


class _Automaton:
    """The prefixes of some strings as nodes; 0 is the empty one."""

    def __init__(self, strings: tuple[str, ...]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self.shorter = [0]  # the longest proper suffix that is a prefix too
        self._found: list[str | None] = [None]  # the longest string that ends here
        self.depths = [0]  # length
        for string in strings:
            self._add(string)
        self._link()

    def _add(self, string: str) -> None:
        node = 0
        for depth, letter in enumerate(string, 1):
            if letter not in self._next[node]:
                self._next[node][letter] = len(self._next)
                self._next.append({})
                self.shorter.append(0)
                self._found.append(None)
                self.depths.append(depth)
            node = self._next[node][letter]
        self._found[node] = string

    def _link(self) -> None:
        """Find `shorter` of all nodes, shorter ones first."""
        nodes = list(self._next[0].values())
        for node in nodes:  # those behind it join the list
            for letter, longer in self._next[node].items():
                self.shorter[longer] = self._step(self.shorter[node], letter)
                nodes.append(longer)
            if self._found[node] is None:
                self._found[node] = self._found[self.shorter[node]]

    def _step(self, node: int, letter: str) -> int:
        while node and letter not in self._next[node]:
            node = self.shorter[node]
        return self._next[node].get(letter, 0)

    def read(self, node: int, text: str) -> tuple[int, int, str | None]:
        """The node behind a text, or behind the first string in it; how much was read; that string."""
        following, found = self._next, self._found
        for n_read, letter in enumerate(text, 1):
            if letter in following[node]:
                node = following[node][letter]
            elif node:
                node = self._step(node, letter)
            if found[node] is not None:
                # The first to be complete, so that it does not matter how the text was cut into pieces.
                return node, n_read, found[node]
        return node, len(text), None


@lru_cache(maxsize=8)
def _automaton(stops: tuple[str, ...]) -> _Automaton:
    return _Automaton(stops)


class RepeatGuard:
    """Tells when a text repeats itself.

    It does if it ends with 400 tokens or more that are one passage of 1 to 256 tokens, at least 4 times. It
    looks at every 16th token, all periods at once, so that whoever pushes the same tokens gets the same
    answer at the same one, and a token costs about a microsecond, whatever the text is.

    >>> guard = RepeatGuard()
    >>> [guard.push(token) for token in [7, 8] * 200][-2:]
    [False, True]
    """

    def __init__(self) -> None:
        self._fresh: list[int] = []  # not looked at yet
        self._last = np.full(MAX_PERIOD + CHECK_TOKENS, -1, np.int64)  # the last tokens that were
        self._earlier = sliding_window_view(self._last[:-1], CHECK_TOKENS)  # [periods, 16], the longest first
        self._runs = np.zeros(MAX_PERIOD, np.int64)  # how many in a row equal the one a period before them

    def push(self, token: int) -> bool:
        """Add a token; True if the text repeats itself now."""
        fresh, last = self._fresh, self._last
        fresh.append(token)
        if len(fresh) < CHECK_TOKENS:
            return False
        last[:-CHECK_TOKENS] = last[CHECK_TOKENS:]
        last[-CHECK_TOKENS:] = fresh
        fresh.clear()
        differs = (self._earlier != last[-CHECK_TOKENS:])[:, ::-1]  # newest first
        since = differs.argmax(axis=1)  # tokens behind the newest that differs; 0 also if none does
        self._runs += CHECK_TOKENS
        np.copyto(self._runs, since, where=differs.any(axis=1))
        return bool((self._runs >= _WANTED).any())

    def fork(self) -> RepeatGuard:
        """An independent copy with the same state."""
        twin = RepeatGuard()
        twin._fresh = list(self._fresh)
        twin._last[:], twin._runs[:] = self._last, self._runs
        return twin

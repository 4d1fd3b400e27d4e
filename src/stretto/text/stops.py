"""Stop strings in streamed text: found also across token borders, never emitted."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Takes text piece by piece and gives back what is safe to show.

    Text that may be the beginning of a stop string is held back until it is known not to be one.

    >>> matcher = StopMatcher(["END"])
    >>> matcher.push("the E"), matcher.push("N"), matcher.push("T")
    ('the ', '', 'ENT')
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = list(stops)
        self._held = ""
        self.matched: str | None = None  # the stop string that was found

    def push(self, text: str) -> str:
        """Add text; return what can be shown. After a match everything further is dropped."""
        if not self._stops:
            return text
        if self.matched is not None:
            return ""
        text = self._held + text
        found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in self._stops if stop in text]
        if found:
            # The first to be complete, so that it does not matter how the text was cut into pieces.
            end, length, self.matched = min(found)
            self._held = ""
            return text[: end + length]
        keep = max((self._overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """The length of the longest end of `text` that is a beginning of `stop`."""
        longest = min(len(text), len(stop) - 1)
        return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)

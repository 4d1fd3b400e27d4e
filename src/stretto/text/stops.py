"""Stop strings in streamed text: found also across token borders, never emitted."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Takes text piece by piece and returns the part that can be emitted.

    Text that may be the prefix of a stop string is held back until it is known not to be one.

    >>> matcher = StopMatcher(["END"])
    >>> matcher.push("the E"), matcher.push("N"), matcher.push("T")
    ('the ', '', 'ENT')
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = list(stops)
        self._held = ""
        self.matched: str | None = None  # the stop string that was found

    def push(self, text: str) -> str:
        """Add text; return the part that can be emitted. After a match all further text is dropped."""
        if not self._stops:
            return text
        if self.matched is not None:
            return ""
        text = self._held + text
        matches = [(text.find(stop) + len(stop), -len(stop), stop) for stop in self._stops if stop in text]
        if matches:
            # The first to be complete, so that it does not matter how the text was cut into pieces.
            end, length, self.matched = min(matches)
            self._held = ""
            return text[: end + length]
        keep = max((self._overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The text that was held back, at the end."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """The length of the longest suffix of `text` that is a prefix of `stop`."""
        longest = min(len(text), len(stop) - 1)
        return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)

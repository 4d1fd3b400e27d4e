"""Which request a call of a hook belongs to, and where its answer begins."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.sampling.hooks.row import HookRow

MOST = 1024  # requests that are remembered; beyond that, those that were seen longest ago are forgotten


@dataclass(eq=False)
class Trail:
    """One request as a hook has seen it."""

    n_prompt: int  # tokens at the first call: the answer begins here
    tokens: list[int] = field(default_factory=list)  # the list that came last, where only lists come
    n_seen: int = 0  # how many tokens it had then
    last: int = -1  # and the last of them

    def same_list(self, tokens: list[int]) -> bool:
        """Whether `tokens`, which is the list that came last, still begins with what it had then."""
        return len(tokens) >= self.n_seen and tokens[self.n_seen - 1] == self.last

    def copied_by(self, tokens: list[int]) -> bool:
        """Whether `tokens` is a copy of the list that came last, or of what that was a token later."""
        n = len(self.tokens)
        return n == self.n_seen and 0 <= len(tokens) - n <= 1 and tokens[:n] == self.tokens


class Trails:
    """Follows any number of requests at once."""

    def __init__(self) -> None:
        self._by_number: dict[int, Trail] = {}
        # By the identity of the list. A list is held, so no other one can have its identity.
        self._by_list: dict[int, Trail] = {}

    def of_row(self, row: HookRow) -> Trail:
        """The request of a row: it has a number."""
        return self._keep(self._by_number, row.request, self._by_number.get(row.request), row.tokens)

    def of_tokens(self, tokens: list[int]) -> Trail:
        """The request, or the sequence of a loop of one's own, that has these tokens now.

        The same list as before is the same sequence. A copy of the list that came last, or one that is a
        token longer, goes on with it. Everything else is new.
        """
        trail = self._by_list.get(id(tokens))
        if trail is None or not trail.same_list(tokens):
            key = next(reversed(self._by_list), None)
            trail = None
            if key is not None and self._by_list[key].copied_by(tokens):
                trail = self._by_list.pop(key)
        trail = self._keep(self._by_list, id(tokens), trail, tokens)
        trail.tokens, trail.n_seen, trail.last = tokens, len(tokens), tokens[-1] if tokens else -1
        return trail

    @staticmethod
    def _keep(trails: dict[int, Trail], key: int, trail: Trail | None, tokens: list[int]) -> Trail:
        """Put a trail, or a new one, to the end, where the latest stands."""
        trails.pop(key, None)
        trails[key] = found = trail or Trail(len(tokens))
        if len(trails) > MOST:
            del trails[next(iter(trails))]
        return found

"""The taps of a track: in each pass it asks for the rows of its own tokens at sites, and no others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Batch, Tap
from stretto.engine.inside import Capture, Captured, Patch
from stretto.errors import InvalidRequest
from stretto.models.sites import Kind, Site, find_sites

Floats = NDArray[np.float32]


class _Named:
    """Which tokens of a text are meant: a part, or places; those below 0 count from the prompt's end."""

    def __init__(self, tokens: str | tuple[int, ...], n_prompt: int) -> None:
        self.part = tokens if isinstance(tokens, str) else ""
        self.order: dict[int, int] = {}  # of the places, as they were given
        self._n_prompt = n_prompt
        for place in tokens if isinstance(tokens, tuple) else ():
            if place < -n_prompt:
                raise InvalidRequest(
                    f"there is no token {place} in a prompt of {n_prompt}; -1 is its last one", param="tokens"
                )
            self.order[place + n_prompt if place < 0 else place] = len(self.order)
        if isinstance(tokens, tuple) and len(self.order) < len(tokens):
            raise InvalidRequest(
                f"two of the places {list(tokens)!r:.80} are the same token of a prompt of {n_prompt}",
                param="tokens",
            )

    def __contains__(self, place: int) -> bool:
        if not self.part:
            return place in self.order
        return self.part == "all" or (place < self._n_prompt) == (self.part == "prompt")

    @property
    def reads_prompt(self) -> bool:
        """Whether these are tokens of the prompt before its last one, which is always computed."""
        return self.part in ("all", "prompt") or any(place < self._n_prompt - 1 for place in self.order)


class Taps:
    """The capture and the patches of one track, from pass to pass."""

    def __init__(
        self, sites: dict[str, Site], capture: Capture | None, patches: Sequence[Patch], n_prompt: int
    ) -> None:
        self.n_prompt = n_prompt
        self.error: Exception | None = None  # of a patch's function, for the request to end with
        self._capture = capture
        self._captured = [] if capture is None else find_sites(sites, capture.sites, "capture")
        self._named = _Named("generated" if capture is None else capture.tokens, n_prompt)
        self._patches: list[tuple[Patch, Site, _Named]] = []
        for patch in patches:
            for site in find_sites(sites, [patch.site], "patch"):
                patch.check(site)
                self._patches.append((patch, site, _Named(patch.tokens, n_prompt)))
        self._next = 0  # the first place that was not captured yet
        self._asked: list[tuple[list[int], list[int], list[Tap]]] = []  # of the pass that is being run
        self._pieces: list[Captured] = []  # that were not given out

    @property
    def reads_prompt(self) -> bool:
        """Whether tokens of the prompt have to be computed: they are captured, or something is changed."""
        return bool(self._patches) or self._named.reads_prompt

    def ask(self, batch: Batch, first: int, place: int, tokens: Sequence[int]) -> None:
        """Tap the rows of a batch from `first` on, whose tokens stand at `place` and behind in the text."""
        self._asked = []
        n = len(batch) - first
        for patch, site, named in self._patches:
            places = [one for one in range(place, place + n) if one in named]
            if places:
                batch.tap(
                    site, [first + one - place for one in places], self._change(patch, site, named, places)
                )
        places = [one for one in range(max(place, self._next), place + n) if one in self._named]
        if places and self._captured:
            rows = [first + one - place for one in places]
            taps = [batch.tap(site, rows) for site in self._captured]
            self._asked.append((places, [int(tokens[one]) for one in places], taps))

    def _change(self, patch: Patch, site: Site, named: _Named, places: list[int]) -> Callable[[Floats], None]:
        def change(rows: Floats) -> None:
            try:
                patch.apply(rows, places, site, named.order)
            except Exception as error:
                self.error = self.error or error

        return change

    def take(self) -> None:
        """Keep what the pass has captured."""
        for places, tokens, taps in self._asked:
            arrays = {tap.site.name: tap.values.astype(_type_of(tap.site), copy=False) for tap in taps}
            self._pieces.append(Captured(arrays, tokens, places, self.n_prompt))
            self._next = places[-1] + 1
        self._asked = []

    def deliver(self) -> None:
        """Give out the pieces to a callback; raise what went wrong in a pass."""
        if self.error is not None:
            raise self.error
        if self._capture is not None and self._capture.callback is not None:
            pieces, self._pieces = self._pieces, []
            for piece in pieces:
                self._capture.callback(piece)

    def captured(self) -> Captured | None:
        """All that was captured; None if nothing was to be."""
        if self._capture is None or self._capture.callback is not None:
            return None
        if not self._pieces:
            empty = {site.name: np.empty((0, site.width), _type_of(site)) for site in self._captured}
            return Captured(empty, [], [], self.n_prompt)
        if len(self._pieces) > 1:
            arrays = {
                site.name: np.concatenate([piece[site.name] for piece in self._pieces])
                for site in self._captured
            }
            tokens = [token for piece in self._pieces for token in piece.tokens]
            places = [place for piece in self._pieces for place in piece.places]
            self._pieces = [Captured(arrays, tokens, places, self.n_prompt)]
        return self._pieces[0]


def _type_of(site: Site) -> type[np.generic]:
    """The type of the numbers of a site as callers get them."""
    return np.int32 if site.kind is Kind.EXPERTS else np.float32

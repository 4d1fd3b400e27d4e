"""The open tracks of a runner, which threads that make requests add to while another one steps."""

from __future__ import annotations

from collections.abc import Iterator
from weakref import WeakValueDictionary

from stretto.engine.track import Track


class OpenTracks(WeakValueDictionary[int, Track]):
    """Tracks by id. `values` iterates over a copy, so that adding one needs no lock."""

    def values(self) -> Iterator[Track]:  # type: ignore[override]  # as in the class it extends
        """The tracks that are open now."""
        return iter([track for reference in self.valuerefs() if (track := reference()) is not None])

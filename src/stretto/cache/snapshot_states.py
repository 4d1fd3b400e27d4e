"""The recurrent states of a saved sequence: that behind its last token, and the checkpoint before it.

One tensor in addition to those of every saved sequence, and some metadata:

    states              uint8[k, slot_bytes]: all that the slots hold, as `state_layout` says
    state_positions     how many tokens each of them sums up, increasing; the last one all of them

With the checkpoint the logits of a restored sequence can be had without computing all of it again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stretto.errors import SnapshotError

STATE_TYPES = {"states": "U8"}
STATE_KEYS = {"state_layout", "state_positions", "states"}  # of the metadata; the last is a checksum
MAX_STATES = 2  # in a file

_POSITIONS = re.compile(r"[0-9]{1,10}( [0-9]{1,10})?", re.ASCII)


@dataclass(frozen=True)
class SavedStates:
    """The states of a saved sequence without their bytes."""

    layout: str
    positions: tuple[int, ...]

    def metadata(self, digest: str) -> dict[str, str]:
        """All but the tensor as text."""
        places = " ".join(map(str, self.positions))
        return {"state_layout": self.layout, "state_positions": places, "states": digest}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str], path: Path) -> SavedStates:
        """Parse the result of `metadata`."""
        text = metadata["state_positions"]
        if not _POSITIONS.fullmatch(text):
            raise SnapshotError(
                f"{text[:40]!r} is no list of 1 to {MAX_STATES} positions", path=path, field="state_positions"
            )
        return cls(metadata["state_layout"], tuple(map(int, text.split(" "))))

    def check(self, positions: NDArray[np.int32], path: Path) -> None:
        """Raise unless these can be states of tokens at some positions."""
        n = len(positions)
        if not np.array_equal(positions, np.arange(n)):
            raise SnapshotError("states of a sequence with holes", path=path, field="positions")
        if (
            self.positions[0] < 1
            or self.positions[-1] != n
            or sorted(set(self.positions)) != [*self.positions]
        ):
            raise SnapshotError(
                f"states at {list(self.positions)} of {n} tokens; they must increase, up to all of them",
                path=path,
                field="state_positions",
            )


def check_states(
    states: SavedStates | None,
    shape: tuple[int, ...],
    layout: str,
    slot_bytes: int,
    n_tokens: int,
    path: Path,
) -> None:
    """Raise unless the states are what a model with such slots can go on from, before they are read."""
    if states is None:
        if slot_bytes and n_tokens:
            raise SnapshotError(
                "saved without recurrent states, which this model has; compute the tokens anew", path=path
            )
        return
    if states.layout != layout:
        raise SnapshotError(
            f"saved from states of the kind {states.layout[:80]!r}, not {layout!r}; "
            "load the model with the backend, kv and precision that it had",
            path=path,
        )
    if shape != (len(states.positions), slot_bytes):
        raise SnapshotError(
            f"states of the shape {list(shape)}, not {[len(states.positions), slot_bytes]}",
            path=path,
            field="tensor 'states'",
        )

"""The images of a saved sequence: their tokens, digests and vectors.

Three tensors in addition to those of every saved sequence:

    runs        int32[r, 6]: the first token of a run, its length, the row of its image in `pictures`, the
                first token's index in the image, the index after the last token of the image's own run, and
                how many tokens are a row of the image, where rows and columns are positions (else 0; older
                files leave it out)
    pictures    uint8[p, 33]: an image's digest, and 1 if its tokens attend to each other
    vectors     float32[m, numbers]: one for each image token, in order

With the vectors a restored sequence is complete: a token, or all of it, can be computed again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.cache.items import ImageToken, SavedImage
from stretto.errors import SnapshotError, Unsupported

IMAGE_TYPES = {"runs": "I32", "vectors": "F32", "pictures": "U8"}  # bytes last, the others stay aligned
DTYPES = {"runs": "<i4", "vectors": "<f4", "pictures": "u1"}
DIGEST_BYTES = 32
MAX_INDEX = 1 << 24  # of a token in an image


@dataclass(frozen=True, eq=False)
class SavedImages:
    """The image tensors of a saved sequence."""

    runs: NDArray[np.int32]  # int32[r, 6]
    pictures: NDArray[np.uint8]  # uint8[p, 33]
    vectors: NDArray[np.float32]  # float32[m, numbers]

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The three by name, as they are written."""
        return {name: np.ascontiguousarray(getattr(self, name), kind) for name, kind in DTYPES.items()}

    def digest(self) -> str:
        """SHA-256 of all of it."""
        digest = sha256()
        for tensor in self.tensors().values():
            digest.update(str(tensor.shape).encode())
            digest.update(tensor.reshape(-1).data)
        return digest.hexdigest()

    @classmethod
    def of(cls, tokens: Sequence[int]) -> SavedImages | None:
        """The images among some tokens, or None if there are none."""
        order: dict[tuple[bytes, bool], int] = {}
        runs: list[list[int]] = []
        vectors = []
        last: int = -1
        for at, token in enumerate(tokens):
            if isinstance(token, ImageToken):
                if token.image is None:
                    raise Unsupported(f"{token!r} has no pixels any more; append the image again")
                vectors.append(token.image.vectors()[token.index])
                if token.follows(last):
                    runs[-1][1] += 1
                else:
                    number = order.setdefault((token.digest, token.whole), len(order))
                    runs.append([at, 1, number, token.index, token.stop, token.columns])
            last = token
        if not runs:
            return None
        pictures = [np.frombuffer(digest + bytes([whole]), np.uint8) for digest, whole in order]
        return cls(np.array(runs, np.int32), np.stack(pictures), np.stack(vectors))

    def put_into(self, tokens: list[int], maker: object) -> list[int]:
        """The tokens with `ImageToken`s in place of the images' placeholders."""
        images = [
            SavedImage(row[:DIGEST_BYTES].tobytes(), bool(row[DIGEST_BYTES]), maker) for row in self.pictures
        ]
        restored, row = list(tokens), 0
        for first, n, which, index, stop, *columns in self.runs.tolist():
            image = images[which]
            for offset in range(n):
                image.rows[index + offset] = self.vectors[row]
                at = first + offset
                restored[at] = ImageToken(restored[at], image, image.digest, index + offset, stop, *columns)
                row += 1
        return restored

    def check(self, n_tokens: int, path: Path) -> None:
        """Raise unless these can be images among `n_tokens` tokens. Types and shapes are checked already."""
        first, n, which, index, stop, *columns = self.runs.astype(np.int64).T
        end = np.concatenate(([0], (first + n)[:-1]))  # of the run before
        if (n < 1).any() or (first < end).any() or first[-1] + n[-1] > n_tokens:
            raise SnapshotError(f"runs that do not lie in {n_tokens} tokens", path=path, field="runs")
        if n.sum() != len(self.vectors):
            message = f"{n.sum()} image tokens and {len(self.vectors)} vectors"
            raise SnapshotError(message, path=path, field="runs")
        if (which < 0).any() or (which >= len(self.pictures)).any():
            raise SnapshotError(
                f"there are images 0 to {len(self.pictures) - 1}, and others are named",
                path=path,
                field="runs",
            )
        if (index < 0).any() or (index + n > stop).any() or (stop > MAX_INDEX).any():
            raise SnapshotError("a run beyond its image", path=path, field="runs")
        if columns and ((columns[0] < 0) | (columns[0] > stop)).any():
            raise SnapshotError("rows that are longer than the image", path=path, field="runs")
        if (self.pictures[:, DIGEST_BYTES] > 1).any():
            raise SnapshotError("the last byte of an image is 0 or 1", path=path, field="pictures")
        if not np.isfinite(self.vectors).all():
            raise SnapshotError("numbers that are not finite", path=path, field="vectors")


def check_shapes(shapes: Mapping[str, Sequence[int]], n_tokens: int, n_embd: int, path: Path) -> None:
    """Raise unless the shapes can be those of images among `n_tokens` tokens, before tensors are read."""
    runs, pictures, vectors = (list(shapes[name]) for name in ("runs", "pictures", "vectors"))
    right = (
        len(runs) == len(pictures) == len(vectors) == 2
        and 1 <= pictures[0] <= runs[0] <= vectors[0] <= n_tokens
        and (pictures[1], vectors[1]) == (DIGEST_BYTES + 1, n_embd)
        and runs[1] in (5, 6)
    )
    if not right:
        raise SnapshotError(
            f"images of the shapes {runs}, {pictures}, {vectors} among {n_tokens} tokens; "
            f"[r, 6], [p, {DIGEST_BYTES + 1}] and [m, {n_embd}] are needed, p ≤ r ≤ m",
            path=path,
        )


# The recurrent states of a saved sequence: that behind its last token, and the checkpoint before it.
#
# One tensor in addition to those of every saved sequence, and some metadata:
#
#     states              uint8[k, slot_bytes]: all that the slots hold, as `state_layout` says
#     state_positions     how many tokens each of them sums up, increasing; the last one all of them
#
# With the checkpoint the logits of a restored sequence can be had without computing all of it again.

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

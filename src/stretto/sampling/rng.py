"""A request's random numbers: a function of (seed, index, draw) and nothing else."""

from __future__ import annotations

import os

from stretto import _native
from stretto.sampling.params import check_integer

MAX_DRAWS = 1 << 63


class RandomStream:
    """Uniform numbers from the counter-based generator Philox, keyed by seed and index: those of NumPy's.

    Two requests never share a stream, so other requests cannot change its numbers. With
    `draws` it continues after so many of them, in constant time. Each is computed when it is asked for:
    a stream costs nothing to make, as when a call starts many texts in one step.

    >>> RandomStream(7).uniform() == RandomStream(7).uniform()
    True
    """

    def __init__(self, seed: int | None = None, index: int = 0, draws: int = 0) -> None:
        if seed is None:
            seed = int.from_bytes(os.urandom(8), "little") >> 1
        check_integer("seed", seed, 0, (1 << 64) - 1)
        check_integer("draws", draws, 0, MAX_DRAWS)
        self.seed = int(seed)
        self.index = index
        self.draws = draws  # how many numbers have been taken

    def uniform(self) -> float:
        """The next number, from 0 up to but not including 1."""
        number = _native.uniform(self.seed, self.index, self.draws)
        self.draws += 1
        return number

    def peek(self, n: int = 0) -> float:
        """The number that comes after the next n; none is taken."""
        return _native.uniform(self.seed, self.index, self.draws + n)

    def skip_to(self, draws: int) -> None:
        """Skip numbers that the native loop has taken."""
        self.draws = draws

    def fork(self) -> RandomStream:
        """A copy that continues with the same numbers."""
        return RandomStream(self.seed, self.index, self.draws)

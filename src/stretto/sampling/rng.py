"""A request's random numbers: a function of (seed, index, draw) and nothing else."""

from __future__ import annotations

import secrets

import numpy as np

from stretto.sampling.params import check_integer

MAX_DRAWS = 1 << 63
BLOCK = 4  # numbers that Philox makes at a time


class RandomStream:
    """Uniform numbers from the counter-based generator Philox, keyed by seed and index.

    Two requests never share a stream, so what else runs beside a request cannot change its numbers. With
    `draws` it goes on behind so many of them, at once however many they are.

    >>> RandomStream(7).uniform() == RandomStream(7).uniform()
    True
    """

    def __init__(self, seed: int | None = None, index: int = 0, draws: int = 0) -> None:
        if seed is None:
            seed = secrets.randbits(63)
        check_integer("seed", seed, 0, (1 << 64) - 1)
        check_integer("draws", draws, 0, MAX_DRAWS)
        self.seed = int(seed)
        self.index = index
        philox = np.random.Philox(key=np.array([self.seed, index], np.uint64))
        philox.advance(draws // BLOCK)
        self._generator = np.random.Generator(philox)
        self.draws = draws - draws % BLOCK  # how many numbers have been taken
        self.skip(draws % BLOCK)

    def uniform(self) -> float:
        """The next number, from 0 up to but not including 1."""
        self.draws += 1
        return self._generator.random()

    def skip(self, draws: int) -> None:
        """Go past numbers that the native loop has taken."""
        for _ in range(draws):
            self.uniform()

    def fork(self) -> RandomStream:
        """A stream that goes on from here with the same numbers."""
        return RandomStream(self.seed, self.index, self.draws)

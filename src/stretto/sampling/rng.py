"""A request's random numbers: a function of (seed, index, draw) and nothing else."""

from __future__ import annotations

import secrets

import numpy as np

from stretto.sampling.params import check_integer

MAX_DRAWS = 1 << 63
BLOCK_NUMBERS = 4  # that Philox makes at a time


class RandomStream:
    """Uniform numbers from the counter-based generator Philox, keyed by seed and index.

    Two requests never share a stream, so other requests cannot change its numbers. With
    `draws` it continues after so many of them, in constant time.

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
        self.draws = draws  # how many numbers have been taken
        self._generator: np.random.Generator | None = None  # made when a number is asked for
        self._peeked: list[float] = []  # numbers made and not taken yet

    def uniform(self) -> float:
        """The next number, from 0 up to but not including 1."""
        if self._peeked:
            self.draws += 1
            return self._peeked.pop(0)
        if self._generator is None:
            self._generator = self._after(self.draws)
        self.draws += 1
        return self._generator.random()

    def peek(self, n: int = 0) -> float:
        """The number that comes after the next n; none is taken."""
        if self._generator is None:
            self._generator = self._after(self.draws)
        while len(self._peeked) <= n:
            self._peeked.append(self._generator.random())
        return self._peeked[n]

    def _after(self, draws: int) -> np.random.Generator:
        philox = np.random.Philox(key=np.array([self.seed, self.index], np.uint64))
        philox.advance(draws // BLOCK_NUMBERS)
        generator = np.random.Generator(philox)
        for _ in range(draws % BLOCK_NUMBERS):
            generator.random()
        return generator

    def skip_to(self, draws: int) -> None:
        """Skip numbers that the native loop has taken."""
        if draws != self.draws:
            self.draws, self._generator = draws, None
            self._peeked.clear()

    def fork(self) -> RandomStream:
        """A copy that continues with the same numbers."""
        return RandomStream(self.seed, self.index, self.draws)

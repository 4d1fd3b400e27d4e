"""A request's random numbers: a function of (seed, index, draw) and nothing else."""

from __future__ import annotations

import secrets

import numpy as np

from stretto.sampling.params import check_integer


class RandomStream:
    """Uniform numbers from the counter-based generator Philox, keyed by seed and index.

    Two requests never share a stream, so what else runs beside a request cannot change its numbers.

    >>> RandomStream(7).uniform() == RandomStream(7).uniform()
    True
    """

    def __init__(self, seed: int | None = None, index: int = 0) -> None:
        if seed is None:
            seed = secrets.randbits(63)
        check_integer("seed", seed, 0, (1 << 64) - 1)
        self.seed = int(seed)
        self.index = index
        self.draws = 0  # how many numbers have been taken
        self._generator = np.random.Generator(np.random.Philox(key=np.array([self.seed, index], np.uint64)))

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
        twin = RandomStream(self.seed, self.index)
        twin.draws = self.draws
        twin._generator.bit_generator.state = self._generator.bit_generator.state
        return twin

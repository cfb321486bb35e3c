"""Random draws that depend on a key alone.

Item number i of the generated data set can be made again anywhere, without the items before it.
"""

import zlib
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

ItemT = TypeVar("ItemT")
BLOCK_SIZE = 128
"""Number of random numbers that are taken from numpy at once."""


def stable_hash(name: str) -> int:
    """Return a hash of `name` that is the same in every process, unlike Python's own `hash`."""
    return zlib.crc32(name.encode())


class Rng:
    """A source of random draws that depend only on `key`, a sequence of non-negative integers.

    Random numbers are taken from numpy in blocks. A call into numpy for each of them would take
    longer than everything else in making a scene.
    """

    def __init__(self, *key: int) -> None:
        self._generator = np.random.default_rng(key)
        self._unused_numbers: list[float] = []

    def unit(self) -> float:
        """Return a random number in [0, 1), uniformly distributed."""
        if not self._unused_numbers:
            self._unused_numbers = self._generator.random(BLOCK_SIZE).tolist()
        return self._unused_numbers.pop()

    def below(self, limit: int) -> int:
        """Return a random integer in [0, limit), each with equal probability."""
        return int(self.unit() * limit)

    def coin(self) -> bool:
        """Return True or False with equal probability."""
        return self.unit() < 0.5

    def choice(self, options: Sequence[ItemT]) -> ItemT:
        """Return one of `options`, each with equal probability."""
        return options[self.below(len(options))]

    def sample(self, options: Sequence[ItemT], count: int) -> list[ItemT]:
        """Return `count` entries at different positions of `options`, in random order."""
        shuffled = list(options)
        # The first `count` steps of a Fisher-Yates shuffle
        for index in range(count):
            partner = index + self.below(len(shuffled) - index)
            shuffled[index], shuffled[partner] = shuffled[partner], shuffled[index]
        return shuffled[:count]

    def weighted(self, weights: Mapping[str, float]) -> str:
        """Return one key of `weights`, drawn with a probability in proportion to its weight."""
        remaining = self.unit() * sum(weights.values())
        for name, weight in weights.items():
            remaining -= weight
            if remaining < 0:
                return name
        # Rounding may leave `remaining` at 0 after the last key.
        return [name for name, weight in weights.items() if weight > 0][-1]

"""Random draws that depend on a key alone.

Item number i of the embedded world can be made again anywhere, without the items before it.
"""

import zlib
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

ItemT = TypeVar("ItemT")
BLOCK = 128
"""Number of draws that are taken from numpy at once."""


def number(name: str) -> int:
    """Return a number for `name` that is the same in every process, unlike Python's own `hash`."""
    return zlib.crc32(name.encode())


class Rng:
    """Draws from one numpy generator that is seeded by `key` (non-negative integers).

    Uniform numbers are taken in blocks: one call into numpy for each draw would take longer than
    everything else in a scene.
    """

    def __init__(self, *key: int) -> None:
        self._generator = np.random.default_rng(key)
        self._block: list[float] = []

    def unit(self) -> float:
        """Return a number in [0, 1)."""
        if not self._block:
            self._block = self._generator.random(BLOCK).tolist()
        return self._block.pop()

    def below(self, limit: int) -> int:
        """Return an integer in [0, limit)."""
        return int(self.unit() * limit)

    def coin(self) -> bool:
        """Return True or False with equal probability."""
        return self.unit() < 0.5

    def choice(self, options: Sequence[ItemT]) -> ItemT:
        """Return one of `options`, each with equal probability."""
        return options[self.below(len(options))]

    def sample(self, options: Sequence[ItemT], count: int) -> list[ItemT]:
        """Return `count` different entries of `options` in random order."""
        pool = list(options)
        for index in range(count):
            other = index + self.below(len(pool) - index)
            pool[index], pool[other] = pool[other], pool[index]
        return pool[:count]

    def weighted(self, weights: Mapping[str, float]) -> str:
        """Return one key of `weights`, drawn in proportion to its value."""
        point = self.unit() * sum(weights.values())
        for name, weight in weights.items():
            point -= weight
            if point < 0:
                return name
        # Rounding may leave `point` at 0 after the last key.
        return [name for name, weight in weights.items() if weight > 0][-1]

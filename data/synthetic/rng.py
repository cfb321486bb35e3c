"""Random draws that depend on nothing but a key, so that item number i can be made again, anywhere, without its predecessors."""

import zlib
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")
BLOCK = 128


def number(name: str) -> int:
    """Return a number for `name` that is the same in every process (Python's own `hash` of a text is not)."""
    return zlib.crc32(name.encode())


class Rng:
    """Draws from one numpy generator, seeded by `key` (non-negative integers).

    Uniform numbers are taken in blocks: one call into numpy a draw would cost more than all the rest of a scene.
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
        """Return True or False, half each."""
        return self.unit() < 0.5

    def choice(self, options: Sequence[T]) -> T:
        """Return one of `options`, each as likely."""
        return options[self.below(len(options))]

    def sample(self, options: Sequence[T], count: int) -> list[T]:
        """Return `count` different entries of `options` in random order."""
        pool = list(options)
        for place in range(count):
            other = place + self.below(len(pool) - place)
            pool[place], pool[other] = pool[other], pool[place]
        return pool[:count]

    def weighted(self, weights: Mapping[str, float]) -> str:
        """Return one key of `weights`, drawn in proportion to its value."""
        point = self.unit() * sum(weights.values())
        for name, weight in weights.items():
            point -= weight
            if point < 0:
                return name
        return [name for name, weight in weights.items() if weight > 0][-1]

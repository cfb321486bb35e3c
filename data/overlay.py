"""One recipe laid over another: what `extends`, the command line and the variants of an ablation have in common.

Every value keeps the place where it was written, so that an error found after all this can still say where to look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Located:
    """A value of a recipe and the place where it was written; mappings and lists hold further `Located`."""

    value: dict[str, Located] | list[Located] | str | int | float | bool | None
    where: str

    @classmethod
    def of(cls, plain: Any, where: str = "") -> Located:
        """Return a plain value of lists and mappings with the same place throughout; keys become text."""
        if isinstance(plain, dict):
            return cls({str(key): cls.of(child, where) for key, child in plain.items()}, where)
        return cls([cls.of(child, where) for child in plain], where) if isinstance(plain, list) else cls(plain, where)

    def plain(self) -> Any:
        """Return the value without its places."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value

    def child(self, key: str | int) -> Located | None:
        """Return the value under `key`, None where there is none."""
        if isinstance(self.value, dict):
            return self.value.get(str(key))
        if isinstance(self.value, list) and isinstance(key, int) and key < len(self.value):
            return self.value[key]
        return None

    def at(self, path: Sequence[str | int]) -> Located | None:
        """Return the value at `path`, None where there is none."""
        here: Located | None = self
        for key in path:
            here = here.child(key) if here is not None else None
        return here

    def nearest(self, path: Sequence[str | int]) -> Located:
        """Return the value at `path`, or the last one on the way to it."""
        here = self
        for key in path:
            below = here.child(key)
            if below is None:
                break
            here = below
        return here


def lay(base: Located, patch: Located) -> Located:
    """Return `base` with `patch` over it: mappings are merged key by key, everything else (lists too) is replaced.

    A mapping whose `type` the patch changes is replaced whole, since the keys of one type mean nothing to another.
    A mapping over a list reaches single items by their index, as `data.sources.0.weight=2` on the command line does.
    """
    if isinstance(base.value, list) and isinstance(patch.value, dict):
        return Located(_lay_items(base.value, patch), base.where) if _indexes(base.value, patch.value) else patch
    if not isinstance(base.value, dict) or not isinstance(patch.value, dict):
        return patch
    kinds = [tree.value["type"].plain() for tree in (base, patch) if isinstance(tree.value, dict) and "type" in tree.value]
    if len(kinds) == 2 and kinds[0] != kinds[1]:
        return patch
    merged = {**base.value, **{k: lay(base.value[k], v) if k in base.value else v for k, v in patch.value.items()}}
    return Located(merged, base.where)


def _indexes(items: list[Located], patch: dict[str, Located]) -> bool:
    return all(key.isdecimal() and int(key) < len(items) for key in patch)


def _lay_items(items: list[Located], patch: Located) -> list[Located]:
    found = [patch.child(str(index)) for index in range(len(items))]
    return [item if over is None else lay(item, over) for item, over in zip(items, found, strict=True)]

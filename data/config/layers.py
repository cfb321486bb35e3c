"""One recipe laid over another: what `extends`, the command line and the variants of an ablation have in common.

Every value keeps the place where it was written, so that an error found after all this can still say where to look.

A recipe's text as values that remember where they stand, laid over the recipe that it extends.

A recipe may extend another (`extends: ../basereward.yaml`), and the command line lays single keys over both. Every value
keeps its file and line, so that an error found after all this can still say where to look.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from data.errors import Problem


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


COMMAND_LINE = "command line"

PLAIN_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float")}
"""Scalars that are not text in YAML 1.2; anything else without an explicit tag of its own is a string."""

TEXT_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "timestamp", "merge", "value")}


def _where(file: str | None, node: Node) -> str:
    return f"{file}:{node.start_mark.line + 1}" if file else COMMAND_LINE


class Reader:
    """Reads recipes and overrides, and collects what is wrong with their text in `problems`."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def recipe(self, path: Path, extended_by: tuple[Path, ...] = (), where: str = COMMAND_LINE) -> Located:
        """Return the recipe at `path`, laid over the one that it extends."""
        empty = Located({}, f"{path}:1")
        if path.resolve() in extended_by:
            self._report(where, "extends", str(path), "the recipe extends itself; remove one `extends` of the circle")
            return empty
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            key = "extends" if extended_by else "recipe"
            self._report(where, key, str(path), f"the recipe cannot be read ({error}); give the path of a YAML file")
            return empty
        tree = self._tree(text, str(path), "recipe") or empty
        if not isinstance(tree.value, dict):
            self._report(tree.where, "recipe", repr(tree.plain()), "a recipe is a mapping of sections such as `backbone:`")
            return empty
        base = tree.value.pop("extends", None)
        if base is None:
            return tree
        folder_path = path.parent / str(base.plain())
        return lay(self.recipe(folder_path, (*extended_by, path.resolve()), base.where), tree)

    def override(self, text: str) -> Located:
        """Return `section.key=value` as a recipe of that one key; the value is written as in YAML."""
        key, equals, value = text.partition("=")
        names = key.split(".")
        if not equals or not all(names):
            message = "an override is written section.key=value, for example optim.learning_rate=1e-6"
            self._report(COMMAND_LINE, text, "", message)
            return Located({}, COMMAND_LINE)
        known = len(self.problems)
        tree = self._tree(value, None, key) or Located(None, COMMAND_LINE)
        if len(self.problems) > known:
            return Located({}, COMMAND_LINE)
        for name in reversed(names):
            tree = Located({name: tree}, COMMAND_LINE)
        return tree

    def _tree(self, text: str, file: str | None, key: str) -> Located | None:
        yaml = YAML(typ="safe", pure=True)
        try:
            node = yaml.compose(text)
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            where = f"{file}:{mark.line + 1}" if file and mark else file or COMMAND_LINE
            self._report(where, key, "" if file else text, f"this cannot be read as YAML: {error.problem}")
            return None
        except YAMLError as error:
            self._report(file or COMMAND_LINE, key, "" if file else text, f"this cannot be read as YAML: {error}")
            return None
        return None if node is None else self._located(yaml, node, file, ())

    def _located(self, yaml: YAML, node: Node, file: str | None, path: tuple[str, ...], key: Node | None = None) -> Located:
        """Return `node` with its places; a value stands where its key stands, also when it begins on the next line."""
        where = _where(file, key or node)
        if isinstance(node, MappingNode):
            entries = self._entries(node, file, path)
            return Located({k.value: self._located(yaml, v, file, (*path, k.value), k) for k, v in entries}, where)
        if isinstance(node, SequenceNode):
            return Located([self._located(yaml, v, file, (*path, str(i))) for i, v in enumerate(node.value)], where)
        if node.tag in PLAIN_TAGS:
            return Located(yaml.constructor.construct_object(node), where)
        if node.tag not in TEXT_TAGS:
            self._report(where, ".".join(path), node.value, f"the tag {node.tag} means nothing in a recipe; leave it out")
        return Located(node.value, where)

    def _entries(self, node: MappingNode, file: str | None, path: tuple[str, ...]) -> Iterator[tuple[ScalarNode, Node]]:
        """Yield the entries of a mapping; a key that was there before is reported with both lines."""
        first: dict[str, int] = {}
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                self._report(_where(file, key), ".".join(path), "", "a key must be a word, not a list or a mapping")
            elif key.value in first:
                found = str(value.value) if isinstance(value, ScalarNode) else ""
                message = f"this key stands twice, first on line {first[key.value]}; keep one of the two"
                self._report(_where(file, key), ".".join((*path, key.value)), found, message)
            else:
                first[key.value] = key.start_mark.line + 1
                yield key, value

    def _report(self, where: str, key: str, found: str, message: str) -> None:
        self.problems.append(Problem(where, key, found, message))

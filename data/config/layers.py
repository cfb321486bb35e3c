"""The text of a recipe as values that know where they were written, and one recipe laid over another.

A recipe may extend another (`extends: ../basereward.yaml`), and the command line and the variants of an ablation lay single
keys over both. Every value keeps its file and line, so that an error found after all this can still say where to look.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, StringMark, YAMLError
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, ScalarEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from mmrm.data.errors import SHOWN, Problem, RecipeError
from mmrm.data.regular_files import open_regular


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
        return (
            cls([cls.of(child, where) for child in plain], where)
            if isinstance(plain, list)
            else cls(plain, where)
        )

    def plain(self) -> Any:
        """Return the value without its places."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        return (
            [child.plain() for child in self.value] if isinstance(self.value, list) else self.value
        )

    def child(self, key: str | int) -> Located | None:
        """Return the value under `key`, None where there is none."""
        if isinstance(self.value, dict):
            return self.value.get(str(key))
        return (
            self.value[key]
            if isinstance(self.value, list) and isinstance(key, int) and key < len(self.value)
            else None
        )

    def at(self, path: Sequence[str | int]) -> Located | None:
        """Return the value at `path`, None where there is none."""
        here: Located | None = self
        for key in path:
            here = here.child(key) if here is not None else None
        return here

    def nearest(self, path: Sequence[str | int]) -> Located:
        """Return the value at `path`, or the last one on the way to it."""
        return next(
            found for end in range(len(path), -1, -1) if (found := self.at(path[:end])) is not None
        )


def lay(base: Located, patch: Located) -> Located:
    """Return `base` with `patch` over it: mappings are merged key by key, everything else (lists too) is replaced.

    A mapping whose `type` the patch changes is replaced whole, since the keys of one type mean nothing to another.
    A mapping over a list reaches single items by their index, as `data.sources.0.weight=2` on the command line does.
    """
    under, over = base.value, patch.value
    if (
        isinstance(under, list)
        and isinstance(over, dict)
        and all(key.isdecimal() and int(key) < len(under) for key in over)
    ):
        return Located(
            [lay(item, over.get(str(i), item)) for i, item in enumerate(under)], base.where
        )
    old, new = base.child("type"), patch.child("type")
    if (
        not isinstance(under, dict)
        or not isinstance(over, dict)
        or (old and new and old.plain() != new.plain())
    ):
        return patch
    return Located(
        {**under, **{key: lay(under.get(key, value), value) for key, value in over.items()}},
        base.where,
    )


COMMAND_LINE = "command line"
PLAIN_TAGS, TEXT_TAGS = ("null", "bool", "int", "float"), ("str", "timestamp", "merge", "value")
"""Scalars that are not text in YAML 1.2, and those that are; another tag was written by hand."""
SIZE, VALUES, DEPTH, CHAIN, DIGITS = 2**18, 20_000, 40, 20, 1000
"""What a recipe may have: bytes, keys and values (each alias counted as what it stands for), levels of nesting, recipes that
extend one another, characters of a number. The largest recipe here has 4 kB and 6 levels."""
NOT_TEXT = re.compile("[\0\ud800-\udfff]")
"""Characters that neither a path nor a prompt can hold; escapes such as "\\0" write them."""


class Reader:
    """Reads recipes and overrides, and collects what is wrong with their text in `problems`."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._yaml = YAML(typ="safe", pure=True)
        self._file = ""
        """What is being read; empty for the command line."""

    def recipe(
        self, path: Path, extended_by: tuple[Path, ...] = (), where: str = COMMAND_LINE
    ) -> Located:
        """Return the recipe at `path`, laid over the one that it extends."""
        key, hint = "extends" if extended_by else "recipe", "give the path of a YAML file"
        try:
            if not path.is_file():
                reason = "is no regular file" if path.exists() else "is not there"
                return self._refuse(
                    where, key, str(path), f"the recipe cannot be read: it {reason}; {hint}"
                )
            if path.resolve() in extended_by:
                return self._refuse(
                    where,
                    key,
                    str(path),
                    "the recipe extends itself; remove one `extends` of the circle",
                )
            if len(extended_by) > CHAIN:
                return self._refuse(
                    where,
                    key,
                    str(path),
                    f"more than {CHAIN} recipes extend one another; join some of them",
                )
            if (size := path.stat().st_size) > SIZE:
                return self._refuse(
                    where,
                    key,
                    str(path),
                    f"the recipe has {size:,} bytes, and at most {SIZE:,} are read; {hint}",
                )
            with open_regular(path) as file:
                # A file of the kernel's states no size, and may have no end.
                text = file.read(size).decode()
        except (OSError, ValueError) as error:
            return self._refuse(
                where, key, str(path), f"the recipe cannot be read ({error}); {hint}"
            )
        tree = self._tree(text, str(path), "recipe", Located({}, f"{path}:1"))
        if not isinstance(tree.value, dict):
            message = "a recipe is a mapping of sections such as `backbone:`"
            return self._refuse(tree.where, "recipe", repr(tree.plain()), message)
        base = tree.value.pop("extends", None)
        if base is None:
            return tree
        return lay(
            self.recipe(
                path.parent / str(base.plain()), (*extended_by, path.resolve()), base.where
            ),
            tree,
        )

    def override(self, text: str) -> Located:
        """Return `section.key=value` as a recipe of that one key; the value is written as in YAML."""
        key, equals, value = text.partition("=")
        names = key.split(".")
        if not equals or not all(names) or len(names) > DEPTH or len(text) > SIZE:
            message = (
                f"an override is written section.key=value, for example optim.learning_rate=1e-6, with at most {DEPTH} names "
                f"and {SIZE:,} characters"
            )
            return self._refuse(COMMAND_LINE, text[:SHOWN], "", message)
        known = len(self.problems)
        tree = self._tree(value, "", key, Located(None, COMMAND_LINE))
        if len(self.problems) > known:
            return Located({}, COMMAND_LINE)
        for name in reversed(names):
            tree = Located({name: tree}, COMMAND_LINE)
        return tree

    def _tree(self, text: str, file: str, key: str, empty: Located) -> Located:
        """Return the text with its places, `empty` if it holds nothing."""
        self._file, self._values = file, 0
        try:
            self._measure(text)
            node = self._yaml.compose(text)
            return empty if node is None else self._located(node, node, ())
        except YAMLError as error:
            mark, reason = None, str(error)
            if isinstance(error, MarkedYAMLError):
                mark, reason = error.problem_mark or error.context_mark, error.problem
            return self._refuse(
                self._where(mark),
                key,
                "" if file else text,
                f"this cannot be read as YAML: {reason}",
            )

    def _measure(self, text: str) -> None:
        """Raise YAMLError where a text holds too much, before its nodes are made one inside another."""
        depth = values = 0
        for event in self._yaml.parse(text):
            depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
            values += isinstance(event, CollectionStartEvent | ScalarEvent | AliasEvent)
            self._limit(depth, values, event.start_mark)

    def _limit(self, depth: int, values: int, mark: StringMark | None) -> None:
        if depth > DEPTH or values > VALUES:
            reason = (
                f"it is nested more than {DEPTH} deep"
                if depth > DEPTH
                else f"it holds more than {VALUES:,} keys and values"
            )
            raise MarkedYAMLError(problem=reason, problem_mark=mark)

    def _located(self, node: Node, key: Node, path: tuple[str, ...]) -> Located:
        """Return `node` with its places; a value stands where its `key` stands, also when it begins on the next line."""
        where = self._where(key.start_mark)
        self._values += 1
        self._limit(len(path), self._values, key.start_mark)
        if isinstance(node, MappingNode):
            return Located(self._mapping(node, path), where)
        if isinstance(node, SequenceNode):
            return Located(
                [self._located(item, item, (*path, str(i))) for i, item in enumerate(node.value)],
                where,
            )
        tag = str(node.tag).removeprefix("tag:yaml.org,2002:")
        if tag in PLAIN_TAGS:
            try:
                if len(node.value) > DIGITS:
                    raise ValueError(f"it has {len(node.value):,} characters")
                return Located(self._yaml.constructor.construct_object(node), where)
            except (ValueError, KeyError) as error:
                return self._refuse(
                    where, ".".join(path), node.value, f"this is no value of the tag {tag}: {error}"
                )
        if tag not in TEXT_TAGS:
            self._refuse(
                where,
                ".".join(path),
                node.value,
                f"the tag {node.tag} means nothing in a recipe; leave it out",
            )
        if NOT_TEXT.search(node.value):
            message = "the text holds a NUL or half of a surrogate pair, which no path and no prompt can hold; remove it"
            return self._refuse(where, ".".join(path), repr(node.value), message)
        return Located(node.value, where)

    def _mapping(self, node: MappingNode, path: tuple[str, ...]) -> dict[str, Located]:
        """Return the entries of a mapping; a key that was there before is reported with both lines."""
        found: dict[str, Located] = {}
        lines: dict[str, int] = {}
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                self._refuse(
                    self._where(key.start_mark),
                    ".".join(path),
                    "",
                    "a key must be a word, not a list or a mapping",
                )
            elif key.value in found:
                shown = str(value.value) if isinstance(value, ScalarNode) else ""
                message = (
                    f"this key stands twice, first on line {lines[key.value]}; keep one of the two"
                )
                self._refuse(
                    self._where(key.start_mark), ".".join((*path, key.value)), shown, message
                )
            else:
                lines[key.value] = key.start_mark.line + 1
                found[key.value] = self._located(value, key, (*path, key.value))
        return found

    def _where(self, mark: StringMark | None) -> str:
        return (
            f"{self._file}:{mark.line + 1}" if self._file and mark else self._file or COMMAND_LINE
        )

    def _refuse(self, where: str, key: str, found: str, message: str) -> Located:
        """Note a problem; return an empty recipe, with which reading goes on."""
        self.problems.append(Problem(where, key, found, message))
        return Located({}, where)


def read_yaml(path: Path) -> Located:
    """Return the mapping in a YAML file, laid over the one that it `extends`; raise RecipeError if its text is wrong."""
    reader = Reader()
    tree = reader.recipe(path)
    if reader.problems:
        raise RecipeError(str(path), reader.problems)
    return tree

"""A recipe's text as values that remember where they stand, laid over the recipe that it extends.

A recipe may extend another (`extends: ../basereward.yaml`), and the command line lays single keys over both. Every value
keeps its file and line, so that an error found after all this can still say where to look.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from data.overlay import Located, lay

COMMAND_LINE = "command line"

PLAIN_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float")}
"""Scalars that are not text in YAML 1.2; anything else without an explicit tag of its own is a string."""

TEXT_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "timestamp", "merge", "value")}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a recipe; `found` is the value as written, empty where there is none."""

    where: str
    """`file:line` or `command line`."""
    key: str
    found: str
    message: str

    def __str__(self) -> str:
        """Return the two lines that a person reads."""
        value = f" = {self.found}" if self.found else ""
        return f"{self.where}  {self.key}{value}\n    {self.message}"


class RecipeError(ValueError):
    """A recipe that cannot be run; `problems` holds everything that is wrong with it, in the order of the file."""

    def __init__(self, recipe: str, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = f"{len(problems)} error" + "s" * (len(problems) != 1)
        super().__init__("\n  ".join([f"{recipe}: {count}", *("\n  ".join(str(p).split("\n")) for p in problems)]))


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

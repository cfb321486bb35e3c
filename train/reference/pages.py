"""The reference of all keys as Markdown, from the same sections and docstrings as the schema."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from mmrm.data.config.section import LARGEST
from mmrm.data.config.validation import members_of_field
from mmrm.train.recipe.recipe import Recipe
from mmrm.train.reference.schema import EXTENDS, VARIANTS, Schema, about, schema_of, union_by_type

HEAD = """\
# Configuration: every key

This page and the schemas for editors (`recipes/schema.json`, `recipes/judges/schema.json`) are made of the code by
`python train/describe.py`; a test fails where they are not current.

A recipe is one YAML file. Unknown keys, wrong types and values out of bounds are refused at once, with the nearest legal key.
Any key can be set on the command line of a training by its dotted name, `deepspeed train/rm.py RECIPE optim.learning_rate=1e-6`,
an item of a list by its index: `data.sources.0.weight=2`. What is **required** stands in the recipe or in one that it extends.
No number is beyond ±{largest:,}. [Q] marks what is quoted from a paper or its released code.

An editor with the YAML language server (VS Code: the extension "YAML" by Red Hat) completes and checks a recipe that begins with

```yaml
# yaml-language-server: $schema=PATH/TO/recipes/schema.json
```

with the path relative to the recipe, or absolute; the recipes here have that line. Rules between keys are checked by `--dry-run`.
"""


@dataclass(frozen=True, slots=True)
class KeyRow:
    """One row of the reference page: a key, the values that it takes, its default and its meaning."""

    key: str
    values: str
    default: str
    meaning: str


def reference(judges: Sequence[type[BaseModel]]) -> str:
    """Return the reference page: the sections of a recipe, then the kinds of judge files.

    Args:
        judges: The section of every kind of judge file.
    """
    schema = schema_of(Recipe, [Recipe])
    parts = [HEAD.format(largest=LARGEST), "## Recipe\n", about(Recipe) + "\n"]
    keys_of_files = [
        KeyRow("extends", "text", "none", EXTENDS["description"]),
        KeyRow("variants", "mapping", "none", VARIANTS),
    ]
    parts += [table([*keys_of_files, *rows(Recipe, schema)]), *pages(Recipe, schema, "")]
    parts += [
        "## Judge files\n",
        "What `eval/run.py` takes in place of a checkpoint; a judge file may extend another one, too.\n",
    ]
    schema = schema_of(union_by_type(judges), judges)
    for judge in judges:
        own_schema = schema["definitions"][judge.__name__]
        parts.append(f"### Judge: {kind_of(judge)}\n")
        parts.append(about(judge) + "\n")
        parts.append(table(rows(judge, own_schema)))
    return "\n".join(parts)


def pages(section: type[BaseModel], schema: Schema, path: str) -> Iterator[str]:
    """Yield the heading, the description and the table of every section below `section`.

    If a key may hold one of several kinds of sections, the keys that most kinds share come once.

    Args:
        section: The section.
        schema: The schema of the recipe.
        path: The keys that lead to `section`, each with a dot after it.
    """
    for key, field in section.model_fields.items():
        kinds = members_of_field(field)
        below = f"{path}{key}"
        heading = f"{'#' * (2 + below.count('.'))} {below}"
        rows_by_kind = {kind: rows(kind, schema["definitions"][kind.__name__]) for kind in kinds}
        shared = shared_rows(rows_by_kind)
        if shared:
            yield f"{heading}: keys of most types\n\n{table([row.printed for row in shared])}"
        shared_keys = [row.row for row in shared]
        for kind in kinds:
            own_heading = heading
            # A section without a type is one that may stand in place of a list of the others.
            if len(kinds) > 1 and "type" in kind.model_fields:
                own_heading += f": {kind_of(kind)}"
            own_rows = [row for row in rows_by_kind[kind] if row not in shared_keys]
            yield f"{own_heading}\n\n{about(kind)}\n\n{table(own_rows)}"
        pages_below: dict[str, None] = {}
        for kind in kinds:
            pages_below.update(dict.fromkeys(pages(kind, schema, f"{below}.")))
        yield from pages_below


@dataclass(frozen=True, slots=True)
class SharedRow:
    """A row that most kinds of a section have.

    `printed` is the same row, with a remark that names the kinds that lack the key.
    """

    row: KeyRow
    printed: KeyRow


def shared_rows(rows_by_kind: Mapping[type[BaseModel], Sequence[KeyRow]]) -> list[SharedRow]:
    """Return the rows that more than half of the kinds of a section have, none if there is one kind."""
    if len(rows_by_kind) < 2:
        return []
    all_rows = dict.fromkeys(chain.from_iterable(rows_by_kind.values()))
    shared: list[SharedRow] = []
    for row in all_rows:
        lacking = [kind for kind, own_rows in rows_by_kind.items() if row not in own_rows]
        if len(lacking) >= len(rows_by_kind) / 2:
            continue
        printed = row
        lacking_types = [kind_of(kind) for kind in lacking if "type" in kind.model_fields]
        if lacking_types:
            printed = replace(row, meaning=f"{row.meaning} (Not in {', '.join(lacking_types)}.)")
        shared.append(SharedRow(row, printed))
    return shared


def kind_of(section: type[BaseModel]) -> str:
    """Return the value of the key `type` that selects a section, in backticks."""
    (name,) = section.model_fields["type"].annotation.__args__  # type: ignore[union-attr]
    return f"`{name}`"


def rows(section: type[BaseModel], schema: Schema) -> list[KeyRow]:
    """Return a row for every key of `section`, whose own schema is `schema`."""
    key_rows = []
    for key, field in section.model_fields.items():
        key_schema = schema["properties"][key]
        default: Any = key_schema.get("default", PydanticUndefined)
        if field.is_required():
            default_text = "**required**"
        elif default == {} and values(key_schema) == "mapping":
            default_text = "`{}` (empty)"
        elif default is PydanticUndefined or isinstance(default, dict):
            default_text = "its defaults"
        else:
            default_text = f"`{json.dumps(default, ensure_ascii=False)}`"
        meaning = key_schema["description"]
        if "const" in key_schema:
            meaning = "Says which one it is."
        key_rows.append(KeyRow(key, values(key_schema), default_text, meaning))
    return key_rows


def values(node: Schema) -> str:
    """Return a description of the values that a key takes, from the key's schema."""
    if "anyOf" in node:
        alternatives = [values(branch) for branch in node["anyOf"]]
        return " or ".join(dict.fromkeys(alternatives))
    if "$ref" in node:
        return "section"
    if "const" in node:
        return f"`{node['const']}`"
    if "enum" in node:
        return ", ".join(f"`{value}`" for value in node["enum"])
    if node["type"] == "array":
        return _values_of_list(node.get("items", {}))
    type_names = {"string": "text", "boolean": "`true`, `false`", "object": "mapping"}
    descriptions = [type_names.get(node["type"]) or str(node["type"])]
    words_by_bound = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
    }
    for bound, words in words_by_bound.items():
        if bound in node:
            number = node[bound]
            text = f"{number:,}" if isinstance(number, int) else f"{number:g}"
            descriptions.append(f"{words} {text}")
    return ", ".join(descriptions)


def _values_of_list(items: Schema | list[Schema]) -> str:
    """Return a description of a list's values, such as "2 × number" or "list of sections".

    Args:
        items: The schema of every item, or one schema for each item of a list of fixed length.
    """
    if isinstance(items, list):
        return f"{len(items)} × {values(items[0])}".replace("of section", "of sections")
    return f"list of {values(items)}".replace("of section", "of sections")


def table(key_rows: Sequence[KeyRow]) -> str:
    """Return rows as a Markdown table."""
    lines = ["| key | value | default | meaning |", "| --- | --- | --- | --- |"]
    for row in key_rows:
        cells = [f"`{row.key}`", row.values, row.default, row.meaning]
        escaped = [re.sub(r"([|<])", r"\\\1", cell) for cell in cells]
        lines.append(f"| {' | '.join(escaped)} |")
    return "".join(f"{line}\n" for line in lines)

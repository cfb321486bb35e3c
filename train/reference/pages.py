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
from mmrm.train.reference.schema import EXTENDS, VARIANTS, Schema, about, of_models, one_of

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
    """What the reference says of a key."""

    key: str
    values: str
    default: str
    meaning: str


def reference(judges: Sequence[type[BaseModel]]) -> str:
    """Return the page: the sections of a recipe, then the kinds of judge files."""
    schema = of_models(Recipe, [Recipe])
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
    schema = of_models(one_of(judges), judges)
    for judge in judges:
        own_schema = schema["definitions"][judge.__name__]
        parts.append(f"### Judge: {kind_of(judge)}\n")
        parts.append(about(judge) + "\n")
        parts.append(table(rows(judge, own_schema)))
    return "\n".join(parts)


def pages(section: type[BaseModel], schema: Schema, path: str) -> Iterator[str]:
    """Yield heading, meaning and table of every section below `section`.

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
            yield f"{heading}: keys of most types\n\n{table([row.shown for row in shared])}"
        shared_keys = [row.row for row in shared]
        for kind in kinds:
            own_heading = heading
            if len(kinds) > 1:
                own_heading += f": {kind_of(kind)}"
            own_rows = [row for row in rows_by_kind[kind] if row not in shared_keys]
            yield f"{own_heading}\n\n{about(kind)}\n\n{table(own_rows)}"
        pages_below: dict[str, None] = {}
        for kind in kinds:
            pages_below.update(dict.fromkeys(pages(kind, schema, f"{below}.")))
        yield from pages_below


@dataclass(frozen=True, slots=True)
class SharedRow:
    """A row that most kinds of a section have, and the same row with the kinds that have it not."""

    row: KeyRow
    shown: KeyRow


def shared_rows(rows_by_kind: Mapping[type[BaseModel], Sequence[KeyRow]]) -> list[SharedRow]:
    """Return the rows that more than half of several kinds have."""
    if len(rows_by_kind) < 2:
        return []
    all_rows = dict.fromkeys(chain.from_iterable(rows_by_kind.values()))
    shared: list[SharedRow] = []
    for row in all_rows:
        lacking = [kind_of(kind) for kind, own_rows in rows_by_kind.items() if row not in own_rows]
        if len(lacking) >= len(rows_by_kind) / 2:
            continue
        shown = row
        if lacking:
            shown = replace(row, meaning=f"{row.meaning} (Not in {', '.join(lacking)}.)")
        shared.append(SharedRow(row, shown))
    return shared


def kind_of(section: type[BaseModel]) -> str:
    """Return the value of `type` that stands for a section."""
    (name,) = section.model_fields["type"].annotation.__args__  # type: ignore[union-attr]
    return f"`{name}`"


def rows(section: type[BaseModel], own: Schema) -> list[KeyRow]:
    """Return a row for every key of `section`, whose schema is `own`."""
    found = []
    for key, field in section.model_fields.items():
        default: Any = own["properties"][key].get("default", PydanticUndefined)
        if field.is_required():
            shown = "**required**"
        elif default is PydanticUndefined or isinstance(default, dict):
            shown = "its defaults"
        else:
            shown = f"`{json.dumps(default, ensure_ascii=False)}`"
        meaning = (
            "Says which one it is."
            if "const" in own["properties"][key]
            else own["properties"][key]["description"]
        )
        found.append(KeyRow(key, values(own["properties"][key]), shown, meaning))
    return found


def values(node: Schema) -> str:
    """Return in words which values a key takes."""
    if "anyOf" in node:
        return " or ".join(dict.fromkeys(map(values, node["anyOf"])))
    if "$ref" in node:
        return "section"
    if "const" in node or "enum" in node:
        return ", ".join(f"`{value}`" for value in node.get("enum", [node.get("const")]))
    if node["type"] == "array":
        items = node.get("items", {})
        listed = (
            f"{len(items)} × {values(items[0])}"
            if isinstance(items, list)
            else f"list of {values(items)}"
        )
        return listed.replace("of section", "of sections")
    names = {"string": "text", "boolean": "`true`, `false`", "object": "mapping"}
    words = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
    }
    bounds = [
        f"{word} {node[key]:,}" if isinstance(node[key], int) else f"{word} {node[key]:g}"
        for key, word in words.items()
        if key in node
    ]
    return ", ".join([names.get(node["type"]) or str(node["type"]), *bounds])


def table(key_rows: Sequence[KeyRow]) -> str:
    """Return rows as a Markdown table."""
    lines = ["| key | value | default | meaning |", "| --- | --- | --- | --- |"]
    for row in key_rows:
        cells = [f"`{row.key}`", row.values, row.default, row.meaning]
        escaped = [re.sub(r"([|<])", r"\\\1", cell) for cell in cells]
        lines.append(f"| {' | '.join(escaped)} |")
    return "".join(f"{line}\n" for line in lines)

"""The reference of all keys as Markdown, made of the same sections and docstrings as the schema."""

import json
import re
from collections.abc import Iterator, Sequence
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
Row = tuple[str, str, str, str]
"""Key, type, default and meaning."""


def reference(judges: Sequence[type[BaseModel]]) -> str:
    """Return the page: the sections of a recipe, then the kinds of judge files."""
    schema = of_models(Recipe, [Recipe])
    parts = [HEAD.format(largest=LARGEST), "## Recipe\n", about(Recipe) + "\n"]
    top = [
        ("extends", "text", "none", EXTENDS["description"]),
        ("variants", "mapping", "none", VARIANTS),
    ]
    parts += [table([*top, *rows(Recipe, schema)]), *pages(Recipe, schema, "")]
    parts += [
        "## Judge files\n",
        "What `eval/run.py` takes in place of a checkpoint; a judge file may extend another one, too.\n",
    ]
    schema = of_models(one_of(judges), judges)
    for judge in judges:
        own = schema["definitions"][judge.__name__]
        parts += [f"### Judge: {kind_of(judge)}\n", about(judge) + "\n", table(rows(judge, own))]
    return "\n".join(parts)


def pages(section: type[BaseModel], schema: Schema, path: str) -> Iterator[str]:
    """Yield heading, meaning and table of every section below `section`; keys that most kinds of a union share come once."""
    for key, field in section.model_fields.items():
        kinds = members_of_field(field)
        below = f"{path}{key}"
        heading = f"{'#' * (2 + below.count('.'))} {below}"
        found = {kind: rows(kind, schema["definitions"][kind.__name__]) for kind in kinds}
        every = dict.fromkeys(row for own in found.values() for row in own)
        lacking = {
            row: [kind_of(kind) for kind in kinds if row not in found[kind]] for row in every
        }
        shared = [row for row in every if len(kinds) > 1 and len(lacking[row]) < len(kinds) / 2]
        if shared:
            notes = {
                row: f" (Not in {', '.join(lacking[row])}.)" if lacking[row] else ""
                for row in shared
            }
            yield f"{heading}: keys of most types\n\n{table([(*row[:3], row[3] + notes[row]) for row in shared])}"
        for kind in kinds:
            which = f": {kind_of(kind)}" if len(kinds) > 1 else ""
            yield f"{heading}{which}\n\n{about(kind)}\n\n{table([row for row in found[kind] if row not in shared])}"
        yield from dict.fromkeys(
            page for kind in kinds for page in pages(kind, schema, f"{below}.")
        )


def kind_of(section: type[BaseModel]) -> str:
    """Return the value of `type` that stands for a section."""
    (name,) = section.model_fields["type"].annotation.__args__  # type: ignore[union-attr]
    return f"`{name}`"


def rows(section: type[BaseModel], own: Schema) -> list[Row]:
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
        found.append((key, values(own["properties"][key]), shown, meaning))
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


def table(found: Sequence[Sequence[str]]) -> str:
    """Return rows as a Markdown table."""
    lines = [[f"`{key}`", *cells] for key, *cells in found]
    cells = [
        ["key", "value", "default", "meaning"],
        ["---"] * 4,
        *([re.sub(r"([|<])", r"\\\1", cell) for cell in line] for line in lines),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)

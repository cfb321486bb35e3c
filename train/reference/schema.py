"""Recipes and judge files as JSON Schema (draft 7), made of their sections: keys, types, bounds, defaults and docstrings.

An editor with the YAML language server (VS Code: the extension "YAML" by Red Hat) completes and checks a file whose first line
names its schema. What must be there may come from the recipe that a file extends: a key is required only where nothing is
extended, and in the items of lists, since a list is replaced as a whole.
"""

import ast
import inspect
import json
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Union

from pydantic import BaseModel, Field, TypeAdapter

from mmrm.data.config.section import Section
from mmrm.data.config.validation import members, sections
from mmrm.data.sources.shared.source import SourceConfig
from mmrm.train.recipe.deepspeed_config import deepspeed_names
from mmrm.train.recipe.recipe import Recipe

Schema = dict[str, Any]
DRAFT = "http://json-schema.org/draft-07/schema#"
REF = "#/definitions/"
EXTENDS = {
    "type": "string",
    "description": "Another file, from this one's folder: mappings of this file are laid over those there key by key, and "
    "everything else (lists too) replaces what is there; null takes a value back.",
}
VARIANTS = (
    "Makes the recipe a list of runs for train/ablate.py: by name what each one changes, as dotted keys (`head.layers: 1`). The "
    "first is what the others are compared with; `{}` changes nothing."
)


def recipe_schema() -> Schema:
    """Return the schema of a recipe, or of a list of runs."""
    schema = of_models(Recipe, [Recipe])
    whole = required(schema, schema["definitions"])
    loosen(schema, schema["definitions"])
    keys: dict[str, dict[str, Schema]] = {}
    for key, pointer in dotted(schema, "#", schema["definitions"]):
        keys.setdefault(key, {}).setdefault(json.dumps(at(schema, pointer)), {"$ref": pointer})
    variant: Schema = {
        "type": "object",
        "additionalProperties": False,
        "properties": {},
        "patternProperties": {},
    }
    for key, found in keys.items():
        one = next(iter(found.values())) if len(found) == 1 else {"anyOf": [*found.values()]}
        if r"\d" in key:
            variant["patternProperties"][f"^{key}$"] = one
        else:
            variant["properties"][key.replace("\\", "")] = one
    schema["definitions"]["Variant"] = variant
    runs = {
        "type": "object",
        "description": VARIANTS,
        "minProperties": 1,
        "additionalProperties": {"$ref": f"{REF}Variant"},
    }
    variant["properties"]["extends"] = EXTENDS
    schema["properties"] |= {"extends": EXTENDS, "variants": runs}
    return schema | {
        "if": {"anyOf": [{"required": ["extends"]}, {"required": ["variants"]}]},
        "else": whole,
    }


def judge_schema(models: Sequence[type[BaseModel]]) -> Schema:
    """Return the schema of a judge file, which is one of `models`."""
    schema = of_models(one_of(models), models)
    whole = required(schema, schema["definitions"])
    loosen(schema, schema["definitions"])
    for model in models:
        schema["definitions"][model.__name__]["properties"]["extends"] = EXTENDS
    return schema | {"if": {"required": ["extends"]}, "else": whole}


def one_of(models: Sequence[type[BaseModel]]) -> Any:
    """Return the type of what is one of `models`, told apart by `type`."""
    return Annotated[Union[tuple(models)], Field(discriminator="type")]  # noqa: UP007


def of_models(annotation: Any, models: Sequence[type[BaseModel]]) -> Schema:
    """Return the schema of `annotation`, whose sections are `models` and those below them, with a description for every key."""
    schema = in_draft_7(TypeAdapter(annotation).json_schema(ref_template=f"{REF}{{model}}"))
    allowed = {
        ("Recipe", "deepspeed"): deepspeed_names(),
    }
    for section in {section for model in models for _, section in sections(model)}:
        own = schema["definitions"].get(section.__name__, schema)
        names_by_key = section.allowed_values if issubclass(section, Section) else {}
        for key, found in own["properties"].items():
            found["description"] = description(section, key)
            names = allowed.get((section.__name__, key)) or names_by_key.get(key)
            if names:
                found["enum"] = list(names)
    return {"$schema": DRAFT, **schema}


def in_draft_7(node: Any) -> Any:
    """Return pydantic's schema (draft 2020-12) in the words that the YAML language server knows.

    Its `oneOf` becomes `anyOf`: where `type` comes from the recipe that is extended, several branches of a union fit.
    """
    if isinstance(node, list):
        return [in_draft_7(item) for item in node]
    if not isinstance(node, dict):
        return node
    names = {"oneOf": "anyOf", "prefixItems": "items", "$defs": "definitions"}
    return {
        names.get(key, key): in_draft_7(value)
        for key, value in node.items()
        if key not in ("discriminator", "title")
    }


def description(section: type[BaseModel], key: str) -> str:
    """Return the docstring below a key; without one that of the section that it holds or, for `type`, that it names.

    Raises: KeyError for a key that nobody has described.
    """
    for owner in section.__mro__:
        if issubclass(owner, BaseModel) and key in docstrings(owner):
            return docstrings(owner)[key]
    if key == "type":
        return about(section)
    held = members(section.model_fields[key].annotation)
    if len(held) != 1:
        raise KeyError(
            f"{section.__name__}.{key} has no docstring below it; write one: schema and reference are made of it"
        )
    return about(held[0])


def about(section: type[BaseModel]) -> str:
    """Return the first paragraph of what a section is; of a data source, the file that is named for it says it."""
    text = (
        sys.modules[section.__module__].__doc__
        if issubclass(section, SourceConfig)
        else section.__doc__
    )
    return " ".join(inspect.cleandoc(text or "").partition("\n\n")[0].split())


@cache
def docstrings(section: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings below the keys that a section itself declares; they are in no object, only in its source."""
    found = {}
    if section is not BaseModel:
        (definition,) = ast.parse(inspect.getsource(section)).body
        for pair in pairwise(definition.body if isinstance(definition, ast.ClassDef) else ()):
            match pair:
                case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(
                    value=ast.Constant(value=str(text))
                ):
                    found[key] = " ".join(text.split())
    return found


def required(node: Schema, definitions: Schema) -> Schema:
    """Return what must be there at and below `node`, as a schema that says nothing else."""
    if "$ref" in node:
        return required(definitions[node["$ref"].removeprefix(REF)], definitions)
    if "anyOf" in node:
        branches = [required(branch, definitions) for branch in node["anyOf"]]
        return {"anyOf": branches} if all(branches) else {}
    found = {key: node[key] for key in ("const", "required") if key in node}
    below = {
        key: required(node["properties"][key], definitions) for key in node.get("required", ())
    }
    return found | (
        {"properties": {key: one for key, one in below.items() if one}}
        if any(below.values())
        else {}
    )


def loosen(node: Schema, definitions: Schema) -> None:
    """Take `required` off `node` and everything below it but the items of lists."""
    node.pop("required", None)
    for key, value in node.items():
        if key == "$ref":
            loosen(definitions[value.removeprefix(REF)], definitions)
        elif key == "anyOf":
            for branch in value:
                loosen(branch, definitions)
        elif key == "properties":
            for child in value.values():
                loosen(child, definitions)


def dotted(
    node: Schema, pointer: str, definitions: Schema, path: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield every key below `node` as a regular expression of its dotted form, list indices as digits, and a pointer to it."""
    if "$ref" in node:
        yield from dotted(
            definitions[node["$ref"].removeprefix(REF)], node["$ref"], definitions, path
        )
    for number, branch in enumerate(node.get("anyOf", ())):
        yield from dotted(branch, f"{pointer}/anyOf/{number}", definitions, path)
    below = {
        rf"{path}\.{key}" if path else key: f"properties/{key}"
        for key in node.get("properties", ())
    }
    if isinstance(node.get("items"), dict):
        below[rf"{path}\.\d+"] = "items"
    for key, step in below.items():
        yield key, f"{pointer}/{step}"
        yield from dotted(at(node, f"#/{step}"), f"{pointer}/{step}", definitions, key)


def at(schema: Schema, pointer: str) -> Schema:
    """Return what stands at a pointer such as `#/definitions/HeadConfig`."""
    found: Any = schema
    for step in pointer.split("/")[1:]:
        found = found[int(step)] if isinstance(found, list) else found[step]
    return found  # type: ignore[no-any-return]

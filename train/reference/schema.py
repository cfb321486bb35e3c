"""Recipes and judge files as JSON Schema (draft 7).

The schema is made from the sections of a recipe: keys, types, bounds, defaults and docstrings. An
editor with the YAML language server (VS Code: the extension "YAML" by Red Hat) completes and checks
a file whose first line names its schema.

A required key may be set in the recipe that a file extends. The schema therefore requires keys only
in files that extend nothing, and in the items of lists, because a list is replaced as a whole.
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
from mmrm.data.config.validation import members_of_field, sections
from mmrm.data.sources.shared.source import SourceConfig
from mmrm.train.recipe.deepspeed_config import deepspeed_names
from mmrm.train.recipe.recipe import Recipe

Schema = dict[str, Any]
DRAFT = "http://json-schema.org/draft-07/schema#"
REF = "#/definitions/"
EXTENDS = {
    "type": "string",
    "description": "Another file, from this one's folder: mappings of this file are laid over those "
    "there key by key, and everything else (lists too) replaces what is there; null takes a value "
    "back.",
}
VARIANTS = (
    "Makes the recipe a list of runs for train/ablate.py: by name what each one changes, as dotted "
    "keys (`head.layers: 1`). The first is what the others are compared with; `{}` changes nothing."
)


def recipe_schema() -> Schema:
    """Return the schema of a recipe, or of a list of runs."""
    schema = schema_of(Recipe, [Recipe])
    definitions = schema["definitions"]
    required_keys = required(schema, definitions)
    loosen(schema, definitions)

    variant = _variant_schema(schema)
    definitions["Variant"] = variant
    schema["properties"]["extends"] = EXTENDS
    schema["properties"]["variants"] = {
        "type": "object",
        "description": VARIANTS,
        "minProperties": 1,
        "additionalProperties": {"$ref": f"{REF}Variant"},
    }
    is_incomplete = {"anyOf": [{"required": ["extends"]}, {"required": ["variants"]}]}
    return schema | {"if": is_incomplete, "else": required_keys}


def _variant_schema(schema: Schema) -> Schema:
    """Return the schema of one variant in a list of runs: the recipe's keys in dotted form.

    A key has one schema for each kind of section that has the key; equal schemas count once.
    """
    pointers_by_key: dict[str, dict[str, Schema]] = {}
    for key, pointer in dotted(schema, "#", schema["definitions"]):
        content = json.dumps(at(schema, pointer))
        pointers_by_key.setdefault(key, {}).setdefault(content, {"$ref": pointer})

    properties: dict[str, Schema] = {}
    pattern_properties: dict[str, Schema] = {}
    for key, pointer_by_content in pointers_by_key.items():
        pointers = list(pointer_by_content.values())
        value = pointers[0]
        if len(pointers) > 1:
            value = {"anyOf": pointers}
        if r"\d" in key:  # the key has the index of a list's item
            pattern_properties[f"^{key}$"] = value
        else:
            properties[key.replace("\\", "")] = value
    properties["extends"] = EXTENDS
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "patternProperties": pattern_properties,
    }


def judge_schema(models: Sequence[type[BaseModel]]) -> Schema:
    """Return the schema of a judge file, whose keys are those of one of `models`."""
    schema = schema_of(union_by_type(models), models)
    definitions = schema["definitions"]
    required_keys = required(schema, definitions)
    loosen(schema, definitions)
    for model in models:
        definitions[model.__name__]["properties"]["extends"] = EXTENDS
    return schema | {"if": {"required": ["extends"]}, "else": required_keys}


def union_by_type(models: Sequence[type[BaseModel]]) -> Any:
    """Return the union of `models` as a type; the key `type` decides between them."""
    return Annotated[Union[tuple(models)], Field(discriminator="type")]  # noqa: UP007


def schema_of(annotation: Any, models: Sequence[type[BaseModel]]) -> Schema:
    """Return the schema of a type, with a description for every key.

    Args:
        annotation: The type, which consists of `models`.
        models: The sections whose keys are described, together with all sections below them.
    """
    schema = in_draft_7(TypeAdapter(annotation).json_schema(ref_template=f"{REF}{{model}}"))
    described_sections = {section for model in models for _, section in sections(model)}
    for section in described_sections:
        # pydantic puts the outermost model at the root and all others under `definitions`.
        section_schema = schema["definitions"].get(section.__name__, schema)
        names_by_key = dict(section.allowed_values) if issubclass(section, Section) else {}
        if section is Recipe:
            names_by_key["deepspeed"] = deepspeed_names()
        for key, key_schema in section_schema["properties"].items():
            key_schema["description"] = description(section, key)
            if names_by_key.get(key):
                is_list = key_schema.get("type") == "array"
                value_schema = key_schema["items"] if is_list else key_schema
                value_schema["enum"] = list(names_by_key[key])
    return {"$schema": DRAFT, **schema}


def in_draft_7(node: Any) -> Any:
    """Return a schema of pydantic's (draft 2020-12) with the keywords of draft 7.

    The YAML language server knows draft 7. `oneOf` also becomes `anyOf`: if a recipe takes `type`
    from the recipe that it extends, several branches of a union are valid at once.
    """
    if isinstance(node, list):
        return [in_draft_7(item) for item in node]
    if not isinstance(node, dict):
        return node
    new_names = {"oneOf": "anyOf", "prefixItems": "items", "$defs": "definitions"}
    converted = {}
    for key, value in node.items():
        if key not in ("discriminator", "title"):
            converted[new_names.get(key, key)] = in_draft_7(value)
    return converted


def description(section: type[BaseModel], key: str) -> str:
    """Return the description of a key of a section.

    It is the docstring below the key. A key without one that holds a section has the description of
    that section, and `type` has the description of the section that it names.

    Raises:
        KeyError: If the key has no description.
    """
    for owner in section.__mro__:
        if issubclass(owner, BaseModel) and key in docstrings(owner):
            return docstrings(owner)[key]
    if key == "type":
        return about(section)
    held_sections = members_of_field(section.model_fields[key])
    if len(held_sections) != 1:
        raise KeyError(
            f"{section.__name__}.{key} has no docstring below it. Write one: the schema and the "
            "reference page show it."
        )
    return about(held_sections[0])


def about(section: type[BaseModel]) -> str:
    """Return the first paragraph of a section's docstring.

    The section of a data source is described by the docstring of its module.
    """
    docstring = section.__doc__
    if issubclass(section, SourceConfig):
        docstring = sys.modules[section.__module__].__doc__
    first_paragraph, _, _ = inspect.cleandoc(docstring or "").partition("\n\n")
    return " ".join(first_paragraph.split())


@cache
def docstrings(section: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings below the keys that a section itself declares, by key.

    Python keeps these docstrings in no object, so they are read from the source.
    """
    if section is BaseModel:
        return {}
    (definition,) = ast.parse(inspect.getsource(section)).body
    assert isinstance(definition, ast.ClassDef), section
    text_by_key = {}
    for statement, next_statement in pairwise(definition.body):
        match statement, next_statement:
            case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(
                value=ast.Constant(value=str(text))
            ):
                text_by_key[key] = " ".join(text.split())
    return text_by_key


def required(node: Schema, definitions: Schema) -> Schema:
    """Return a schema that contains only the required keys of `node` and of the sections in it.

    Args:
        node: A schema or a part of one.
        definitions: The `definitions` of the whole schema, to which references in `node` lead.
    """
    if "$ref" in node:
        return required(definitions[node["$ref"].removeprefix(REF)], definitions)
    if "anyOf" in node:
        branches = [required(branch, definitions) for branch in node["anyOf"]]
        if not all(branches):
            return {}  # a branch without required keys accepts every value
        return {"anyOf": branches}

    requirements: Schema = {key: node[key] for key in ("const", "required") if key in node}
    properties = {}
    for key in node.get("required", ()):
        requirements_of_key = required(node["properties"][key], definitions)
        if requirements_of_key:
            properties[key] = requirements_of_key
    if properties:
        requirements["properties"] = properties
    return requirements


def loosen(node: Schema, definitions: Schema) -> None:
    """Remove `required` from `node` and from everything below it, except in the items of lists.

    Args:
        node: A schema or a part of one, which is changed in place.
        definitions: The `definitions` of the whole schema, to which references in `node` lead.
    """
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
    r"""Yield every key below `node` in dotted form, and a JSON pointer to the key's schema.

    The dotted form is a regular expression, with `\d+` for the index of a list's item:
    `data\.sources\.\d+\.weight`.

    Args:
        node: A schema or a part of one.
        pointer: The JSON pointer of `node` itself.
        definitions: The `definitions` of the whole schema, to which references in `node` lead.
        path: The dotted form of `node` itself.
    """
    if "$ref" in node:
        target = definitions[node["$ref"].removeprefix(REF)]
        yield from dotted(target, node["$ref"], definitions, path)
    for index, branch in enumerate(node.get("anyOf", ())):
        yield from dotted(branch, f"{pointer}/anyOf/{index}", definitions, path)

    step_by_key = {}
    for key in node.get("properties", ()):
        dotted_key = rf"{path}\.{key}" if path else key
        step_by_key[dotted_key] = f"properties/{key}"
    if isinstance(node.get("items"), dict):
        step_by_key[rf"{path}\.\d+"] = "items"
    for dotted_key, step in step_by_key.items():
        yield dotted_key, f"{pointer}/{step}"
        yield from dotted(at(node, f"#/{step}"), f"{pointer}/{step}", definitions, dotted_key)


def at(schema: Schema, pointer: str) -> Schema:
    """Return the part of a schema at a JSON pointer such as `#/definitions/HeadConfig`."""
    node: Any = schema
    for step in pointer.split("/")[1:]:
        node = node[int(step)] if isinstance(node, list) else node[step]
    return node  # type: ignore[no-any-return]

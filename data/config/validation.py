"""Turns what pydantic finds wrong with a recipe into problems that say where, what, what is allowed and what was meant.

What is wrong with a section, for a person.
"""

from __future__ import annotations

import json
import re
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from data.config.layers import Located
from data.errors import Problem

Model = TypeVar("Model", bound=BaseModel)
Path = tuple[str | int, ...]


def validate(model: type[Model], raw: Any) -> tuple[Model | None, list[ErrorDetails]]:
    """Return `raw` as a `model`, or None and all errors. It is read as JSON, where a list may stand for a tuple."""
    try:
        return model.model_validate_json(json.dumps(raw)), []
    except ValidationError as error:
        return None, error.errors(include_url=False)


def problems(model: type[BaseModel], errors: list[ErrorDetails], tree: Located) -> dict[Path, Problem]:
    """Return one problem for each broken path of the recipe `tree`; the branches of a union are joined by `or`."""
    found: dict[Path, list[ErrorDetails]] = {}
    for error in errors:
        found.setdefault(path_of(error, tree), []).append(error)
    return {path: _problem(model, path, several, tree) for path, several in found.items()}


def salvage(model: type[Model], raw: dict[str, Any], stand_in: dict[str, Any]) -> tuple[Model | None, list[Path]]:
    """Return what is left of `raw` once its broken parts are taken out, and the paths of those parts.

    The rules that compare keys can so be checked in one go with the keys themselves. `stand_in` holds the sections that
    every recipe must have; None comes back where nothing valid is left.
    """
    broken: list[Path] = [(name,) for name in stand_in if name not in raw]
    while True:
        raw = _filled(raw, stand_in)
        recipe, errors = validate(model, raw)
        if recipe is not None:
            return recipe, broken
        paths = {_removable(error, raw) for error in errors}
        smaller = raw
        for path in sorted(paths - {()}, key=len, reverse=True):
            smaller = _without(smaller, path)
        if smaller == raw:
            return None, broken
        broken.extend(paths)
        raw = smaller


def _filled(raw: dict[str, Any], stand_in: dict[str, Any]) -> dict[str, Any]:
    """Return `raw` with the keys that only `stand_in` has, section by section."""
    filled = {**stand_in, **raw}
    for key in stand_in.keys() & raw.keys():
        if isinstance(stand_in[key], dict) and isinstance(raw[key], dict):
            filled[key] = _filled(raw[key], stand_in[key])
    return filled


def _removable(error: ErrorDetails, raw: dict[str, Any]) -> Path:
    """Return what to take out for `error`: the section that misses a key or its type, the list that holds a broken item."""
    path = path_of(error, Located.of(raw))
    if error["type"] in ("missing", "union_tag_not_found", "union_tag_invalid"):
        path = path[:-1]
    while path and isinstance(path[-1], int):
        path = path[:-1]
    return path


def _without(raw: Any, path: Path) -> Any:
    """Return a copy of `raw` without the value at `path`; a path that is gone already changes nothing."""
    copy: Any = raw.copy()
    key, *below = path
    if not below:
        copy.pop(key, None)
    elif isinstance(raw, list) or key in raw:
        copy[key] = _without(copy[key], tuple(below))
    return copy


def path_of(error: ErrorDetails, tree: Located) -> Path:
    """Return the keys at which a person finds `error`; pydantic's location also names the branch of a union."""
    path: list[str | int] = []
    for place, part in enumerate(error["loc"]):
        below = tree.child(part)
        if below is not None:
            tree = below
        elif error["type"] != "missing" or place < len(error["loc"]) - 1:
            continue
        path.append(part)
    if error["type"].startswith("union_tag"):
        path.append(error["ctx"]["discriminator"].strip("'"))
    return tuple(path)


def dotted(path: Path) -> str:
    """Return `path` as it is written on the command line."""
    return ".".join(map(str, path)) or "recipe"


def written(value: Any) -> str:
    """Return a value as a person would look for it in the file; a whole section by its kind only."""
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    return json.dumps(value, ensure_ascii=False)


def _problem(model: type[BaseModel], path: Path, errors: list[ErrorDetails], tree: Located) -> Problem:
    kind, here = errors[0]["type"], tree.nearest(path)
    absent = kind in ("missing", "union_tag_not_found")
    if kind == "extra_forbidden":
        message = unknown_key(model, path, tree)
    elif absent:
        options = _choices(model, path, tree)
        message = "this key is required" + (f"; one of {', '.join(options)}" if options else "")
    elif kind == "value_error":
        message = errors[0]["msg"].removeprefix("Value error, ")
    elif kind == "union_tag_invalid":
        message = f"the value {_one_of(errors[0]['ctx']['expected_tags'], errors[0]['ctx']['tag'])}"
    else:
        message = "the value " + " or ".join(_requirement(error) for error in errors)
    return Problem(here.where, dotted(path), "" if absent else written(here.plain()), message)


def _requirement(error: ErrorDetails) -> str:
    if error["type"] == "literal_error":
        return _one_of(error["ctx"]["expected"], error["input"])
    return error["msg"].replace("Input should", "should")


def _one_of(expected: str, found: object) -> str:
    options = re.findall(r"'([^']*)'", expected)
    return f"should be {' or '.join(filter(None, [', '.join(options[:-1]), *options[-1:]]))}{_meant(str(found), options)}"


def _meant(word: str, options: list[str]) -> str:
    close = get_close_matches(word, options, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def unknown_key(model: type[BaseModel], path: Path, tree: Located) -> str:
    """Say that the last key of `path` does not exist, which ones do, and which one was probably meant."""
    legal = sorted({name for section in sections(model, path[:-1], tree) for name in section.model_fields})
    key = str(path[-1])
    elsewhere = [name for name in every_key(model) if name.rpartition(".")[2] == key]
    hint = _meant(key, legal) or (f"; did you mean {' or '.join(elsewhere[:3])}?" if elsewhere else "")
    return f"there is no such key{hint or '.'} Allowed here: {', '.join(legal)}"


def sections(model: type[BaseModel], path: Path, tree: Located) -> list[type[BaseModel]]:
    """Return the classes that may stand at `path`; a union is narrowed to the one that the recipe's own `type` names."""
    found: list[type[BaseModel]] = [model]
    for key in path:
        below = tree.child(key)
        tree = below or Located(None, tree.where)
        if isinstance(key, str):
            fields = [section.model_fields[key] for section in found if key in section.model_fields]
            found = [member for field in fields for member in _members(field.annotation)]
        found = [section for section in found if _fits(section, tree)] or found
    return found


def _fits(section: type[BaseModel], tree: Located) -> bool:
    given, field = tree.child("type"), section.model_fields.get("type")
    return given is None or field is None or given.plain() in get_args(field.annotation)


def _choices(model: type[BaseModel], path: Path, tree: Located) -> list[str]:
    fields = [section.model_fields.get(str(path[-1])) for section in sections(model, path[:-1], tree)]
    literals = [field.annotation for field in fields if field is not None and get_origin(field.annotation) is Literal]
    return [str(option) for literal in literals for option in get_args(literal)]


def _members(annotation: object) -> list[type[BaseModel]]:
    """Return the sections inside an annotation: through unions, lists, mappings and `Annotated`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [member for argument in get_args(annotation) for member in _members(argument)]


def every_key(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Return the dotted names of all keys below `model`, those of all branches of a union."""
    names: list[str] = []
    for name, field in model.model_fields.items():
        names.append(prefix + name)
        for member in _members(field.annotation):
            names.extend(every_key(member, f"{prefix}{name}."))
    return list(dict.fromkeys(names))


def format_validation_error(error: ValidationError) -> str:
    """Return every problem with its key, on one line."""
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg'].removeprefix('Value error, ')}" for one in error.errors())

"""A recipe's values as a pydantic model, or everything that is wrong: where, which key, what is allowed, what was meant."""

import json
import re
from collections.abc import Iterator
from difflib import get_close_matches
from itertools import compress
from pathlib import Path as FilePath
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, RootModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from mmrm.data.config.layers import Located, lay, read_yaml
from mmrm.data.config.registry import OneOf, installed_sections
from mmrm.data.errors import Problem, RecipeError

Model = TypeVar("Model", bound=BaseModel)
Path = tuple[str | int, ...]
"""Keys and list positions that lead to a value."""


def read_section(file: FilePath, model: type[Model]) -> Model:
    """Return the mapping in a YAML file as a `model`; raise RecipeError with everything that is wrong."""
    return parse(model, read_yaml(file), str(file))


def parse(model: type[Model], tree: Located, name: str) -> Model:
    """Return `tree` as a `model`; raise RecipeError under `name` with everything that is wrong."""
    found, errors = validate(model, tree.plain())
    if found is None:
        raise RecipeError(name, list(problems(model, errors, tree).values()))
    return found


def validate(model: type[Model], raw: Any) -> tuple[Model | None, list[ErrorDetails]]:
    """Return `raw` as a `model`, or None and all errors. It is read as JSON, where a list may stand for a tuple."""
    try:
        return model.model_validate_json(json.dumps(raw)), []
    except ValidationError as error:
        return None, error.errors(include_url=False)


def problems(
    model: type[BaseModel], errors: list[ErrorDetails], tree: Located
) -> dict[Path, Problem]:
    """Return one problem for each broken path of the recipe `tree`; the branches of a union are joined by `or`."""
    found: dict[Path, list[ErrorDetails]] = {}
    for error in errors:
        found.setdefault(path_of(error, tree), []).append(error)
    return {path: _problem(model, path, several, tree) for path, several in found.items()}


def salvage(
    model: type[Model], raw: dict[str, Any], stand_in: dict[str, dict[str, Any]]
) -> tuple[Model | None, list[Path]]:
    """Return what is left of `raw` once its broken parts are taken out, and the paths of those parts.

    The rules that compare keys can so be checked in one go with the keys themselves. `stand_in` holds the sections that
    every recipe must have; None comes back where nothing valid is left.
    """
    broken: list[Path] = [(name,) for name in stand_in if name not in raw]
    while True:
        tree = lay(Located.of(stand_in), Located.of(raw))
        raw = tree.plain()
        recipe, errors = validate(model, raw)
        paths = {_removable(error, tree) for error in errors} - {()}
        if not paths:
            return recipe, broken
        for path in sorted(paths, key=len, reverse=True):
            parent: Any = raw
            for key in path[:-1]:
                parent = parent[key]
            del parent[path[-1]]
        broken.extend(paths)


def _removable(error: ErrorDetails, tree: Located) -> Path:
    """Return what to take out for `error`: the section that misses a key or its type, the list that holds a broken item."""
    path = path_of(error, tree)
    if error["type"] in ("missing", "union_tag_not_found", "union_tag_invalid"):
        path = path[:-1]
    while path and isinstance(path[-1], int):
        path = path[:-1]
    return path


def path_of(error: ErrorDetails, tree: Located) -> Path:
    """Return the keys at which a person finds `error`; pydantic's location also names the branch of a union."""
    path: list[str | int] = []
    for place, part in enumerate(error["loc"], start=1):
        below = tree.child(part)
        if below is not None or (error["type"] == "missing" and place == len(error["loc"])):
            path.append(part)
        tree = below or tree
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


def _problem(
    model: type[BaseModel], path: Path, errors: list[ErrorDetails], tree: Located
) -> Problem:
    kind, here = errors[0]["type"], tree.nearest(path)
    absent = kind in ("missing", "union_tag_not_found")
    if kind == "extra_forbidden":
        message = _unknown_key(model, path, tree)
    elif absent:
        fields = [
            section.model_fields.get(str(path[-1]))
            for section in _sections_at(model, path[:-1], tree)
        ]
        allowed = [
            option for field in fields if field is not None for option in get_args(field.annotation)
        ]
        options = [option for option in allowed if isinstance(option, str)]
        message = "this key is required" + (f"; one of {', '.join(options)}" if options else "")
    elif kind == "value_error":
        message = errors[0]["msg"].removeprefix("Value error, ")
    else:
        message = "the value " + " or ".join(map(_requirement, errors))
    return Problem(here.where, dotted(path), "" if absent else written(here.plain()), message)


def _requirement(error: ErrorDetails) -> str:
    """Return what pydantic says of a value, and of a word the nearest one that is allowed."""
    expected = {"literal_error": "expected", "union_tag_invalid": "expected_tags"}.get(
        error["type"]
    )
    if expected is None:
        return error["msg"].replace("Input should", "should")
    options = re.findall(r"'([^']*)'", error["ctx"][expected])
    allowed = " or ".join(", ".join(options).rsplit(", ", 1))
    return f"should be {allowed}{_meant(str(error['ctx'].get('tag', error['input'])), options)}"


def _meant(word: str, options: list[str]) -> str:
    close = get_close_matches(word, options, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _unknown_key(model: type[BaseModel], path: Path, tree: Located) -> str:
    """Say that the last key of `path` does not exist, which ones do, and which one was probably meant."""
    legal = sorted(
        {name for section in _sections_at(model, path[:-1], tree) for name in section.model_fields}
    )
    key = str(path[-1])
    elsewhere = dict.fromkeys(
        ".".join((*place, key)) for place, section in sections(model) if key in section.model_fields
    )
    hint = _meant(key, legal) or (
        f"; did you mean {' or '.join([*elsewhere][:3])}?" if elsewhere else ""
    )
    return f"there is no such key{hint or '.'} Allowed here: {', '.join(legal)}"


def _sections_at(model: type[BaseModel], path: Path, tree: Located) -> list[type[BaseModel]]:
    """Return the classes that may stand at `path`; a union is narrowed to the one that the recipe's own `type` names."""
    keys = tuple(key for key in path if isinstance(key, str))
    given = tree.at((*path, "type"))
    found = [section for place, section in sections(model) if place == keys]
    kinds = [section.model_fields.get("type") for section in found]
    fits = [
        given is None or kind is None or given.plain() in get_args(kind.annotation)
        for kind in kinds
    ]
    return list(compress(found, fits)) or found


def sections(
    model: type[BaseModel], place: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], type[BaseModel]]]:
    """Yield `model` and all sections below it, those of all branches of a union, with the keys that lead there."""
    model.model_rebuild()  # of sections that are named in a file before they are defined
    is_root = issubclass(model, RootModel)
    if not is_root:
        yield place, model
    for name, field in model.model_fields.items():
        place_of_field = place if is_root else (*place, name)
        for member in members_of_field(field):
            yield from sections(member, place_of_field)


def members_of_field(field: FieldInfo) -> list[type[BaseModel]]:
    """Return the sections that a field may hold, itself or as its items."""
    for annotation in field.metadata:
        if isinstance(annotation, OneOf):
            return list(installed_sections(annotation.registry))
    return members(field.annotation)


def members(annotation: object) -> list[type[BaseModel]]:
    """Return the sections inside an annotation: through unions, lists, mappings, `Annotated` and registries."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    arguments = get_args(annotation)
    for argument in arguments:
        if isinstance(argument, OneOf):
            # The first argument of this `Annotated` is the base class of the registry's sections.
            return list(installed_sections(argument.registry))
    return [member for argument in arguments for member in members(argument)]


def format_validation_error(error: ValidationError) -> str:
    """Return every problem with its key, on one line."""
    return "; ".join(
        f"{'.'.join(map(str, one['loc']))}: {one['msg'].removeprefix('Value error, ')}"
        for one in error.errors()
    )

"""Validation of a recipe's values by a pydantic model.

Each error names the file and line, the key, the allowed values, and the key or value that was
probably meant.
"""

import json
import re
from collections.abc import Iterator
from difflib import get_close_matches
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
    """Return the mapping in a YAML file as a `model`; raise RecipeError with all errors."""
    return parse(model, read_yaml(file), str(file))


def parse(model: type[Model], tree: Located, name: str) -> Model:
    """Return `tree` as a `model`; raise RecipeError under `name` with everything that is wrong."""
    section, errors = validate(model, tree.plain())
    if section is None:
        raise RecipeError(name, list(problems(model, errors, tree).values()))
    return section


def validate(model: type[Model], raw: Any) -> tuple[Model | None, list[ErrorDetails]]:
    """Return `raw` as a `model`, or None and all errors.

    It is read as JSON, in which a list may represent a tuple.
    """
    try:
        return model.model_validate_json(json.dumps(raw)), []
    except ValidationError as error:
        return None, error.errors(include_url=False)


def problems(
    model: type[BaseModel], errors: list[ErrorDetails], tree: Located
) -> dict[Path, Problem]:
    """Return one problem for each path with errors in the recipe `tree`.

    A value that fits no branch of a union has an error for each branch; they are joined by `or`.
    """
    errors_by_path: dict[Path, list[ErrorDetails]] = {}
    for error in errors:
        errors_by_path.setdefault(path_of(error, tree), []).append(error)
    return {
        path: _problem(model, path, errors_of_path, tree)
        for path, errors_of_path in errors_by_path.items()
    }


def salvage(
    model: type[Model], raw: dict[str, Any], stand_in: dict[str, dict[str, Any]]
) -> tuple[Model | None, list[Path]]:
    """Return a recipe without its broken parts, and the paths of those parts.

    The rules that compare keys can thus be checked together with the keys themselves. The recipe is
    None if not even `stand_in` is valid.

    Args:
        model: The model of the recipe.
        raw: The values of the recipe.
        stand_in: Values for the sections that every recipe must have.
    """
    broken: list[Path] = [(name,) for name in stand_in if name not in raw]
    while True:
        tree = lay(Located.of(stand_in), Located.of(raw))
        raw = tree.plain()
        recipe, errors = validate(model, raw)
        paths = {_removable(error, tree) for error in errors} - {()}
        if not paths:
            return recipe, broken
        # The longest paths first, because removing a section removes what is in it.
        for path in sorted(paths, key=len, reverse=True):
            parent: Any = raw
            for key in path[:-1]:
                parent = parent[key]
            del parent[path[-1]]
        broken.extend(paths)


def _removable(error: ErrorDetails, tree: Located) -> Path:
    """Return the path of the smallest part that can be removed to get rid of `error`.

    If a key or its `type` is missing, this is the section around it. If an item of a list is wrong,
    it is the list.
    """
    path = path_of(error, tree)
    if error["type"] in ("missing", "union_tag_not_found", "union_tag_invalid"):
        path = path[:-1]
    while path and isinstance(path[-1], int):
        path = path[:-1]
    return path


def path_of(error: ErrorDetails, tree: Located) -> Path:
    """Return the keys at which a person finds `error`.

    They are pydantic's location of the error, without the branches of unions.
    """
    path: list[str | int] = []
    location = error["loc"]
    for number, key in enumerate(location, start=1):
        is_missing_key = error["type"] == "missing" and number == len(location)
        below = tree.child(key)
        if below is not None or is_missing_key:
            path.append(key)
        if below is not None:
            tree = below
    if error["type"].startswith("union_tag"):
        path.append(error["ctx"]["discriminator"].strip("'"))
    return tuple(path)


def dotted(path: Path) -> str:
    """Return `path` as it is written on the command line."""
    return ".".join(map(str, path)) or "recipe"


def written(value: Any) -> str:
    """Return a value as a person would search for it in the file; "a mapping" for a section."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return json.dumps(value, ensure_ascii=False)


def _problem(
    model: type[BaseModel], path: Path, errors: list[ErrorDetails], tree: Located
) -> Problem:
    """Return the problem at one path of a recipe."""
    kind = errors[0]["type"]
    nearest = tree.nearest(path)
    value = written(nearest.plain())
    if kind == "extra_forbidden":
        message = _unknown_key(model, path, tree)
    elif kind in ("missing", "union_tag_not_found"):
        message = _missing_key(model, path, tree)
        value = ""
    elif kind == "value_error":
        message = errors[0]["msg"].removeprefix("Value error, ")
    else:
        message = "the value " + " or ".join(map(_requirement, errors))
    return Problem(nearest.where, dotted(path), value, message)


def _missing_key(model: type[BaseModel], path: Path, tree: Located) -> str:
    """Return the message about a key that is required, with its allowed words if there are some."""
    key = str(path[-1])
    options: list[str] = []
    for section in _sections_at(model, path[:-1], tree):
        if key in section.model_fields:
            allowed = get_args(section.model_fields[key].annotation)
            options += [option for option in allowed if isinstance(option, str)]
    if not options:
        return "this key is required"
    return f"this key is required; one of {', '.join(options)}"


def _requirement(error: ErrorDetails) -> str:
    """Return the requirement on a value; for a word, also the nearest one that is allowed."""
    context_keys = {"literal_error": "expected", "union_tag_invalid": "expected_tags"}
    context_key = context_keys.get(error["type"])
    if context_key is None:
        return error["msg"].replace("Input should", "should")
    options = re.findall(r"'([^']*)'", error["ctx"][context_key])
    allowed = " or ".join(", ".join(options).rsplit(", ", 1))
    word = str(error["ctx"].get("tag", error["input"]))
    return f"should be {allowed}{_meant(word, options)}"


def _meant(word: str, options: list[str]) -> str:
    """Return "; did you mean …?" with the option that is most like `word`, or "" if none is."""
    matches = get_close_matches(word, options, n=1)
    return f"; did you mean {matches[0]}?" if matches else ""


def _unknown_key(model: type[BaseModel], path: Path, tree: Located) -> str:
    """Return the message about an unknown key, with the keys that exist and the likely one."""
    key = str(path[-1])
    allowed: set[str] = set()
    for section in _sections_at(model, path[:-1], tree):
        allowed.update(section.model_fields)
    hint = _meant(key, sorted(allowed)) or _same_key_elsewhere(model, key) or "."
    return f"there is no such key{hint} Allowed here: {', '.join(sorted(allowed))}"


def _same_key_elsewhere(model: type[BaseModel], key: str) -> str:
    """Return "; did you mean …?" with up to three other sections that have `key`, or ""."""
    places: dict[str, None] = {}
    for place, section in sections(model):
        if key in section.model_fields:
            places[".".join((*place, key))] = None
    if not places:
        return ""
    return f"; did you mean {' or '.join([*places][:3])}?"


def _sections_at(model: type[BaseModel], path: Path, tree: Located) -> list[type[BaseModel]]:
    """Return the sections that are allowed at `path`.

    If the recipe has a `type` there, these are the branches of a union with that type; if no branch
    has it, all branches.
    """
    keys = tuple(key for key in path if isinstance(key, str))
    allowed = [section for place, section in sections(model) if place == keys]
    given_type = tree.at((*path, "type"))
    if given_type is None:
        return allowed
    of_type = [section for section in allowed if _has_type(section, given_type.plain())]
    return of_type or allowed


def _has_type(section: type[BaseModel], type_name: Any) -> bool:
    """Return True if a section has no `type`, or its `type` may be `type_name`."""
    field = section.model_fields.get("type")
    return field is None or type_name in get_args(field.annotation)


def sections(
    model: type[BaseModel], place: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], type[BaseModel]]]:
    """Yield the keys that lead to each section below `model`, and the section; `model` comes first.

    All branches of a union are yielded.
    """
    # A section may refer to another one that is defined further down in its file.
    model.model_rebuild()
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
    """Return the sections in an annotation, also inside unions, lists, mappings and registries."""
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
    lines = []
    for details in error.errors():
        key = ".".join(map(str, details["loc"]))
        lines.append(f"{key}: {details['msg'].removeprefix('Value error, ')}")
    return "; ".join(lines)

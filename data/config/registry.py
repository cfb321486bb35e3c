"""Registries: one dictionary for each kind of plug-in, from the `type` in YAML to its class.

A row of the core holds its class, so that mypy, renaming and go-to-definition follow it. A row into
a wing holds an import path, such as "mmrm.train.methods.critic.config:CriticConfig". It is imported
when a recipe is read, and left out if the folder of the wing was removed from the clone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from operator import or_
from typing import Annotated, Any, TypeVar

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema

from mmrm.data.config.section import Section

SectionT = TypeVar("SectionT", bound=Section)


def load(path: str) -> Any:
    """Return the object at an import path such as `mmrm.train.methods.naive.method:NaiveMethod`."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def is_installed(path: str) -> bool:
    """Return False if the module of an import path, or a package around it, does not exist.

    Any other error while a package is imported is an error inside the wing, and is raised.
    """
    module = path.partition(":")[0]
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError as error:
        # `find_spec` imports the packages around the module.
        is_around_module = f"{module}.".startswith(f"{error.name}.")
        if not is_around_module:
            raise
        return False


def installed_rows(registry: Mapping[str, type[SectionT] | str]) -> dict[str, type[SectionT]]:
    """Return the classes of a registry whose wings are installed, by `type`, in its order."""
    classes: dict[str, type[SectionT]] = {}
    for name, row in registry.items():
        if not isinstance(row, str):
            classes[name] = row
        elif is_installed(row):
            classes[name] = load(row)
    return classes


def installed_sections(registry: Mapping[str, type[SectionT] | str]) -> list[type[SectionT]]:
    """Return the classes of a registry whose wings are installed, in the registry's order."""
    return list(installed_rows(registry).values())


class OneOf:
    """Annotates a field that holds any installed section of a registry, told apart by its `type`.

    method: Annotated[MethodConfig, OneOf(METHODS)]
    """

    def __init__(self, registry: Mapping[str, type[Section] | str]) -> None:
        self.registry = registry

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Return the schema of a union that pydantic tells apart by `type`."""
        sections = installed_sections(self.registry)
        if len(sections) == 1:
            # Pydantic accepts no discriminator for a union of one.
            return handler(sections[0])
        union = reduce(or_, sections)
        return handler.generate_schema(Annotated[union, Field(discriminator="type")])

"""The installed package: its version, the files that come with it, and the folder of its caches."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

import mmrm

PACKAGE = Path(mmrm.__file__).parent
"""The folder with the packages data, models, eval and train, and with the recipes.

In a clone these are links to the folders of the clone; an installed wheel holds the folders.
"""
CACHE_VARIABLE = "MMRM_CACHE"
"""The environment variable that names another folder for caches."""


def clone() -> Path | None:
    """Return the root of the clone from which mmrm is imported, or None for an installed wheel."""
    if (PACKAGE / "data").is_symlink():
        return PACKAGE.resolve().parent
    return None


def cache_folder() -> Path:
    """Return the folder of everything that can be computed or downloaded again.

    It is `$MMRM_CACHE`, or `mmrm` in the user's cache folder (`~/.cache` on Linux).
    """
    configured = os.environ.get(CACHE_VARIABLE)
    if configured:
        return Path(configured).expanduser()
    return platformdirs.user_cache_path("mmrm")


def data_cache() -> Path:
    """Return the folder for indices, tables and other files that are derived from data."""
    return cache_folder() / "data"


def recipe_path(text: str) -> Path:
    """Return the path of a recipe or judge file that a user named.

    A path such as `recipes/basereward.yaml` that does not exist in the working directory is the file
    of that name that comes with mmrm. Any other path is returned unchanged.
    """
    if not os.path.lexists(text):
        return shipped_recipe(text) or Path(text)
    return Path(text)


def shipped_recipe(text: str) -> Path | None:
    """Return the file that comes with mmrm under a path such as `recipes/basereward.yaml`.

    None if the path does not begin with `recipes`, or if no file of that name comes with mmrm.
    """
    path = Path(text)
    if path.is_absolute() or path.parts[:1] != ("recipes",) or ".." in path.parts:
        return None
    file = PACKAGE / path
    return file if file.is_file() else None

"""The whole recipe of a run: one section for each component, checked before torch is imported.

`train/recipe/sections.py` holds the keys, `train/recipe/rules.py` checks the sections against each
other, and `train/recipe/parsing.py` reads the file.
"""

from __future__ import annotations

from typing import Annotated, Any

from mmrm.data.config.registry import OneOf
from mmrm.train.recipe.registry import METHODS
from mmrm.train.recipe.sections import MethodConfig, RunConfig


class Recipe(RunConfig):
    """All settings of a run, with those of its training method."""

    method: Annotated[MethodConfig, OneOf(METHODS)]


STAND_IN: dict[str, Any] = {
    "backbone": {"path": "embedded"},
    "data": {"sources": [{"type": "project", "path": "."}]},
    "method": {"type": "naive"},
    "optim": {"records_per_step": 1, "learning_rate": 1e-6},
    "output": {"folder": "runs", "save_every_steps": 1},
}
"""Values for required sections of a recipe.

If such a section has errors, these values replace it, so that the rules between keys can still be
checked in the other sections. They name only components that every installation has.
"""

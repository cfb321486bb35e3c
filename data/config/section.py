"""The base of every section of a recipe; each component keeps its own section beside itself."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A section of a recipe: unknown keys are errors, nothing is coerced, numbers are finite, nothing changes after parsing."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

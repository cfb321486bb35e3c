"""The base of every section of a recipe; each component keeps its own section beside itself."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, lt=1.0)]
"""From 0 on, below 1."""
Fraction = Annotated[float, Field(gt=0.0, lt=1.0)]
"""Above 0 and below 1."""


class Section(BaseModel):
    """A section of a recipe: unknown keys are errors, nothing is coerced, numbers are finite, nothing changes after parsing."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

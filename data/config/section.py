"""The base of every section of a recipe; each component keeps its own section beside itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

LARGEST = 10**12
"""No number of a recipe is larger; most keys have a tighter bound of their own."""

Count = Annotated[int, Field(ge=1, le=10**9)]

Records = Annotated[int, Field(ge=1, le=10**8)]
"""An epoch's records or a source's rows, of which 8 bytes each are held in memory."""

Tokens = Annotated[int, Field(ge=1, le=2**20)]
"""Of one prompt or answer."""

Processes = Annotated[int, Field(ge=1, le=1024)]

Weight = Annotated[float, Field(ge=0.0, le=1e4)]
"""Of a part of a loss or reward."""

Ratio = Annotated[float, Field(ge=1e-6, le=1e6)]
"""How often, or how many times as much."""

Seconds = Annotated[float, Field(gt=0.0, le=86400.0)]

Share = Annotated[float, Field(ge=0.0, lt=1.0)]
"""From 0 on, below 1."""

Fraction = Annotated[float, Field(gt=0.0, lt=1.0)]
"""Above 0 and below 1."""

Rate = Annotated[float, Field(ge=1e-12, lt=1.0)]
"""A learning rate."""


def _greedy_or_drawn(temperature: float) -> float:
    if 0 < temperature < 0.01:
        raise ValueError(
            "should be 0 (the likeliest token), or at least 0.01, since scores are divided by it"
        )
    return temperature


Temperature = Annotated[float, Field(ge=0.0, le=100.0), AfterValidator(_greedy_or_drawn)]
"""Of sampled tokens; 0 takes the likeliest."""


class Section(BaseModel):
    """A section of a recipe: unknown keys are errors, nothing is coerced, numbers are finite, nothing changes after parsing."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    allowed_values: ClassVar[Mapping[str, Sequence[str]]] = {}
    """The values of keys that are names from a table, by key. The type of such a key is `str`, so
    a schema for editors takes its values from here."""

    @field_validator("*")
    @classmethod
    def _bounded(cls, value: Any) -> Any:
        if isinstance(value, int | float) and abs(value) > LARGEST:
            raise ValueError(f"the value should lie between {-LARGEST:,} and {LARGEST:,}")
        return value


def _without_secrets(url: str) -> str:
    if "@" in url or "?" in url:
        raise ValueError(
            "an address is printed and kept beside results, so it may hold no user, password or query; a key belongs into an "
            "environment variable, which `key_variable` of an endpoint names"
        )
    return url


Url = Annotated[str, Field(pattern=r"^https?://[^\s/]"), AfterValidator(_without_secrets)]

"""The base class of every section of a recipe, and the types of numbers that sections share.

The sections themselves are defined next to the code that they configure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
)

LARGEST = 10**12
"""The largest number of a recipe; most keys have a tighter bound."""

Count = Annotated[int, Field(ge=1, le=10**9)]

Records = Annotated[int, Field(ge=1, le=10**8)]
"""Number of records of an epoch or of rows of a source; 8 bytes of each are held in memory."""

Tokens = Annotated[int, Field(ge=1, le=2**20)]
"""Number of tokens of one prompt or answer."""

Processes = Annotated[int, Field(ge=1, le=1024)]

Weight = Annotated[float, Field(ge=0.0, le=1e4)]
"""Weight of a part of a loss or reward."""

Ratio = Annotated[float, Field(ge=1e-6, le=1e6)]
"""A factor, such as the number of repetitions."""

Seconds = Annotated[float, Field(gt=0.0, le=86400.0)]

Share = Annotated[float, Field(ge=0.0, lt=1.0)]
"""A share from 0, included, to 1, excluded."""

Fraction = Annotated[float, Field(gt=0.0, lt=1.0)]
"""A share above 0 and below 1."""

Rate = Annotated[float, Field(ge=1e-12, lt=1.0)]
"""A learning rate."""


def _refuse_tiny_temperature(temperature: float) -> float:
    """Return a temperature unchanged; raise ValueError if it is above 0 but below 0.01."""
    if 0 < temperature < 0.01:
        raise ValueError(
            "should be 0 (the likeliest token), or at least 0.01, since scores are divided by it"
        )
    return temperature


Temperature = Annotated[float, Field(ge=0.0, le=100.0), AfterValidator(_refuse_tiny_temperature)]
"""Temperature of sampled tokens; 0 takes the likeliest token."""


class Section(BaseModel):
    """A section of a recipe.

    Unknown keys are errors, values are not converted to other types, numbers are finite, and a
    parsed section cannot be changed.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    allowed_values: ClassVar[Mapping[str, Sequence[str]]] = {}
    """The values of keys that are names from a table, by key. The type of such a key is `str`, so
    a schema for editors takes its values from here."""

    @field_validator("*")
    @classmethod
    def _refuse_large_number(cls, value: Any) -> Any:
        """Return a value unchanged; raise ValueError if it is a number beyond LARGEST."""
        if isinstance(value, int | float) and abs(value) > LARGEST:
            raise ValueError(f"the value should be between {-LARGEST:,} and {LARGEST:,}")
        return value


class GrowingSection(Section):
    """A section that got keys in a later version, without a change of its digest.

    Digests of recipes and of row indices are taken of the values that are written. Those of runs of
    versions without the later keys have to stay as they are, so that such runs can be resumed.
    """

    LATER_KEYS: ClassVar[frozenset[str]] = frozenset()
    """Names of the keys that earlier versions did not have. They are written only if they are set
    to another value than their default."""

    @model_serializer(mode="wrap")
    def _without_later_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the keys and values without those keys of LATER_KEYS that have their default."""
        values: dict[str, Any] = handler(self)
        own_values = dict(self)
        for name in self.LATER_KEYS:
            if own_values[name] == type(self).model_fields[name].default:
                values.pop(name, None)
        return values


def _refuse_secrets(url: str) -> str:
    """Return a URL unchanged; raise ValueError if it could contain a password or a key."""
    if "@" in url or "?" in url:
        raise ValueError(
            "an address is printed and saved with results, so it may contain no user, password or "
            "query; put a key into an environment variable, and name that in `key_variable` of the "
            "endpoint"
        )
    return url


def _refuse_impossible_port(url: str) -> str:
    """Return a URL unchanged; raise ValueError if its host or its port cannot be used."""
    try:
        port = urlsplit(url).port
    except ValueError as error:
        raise ValueError(f"this is no address: {error}") from error
    if port == 0:
        raise ValueError("the port of an address should be between 1 and 65535")
    return url


Url = Annotated[
    str,
    Field(pattern=r"^https?://[^\s/]"),
    AfterValidator(_refuse_secrets),
    AfterValidator(_refuse_impossible_port),
]

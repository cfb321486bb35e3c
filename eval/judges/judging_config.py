"""The base classes of judges' settings, without torch, so that a recipe is checked at once."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from mmrm.data.config.section import Section, Tokens
from mmrm.models.config import SamplingConfig


class JudgeConfig(Section):
    """Base class of the settings of a kind of judge, which are the keys of its YAML file.

    Every kind has its own field `type`. A kind that judges with one checkpoint has a field
    `checkpoint`, and returns its value from `checkpoints`.
    """

    implementation: ClassVar[str]
    """The import path of the function that loads the judge: `(path, runtime, config) -> Judge`."""

    type: str

    @property
    def compares(self) -> bool:
        """True if the judge names the better of two responses, and gives no response a score."""
        return False

    @property
    def settings_folder(self) -> str | None:
        """A folder or hub id with config.json and tokenizer, if the checkpoint has weights alone.

        None if the checkpoint has these files itself.
        """
        return None

    def checkpoints(self) -> tuple[str, ...]:
        """Return the checkpoint folders or hub ids that this judge itself loads."""
        return ()

    def member_judges(self) -> tuple[str, ...]:
        """Return the paths of other judges that this judge combines."""
        return ()

    def validation_records(self) -> str | None:
        """Return the path of preference records that decide this judge's scores, or None."""
        return None

    def deciding_settings(self, is_file: bool) -> list[str]:
        """Return the settings that decide the judge's scores, as texts for its digest.

        The digest also contains the checkpoints, the members and the validation records, which are
        left out here. `is_file` is True if the settings come from a YAML file, and False if they
        are the defaults for a checkpoint folder.
        """
        return [str(is_file), self.model_dump_json(exclude={"checkpoint"})]


class JudgingConfig(SamplingConfig):
    """Sampling of judgements in an evaluation. The protocol sets their number and orders.

    Several votes need a temperature above 0, because greedy votes are equal.
    """

    max_new_tokens: Tokens = 1024
    """A judgement that is longer is cut off; without an answer it then counts as unreadable."""


class ComparisonsConfig(Section):
    """The comparisons by which a judge that compares ranks N responses.

    In a benchmark, its protocol names the comparisons instead.
    """

    comparisons: Literal["all", "sorted", "swiss"] = "all"
    """`all`: every two responses in both orders, N (N - 1) comparisons; a score is the share of
    comparisons won. `sorted`: a merge sort, about 2 N log2(N) comparisons. `swiss`: `rounds` rounds
    between neighbours, N comparisons each. The scores of the last two are strengths, fitted to
    the comparisons by the model of Bradley and Terry, with standard deviations and intervals."""
    rounds: int | None = Field(default=None, ge=1, le=64)
    """For `swiss`: the number of rounds. In each one, a response is compared with one other, in both
    orders."""

    @model_validator(mode="after")
    def _rounds_belong_to_swiss(self) -> Self:
        """Raise ValueError if `rounds` is missing for `swiss`, or set for other comparisons."""
        if self.comparisons == "swiss" and self.rounds is None:
            raise ValueError(
                "comparisons: swiss takes a number of rounds. Set `rounds`, such as 5, after which "
                "the order of 16 responses is mostly known."
            )
        if self.comparisons != "swiss" and self.rounds is not None:
            raise ValueError(
                f"rounds is set, and comparisons: {self.comparisons} has no rounds. Remove "
                "`rounds`, or write `comparisons: swiss`."
            )
        return self

    @model_serializer(mode="wrap")
    def _without_default(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the settings as plain values, without these two keys if every pair is compared.

        The digest of a judge, which clients of a server see, is then that of earlier versions.
        """
        values: dict[str, Any] = handler(self)
        if self.asks_all:
            values.pop("comparisons", None)
            values.pop("rounds", None)
        return values

    @property
    def asks_all(self) -> bool:
        """True if every two responses are compared."""
        return self.comparisons == "all"


EVERY_PAIR = ComparisonsConfig()
"""Every two responses are compared, in both orders."""

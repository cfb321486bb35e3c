"""The base classes of judges' settings, without torch, so that a recipe is checked at once."""

from __future__ import annotations

from typing import ClassVar

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

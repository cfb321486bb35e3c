"""How judges are asked, where a checkpoint does not say it all; imports no torch, so that a recipe is checked in a moment."""

from __future__ import annotations

from typing import Literal

from mmrm.data.config.section import Section
from mmrm.models.config import Read


class ScalarJudgeConfig(Section):
    """A scalar reward model that another trainer saved (ms-swift, LLaMA-Factory), as a YAML file says it.

    type: scalar
    checkpoint: /models/their-reward-model
    """

    type: Literal["scalar"]
    checkpoint: str
    """A checkpoint folder or a hub id."""
    read: Read = "last_token"
    """Where it was trained to read; nothing in such a checkpoint says so."""

"""How judges are asked, where a checkpoint does not say it all; imports no torch, so that a recipe is checked in a moment."""

from __future__ import annotations

from mmrm.data.config.section import Tokens
from mmrm.models.config import SamplingConfig


class JudgingConfig(SamplingConfig):
    """Sampling of judgements in an evaluation. How many are asked for, and in which orders, is the protocol's.

    Several votes need a temperature above 0, as greedy ones are all alike.
    """

    max_new_tokens: Tokens = 1024
    """A judgement that is longer is cut off; without an answer it then counts as unreadable."""

"""The values that terms of a judgement's reward need, for tests of single terms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmrm.data.prompts import JudgeTemplate
from mmrm.models.config import BackboneConfig
from mmrm.train.reinforce.stable_reinforce.judgement_term_setting import JudgementTermSetting


def setting_of(
    encoder: Any,
    template: JudgeTemplate = "short",
    backbone: str = "nowhere",
    token_budget: int = 4096,
) -> JudgementTermSetting:
    """Return the setting of judgements of at most 10 tokens by `template`."""
    return JudgementTermSetting(
        template,
        10,
        encoder,
        BackboneConfig(path=backbone, dtype="float32"),
        token_budget,
        Path("nowhere"),
    )

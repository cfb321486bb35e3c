"""The values that a term of a judgement's reward needs in addition to its own section of the recipe."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrm.data.prompts import TEMPLATES, JudgementForm, JudgeTemplate
from mmrm.models.backbone import load_encoder, load_language_model
from mmrm.models.config import BackboneConfig
from mmrm.models.encoder import Encoder


@dataclass(frozen=True, slots=True)
class JudgementTermSetting:
    """The values that a term of the reward needs in addition to its own section of the recipe."""

    template: JudgeTemplate
    """The name of the judge's prompt, which decides in which form judgements are written."""
    max_new_tokens: int
    """The maximum length of a judgement in tokens."""
    encoder: Encoder
    """The encoder of the policy."""
    backbone: BackboneConfig
    """The section of the recipe on the model at the start of the run."""
    token_budget: int
    """The largest size of a packed row, in tokens, for models that a term runs."""
    folder: Path
    """The folder of the run."""

    @property
    def form(self) -> JudgementForm:
        """The form in which judgements are written."""
        return TEMPLATES[self.template].form

    def load_model(self, path: str | None) -> tuple[Any, Encoder]:
        """Return a language model and its encoder.

        Args:
            path: A checkpoint or a hub id. None takes the model at the start of the run.
        """
        if path is None:
            return load_language_model(self.backbone), self.encoder
        backbone = BackboneConfig(path=path, dtype=self.backbone.dtype)
        return load_language_model(backbone), load_encoder(backbone)

"""Who answers and what is asked: a policy's checkpoint, and questions with known answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from data.mixture import Mixture, MixtureConfig
from data.preference import Preference
from data.sources.shared.base import SourceConfig
from eval.judges.checkpoint import Runtime, load_checkpoint
from eval.judges.packed_inference import Packed
from models.backbone import load_language_model
from models.config import BackboneConfig
from models.portable.language_model import LanguageModel


def load_policy(path: Path, runtime: Runtime) -> tuple[Any, Packed]:
    """Return a policy's checkpoint in eval mode, adapters too, and how questions are packed for it.

    Raises: CheckpointError for what is no whole checkpoint.
    """

    def load(backbone: BackboneConfig, *, nf4: bool = False, **heads: object) -> LanguageModel:
        return load_language_model(backbone, nf4=nf4)

    found = load_checkpoint(path, runtime, load)
    return found.model, found.packed


def load_questions(source: SourceConfig, cache: Path) -> list[Preference]:
    """Return all questions of a source; raises UserError as `Mixture` does."""
    mixture = Mixture(MixtureConfig(sources=[source], cache=str(cache)))
    return [mixture[place] for place in range(len(mixture))]

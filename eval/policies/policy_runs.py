"""Who answers and what is asked: a policy's checkpoint or run folder, and questions with known answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from mmrm.data.config.layers import read_yaml
from mmrm.data.errors import UserError
from mmrm.data.preference import Preference
from mmrm.data.preparation.mixing import CACHE, Mixture, MixtureConfig
from mmrm.data.sources.registry import AnySource
from mmrm.data.sources.shared.source import SourceConfig
from mmrm.data.storage.files import read_json
from mmrm.eval.judges.checkpoint import Runtime, load_checkpoint
from mmrm.eval.judges.generative.judge import load_writer
from mmrm.eval.judges.packed_inference import Packed
from mmrm.eval.results.run_folder import RECIPE
from mmrm.models.config import BackboneConfig, SamplingConfig


def load_policy(path: Path, runtime: Runtime) -> tuple[Any, Packed]:
    """Return a policy's checkpoint in eval mode, adapters too, and how questions are packed for it.

    Raises: CheckpointError for what is no whole checkpoint.
    """
    found = load_checkpoint(path, runtime, load_writer)
    return found.model, found.packed


def load_questions(source: SourceConfig, cache: Path) -> list[Preference]:
    """Return all questions of a source; raises UserError as `Mixture` does."""
    mixture = Mixture(MixtureConfig(sources=[source], cache=str(cache)))
    return [mixture[place] for place in range(len(mixture))]


COMPLETE = "complete"
"""The file that a whole checkpoint has."""
ABLATION = "ablation.json"
"""What `train/ablate.py` writes for a list of runs."""
COMPLETE_RUN = "run.json"
"""What `train/ablate.py` writes for a run of a list that came to its end."""


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """What a measurement needs of a run folder of `method: policy`."""

    folder: Path
    name: str
    """What a table calls it; runs that differ in their seed alone share it."""
    start: BackboneConfig
    sampling: SamplingConfig
    source: dict[str, Any]
    """The first source of questions of the recipe's evaluation."""
    judge: str | None
    """The first judge of the reward."""

    @classmethod
    def all_in(cls, folder: Path) -> list[PolicyRun]:
        """Return the run in a folder, or the complete ones of a list of `train/ablate.py` there, FOLDER/VARIANT/SEED."""
        if not (table := folder / ABLATION).is_file():
            return [cls.read(folder, folder.name)]
        variants = dict.fromkeys(line["variant"] for line in read_json(table)["results"])
        return [
            cls.read(run.parent, variant)
            for variant in variants
            for run in sorted(
                folder.glob(f"{variant}/*/{COMPLETE_RUN}"), key=lambda file: int(file.parent.name)
            )
        ]

    @classmethod
    def read(cls, folder: Path, name: str) -> PolicyRun:
        """Read the recipe of a run; raises UserError for another method's, or one without questions."""
        file = folder / RECIPE
        if not file.is_file():
            raise UserError(
                f"{folder}: there is no {RECIPE}; required is the run folder of a policy (train/rl.py)."
            )
        recipe: dict[str, Any] = read_yaml(file).plain()
        method = recipe["method"]
        questions = recipe["evaluation"].get("questions")
        if method["type"] != "policy" or not questions:
            raise UserError(
                f"{file}: required is a run of `method: policy` with evaluation.questions."
            )
        sampling = {
            "temperature": method["temperature"],
            "max_new_tokens": method["max_new_tokens"],
        }
        judges = [term["path"] for term in method["rewards"] if term["type"] == "judge"]
        start = BackboneConfig.model_validate(recipe["backbone"])
        return cls(
            folder,
            name,
            start,
            SamplingConfig.model_validate(sampling),
            questions[0],
            next(iter(judges), None),
        )

    @property
    def answers(self) -> Path:
        """Where a checkpoint has its answers to the questions, relative to it."""
        source = TypeAdapter(AnySource).validate_python(self.source)
        return Path("answers", f"{source.label}.jsonl")

    def checkpoints(self) -> dict[int, Path]:
        """Return the whole checkpoints by their step."""
        found = {
            int(path.parent.name.rpartition("-")[2]): path.parent
            for path in self.folder.glob(f"checkpoint-*/{COMPLETE}")
        }
        return dict(sorted(found.items()))

    def questions(self, count: int) -> list[Preference]:
        """Return the first `count` questions; an endless source has as many as are asked for."""
        source = TypeAdapter(AnySource).validate_python(self.source)
        if "rows" in type(source).model_fields:
            source = source.model_copy(update={"rows": count})
        return load_questions(source, CACHE)[:count]

"""Load policies from checkpoints and run folders, and questions with known answers from sources."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from mmrm.data.config.layers import read_yaml
from mmrm.data.errors import UserError
from mmrm.data.package import data_cache
from mmrm.data.preference import Preference
from mmrm.data.preparation.mixing import Mixture, MixtureConfig
from mmrm.data.sources.registry import AnySource
from mmrm.data.sources.shared.source import SourceConfig
from mmrm.data.storage.files import read_json
from mmrm.eval.judges.checkpoint import Runtime, load_checkpoint
from mmrm.eval.judges.generative.judge import load_writer
from mmrm.eval.judges.packed_inference import Packed
from mmrm.eval.results.run_folder import RECIPE
from mmrm.models.config import BackboneConfig, SamplingConfig


def load_policy(path: Path, runtime: Runtime) -> tuple[Any, Packed]:
    """Load a policy from a checkpoint, with or without adapters.

    Returns the model in eval mode, and the encoder and settings by which its questions are packed.

    Raises:
        CheckpointError: If the checkpoint is not complete.
    """
    checkpoint = load_checkpoint(path, runtime, load_writer)
    return checkpoint.model, checkpoint.packed


def load_questions(source: SourceConfig, cache: Path) -> list[Preference]:
    """Return all questions of a source; raise UserError if the source cannot be read.

    `cache` is the folder in which the prepared source is kept between runs.
    """
    mixture = Mixture(MixtureConfig(sources=[source], cache=str(cache)))
    return [mixture[index] for index in range(len(mixture))]


COMPLETE = "complete"
"""The file that marks a checkpoint as completely saved."""
ABLATION = "ablation.json"
"""The file that `train/ablate.py` writes for a list of runs."""
COMPLETE_RUN = "run.json"
"""The file that `train/ablate.py` writes for each run of a list that has ended."""


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """The settings of a training run of `method: policy` that measuring its checkpoints needs."""

    folder: Path
    name: str
    """The name in tables. Runs that differ only in their seed have the same name."""
    start: BackboneConfig
    sampling: SamplingConfig
    source: dict[str, Any]
    """The first source of questions of the recipe's evaluation."""
    judge: str | None
    """The first judge of the reward."""

    @classmethod
    def in_folder(cls, folder: Path) -> list[PolicyRun]:
        """Return the runs in a folder, which is a run folder itself or holds several runs.

        `train/ablate.py` makes folders of several runs, in which FOLDER/VARIANT/SEED is the folder
        of a run. Runs that have not ended are left out. The runs are in the order of the variants
        in the folder's table, and then of their seeds.
        """
        table = folder / ABLATION
        if not table.is_file():
            return [cls.read(folder, folder.name)]
        runs: list[PolicyRun] = []
        # A table has a line for each run, and a variant as many runs as seeds.
        variants = dict.fromkeys(line["variant"] for line in read_json(table)["results"])
        for variant in variants:
            complete_runs = [file.parent for file in folder.glob(f"{variant}/*/{COMPLETE_RUN}")]
            complete_runs.sort(key=lambda run_folder: int(run_folder.name))
            runs += [cls.read(run_folder, variant) for run_folder in complete_runs]
        return runs

    @classmethod
    def read(cls, folder: Path, name: str) -> PolicyRun:
        """Return the settings of a run from the recipe in its folder.

        Args:
            folder: The run folder.
            name: The name of the run in tables.

        Raises:
            UserError: If the run has another method, or no questions in its evaluation.
        """
        file = folder / RECIPE
        if not file.is_file():
            raise UserError(
                f"{folder}: there is no {RECIPE}; required is the run folder of a policy "
                "(train/rl.py)."
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
        return cls(
            folder=folder,
            name=name,
            start=BackboneConfig.model_validate(recipe["backbone"]),
            sampling=SamplingConfig.model_validate(sampling),
            source=questions[0],
            judge=judges[0] if judges else None,
        )

    @property
    def answers_file(self) -> Path:
        """The path, inside a checkpoint folder, of the run's answers to the questions."""
        source = TypeAdapter(AnySource).validate_python(self.source)
        return Path("answers", f"{source.label}.jsonl")

    def checkpoints(self) -> dict[int, Path]:
        """Return the completely saved checkpoints by their step, in the order of the steps."""
        checkpoint_by_step: dict[int, Path] = {}
        for file in self.folder.glob(f"checkpoint-*/{COMPLETE}"):
            checkpoint = file.parent
            step = int(checkpoint.name.rpartition("-")[2])
            checkpoint_by_step[step] = checkpoint
        return dict(sorted(checkpoint_by_step.items()))

    def questions(self, count: int) -> list[Preference]:
        """Return the first `count` questions on which the run is evaluated.

        If its source of questions is generated, it generates `count` of them. Another source may
        have fewer.
        """
        source = TypeAdapter(AnySource).validate_python(self.source)
        if "rows" in type(source).model_fields:
            source = source.model_copy(update={"rows": count})
        return load_questions(source, data_cache())[:count]

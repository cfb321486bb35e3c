"""The kinds of judges: from the `type` in a judge's YAML file to its settings.

To add a kind, write a folder with `config.py` (a `JudgeConfig`) and `judge.py` (a `Judge` and the
function that loads it), and add a row to `JUDGES`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import RootModel

from mmrm.data.config.registry import OneOf, is_installed, load
from mmrm.data.config.validation import read_section
from mmrm.data.errors import CheckpointError
from mmrm.data.regular_files import require_regular
from mmrm.data.storage.files import read_json
from mmrm.data.storage.manifest import verify_settings
from mmrm.eval.judges.checkpoint import classes_of_judges, judge_type_of
from mmrm.eval.judges.judging_config import JudgeConfig
from mmrm.eval.judges.scalar.config import ScalarJudgeConfig
from mmrm.models.config import checkpoint_at

JUDGES: dict[str, type[JudgeConfig] | str] = {
    "scalar": ScalarJudgeConfig,
    "critic": "mmrm.eval.judges.critic.config:CriticJudgeConfig",
    "generative": "mmrm.eval.judges.generative.config:GenerativeJudgeConfig",
    "released": "mmrm.eval.judges.released.config:ReleasedJudgeConfig",
    "ensemble": "mmrm.eval.judges.ensemble.config:EnsembleConfig",
    "endpoint": "mmrm.eval.judges.endpoint.config:EndpointConfig",
    "server": "mmrm.eval.judges.server.config:ServerConfig",
}
"""`type` of a judge to the class of its settings. Rows outside the core are import paths."""


class JudgeFile(RootModel[Annotated[JudgeConfig, OneOf(JUDGES)]]):
    """The YAML file of a judge; its `type` decides which other keys it has."""


def judge_config(path: Path) -> JudgeConfig:
    """Return the settings of the judge at `path`: its YAML file, or a checkpoint folder's defaults.

    Raises:
        CheckpointError: `path` is no judge, or is not as it was saved.
        RecipeError: The file has wrong keys or values; the error lists all of them.
    """
    if path.is_file():
        config = read_section(path, JudgeFile).root
        for checkpoint in config.checkpoints():
            config = config.model_copy(update={"checkpoint": checkpoint_at(checkpoint)})
        return config
    if path.exists() and not path.is_dir():
        require_regular(path)
    folder = Path(checkpoint_at(str(path)))
    if folder.is_dir():
        verify_settings(folder)
    kind = judge_type_of(folder)
    row = JUDGES.get(kind)
    if row is None or not _is_installed(row):
        classes = ", ".join(classes_of_judges())
        types = ", ".join(name for name, other in JUDGES.items() if _is_installed(other))
        raise CheckpointError(
            f"{folder} is a {kind!r}, which cannot judge here. Judges are: checkpoints of {classes}; YAML files with the `type` "
            f"{types}."
        )
    section: type[JudgeConfig] = load(row) if isinstance(row, str) else row
    return section.model_validate({"type": kind, "checkpoint": str(folder)})


def reference_of(judge: Path) -> Mapping[str, Any] | None:
    """Return mean and standard deviation of a judge's scores, as its checkpoint's config.json has them.

    Returns None for a judge without a checkpoint, and if the file has no such entry.
    """
    for checkpoint in judge_config(judge).checkpoints():
        file = Path(checkpoint).expanduser() / "config.json"
        if file.is_file():
            reference: Mapping[str, Any] | None = read_json(file).get("reference_scores")
            return reference
    return None


def _is_installed(row: type[JudgeConfig] | str) -> bool:
    """Return True if a row is of the core, or its wing is in this clone."""
    return not isinstance(row, str) or is_installed(row)

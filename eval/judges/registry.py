"""The registry of the kinds of judges: the settings' class for each `type` of a YAML file.

To add a kind, write a folder with `config.py` (a `JudgeConfig`) and `judge.py` (a `Judge` and the
function that loads it), and add a row to `JUDGES`.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import RootModel

from mmrm.data.config.registry import OneOf, is_installed, load
from mmrm.data.config.validation import read_section
from mmrm.data.errors import SHOWN_CHARACTERS, CheckpointError
from mmrm.data.regular_files import require_regular
from mmrm.data.storage.files import read_json_object
from mmrm.data.storage.manifest import verify_settings
from mmrm.eval.judges.checkpoint import judge_type_by_class, judge_type_of
from mmrm.eval.judges.judging_config import JudgeConfig
from mmrm.eval.judges.scalar.config import ScalarJudgeConfig
from mmrm.models.config import checkpoint_at

JUDGES: dict[str, type[JudgeConfig] | str] = {
    "scalar": ScalarJudgeConfig,
    "critic": "mmrm.eval.judges.critic.config:CriticJudgeConfig",
    "joint": "mmrm.eval.judges.joint.config:JointJudgeConfig",
    "generative": "mmrm.eval.judges.generative.config:GenerativeJudgeConfig",
    "rubric": "mmrm.eval.judges.rubric.config:RubricJudgeConfig",
    "points": "mmrm.eval.judges.points.config:PointsJudgeConfig",
    "released": "mmrm.eval.judges.released.config:ReleasedJudgeConfig",
    "ensemble": "mmrm.eval.judges.ensemble.config:EnsembleConfig",
    "endpoint": "mmrm.eval.judges.endpoint.config:EndpointConfig",
    "server": "mmrm.eval.judges.server.config:ServerConfig",
}
"""The class of settings by the `type` of a judge. Kinds that a clone may lack are import paths."""


class JudgeFile(RootModel[Annotated[JudgeConfig, OneOf(JUDGES)]]):
    """The content of a judge's YAML file; its `type` decides which other keys it has."""


def judge_config(path: Path) -> JudgeConfig:
    """Return the settings of the judge at `path`.

    They come from its YAML file, or are the defaults for a checkpoint folder.

    Raises:
        CheckpointError: `path` is no judge, or its files differ from those that were saved.
        RecipeError: The file has wrong keys or values; the error lists all of them.
    """
    if path.is_file():
        config = read_section(path, JudgeFile, "judge").root
        for checkpoint in config.checkpoints():
            config = config.model_copy(update={"checkpoint": checkpoint_at(checkpoint)})
        return config
    if path.exists() and not path.is_dir():
        require_regular(path)
    folder = Path(checkpoint_at(str(path)))
    if folder.is_dir():
        verify_settings(folder)
    judge_type = judge_type_of(folder)
    settings_class = JUDGES.get(judge_type)
    if settings_class is None or not _is_installed(settings_class):
        classes = ", ".join(judge_type_by_class())
        installed = [name for name, other in JUDGES.items() if _is_installed(other)]
        raise CheckpointError(
            f"{folder} is a {judge_type!r}, which cannot judge here. Judges are: checkpoints of "
            f"{classes}; YAML files with the `type` {', '.join(installed)}."
        )
    if isinstance(settings_class, str):
        settings_class = load(settings_class)
    return settings_class.model_validate({"type": judge_type, "checkpoint": str(folder)})


def reference_of(judge: Path) -> Mapping[str, Any] | None:
    """Return mean and standard deviation of a judge's scores, which bring them to a common scale.

    Training wrote them to the checkpoint's config.json as `reference_scores`. Returns None for a
    judge without a local checkpoint, and for a checkpoint without this entry.

    Raises: CheckpointError if the entry holds no mean and standard deviation.
    """
    for checkpoint in judge_config(judge).checkpoints():
        file = Path(checkpoint).expanduser() / "config.json"
        if file.is_file():
            reference = read_json_object(file).get("reference_scores")
            if reference is not None and not is_mean_and_std(reference):
                raise CheckpointError(
                    f"{file}: reference_scores is {str(reference)[:SHOWN_CHARACTERS]!r}, and it "
                    "should be an object with numbers `mean` and `std`, which is above 0. The file is "
                    "damaged."
                )
            return reference
    return None


def is_mean_and_std(value: object) -> bool:
    """Return True if a value of a JSON file holds a mean and a standard deviation above 0."""
    if not isinstance(value, dict) or not {"mean", "std"} <= value.keys():
        return False
    for number in (value["mean"], value["std"]):
        if not isinstance(number, int | float) or not abs(number) < math.inf:
            return False
    return bool(value["std"] > 0)


def _is_installed(settings_class: type[JudgeConfig] | str) -> bool:
    """Return True if the code of a kind of judge is in this clone.

    A kind with an import path in place of its class is in a folder that a clone may lack.
    """
    return not isinstance(settings_class, str) or is_installed(settings_class)

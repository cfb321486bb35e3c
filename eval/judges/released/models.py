"""Reward models that others released, as judges that are run as in their authors' code.

A row of `RELEASED` holds the settings that the model's checkpoint lacks. A generative model has the
stock class of its family, in the released key layout or in the current one. A scalar model has its
head in a separate file, `value_head.safetensors`. To add a model, add a row to `RELEASED` and its
name to `ReleasedModel`, its texts to `templates.py`, and a judge file to `recipes/judges/`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from mmrm.data.errors import CheckpointError
from mmrm.data.prompts import R1_REWARD
from mmrm.data.storage.files import read_json
from mmrm.eval.judges.checkpoint import Runtime, fetch_checkpoint, load_checkpoint
from mmrm.eval.judges.generative.judge import GenerativeJudge, load_writer
from mmrm.eval.judges.packed_judge import PackedJudge
from mmrm.eval.judges.pointwise import PointJudge
from mmrm.eval.judges.released import templates as templates
from mmrm.eval.judges.released.config import ReleasedJudgeConfig, ReleasedModel
from mmrm.eval.judges.released.templates import PairTemplate, PointTemplate
from mmrm.eval.judges.scalar.judge import ScalarJudge
from mmrm.models.backbone import load_scalar
from mmrm.models.config import HeadConfig, SamplingConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """A released reward model, with the settings of its authors' script."""

    family: str
    """`model_type` of its config.json."""
    way: PairTemplate | PointTemplate | HeadConfig
    """The prompt and reader of a generative model, or the head of a scalar model and the token it reads."""
    sees: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the backbone in its authors' script. Other settings come from the checkpoint's files."""
    max_new_tokens: int = 4096
    penalised: bool = True
    """The script leaves the repetition penalty to the checkpoint's generation_config.json."""


QWEN2_5 = "You are a helpful assistant."
"""The system turn that two clients send. The chat template of Qwen2.5-VL writes the same turn into
conversations without one."""

BETTER = templates.answer_is_better


RELEASED: dict[ReleasedModel, Released] = {
    "r1_reward": Released(
        family="qwen2_5_vl",
        way=PairTemplate(R1_REWARD, templates.answer_tag),
        sees={
            "max_pixels": 1003520 // 2
        },  # yfzhang114/r1_reward 3693413, all three scripts in inference/
    ),
    "unified_reward": Released(
        family="qwen2_5_vl", way=PairTemplate(templates.UNIFIED_REWARD, BETTER)
    ),
    "unified_reward_points": Released(
        family="qwen2_5_vl",
        way=PointTemplate(templates.UNIFIED_REWARD_POINTS, templates.final_score),
    ),
    "unified_reward_think": Released(
        family="qwen2_5_vl", way=PairTemplate(templates.UNIFIED_REWARD_THINK, BETTER)
    ),
    "unified_reward_qwen3vl": Released(
        family="qwen3_vl", way=PairTemplate(templates.UNIFIED_REWARD, BETTER)
    ),
    "unified_reward_think_qwen3vl": Released(
        family="qwen3_vl", way=PairTemplate(templates.UNIFIED_REWARD_THINK_QWEN3VL, BETTER)
    ),
    "llava_critic_r1": Released(
        family="qwen2_5_vl",
        way=PairTemplate(templates.LLAVA_CRITIC_R1, templates.boxed),
        sees={"system_prompt": QWEN2_5},
        penalised=False,
    ),
    "sophia_thinking_reward": Released(
        family="qwen2_5_vl",
        way=PointTemplate(templates.THINKING_REWARD, templates.thinking_score, mark="<image> "),
        sees={"system_prompt": QWEN2_5},
        max_new_tokens=1024,  # its client sets none
    ),
    "skywork_vl_reward": Released(  # Skywork/Skywork-VL-Reward-7B, model card: TRL's value head at the conversation's last token
        family="qwen2_5_vl", way=HeadConfig(layers=1, activation="none", read="last_token")
    ),
}
"""The released models. docs/evaluation.md has the source of each row and its authors' results."""


def load_released_judge(path: Path, runtime: Runtime, config: ReleasedJudgeConfig) -> PackedJudge:
    """Return the judge of a row with the weights of a checkpoint.

    Raises:
        CheckpointError: The checkpoint is of another family, or sampling is set for a scalar model.
    """
    row = RELEASED[config.model]
    folder = fetch_checkpoint(Path(config.checkpoint).expanduser())
    _refuse_other_family(path, folder, config.model, row.family)
    note = f"Asked and read as the row {config.model} of eval/judges/released/models.py says."
    if isinstance(row.way, HeadConfig):
        return _scalar_judge(path, folder, runtime, config, row, row.way, note)
    checkpoint = load_checkpoint(folder, runtime, load_writer, row.sees)
    sampling = SamplingConfig(
        temperature=config.temperature,
        top_p=config.top_p,
        max_new_tokens=config.max_new_tokens or row.max_new_tokens,
    )
    penalty = _repetition_penalty(folder) if row.penalised else 1.0
    notes: tuple[str, ...] = (note,)
    if penalty != 1:
        penalty_note = f"Repetition penalty {penalty}, as its generation_config.json says."
        notes = (note, penalty_note)
    if isinstance(row.way, PointTemplate):
        return PointJudge(
            model=checkpoint.model,
            packed=checkpoint.packed,
            sampling=sampling,
            penalty=penalty,
            template=row.way,
            about=notes,
        )
    return GenerativeJudge(
        model=checkpoint.model,
        packed=checkpoint.packed,
        sampling=sampling,
        penalty=penalty,
        ask=row.way.ask,
        read=row.way.read,
        about=notes,
    )


def _refuse_other_family(path: Path, folder: Path, model: ReleasedModel, family: str) -> None:
    """Raise CheckpointError unless a folder holds a complete checkpoint of a family."""
    file = folder / "config.json"
    kind = read_json(file).get("model_type") if file.is_file() else None
    if kind != family:
        held = f"a {kind!r} model" if kind else "no config.json"
        raise CheckpointError(
            f"{path}: {folder} holds {held}; `model: {model}` is asked of a whole {family!r} checkpoint, adapters merged. Give "
            "the hub id that recipes/judges/ names, or a copy of it."
        )


def _scalar_judge(
    path: Path,
    folder: Path,
    runtime: Runtime,
    config: ReleasedJudgeConfig,
    row: Released,
    head: HeadConfig,
    note: str,
) -> ScalarJudge:
    """Return a released scalar reward model; raises CheckpointError if sampling is set."""
    sampling_settings = config.model_fields_set & {"temperature", "top_p", "max_new_tokens"}
    if sampling_settings:
        raise CheckpointError(
            f"{path}: {', '.join(sorted(sampling_settings))}: {config.model} writes nothing; remove it."
        )
    checkpoint = load_checkpoint(folder, runtime, partial(load_scalar, head=head), row.sees)
    return ScalarJudge(
        model=checkpoint.model, packed=checkpoint.packed, read=head.read, about=(note,)
    )


def _repetition_penalty(folder: Path) -> float:
    """Return the penalty that a checkpoint's generation_config.json names; 1 is none."""
    file = folder / "generation_config.json"
    if not file.is_file():
        return 1.0
    penalty: float | None = read_json(file).get("repetition_penalty")
    return penalty or 1.0

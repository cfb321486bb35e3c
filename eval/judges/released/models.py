"""Reward models that others released, which judge here as in their authors' code.

A row of `RELEASED` holds the settings that the model's checkpoint lacks. A generative model has the
stock class of its family, in the released key layout or in the current one. A scalar model has its
head in a separate file, `value_head.safetensors`. For a model that scores pictures, only a file of
tensors is published, and `picture_model.py` reads it. To add a model, add a row to `RELEASED` and
its name to `ReleasedModel`, its texts to `templates.py`, and a judge file to `recipes/judges/`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from mmrm.data.errors import CheckpointError
from mmrm.data.prompts import R1_REWARD
from mmrm.data.storage.files import read_json_object
from mmrm.eval.judges.checkpoint import (
    SETTINGS_DOWNLOADED,
    TOKEN_BUDGET,
    Runtime,
    fetch_checkpoint,
    load_checkpoint,
)
from mmrm.eval.judges.generative.judge import GenerativeJudge, load_writer
from mmrm.eval.judges.packed_inference import Packed
from mmrm.eval.judges.packed_judge import PackedJudge
from mmrm.eval.judges.pointwise import ExpectedPointJudge, PointJudge
from mmrm.eval.judges.released import templates as templates
from mmrm.eval.judges.released.config import ReleasedJudgeConfig, ReleasedModel
from mmrm.eval.judges.released.picture_judge import PictureJudge
from mmrm.eval.judges.released.picture_model import PictureReward, load_picture_model
from mmrm.eval.judges.released.templates import PairTemplate, PointTemplate
from mmrm.eval.judges.scalar.judge import ScalarJudge
from mmrm.eval.judges.score_place import ScorePlace
from mmrm.eval.verdict_form import TAGGED
from mmrm.models.backbone import load_scalar
from mmrm.models.config import HeadConfig, SamplingConfig
from mmrm.models.heads.score_head import ScoreHeadConfig
from mmrm.models.portable.head_columns import columns_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """A released reward model, with the settings of its authors' script."""

    family: str
    """`model_type` of its config.json."""
    prompt_or_head: PairTemplate | PointTemplate | HeadConfig | PictureReward
    """The prompt and reader of a generative model; the head of a scalar model with the token that
    it reads; or the files, questions and heads of a model that scores pictures."""
    backbone_settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the backbone in the authors' script. Other settings come from the checkpoint."""
    max_new_tokens: int = 4096
    """Maximum length of a judgement in tokens, in the authors' script."""
    uses_repetition_penalty: bool = True
    """True if the authors' script leaves the repetition penalty to the checkpoint's
    generation_config.json. False if the script turns it off."""


QWEN2_5_SYSTEM_PROMPT = "You are a helpful assistant."
"""The system turn that two clients send. The chat template of Qwen2.5-VL writes the same turn into
conversations without one."""

BETTER = templates.answer_is_better

EDIT_REWARD = PictureReward(
    weight_files=("model.pth", "model.safetensors"),
    prompts=(templates.EDIT_REWARD_FOLLOWING, templates.EDIT_REWARD_QUALITY),
    heads=("rm_heads.head_0", "rm_heads.head_1"),
    num_source_pictures=1,
)
"""EditReward on either backbone: one head is asked about the instruction, one about quality."""


RELEASED: dict[ReleasedModel, Released] = {
    "r1_reward": Released(
        family="qwen2_5_vl",
        prompt_or_head=PairTemplate(R1_REWARD, templates.answer_tag, TAGGED),
        # yfzhang114/r1_reward 3693413, all three scripts in inference/
        backbone_settings={"max_pixels": 1003520 // 2},
    ),
    "unified_reward": Released(
        family="qwen2_5_vl",
        prompt_or_head=PairTemplate(templates.UNIFIED_REWARD, BETTER, templates.BETTER_SENTENCE),
    ),
    "unified_reward_points": Released(
        family="qwen2_5_vl",
        prompt_or_head=PointTemplate(
            templates.UNIFIED_REWARD_POINTS, templates.final_score, place=templates.FINAL_SCORE
        ),
    ),
    "unified_reward_think": Released(
        family="qwen2_5_vl",
        prompt_or_head=PairTemplate(
            templates.UNIFIED_REWARD_THINK, BETTER, templates.BETTER_SENTENCE_IN_TAG
        ),
    ),
    "unified_reward_qwen3vl": Released(
        family="qwen3_vl",
        prompt_or_head=PairTemplate(templates.UNIFIED_REWARD, BETTER, templates.BETTER_SENTENCE),
    ),
    "unified_reward_think_qwen3vl": Released(
        family="qwen3_vl",
        prompt_or_head=PairTemplate(
            templates.UNIFIED_REWARD_THINK_QWEN3VL, BETTER, templates.BETTER_SENTENCE_IN_TAG
        ),
    ),
    # The hub id is in use, but the authors' script for it was not at hand: asked like -qwen3vl.
    "unified_reward_qwen35": Released(
        family="qwen3_5",
        prompt_or_head=PairTemplate(templates.UNIFIED_REWARD, BETTER, templates.BETTER_SENTENCE),
    ),
    "llava_critic_r1": Released(
        family="qwen2_5_vl",
        prompt_or_head=PairTemplate(templates.LLAVA_CRITIC_R1, templates.boxed, templates.BOXED),
        backbone_settings={"system_prompt": QWEN2_5_SYSTEM_PROMPT},
        uses_repetition_penalty=False,
    ),
    "sophia_thinking_reward": Released(
        family="qwen2_5_vl",
        prompt_or_head=PointTemplate(
            templates.THINKING_REWARD, templates.thinking_score, mark="<image> "
        ),
        backbone_settings={"system_prompt": QWEN2_5_SYSTEM_PROMPT},
        max_new_tokens=1024,  # its client sets none
    ),
    # The model card of Skywork/Skywork-VL-Reward-7B: TRL's value head at the last token.
    "skywork_vl_reward": Released(
        family="qwen2_5_vl",
        prompt_or_head=ScoreHeadConfig(layers=1, activation="none", read="last_token"),
    ),
    # hpsv3 1.0.0: hpsv3/inference.py, with hpsv3/config/HPSv3_7B.yaml
    "hpsv3": Released(
        family="qwen2_vl",
        prompt_or_head=PictureReward(
            weight_files=("HPSv3.safetensors",),
            prompts=(templates.HPSV3,),
            heads=("rm_head",),
            num_source_pictures=0,
        ),
    ),
    # TIGER-AI-Lab/EditReward edb027e: EditReward/inference_edit.py, with the YAML file of each in
    # EditReward/config/
    "edit_reward": Released(family="qwen2_5_vl", prompt_or_head=EDIT_REWARD),
    "edit_reward_mimo": Released(family="qwen2_5_vl", prompt_or_head=EDIT_REWARD),
}
"""The released models. docs/evaluation.md has the source of each row and its authors' results."""


def load_released_judge(path: Path, runtime: Runtime, config: ReleasedJudgeConfig) -> PackedJudge:
    """Load the released model that `config` names, and return it as a judge.

    `path` is the YAML file of the judge, for messages.

    Raises:
        CheckpointError: The checkpoint is of another family, or the file has settings that this
            kind of model does not use.
    """
    released = RELEASED[config.model]
    if not config.compares and not config.asks_all:
        raise CheckpointError(
            f"{path}: comparisons: {config.comparisons} is set, and {config.model} compares no "
            "responses: it scores each one. Remove the key."
        )
    place = _place_of_expected_score(path, config)
    note = f"Asked and read as the row {config.model} of eval/judges/released/models.py says."
    prompt_or_head = released.prompt_or_head
    if isinstance(prompt_or_head, PictureReward):
        return _picture_judge(path, runtime, config, released.family, prompt_or_head, note)
    if config.backbone is not None:
        raise CheckpointError(
            f"{path}: backbone is set, and the checkpoint of {config.model} has its own "
            "config.json and tokenizer. Remove `backbone`."
        )
    folder = fetch_checkpoint(Path(config.checkpoint).expanduser())
    _refuse_other_family(path, folder, config.model, released.family)
    if isinstance(prompt_or_head, HeadConfig):
        return _scalar_judge(path, folder, runtime, config, released, prompt_or_head, note)
    checkpoint = load_checkpoint(folder, runtime, load_writer, released.backbone_settings)
    sampling = SamplingConfig(
        temperature=config.temperature,
        top_p=config.top_p,
        max_new_tokens=config.max_new_tokens or released.max_new_tokens,
    )
    penalty = 1.0
    if released.uses_repetition_penalty:
        penalty = _repetition_penalty(folder)
    notes: tuple[str, ...] = (note,)
    if penalty != 1:
        penalty_note = f"Repetition penalty {penalty}, as its generation_config.json says."
        notes = (note, penalty_note)
    if isinstance(prompt_or_head, PointTemplate):
        if place is not None:
            return ExpectedPointJudge(
                model=checkpoint.model,
                packed=checkpoint.packed,
                sampling=sampling,
                penalty=penalty,
                ask=prompt_or_head.ask,
                read=prompt_or_head.read,
                place=place,
                at_once=False,
                about=notes,
            )
        return PointJudge(
            model=checkpoint.model,
            packed=checkpoint.packed,
            sampling=sampling,
            penalty=penalty,
            ask=prompt_or_head.ask,
            read=prompt_or_head.read,
            about=notes,
        )
    return GenerativeJudge(
        model=checkpoint.model,
        packed=checkpoint.packed,
        sampling=sampling,
        penalty=penalty,
        ask=prompt_or_head.ask,
        read=prompt_or_head.read,
        form=prompt_or_head.form,
        comparisons=config,
        about=notes,
    )


def _place_of_expected_score(path: Path, config: ReleasedJudgeConfig) -> ScorePlace | None:
    """Return the place of the score whose expected value is read; None if a written score is read.

    Args:
        path: The YAML file of the judge, for the message.
        config: The content of the file.

    Raises:
        CheckpointError: The expected value is to be read of a model without such a place.
    """
    if config.reading == "written":
        return None
    template = RELEASED[config.model].prompt_or_head
    place = template.place if isinstance(template, PointTemplate) else None
    if place is None:
        models = [
            name
            for name, released in RELEASED.items()
            if isinstance(released.prompt_or_head, PointTemplate)
            and released.prompt_or_head.place is not None
        ]
        raise CheckpointError(
            f"{path}: reading: expected is set, and {config.model} does not write one of a list of "
            f"scores after fixed words. It is possible for {', '.join(models)}. Remove the key."
        )
    return place


def _refuse_other_family(path: Path, folder: Path, model: ReleasedModel, family: str) -> None:
    """Raise CheckpointError unless a folder holds a complete checkpoint of a model family.

    Args:
        path: The YAML file of the judge, for the message.
        folder: The checkpoint folder.
        model: The name of the released model, for the message.
        family: The required `model_type` of the checkpoint's config.json.
    """
    file = folder / "config.json"
    model_type = read_json_object(file).get("model_type") if file.is_file() else None
    if model_type != family:
        held = f"a {model_type!r} model" if model_type else "no config.json"
        raise CheckpointError(
            f"{path}: {folder} holds {held}; `model: {model}` is asked of a whole {family!r} "
            "checkpoint, adapters merged. Give the hub id that recipes/judges/ names, or a copy of "
            "it."
        )


def _scalar_judge(
    path: Path,
    folder: Path,
    runtime: Runtime,
    config: ReleasedJudgeConfig,
    released: Released,
    head: HeadConfig,
    note: str,
) -> ScalarJudge:
    """Load a released scalar reward model, and return it as a judge.

    Args:
        path: The YAML file of the judge, for messages.
        folder: The checkpoint folder.
        runtime: The device, and the size of packed rows.
        config: The content of the YAML file.
        released: The settings of the released model.
        head: Its reward head.
        note: The note to print with the judge's figures.

    Raises:
        CheckpointError: Sampling is set in the YAML file, and a scalar model writes nothing.
    """
    _refuse_sampling_settings(path, config)
    load_model = partial(load_scalar, head=head)
    checkpoint = load_checkpoint(folder, runtime, load_model, released.backbone_settings)
    return ScalarJudge(
        model=checkpoint.model,
        packed=checkpoint.packed,
        read=head.read,
        columns=columns_of(head.model_dump()),
        about=(note,),
    )


def _refuse_sampling_settings(path: Path, config: ReleasedJudgeConfig) -> None:
    """Raise CheckpointError if sampling is set for a model that writes nothing."""
    sampling_settings = config.model_fields_set & {"temperature", "top_p", "max_new_tokens"}
    if sampling_settings:
        raise CheckpointError(
            f"{path}: {', '.join(sorted(sampling_settings))}: {config.model} writes nothing; "
            "remove it."
        )


def _picture_judge(
    path: Path,
    runtime: Runtime,
    config: ReleasedJudgeConfig,
    family: str,
    row: PictureReward,
    note: str,
) -> PictureJudge:
    """Load a released reward model that scores pictures, and return it as a judge.

    Args:
        path: The YAML file of the judge, for messages.
        runtime: The device, and the size of packed rows.
        config: The content of the YAML file.
        family: The required `model_type` of the backbone's config.json.
        row: The settings of the released model.
        note: The note to print with the judge's figures.

    Raises:
        CheckpointError: Sampling is set in the YAML file, or a file is missing or does not fit.
    """
    _refuse_sampling_settings(path, config)
    assert config.settings_folder is not None, "BACKBONES has all models that score pictures."
    backbone = Path(config.settings_folder).expanduser()
    backbone_folder = fetch_checkpoint(backbone, SETTINGS_DOWNLOADED)
    _refuse_other_family(path, backbone_folder, config.model, family)
    folder = fetch_checkpoint(Path(config.checkpoint).expanduser(), row.weight_files)
    model, encoder = load_picture_model(folder, backbone_folder, row)
    token_budget = runtime.token_budget or TOKEN_BUDGET[runtime.device.type]
    return PictureJudge(
        model=model.to(runtime.device).eval(),
        packed=Packed(encoder, runtime.device, token_budget),
        row=row,
        about=(note,),
    )


def _repetition_penalty(folder: Path) -> float:
    """Return the repetition penalty of a checkpoint's generation_config.json; 1 if it has none."""
    file = folder / "generation_config.json"
    if not file.is_file():
        return 1.0
    penalty: float | None = read_json_object(file).get("repetition_penalty")
    return penalty or 1.0

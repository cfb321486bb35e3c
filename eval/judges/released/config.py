"""The settings of a released reward model as a judge. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from mmrm.data.config.section import Temperature, Tokens
from mmrm.eval.judges.judging_config import ComparisonsConfig, JudgeConfig

ReleasedModel = Literal[
    "r1_reward",
    "unified_reward",
    "unified_reward_points",
    "unified_reward_think",
    "unified_reward_qwen3vl",
    "unified_reward_think_qwen3vl",
    "unified_reward_qwen35",
    "llava_critic_r1",
    "sophia_thinking_reward",
    "skywork_vl_reward",
    "hpsv3",
    "edit_reward",
    "edit_reward_mimo",
]


BACKBONES: Mapping[ReleasedModel, str] = {
    "hpsv3": "Qwen/Qwen2-VL-7B-Instruct",
    "edit_reward": "Qwen/Qwen2.5-VL-7B-Instruct",
    "edit_reward_mimo": "XiaomiMiMo/MiMo-VL-7B-SFT-2508",
}
"""The models that score a response which is a picture, each with the hub id of its backbone. Their
authors publish weights alone: config.json and tokenizer are those of the backbone."""

GIVE_SCORES: frozenset[ReleasedModel] = frozenset(
    ("unified_reward_points", "sophia_thinking_reward", "skywork_vl_reward", *BACKBONES)
)
"""The models that score each response. The others name the better one of two."""


class ReleasedJudgeConfig(JudgeConfig, ComparisonsConfig):
    """A reward model that others released, run as in its authors' code.

    eval/judges/released/models.py lists the models with their prompts and readers.

    type: released
    model: r1_reward
    checkpoint: yifanzhang114/R1-Reward     # or a folder
    """

    implementation: ClassVar[str] = "mmrm.eval.judges.released.models:load_released_judge"

    type: Literal["released"]
    model: ReleasedModel
    """Whose prompt, reader, head and sizes of images."""
    checkpoint: str
    """A hub id or a checkpoint folder. Other sizes of the same family get the same prompts."""
    backbone: str | None = None
    """A hub id or a folder with config.json, tokenizer and image processor, for models whose
    authors publish weights alone (`hpsv3`, `edit_reward`, `edit_reward_mimo`). `null` takes the
    model from which the authors trained."""
    temperature: Temperature = 0.0
    """Temperature of the judgements; 0 takes the likeliest token. Several votes need more than
    0."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Only the likeliest tokens that together hold this probability."""
    max_new_tokens: Tokens | None = None
    """Maximum length of a judgement in tokens. Longer judgements are cut off, and count as
    unreadable if they contain no answer by then. `null` uses the limit of the authors' script."""

    reading: Literal["written", "expected"] = "written"
    """For `unified_reward_points`: the score as it is written, as the authors read it, or the
    expected value of the score at its place in the text. Expected values are hardly ever equal."""

    @model_serializer(mode="wrap")
    def _without_default_reading(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the settings as plain values, without the keys that have their defaults here.

        They are `comparisons`, `rounds` and `reading`. The digest of a judge, which clients of a
        server see, is then that of earlier versions.
        """
        values: dict[str, Any] = handler(self)
        if self.asks_all:
            values.pop("comparisons", None)
            values.pop("rounds", None)
        if self.reading == "written":
            values.pop("reading", None)
        return values

    @property
    def compares(self) -> bool:
        """True if the model names the better of two responses."""
        return self.model not in GIVE_SCORES

    @property
    def settings_folder(self) -> str | None:
        """The backbone's folder or hub id, for a model whose authors publish weights alone."""
        return self.backbone or BACKBONES.get(self.model)

    def deciding_settings(self, is_file: bool) -> list[str]:
        """Return the settings that decide the scores; the backbone's files are in the digest."""
        return [str(is_file), self.model_dump_json(exclude={"checkpoint", "backbone"})]

    def checkpoints(self) -> tuple[str, ...]:
        """Return the checkpoint that the judge loads."""
        return (self.checkpoint,)

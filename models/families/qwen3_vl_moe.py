"""Qwen3-VL with experts, such as 30B-A3B (arXiv 2511.21631): a router in each layer picks experts.

Images, positions and the vision tower are those of the dense Qwen3-VL. Instead of an MLP, a layer
has many small MLPs, the experts. A router sends each token to a few of them. It decides by the
token alone, and an expert takes any number of tokens, so a token of a packed row is sent where it
is sent alone.

The weights of all experts of a layer are two tensors. Released checkpoints have them transposed,
which is seen from their shapes. If a matrix of an expert is square it is not seen, and such models
are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

from pydantic import AliasChoices, Field

from mmrm.data.errors import CheckpointError
from mmrm.models.families import qwen3_vl
from mmrm.models.families.family import Experts, Family, Parameters, Parts, Shape, Size, VideoLayout
from mmrm.models.families.qwen3_vl import CONTEXT, LARGE_TOWER, ROPE, Qwen3VLTowerShape


def square_experts(hidden_size: int, expert_size: int) -> str:
    """Return why experts of these sizes are refused; an empty text if they are not.

    Args:
        hidden_size: Size of the hidden states of the language model.
        expert_size: Size of the hidden layer of an expert, `moe_intermediate_size`.
    """
    if expert_size != hidden_size and 2 * expert_size != hidden_size:
        return ""
    return (
        f"hidden_size {hidden_size} and moe_intermediate_size {expert_size} make a matrix of each "
        "expert square. Released checkpoints hold these matrices transposed, which is seen from "
        "their shapes alone, so such a checkpoint may load wrongly. Use a checkpoint of other sizes"
    )


@dataclass(frozen=True, slots=True)
class Qwen3VLMoeShape(Shape):
    """The sizes of a Qwen3-VL with experts. All layers of its language model have experts."""

    head_dim: Size = 128
    moe_intermediate_size: Size = field(kw_only=True)
    """Size of the hidden layer of an expert."""
    num_experts: Annotated[
        Size, Field(validation_alias=AliasChoices("num_experts", "num_local_experts"))
    ] = field(kw_only=True)
    """Number of experts in a layer. Released checkpoints name it as here, and those that
    transformers 5 saves name it `num_local_experts`."""
    num_experts_per_tok: Size = field(kw_only=True)
    """Number of experts that compute a token."""
    vision_config: Qwen3VLTowerShape = LARGE_TOWER

    def __post_init__(self) -> None:
        """Raise ValueError if the matrices of an expert are square."""
        refusal = square_experts(self.hidden_size, self.moe_intermediate_size)
        if refusal:
            raise ValueError(refusal)

    @property
    def head_size(self) -> int:
        """Size of an attention head of the language model.

        All heads together may be wider than the hidden states.
        """
        return self.head_dim

    def count(self) -> Parameters:
        """Return the number of parameters of each part."""
        vision_tower, projector = self.vision_config.count(self.hidden_size)
        without_experts, per_lora_rank = self.count_language_model(
            bias=False, head_norms=True, mlp=False
        )
        hidden = self.hidden_size
        expert_size = self.moe_intermediate_size
        routers = self.num_hidden_layers * self.num_experts * hidden
        # An expert has two matrices: gate and up together, and down.
        expert = 2 * expert_size * hidden + hidden * expert_size
        adapters_of_expert = (2 * expert_size + hidden) + (hidden + expert_size)
        num_idle = self.num_experts - self.num_experts_per_tok
        experts = self.num_hidden_layers * self.num_experts * expert
        return Parameters(
            vision_tower=vision_tower,
            projector=projector,
            language_model=without_experts + routers + experts,
            lm_head=self.lm_head,
            parameters_per_lora_rank=per_lora_rank,
            experts=experts,
            idle_experts=self.num_hidden_layers * num_idle * expert,
            expert_parameters_per_lora_rank=(
                self.num_hidden_layers * self.num_experts * adapters_of_expert
            ),
        )

    @property
    def largest_module(self) -> int:
        """Parameters of the embedding, or of the experts of a layer if these are more."""
        experts = self.num_experts * 3 * self.moe_intermediate_size * self.hidden_size
        return max(self.vocab_size * self.hidden_size, experts)

    @property
    def mlp_of_layer(self) -> tuple[int, int]:
        """No counts of an MLP, because the layers have experts."""
        return 0, 0

    @property
    def kept_for_backward(self) -> tuple[int, int]:
        """Numbers kept for the backward pass: their count per token and layer, per patch and block.

        The factors were counted on released models, as train/planning/memory.py says. Each expert
        of a token keeps a copy of it.
        """
        heads = 5 * self.num_attention_heads + 10 * self.num_key_value_heads
        of_expert = 4 * self.moe_intermediate_size + 2 * self.hidden_size
        layer = 8 * self.hidden_size + heads * self.head_size + 4 * self.num_experts
        layer += self.num_experts_per_tok * of_expert
        return layer, self.vision_config.kept_for_backward

    @property
    def linear_outputs(self) -> tuple[int, int]:
        """Numbers that linear layers compute: per token and layer, per patch and block."""
        of_experts = self.num_experts_per_tok * (2 * self.moe_intermediate_size + self.hidden_size)
        # The router's outputs, and those of the experts in place of the last layer of an MLP.
        mlp = self.num_experts + of_experts - self.hidden_size
        return self.count_linear_outputs(mlp=mlp, vision_mlp=self.vision_config.intermediate_size)

    @property
    def gradients_of_layer(self) -> int:
        """Numbers for each token that a layer's backward pass takes for gradients of its parts."""
        of_expert = 2 * self.moe_intermediate_size + 2 * self.hidden_size
        return self.num_experts_per_tok * of_expert + 2 * self.hidden_size

    def config(self) -> Any:
        """Return a configuration of transformers from which a model of this shape can be created.

        Values that are not in the shape are those of the released models.
        """
        text = asdict(self)
        del text["vision_config"]
        is_tied = text.pop("tie_word_embeddings")
        text |= {"max_position_embeddings": CONTEXT, "rope_parameters": ROPE}
        vision = self.vision_config.config(self.hidden_size)
        return parts().config(text_config=text, vision_config=vision, tie_word_embeddings=is_tied)


A3B = Qwen3VLMoeShape(
    2048,
    48,
    32,
    4,
    6144,
    151936,
    moe_intermediate_size=768,
    num_experts=128,
    num_experts_per_tok=8,
)
A22B = replace(
    A3B,
    hidden_size=4096,
    num_hidden_layers=94,
    num_attention_heads=64,
    intermediate_size=12288,
    moe_intermediate_size=1536,
)
PUBLISHED = {
    "Qwen/Qwen3-VL-30B-A3B-Instruct": A3B,
    "Qwen/Qwen3-VL-30B-A3B-Thinking": A3B,
    "Qwen/Qwen3-VL-235B-A22B-Instruct": A22B,
    "Qwen/Qwen3-VL-235B-A22B-Thinking": A22B,
}


def correct_config(config: Any, content: Mapping[str, Any]) -> None:
    """Raise CheckpointError for layers without experts, and for experts with square matrices."""
    text = config.text_config
    refusal = square_experts(text.hidden_size, text.moe_intermediate_size)
    if refusal:
        raise CheckpointError(f"config.json: {refusal}.")
    if text.decoder_sparse_step != 1 or text.mlp_only_layers:
        raise CheckpointError(
            f"config.json: decoder_sparse_step is {text.decoder_sparse_step} and mlp_only_layers "
            f"{text.mlp_only_layers}, so that some layers have no experts. Such a model was not "
            "tested; in the released checkpoints all layers have experts. Use one of these."
        )


def parts() -> Parts:
    """Import and return the classes and functions of this family that need torch."""
    from transformers import (
        Qwen2VLImageProcessorPil,
        Qwen3VLMoeConfig,
        Qwen3VLMoeTextModel,
        Qwen3VLMoeVisionModel,
    )

    from mmrm.models.packing.positions import mrope
    from mmrm.models.packing.vision import read_patches
    from mmrm.models.portable.critic import Qwen3VLMoeCriticRewardModel
    from mmrm.models.portable.language_model import Qwen3VLMoeLanguageModel
    from mmrm.models.portable.reward import Qwen3VLMoeScalarRewardModel

    return Parts(
        config=Qwen3VLMoeConfig,
        scalar=Qwen3VLMoeScalarRewardModel,
        critic=Qwen3VLMoeCriticRewardModel,
        language_model=Qwen3VLMoeLanguageModel,
        stock=(Qwen3VLMoeTextModel, Qwen3VLMoeVisionModel),
        image_processor=Qwen2VLImageProcessorPil,
        read_images=read_patches,
        positions=mrope,
    )


FAMILY = Family(
    title="Qwen3-VL-MoE",
    shape=Qwen3VLMoeShape,
    published=PUBLISHED,
    parts=parts,
    marks=qwen3_vl.FAMILY.marks,
    reserved=qwen3_vl.FAMILY.reserved,
    videos=VideoLayout(has_timestamps=True),
    tower_plan=qwen3_vl.tower_plan,
    head_size=lambda text: int(text.head_dim),
    projector=qwen3_vl.FAMILY.projector,
    correct_config=correct_config,
    lora_targets=r".*language_model\..*\.(q|k|v|o)_proj",
    experts=Experts(
        block="mlp",
        router="mlp.gate",
        weights=("mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
    ),
    probe=(
        {
            "head_dim": 8,
            "moe_intermediate_size": 8,
            "num_experts": 2,
            "num_experts_per_tok": 1,
        },
        qwen3_vl.FAMILY.probe[1],
    ),
)

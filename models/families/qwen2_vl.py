"""Qwen2-VL (arXiv 2409.12191): M-RoPE, and a vision tower that attends in whole frames."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mmrm.models.families.family import (
    Family,
    Parameters,
    Parts,
    Shape,
    Size,
    TowerShape,
    VideoLayout,
)

if TYPE_CHECKING:
    from torch import Tensor

    from mmrm.models.packing.vision import VisionPlan


@dataclass(frozen=True, slots=True)
class Qwen2VLTowerShape(TowerShape):
    """The numbers of `vision_config`, named as there; they are the same in all released models.

    `hidden_size` is that of the language model. The tower's own is `embed_dim`.
    """

    embed_dim: Size = 1280
    mlp_ratio: Size = 4

    @property
    def width(self) -> int:
        """Size of a patch's hidden state."""
        return self.embed_dim


@dataclass(frozen=True, slots=True)
class Qwen2VLShape(Shape):
    """The sizes of a Qwen2-VL. Its q, k, v, vision tower and projector have biases."""

    vision_config: Qwen2VLTowerShape = Qwen2VLTowerShape()

    def count(self) -> Parameters:
        """Return the number of parameters of each part."""
        tower = self.vision_config
        text_size = self.hidden_size
        vision_size = tower.embed_dim
        mlp_size = tower.embed_dim * tower.mlp_ratio
        # A block has q, k, v and output, an MLP of two layers, all with biases, and two norms
        # with biases.
        attention = 4 * vision_size * vision_size + 4 * vision_size
        mlp = 2 * vision_size * mlp_size + mlp_size + vision_size
        norms = 4 * vision_size
        block = attention + mlp + norms
        merged_size = vision_size * tower.spatial_merge_size**2
        # The projector maps the joined patches of a token to the language model.
        projector_norm = 2 * vision_size
        projector_mlp = (
            merged_size * merged_size + merged_size + merged_size * text_size + text_size
        )
        patch_embedding = tower.numbers_per_patch * vision_size  # without bias
        language_model, per_lora_rank = self.count_language_model(bias=True, head_norms=False)
        return Parameters(
            vision_tower=patch_embedding + tower.depth * block,
            projector=projector_norm + projector_mlp,
            language_model=language_model,
            lm_head=self.lm_head,
            parameters_per_lora_rank=per_lora_rank,
        )

    @property
    def kept_for_backward(self) -> tuple[int, int]:
        """Numbers kept for the backward pass: their count per token and layer, per patch and block.

        The factors were counted on released models, as train/planning/memory.py says.
        """
        layer = 4 * self.intermediate_size + 10 * self.hidden_size
        layer += 8 * self.head_size * self.num_key_value_heads
        block = (3 * self.vision_config.mlp_ratio + 10) * self.vision_config.width
        return layer, block

    @property
    def linear_outputs(self) -> tuple[int, int]:
        """Numbers that linear layers compute: per token and layer, per patch and block."""
        vision_mlp = self.vision_config.mlp_ratio * self.vision_config.width
        return self.count_linear_outputs(mlp=2 * self.intermediate_size, vision_mlp=vision_mlp)

    def config(self) -> Any:
        """Return a configuration of transformers from which a model of this shape can be created.

        Values that are not in the shape are those of the released models.
        """
        text = asdict(self)
        vision = text.pop("vision_config")
        is_tied = text.pop("tie_word_embeddings")
        rope = {"rope_type": "default", "mrope_section": [16, 24, 24], "rope_theta": 1000000.0}
        text |= {"max_position_embeddings": 32768, "rope_parameters": rope}
        vision |= {"num_heads": 16, "hidden_size": self.hidden_size}
        return parts().config(text_config=text, vision_config=vision, tie_word_embeddings=is_tied)


PUBLISHED = {
    "Qwen/Qwen2-VL-2B-Instruct": Qwen2VLShape(
        1536, 28, 12, 2, 8960, 151936, tie_word_embeddings=True
    ),
    "Qwen/Qwen2-VL-7B-Instruct": Qwen2VLShape(3584, 28, 28, 4, 18944, 152064),
    "Qwen/Qwen2-VL-72B-Instruct": Qwen2VLShape(8192, 80, 64, 8, 29568, 152064),
}


def parts() -> Parts:
    """Import and return the classes and functions of this family that need torch."""
    from transformers import Qwen2VLConfig, Qwen2VLImageProcessorPil, Qwen2VLTextModel
    from transformers.models.qwen2_vl.modeling_qwen2_vl import (
        Qwen2VisionTransformerPretrainedModel as VisionTower,
    )

    from mmrm.models.packing.positions import mrope
    from mmrm.models.packing.vision import read_patches
    from mmrm.models.portable.critic import Qwen2VLCriticRewardModel
    from mmrm.models.portable.language_model import Qwen2VLLanguageModel
    from mmrm.models.portable.reward import Qwen2VLScalarRewardModel

    return Parts(
        config=Qwen2VLConfig,
        scalar=Qwen2VLScalarRewardModel,
        critic=Qwen2VLCriticRewardModel,
        language_model=Qwen2VLLanguageModel,
        stock=(Qwen2VLTextModel, VisionTower),
        image_processor=Qwen2VLImageProcessorPil,
        read_images=read_patches,
        positions=mrope,
    )


def tower_plan(config: Any, grids: Tensor) -> VisionPlan:
    """Return the plan of the vision tower for a row of images. All layers attend in frames.

    Args:
        config: The tower's configuration.
        grids: Frames, rows and columns of patches of each image, (I, 3).
    """
    from transformers.vision_utils import get_vision_position_ids

    from mmrm.models.packing.vision import PatchRuns, VisionPlan

    return VisionPlan(
        tensors={"position_ids": get_vision_position_ids(grids, config.spatial_merge_size)},
        runs={"cu_seqlens": PatchRuns.frames(grids)},
        tower_settings={
            "spatial_merge_size": config.spatial_merge_size,
            "patch_size": config.patch_size,
        },
    )


FAMILY = Family(
    title="Qwen2-VL",
    shape=Qwen2VLShape,
    published=PUBLISHED,
    parts=parts,
    marks=("<|vision_start|>", "<|image_pad|>", "<|vision_end|>"),
    reserved=("<|video_pad|>",),
    videos=VideoLayout(has_timestamps=False),
    tower_plan=tower_plan,
    lora_targets=r".*language_model\..*\.(q|k|v|o|gate|up|down)_proj",
    probe=({}, {"embed_dim": 8}),
)

"""Qwen3-VL, dense (arXiv 2511.21631): M-RoPE, deepstack, and interpolated vision positions.

Deepstack adds features of several vision layers to the first layers of the language model. The
stock forward does so by the mask of image tokens, so packed rows need nothing for it. M-RoPE
interleaves its axes, but the position ids are those of Qwen2-VL. Learned vision positions are
interpolated to each image's grid.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mmrm.models.families.family import Family, Parameters, Parts, Shape, Size, TowerShape

if TYPE_CHECKING:
    from torch import Tensor

    from mmrm.models.packing.vision import VisionPlan


@dataclass(frozen=True, slots=True)
class Qwen3VLTowerShape(TowerShape):
    """The vision tower; the defaults are those of 8B and 32B."""

    depth: Size = 27
    patch_size: Size = 16
    hidden_size: Size = 1152
    intermediate_size: Size = 4304
    num_position_embeddings: Size = 2304
    deepstack_visual_indexes: tuple[int, ...] = (8, 16, 24)


@dataclass(frozen=True, slots=True)
class Qwen3VLShape(Shape):
    """A model in which only the vision tower has biases, and queries and keys have norms."""

    head_dim: Size = 128
    vision_config: Qwen3VLTowerShape = Qwen3VLTowerShape()

    @property
    def head_size(self) -> int:
        """Size of an attention head; all heads together may be wider than the hidden states."""
        return self.head_dim

    def count(self) -> Parameters:
        """Return the numbers of parameters of each part."""
        tower = self.vision_config
        hidden = self.hidden_size
        vision = tower.hidden_size
        wide = tower.intermediate_size
        attention = 4 * vision * vision + 4 * vision
        mlp = 2 * vision * wide + wide + vision
        norms = 4 * vision
        block = attention + mlp + norms
        merged = vision * tower.spatial_merge_size**2
        embedding = (tower.patch_numbers + 1 + tower.num_position_embeddings) * vision
        merger_mlp = merged * merged + merged + merged * hidden + hidden
        num_deepstack = len(tower.deepstack_visual_indexes)
        deepstack_mergers = num_deepstack * (2 * merged + merger_mlp)
        language_model, projections = self.language_model(bias=False, head_norms=True)
        return Parameters(
            vision_tower=embedding + tower.depth * block,
            projector=2 * vision + merger_mlp + deepstack_mergers,
            language_model=language_model,
            lm_head=self.lm_head,
            projections=projections,
        )

    @property
    def kept(self) -> tuple[int, int]:
        """Numbers kept for gradients: by a layer per token, by a vision block per patch."""
        heads = 5 * self.num_attention_heads + 10 * self.num_key_value_heads
        layer = 4 * self.intermediate_size + 7 * self.hidden_size + heads * self.head_size
        block = 2 * self.vision_config.intermediate_size + 10 * self.vision_config.width
        return layer, block

    def config(self) -> Any:
        """Return the configuration of transformers, with the vision heads of released models."""
        text = asdict(self)
        vision = text.pop("vision_config")
        is_tied = text.pop("tie_word_embeddings")
        rope = {
            "rope_type": "default",
            "mrope_interleaved": True,
            "mrope_section": [24, 20, 20],
            "rope_theta": 5000000.0,
        }
        text |= {"max_position_embeddings": 262144, "rope_parameters": rope}
        vision |= {"num_heads": 16, "out_hidden_size": self.hidden_size}
        return parts().config(text_config=text, vision_config=vision, tie_word_embeddings=is_tied)


SMALL_TOWER = Qwen3VLTowerShape(
    depth=24, hidden_size=1024, intermediate_size=4096, deepstack_visual_indexes=(5, 11, 17)
)
"""The vision tower of 2B and 4B."""
PUBLISHED = {
    "Qwen/Qwen3-VL-2B-Instruct": Qwen3VLShape(
        2048, 28, 16, 8, 6144, 151936, tie_word_embeddings=True, vision_config=SMALL_TOWER
    ),
    "Qwen/Qwen3-VL-4B-Instruct": Qwen3VLShape(
        2560, 36, 32, 8, 9728, 151936, tie_word_embeddings=True, vision_config=SMALL_TOWER
    ),
    "Qwen/Qwen3-VL-8B-Instruct": Qwen3VLShape(4096, 36, 32, 8, 12288, 151936),
    "Qwen/Qwen3-VL-32B-Instruct": Qwen3VLShape(5120, 64, 64, 8, 25600, 151936),
}


def parts() -> Parts:
    """Return the classes and functions that import torch."""
    from transformers import (
        Qwen2VLImageProcessorPil,
        Qwen3VLConfig,
        Qwen3VLTextModel,
        Qwen3VLVisionModel,
    )

    from mmrm.models.packing.positions import mrope
    from mmrm.models.packing.vision import read_patches
    from mmrm.models.portable.critic import Qwen3VLCriticRewardModel
    from mmrm.models.portable.language_model import Qwen3VLLanguageModel
    from mmrm.models.portable.reward import Qwen3VLScalarRewardModel

    return Parts(
        config=Qwen3VLConfig,
        scalar=Qwen3VLScalarRewardModel,
        critic=Qwen3VLCriticRewardModel,
        language_model=Qwen3VLLanguageModel,
        stock=(Qwen3VLTextModel, Qwen3VLVisionModel),
        image_processor=Qwen2VLImageProcessorPil,
        read_images=read_patches,
        positions=mrope,
    )


def tower_plan(config: Any, grids: Tensor) -> VisionPlan:
    """Return the frames, in which all layers attend, and the interpolation of positions."""
    from transformers.vision_utils import (
        get_vision_interpolation_indices_and_weights,
        get_vision_position_ids,
    )

    from mmrm.models.packing.vision import PatchRuns, VisionPlan

    merge_size = config.spatial_merge_size
    learned_side = int(config.num_position_embeddings**0.5)
    corners, weights = get_vision_interpolation_indices_and_weights(
        grids, learned_side, "bilinear", True, merge_size
    )
    return VisionPlan(
        tensors={
            "position_ids": get_vision_position_ids(grids, merge_size),
            "interp_indices": corners,
            "interp_weights": weights,
        },
        runs={"cu_seqlens": PatchRuns.frames(grids)},
        tower_settings={
            "spatial_merge_size": config.spatial_merge_size,
            "patch_size": config.patch_size,
            "num_position_embeddings": config.num_position_embeddings,
        },
    )


FAMILY = Family(
    title="Qwen3-VL",
    shape=Qwen3VLShape,
    published=PUBLISHED,
    parts=parts,
    marks=("<|vision_start|>", "<|image_pad|>", "<|vision_end|>"),
    reserved=("<|video_pad|>",),
    tower_plan=tower_plan,
    head_size=lambda text: int(text.head_dim),
    projector=("visual.merger", "visual.deepstack_merger_list"),
    lora_targets=r".*language_model\..*\.(q|k|v|o|gate|up|down)_proj",
    probe=(
        {"head_dim": 8},
        {"out_hidden_size": 8, "deepstack_visual_indexes": [0], "num_position_embeddings": 16},
    ),
)

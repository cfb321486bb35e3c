"""Qwen2.5-VL (arXiv 2502.13923): M-RoPE, and a vision tower that mostly attends in windows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mmrm.models.families.family import Family, Parameters, Parts, Shape, Size, TowerShape

if TYPE_CHECKING:
    from torch import Tensor

    from mmrm.models.packing.vision import VisionPlan


@dataclass(frozen=True, slots=True)
class Qwen2_5_VLTowerShape(TowerShape):
    """The vision tower; the defaults are those of 3B and 7B."""

    intermediate_size: Size = 3420


@dataclass(frozen=True, slots=True)
class Qwen2_5_VLShape(Shape):
    """A model in which q, k, v and all vision layers have biases, the other layers none."""

    vision_config: Qwen2_5_VLTowerShape = Qwen2_5_VLTowerShape()

    def count(self) -> Parameters:
        """Return the numbers of parameters of each part."""
        tower = self.vision_config
        vision = tower.hidden_size
        wide = tower.intermediate_size
        attention = 4 * vision * vision + 4 * vision
        mlp = 3 * vision * wide + 2 * wide + vision
        norms = 2 * vision
        block = attention + mlp + norms
        merged = vision * tower.spatial_merge_size**2
        projector_norm = vision
        projector_mlp = merged * merged + merged + merged * self.hidden_size + self.hidden_size
        language_model, projections = self.language_model(bias=True, head_norms=False)
        return Parameters(
            vision_tower=tower.patch_numbers * vision + tower.depth * block,
            projector=projector_norm + projector_mlp,
            language_model=language_model,
            lm_head=self.lm_head,
            projections=projections,
        )

    @property
    def kept(self) -> tuple[int, int]:
        """Numbers kept for gradients: by a layer per token, by a vision block per patch."""
        layer = 4 * self.intermediate_size + 10 * self.hidden_size
        layer += 8 * self.head_size * self.num_key_value_heads
        block = 4 * self.vision_config.intermediate_size + 14 * self.vision_config.width
        return layer, block

    def config(self) -> Any:
        """Return the configuration of transformers.

        The number of vision heads and the windows are those of the released models.
        """
        text = asdict(self)
        vision = text.pop("vision_config")
        is_tied = text.pop("tie_word_embeddings")
        rope = {"rope_type": "default", "mrope_section": [16, 24, 24], "rope_theta": 1000000.0}
        text |= {"max_position_embeddings": 128000, "rope_parameters": rope}
        vision |= {"num_heads": 16, "out_hidden_size": self.hidden_size, "window_size": 112}
        vision["fullatt_block_indexes"] = [7, 15, 23, 31]
        return parts().config(text_config=text, vision_config=vision, tie_word_embeddings=is_tied)


PUBLISHED = {
    "Qwen/Qwen2.5-VL-3B-Instruct": Qwen2_5_VLShape(
        2048, 36, 16, 2, 11008, 151936, tie_word_embeddings=True
    ),
    "Qwen/Qwen2.5-VL-7B-Instruct": Qwen2_5_VLShape(3584, 28, 28, 4, 18944, 152064),
    "Qwen/Qwen2.5-VL-32B-Instruct": Qwen2_5_VLShape(
        5120, 64, 40, 8, 27648, 152064, vision_config=Qwen2_5_VLTowerShape(intermediate_size=3456)
    ),
    "Qwen/Qwen2.5-VL-72B-Instruct": Qwen2_5_VLShape(
        8192, 80, 64, 8, 29568, 152064, vision_config=Qwen2_5_VLTowerShape(intermediate_size=3456)
    ),
}


def parts() -> Parts:
    """Return the classes and functions that import torch."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLTextModel, Qwen2VLImageProcessorPil
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
        Qwen2_5_VisionTransformerPretrainedModel as VisionTower,
    )

    from mmrm.models.packing.positions import mrope
    from mmrm.models.packing.vision import read_patches
    from mmrm.models.portable.critic import CriticRewardModel
    from mmrm.models.portable.language_model import LanguageModel
    from mmrm.models.portable.reward import ScalarRewardModel

    return Parts(
        config=Qwen2_5_VLConfig,
        scalar=ScalarRewardModel,
        critic=CriticRewardModel,
        language_model=LanguageModel,
        stock=(Qwen2_5_VLTextModel, VisionTower),
        image_processor=Qwen2VLImageProcessorPil,
        read_images=read_patches,
        positions=mrope,
    )


def tower_plan(config: Any, grids: Tensor) -> VisionPlan:
    """Return the windows, the order of tokens in which windows are neighbours, and the frames.

    The layers that do not attend in windows attend in frames.
    """
    from transformers.vision_utils import get_vision_position_ids, get_vision_window_index

    from mmrm.models.packing.vision import PatchRuns, VisionPlan

    tower_settings = {
        "spatial_merge_size": config.spatial_merge_size,
        "window_size": config.window_size,
        "patch_size": config.patch_size,
    }
    window_index, window_ends = get_vision_window_index(grids, **tower_settings)
    return VisionPlan(
        tensors={
            "position_ids": get_vision_position_ids(grids, config.spatial_merge_size),
            "window_index": window_index,
        },
        runs={
            "cu_seqlens": PatchRuns.frames(grids),
            "cu_window_seqlens": PatchRuns.of(window_ends.diff().tolist()),
        },
        tower_settings=tower_settings,
    )


FAMILY = Family(
    title="Qwen2.5-VL",
    shape=Qwen2_5_VLShape,
    published=PUBLISHED,
    parts=parts,
    marks=("<|vision_start|>", "<|image_pad|>", "<|vision_end|>"),
    reserved=("<|video_pad|>",),
    tower_plan=tower_plan,
    # The vision tower's MLP has the same names, so the pattern begins with the language model's.
    lora_targets=r".*language_model\..*\.(q|k|v|o|gate|up|down)_proj",
    probe=({}, {"out_hidden_size": 8, "fullatt_block_indexes": []}),
)

"""Qwen2.5-VL (arXiv 2502.13923): a vision tower most of whose layers attend inside windows, and M-RoPE."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mmrm.models.families.family import Family, Parameters, Parts, Shape, Size, TowerShape

if TYPE_CHECKING:
    from torch import Tensor

    from mmrm.models.packing.vision import VisionPlan


@dataclass(frozen=True, slots=True)
class Qwen2_5_VLTowerShape(TowerShape):
    """The vision tower; here that of 3B and 7B."""

    intermediate_size: Size = 3420


@dataclass(frozen=True, slots=True)
class Qwen2_5_VLShape(Shape):
    """q, k, v and all vision layers have a bias, the other layers have none."""

    vision_config: Qwen2_5_VLTowerShape = Qwen2_5_VLTowerShape()

    def count(self) -> Parameters:
        """Return the parameters of each part."""
        tower = self.vision_config
        vision, wide = tower.hidden_size, tower.intermediate_size
        block = (
            4 * vision * vision + 4 * vision + 3 * vision * wide + 2 * wide + vision + 2 * vision
        )
        merged = vision * tower.spatial_merge_size**2
        language_model, projections = self.language_model(bias=True, head_norms=False)
        return Parameters(
            vision_tower=tower.patch_numbers * vision + tower.depth * block,
            projector=vision
            + merged * merged
            + merged
            + merged * self.hidden_size
            + self.hidden_size,
            language_model=language_model,
            lm_head=self.lm_head,
            projections=projections,
        )

    @property
    def kept(self) -> tuple[int, int]:
        """Numbers that a layer keeps of a token for its gradients, and a vision block of a patch."""
        layer = (
            4 * self.intermediate_size
            + 10 * self.hidden_size
            + 8 * self.head_size * self.num_key_value_heads
        )
        return layer, 4 * self.vision_config.intermediate_size + 14 * self.vision_config.width

    def config(self) -> Any:
        """Return transformers' configuration; the number of heads and the windows are those of the released models."""
        text = asdict(self)
        vision, tied = text.pop("vision_config"), text.pop("tie_word_embeddings")
        rope = {"rope_type": "default", "mrope_section": [16, 24, 24], "rope_theta": 1000000.0}
        text |= {"max_position_embeddings": 128000, "rope_parameters": rope}
        vision |= {"num_heads": 16, "out_hidden_size": self.hidden_size, "window_size": 112}
        vision["fullatt_block_indexes"] = [7, 15, 23, 31]
        return parts().config(text_config=text, vision_config=vision, tie_word_embeddings=tied)


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
    """Return what imports torch."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLTextModel, Qwen2VLImageProcessorPil
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
        Qwen2_5_VisionTransformerPretrainedModel as VisionTower,
    )

    from mmrm.models.packing.positions import mrope
    from mmrm.models.packing.vision import read_patches
    from mmrm.models.portable.critic import CriticRewardModel
    from mmrm.models.portable.language_model import LanguageModel
    from mmrm.models.portable.reward import ScalarRewardModel

    ours, stock = (
        (ScalarRewardModel, CriticRewardModel, LanguageModel),
        (Qwen2_5_VLTextModel, VisionTower),
    )
    return Parts(Qwen2_5_VLConfig, *ours, stock, Qwen2VLImageProcessorPil, read_patches, mrope)


def tower_plan(config: Any, grids: Tensor) -> VisionPlan:
    """Plan the windows, the order of tokens in which they are neighbours, and the frames that the other layers see."""
    from transformers.vision_utils import get_vision_position_ids, get_vision_window_index

    from mmrm.models.packing.vision import PatchRuns, VisionPlan

    tower = {
        name: getattr(config, name) for name in ("spatial_merge_size", "window_size", "patch_size")
    }
    index, ends = get_vision_window_index(grids, **tower)
    return VisionPlan(
        tensors={
            "position_ids": get_vision_position_ids(grids, config.spatial_merge_size),
            "window_index": index,
        },
        runs={
            "cu_seqlens": PatchRuns.frames(grids),
            "cu_window_seqlens": PatchRuns.of(ends.diff().tolist()),
        },
        tower=tower,
    )


FAMILY = Family(
    title="Qwen2.5-VL",
    shape=Qwen2_5_VLShape,
    published=PUBLISHED,
    parts=parts,
    marks=("<|vision_start|>", "<|image_pad|>", "<|vision_end|>"),
    reserved=("<|video_pad|>",),
    tower_plan=tower_plan,
    lora_targets=r".*language_model\..*\.(q|k|v|o|gate|up|down)_proj",  # the vision tower's MLP has the same names
    probe=({}, {"out_hidden_size": 8, "fullatt_block_indexes": []}),
)

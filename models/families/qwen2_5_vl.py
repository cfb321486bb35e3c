"""Qwen2.5-VL (arXiv 2502.13923): M-RoPE, and a vision tower that mostly attends in windows."""

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
class Qwen2_5_VLTowerShape(TowerShape):
    """The numbers of `vision_config`, named as there; the defaults are those of 3B and 7B."""

    intermediate_size: Size = 3420


@dataclass(frozen=True, slots=True)
class Qwen2_5_VLShape(Shape):
    """The sizes of a Qwen2.5-VL. Its q, k, v, vision tower and projector have biases."""

    vision_config: Qwen2_5_VLTowerShape = Qwen2_5_VLTowerShape()

    def count(self) -> Parameters:
        """Return the number of parameters of each part."""
        tower = self.vision_config
        text_size = self.hidden_size
        vision_size = tower.hidden_size
        mlp_size = tower.intermediate_size
        # A block has q, k, v and output, an MLP of three layers, all with biases, and two norms
        # without biases.
        attention = 4 * vision_size * vision_size + 4 * vision_size
        mlp = 3 * vision_size * mlp_size + 2 * mlp_size + vision_size
        norms = 2 * vision_size
        block = attention + mlp + norms
        merged_size = vision_size * tower.spatial_merge_size**2
        # The projector maps the joined patches of a token to the language model.
        projector_norm = vision_size
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
        block = 4 * self.vision_config.intermediate_size + 14 * self.vision_config.width
        return layer, block

    @property
    def linear_outputs(self) -> tuple[int, int]:
        """Numbers that linear layers compute: per token and layer, per patch and block."""
        return self.count_linear_outputs(
            mlp=2 * self.intermediate_size, vision_mlp=2 * self.vision_config.intermediate_size
        )

    def config(self) -> Any:
        """Return a configuration of transformers from which a model of this shape can be created.

        Values that are not in the shape are those of the released models.
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
    """Import and return the classes and functions of this family that need torch."""
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
    """Return the plan of the vision tower for a row of images.

    Most layers attend in windows, so the plan has the order of tokens in which the tokens of a
    window follow one another. The other layers attend in frames.

    Args:
        config: The tower's configuration.
        grids: Frames, rows and columns of patches of each image, (I, 3).
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


# A lambda could not be pickled, and the encoder travels to the processes that load data.
def positions_per_second(vision: Any) -> float:
    """Return the temporal positions between two frames that are one second apart."""
    return float(vision.tokens_per_second)


FAMILY = Family(
    title="Qwen2.5-VL",
    shape=Qwen2_5_VLShape,
    published=PUBLISHED,
    parts=parts,
    marks=("<|vision_start|>", "<|image_pad|>", "<|vision_end|>"),
    reserved=("<|video_pad|>",),
    videos=VideoLayout(
        has_timestamps=False,
        positions_per_second=positions_per_second,
    ),
    tower_plan=tower_plan,
    # The vision tower's MLP has the same names, so the pattern begins with the language model's.
    lora_targets=r".*language_model\..*\.(q|k|v|o|gate|up|down)_proj",
    probe=({}, {"out_hidden_size": 8, "fullatt_block_indexes": []}),
)

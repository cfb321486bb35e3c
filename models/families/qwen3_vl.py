"""Qwen3-VL, dense (arXiv 2511.21631): M-RoPE, deepstack, and interpolated vision positions.

Deepstack adds features of several vision layers to the first layers of the language model. The
stock forward does so by the mask of image tokens, so packed rows need nothing for it. M-RoPE
interleaves its axes, but the position ids are those of Qwen2-VL. Learned vision positions are
interpolated to each image's grid.
"""

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
class LearnedPositionsTowerShape(TowerShape):
    """The numbers that the towers of Qwen3-VL and Qwen3.5 share; the defaults are the largest."""

    depth: Size = 27
    patch_size: Size = 16
    hidden_size: Size = 1152
    intermediate_size: Size = 4304
    num_position_embeddings: Size = 2304

    @property
    def num_deepstack_mergers(self) -> int:
        """Number of mergers besides the last one, each after a layer inside the tower."""
        return 0

    def count(self, text_size: int) -> tuple[int, int]:
        """Return the numbers of parameters of the vision tower and of the projector.

        Args:
            text_size: Size of the hidden states of the language model.
        """
        vision_size = self.hidden_size
        mlp_size = self.intermediate_size
        # A block has q, k, v and output, an MLP of two layers, all with biases, and two norms
        # with biases.
        attention = 4 * vision_size * vision_size + 4 * vision_size
        mlp = 2 * vision_size * mlp_size + mlp_size + vision_size
        norms = 4 * vision_size
        block = attention + mlp + norms
        merged_size = vision_size * self.spatial_merge_size**2
        # Patches, with a bias, and positions.
        embedding = (self.numbers_per_patch + 1 + self.num_position_embeddings) * vision_size
        # A merger maps the patches of a token to the language model, by a norm and two layers.
        merger_mlp = merged_size * merged_size + merged_size + merged_size * text_size + text_size
        merger = 2 * vision_size + merger_mlp
        deepstack_merger = 2 * merged_size + merger_mlp
        tower = embedding + self.depth * block
        projector = merger + self.num_deepstack_mergers * deepstack_merger
        return tower, projector

    @property
    def kept_for_backward(self) -> int:
        """Numbers kept for the backward pass of a block, for each patch."""
        return 2 * self.intermediate_size + 10 * self.width


@dataclass(frozen=True, slots=True)
class Qwen3VLTowerShape(LearnedPositionsTowerShape):
    """The numbers of `vision_config`, named as there; the defaults are those of 8B and larger."""

    deepstack_visual_indexes: tuple[int, ...] = (8, 16, 24)

    @property
    def num_deepstack_mergers(self) -> int:
        """Number of mergers besides the last one, each after a layer inside the tower."""
        return len(self.deepstack_visual_indexes)

    def config(self, text_size: int) -> dict[str, Any]:
        """Return the `vision_config` of transformers.

        Args:
            text_size: Size of the hidden states of the language model.
        """
        return asdict(self) | {"num_heads": 16, "out_hidden_size": text_size}


LARGE_TOWER = Qwen3VLTowerShape()
"""The `vision_config` of 8B and larger."""
ROPE = {
    "rope_type": "default",
    "mrope_interleaved": True,
    "mrope_section": [24, 20, 20],
    "rope_theta": 5000000.0,
}
"""Rotary positions of the released models."""
CONTEXT = 262144
"""Context length of the released models."""


@dataclass(frozen=True, slots=True)
class Qwen3VLShape(Shape):
    """The sizes of a Qwen3-VL. Its language model has no biases, but norms of queries and keys."""

    head_dim: Size = 128
    vision_config: Qwen3VLTowerShape = LARGE_TOWER

    @property
    def head_size(self) -> int:
        """Size of an attention head of the language model.

        All heads together may be wider than the hidden states.
        """
        return self.head_dim

    def count(self) -> Parameters:
        """Return the number of parameters of each part."""
        vision_tower, projector = self.vision_config.count(self.hidden_size)
        language_model, per_lora_rank = self.count_language_model(bias=False, head_norms=True)
        return Parameters(
            vision_tower=vision_tower,
            projector=projector,
            language_model=language_model,
            lm_head=self.lm_head,
            parameters_per_lora_rank=per_lora_rank,
        )

    @property
    def kept_for_backward(self) -> tuple[int, int]:
        """Numbers kept for the backward pass: their count per token and layer, per patch and block.

        The factors were counted on released models, as train/planning/memory.py says.
        """
        heads = 5 * self.num_attention_heads + 10 * self.num_key_value_heads
        layer = 4 * self.intermediate_size + 7 * self.hidden_size + heads * self.head_size
        return layer, self.vision_config.kept_for_backward

    @property
    def linear_outputs(self) -> tuple[int, int]:
        """Numbers that linear layers compute: per token and layer, per patch and block."""
        return self.count_linear_outputs(
            mlp=2 * self.intermediate_size, vision_mlp=self.vision_config.intermediate_size
        )

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


SMALL_TOWER = Qwen3VLTowerShape(
    depth=24, hidden_size=1024, intermediate_size=4096, deepstack_visual_indexes=(5, 11, 17)
)
"""The `vision_config` of 2B and 4B."""
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
    """Import and return the classes and functions of this family that need torch."""
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
    """Return the plan of the vision tower for a row of images.

    All layers attend in frames. The plan also says how the learned position embeddings, which form
    a square, are interpolated to each image's grid.

    Args:
        config: The tower's configuration.
        grids: Frames, rows and columns of patches of each image, (I, 3).
    """
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
    videos=VideoLayout(has_timestamps=True),
    tower_plan=tower_plan,
    head_size=lambda text: int(text.head_dim),
    projector=("visual.merger", "visual.deepstack_merger_list"),
    lora_targets=r".*language_model\..*\.(q|k|v|o|gate|up|down)_proj",
    probe=(
        {"head_dim": 8},
        {"out_hidden_size": 8, "deepstack_visual_indexes": [0], "num_position_embeddings": 16},
    ),
)

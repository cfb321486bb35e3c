"""Cosmos3-Edge, the reasoner alone: M-RoPE, axes interleaved, and MLPs without a gate.

The released checkpoint also has a generator of videos. Transformers does not load its tensors. The
language model is a Llama whose MLPs are two layers with a squared ReLU between them. The vision
tower is a SigLIP2. Its learned positions form a square and are interpolated to each image's grid,
inside the tower. The chat template trims texts, and begins every answer with an empty block of
thoughts.

The source is transformers' documentation and code (model_doc/cosmos3_edge). The released chat
template is that of Nemotron 3, with Qwen's tokens for images.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mmrm.data.errors import CheckpointError
from mmrm.data.images import ImageTokens, PatchTokens
from mmrm.models.config import BackboneConfig
from mmrm.models.families.family import Family, Parameters, Parts, Shape, Size
from mmrm.models.families.image_rules import ImageLayout, Patch, PatchLayout
from mmrm.models.portable.turns import TurnRules

if TYPE_CHECKING:
    from torch import Tensor

    from mmrm.models.packing.vision import VisionPlan


class Cosmos3EdgeImages(PatchLayout):
    """The rules of Cosmos3-Edge, whose image processor is GLM-4.1V's with one frame in a patch.

    Images with a side below that of a token are enlarged before they are scaled.
    """

    def patch(self, vision_config: Any) -> Patch:
        """Return the patch that a vision tower takes."""
        return Patch(
            patch_size=vision_config.patch_size,
            temporal_patch_size=1,
            merge_size=vision_config.spatial_merge_size,
            channels=vision_config.num_channels,
        )

    def planar_patch(self, vision_config: Any) -> Patch | None:
        """Return None: the channels of a pixel follow one another."""
        return None

    def tokens(self, vision_config: Any, limits: BackboneConfig) -> ImageTokens:
        """Return the object that computes how many tokens an image becomes."""
        patch = self.patch(vision_config)
        return PatchTokens(
            limits.min_pixels,
            limits.max_pixels,
            patch.patch_size * patch.merge_size,
            enlarges_short_sides=True,
            videos=limits.videos,
        )

    def arguments(self, vision_config: Any, limits: BackboneConfig) -> dict[str, Any]:
        """Return the arguments with which an image processor keeps the recipe's limits."""
        # Despite their names, these values are areas: numbers of pixels.
        return {"size": {"shortest_edge": limits.min_pixels, "longest_edge": limits.max_pixels}}


@dataclass(frozen=True, slots=True)
class Cosmos3EdgeTowerShape:
    """The numbers of `vision_config`, named as there."""

    hidden_size: Size = 1152
    num_hidden_layers: Size = 27
    intermediate_size: Size = 4304
    num_patches: Size = 256
    """Number of learned positions, which form a square."""
    patch_size: Size = 16
    num_channels: Size = 3
    spatial_merge_size: Size = 2

    @property
    def depth(self) -> int:
        """Number of transformer blocks."""
        return self.num_hidden_layers

    @property
    def width(self) -> int:
        """Size of a patch's hidden state."""
        return self.hidden_size


@dataclass(frozen=True, slots=True)
class Cosmos3EdgeShape(Shape):
    """The sizes of a Cosmos3-Edge.

    Its language model has no biases. Its vision tower and its projector have them everywhere.
    """

    images: ClassVar[ImageLayout] = Cosmos3EdgeImages()
    outside_text_config: ClassVar[tuple[str, ...]] = (
        *Shape.outside_text_config,
        "projector_hidden_size",
    )

    head_dim: Size = 128
    """Size of an attention head."""
    projector_hidden_size: Size = 11520
    """Width of the projector's MLP."""
    vision_config: Cosmos3EdgeTowerShape = Cosmos3EdgeTowerShape()

    @property
    def head_size(self) -> int:
        """Size of an attention head of the language model."""
        return self.head_dim

    def count(self) -> Parameters:
        """Return the number of parameters of each part."""
        tower = self.vision_config
        text_size = self.hidden_size
        vision_size = tower.hidden_size
        mlp_size = tower.intermediate_size
        # A block has q, k, v and output, an MLP of two layers, all with biases, and two norms
        # with biases.
        attention = 4 * vision_size * vision_size + 4 * vision_size
        mlp = 2 * vision_size * mlp_size + mlp_size + vision_size
        norms = 4 * vision_size
        block = attention + mlp + norms
        patch_embedding = (tower.num_channels * tower.patch_size**2 + 1) * vision_size
        positions = tower.num_patches * vision_size
        last_norm = 2 * vision_size
        # A norm of each patch, and two layers with biases that map the joined patches of a token.
        merged_size = vision_size * self.patches_per_token
        projector = 2 * vision_size
        projector += merged_size * self.projector_hidden_size + self.projector_hidden_size
        projector += self.projector_hidden_size * text_size + text_size
        language_model, per_lora_rank = self.count_language_model(
            bias=False, head_norms=False, mlp=False
        )
        # Each MLP has two layers, up and down.
        language_model += self.num_hidden_layers * 2 * text_size * self.intermediate_size
        per_lora_rank += self.num_hidden_layers * 2 * (text_size + self.intermediate_size)
        return Parameters(
            vision_tower=patch_embedding + positions + tower.depth * block + last_norm,
            projector=projector,
            language_model=language_model,
            lm_head=self.lm_head,
            parameters_per_lora_rank=per_lora_rank,
        )

    @property
    def kept_for_backward(self) -> tuple[int, int]:
        """Numbers kept for the backward pass: their count per token and layer, per patch and block.

        The factors were counted on the released model, as train/planning/memory.py says.
        """
        layer = 2 * self.intermediate_size + 9 * self.hidden_size
        layer += 8 * self.head_size * self.num_key_value_heads
        block = 2 * self.vision_config.intermediate_size + 8 * self.vision_config.width
        return layer, block

    @property
    def linear_outputs(self) -> tuple[int, int]:
        """Numbers that linear layers compute: per token and layer, per patch and block."""
        return self.count_linear_outputs(
            mlp=self.intermediate_size, vision_mlp=self.vision_config.intermediate_size
        )

    @property
    def mlp_of_layer(self) -> tuple[int, int]:
        """The numbers for a token that the MLP of a layer keeps, and that its linear layers compute."""
        return 2 * self.intermediate_size, self.intermediate_size + self.hidden_size

    @property
    def gradients_of_layer(self) -> int:
        """Numbers for each token that a layer's backward pass takes for gradients of its parts."""
        return 3 * self.intermediate_size

    def config(self) -> Any:
        """Return a configuration of transformers from which a model of this shape can be created.

        Values that are not in the shape are those of the released model.
        """
        text = asdict(self)
        vision = text.pop("vision_config")
        is_tied = text.pop("tie_word_embeddings")
        projector_size = text.pop("projector_hidden_size")
        rope = {"rope_type": "default", "mrope_section": [24, 20, 20], "rope_theta": 100000000.0}
        text |= {"max_position_embeddings": 131072, "rope_parameters": rope}
        vision |= {"num_attention_heads": 16}
        return parts().config(
            text_config=text,
            vision_config=vision,
            projector_hidden_size=projector_size,
            tie_word_embeddings=is_tied,
        )


PUBLISHED = {"nvidia/Cosmos3-Edge": Cosmos3EdgeShape(2048, 28, 16, 8, 9216, 131072)}


def parts() -> Parts:
    """Import and return the classes and functions of this family that need torch."""
    from transformers import (
        Cosmos3EdgeConfig,
        Cosmos3EdgeImageProcessorPil,
        Cosmos3EdgeTextModel,
        Cosmos3EdgeVisionModel,
    )

    from mmrm.models.packing.positions import mrope
    from mmrm.models.packing.vision import read_patches
    from mmrm.models.portable.critic import Cosmos3EdgeCriticRewardModel
    from mmrm.models.portable.language_model import Cosmos3EdgeLanguageModel
    from mmrm.models.portable.reward import Cosmos3EdgeScalarRewardModel

    return Parts(
        config=Cosmos3EdgeConfig,
        scalar=Cosmos3EdgeScalarRewardModel,
        critic=Cosmos3EdgeCriticRewardModel,
        language_model=Cosmos3EdgeLanguageModel,
        stock=(Cosmos3EdgeTextModel, Cosmos3EdgeVisionModel),
        image_processor=Cosmos3EdgeImageProcessorPil,
        read_images=read_patches,
        positions=mrope,
    )


def tower_plan(config: Any, grids: Tensor) -> VisionPlan:
    """Return the plan of the vision tower for a row of images. All layers attend in frames.

    The tower has learned positions only, which it interpolates by the grids on the host.

    Args:
        config: The tower's configuration.
        grids: Frames, rows and columns of patches of each image, (I, 3).
    """
    from mmrm.models.packing.vision import PatchRuns, VisionPlan

    return VisionPlan(
        tensors={},
        runs={"cu_seqlens": PatchRuns.frames(grids)},
        tower_settings={
            "spatial_merge_size": config.spatial_merge_size,
            "patch_size": config.patch_size,
        },
    )


def correct_config(config: Any, content: Mapping[str, Any]) -> None:
    """Raise CheckpointError for a language model with biases; nothing has to be corrected.

    Args:
        config: The configuration of transformers.
        content: The content of config.json, which is not used.
    """
    text = config.text_config
    for name, value in {"attention_bias": text.attention_bias, "mlp_bias": text.mlp_bias}.items():
        if value:
            raise CheckpointError(
                f"config.json: text_config.{name} is true, but released models have no biases in "
                "the language model, and the memory of a run is planned without them. Give "
                f"{', '.join(PUBLISHED)}, or a checkpoint of its kind."
            )


FAMILY = Family(
    title="Cosmos3-Edge",
    shape=Cosmos3EdgeShape,
    published=PUBLISHED,
    parts=parts,
    marks=("<|vision_start|>", "<|image_pad|>", "<|vision_end|>"),
    reserved=("<|video_pad|>",),
    turn_rules=TurnRules(text_roles=("system", "assistant")),
    tower_plan=tower_plan,
    head_size=lambda text: int(text.head_dim),
    projector=("projector",),
    blocks=("visual.encoder.layers", ("mlp", "layer_norm1", "layer_norm2")),
    # The vision tower's layers have the same names, so the pattern begins with the language
    # model's.
    lora_targets=r".*language_model\..*\.(q_proj|k_proj|v_proj|o_proj|fc1|fc2)",
    correct_config=correct_config,
    probe=(
        {"head_dim": 8},
        {"num_hidden_layers": 1, "num_attention_heads": 1, "num_patches": 16},
    ),
)

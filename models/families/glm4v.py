"""GLM-4.1V (arXiv 2507.01006): M-RoPE on half of each head, and a token that ends and begins turns.

An answer ends with `<|user|>`, the token that begins the user's next turn. The chat template writes
it only if such a turn follows, so it is added after the last answer. The template writes the
assistant's text unchanged, with its thoughts if it has any.

Around its attention and its MLP, a layer of the language model has a norm before and a norm after.
Gate and up projection of its MLP are one matrix. Learned vision positions form a square and are
interpolated to each image's grid in the vision tower.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from mmrm.data.images import ImageTokens, PatchTokens
from mmrm.models.config import BackboneConfig
from mmrm.models.families.family import Family, Parameters, Parts, Shape, Size, TowerShape
from mmrm.models.families.image_rules import ImageLayout, PatchLayout
from mmrm.models.families.qwen2_vl import tower_plan
from mmrm.models.portable.turns import TurnRules


class Glm4vImages(PatchLayout):
    """The rules of GLM-4.1V, which differ from those of Qwen's families in two ways.

    The limits of its image processor count the pixels of all frames of a patch, of which an image
    has two. Images with a side below that of a token are enlarged before they are scaled.
    """

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
        frames = self.patch(vision_config).temporal_patch_size
        return {
            "size": {
                "shortest_edge": frames * limits.min_pixels,
                "longest_edge": frames * limits.max_pixels,
            }
        }

    def limits(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Return the limits `min_pixels` and `max_pixels` of a saved image processor."""
        frames = saved["temporal_patch_size"]
        return {
            "min_pixels": saved["size"]["shortest_edge"] // frames,
            "max_pixels": saved["size"]["longest_edge"] // frames,
        }


@dataclass(frozen=True, slots=True)
class Glm4vTowerShape(TowerShape):
    """The numbers of `vision_config`, named as there; the defaults are those of 9B."""

    hidden_size: Size = 1536
    depth: Size = 24
    image_size: Size = 336
    intermediate_size: Size = 13696
    out_hidden_size: Size = 4096


@dataclass(frozen=True, slots=True)
class Glm4vShape(Shape):
    """The sizes of a GLM-4.1V. Its q, k and v have biases, the vision tower's have none."""

    images: ClassVar[ImageLayout] = Glm4vImages()

    vision_config: Glm4vTowerShape = Glm4vTowerShape()

    def count(self) -> Parameters:
        """Return the number of parameters of each part."""
        tower = self.vision_config
        vision_size = tower.hidden_size
        # Despite its name, `out_hidden_size` is also the width of the MLPs of the tower's blocks,
        # and `intermediate_size` is the width of the projector's MLP.
        out_size = tower.out_hidden_size
        # A block has q, k, v and output, an MLP of three layers, and two norms, without biases.
        block = 4 * vision_size * vision_size + 3 * vision_size * out_size + 2 * vision_size
        patch_embedding = (tower.numbers_per_patch + 1) * vision_size
        positions = (tower.image_size // tower.patch_size) ** 2 * vision_size
        first_and_last_norm = 2 * vision_size
        # The projector merges the patches of a token by a convolution with a bias. A matrix, a norm
        # with a bias and an MLP of three layers follow.
        merging = vision_size * tower.spatial_merge_size**2 * out_size + out_size
        projector = merging + out_size * out_size + 2 * out_size
        projector += 3 * out_size * tower.intermediate_size
        language_model, per_lora_rank = self.count_language_model(
            bias=True, head_norms=False, num_norms=4, has_fused_mlp=True
        )
        return Parameters(
            vision_tower=patch_embedding + positions + first_and_last_norm + tower.depth * block,
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
        layer = 4 * self.intermediate_size + 17 * self.hidden_size
        layer += 8 * self.head_size * self.num_key_value_heads
        block = 4 * self.vision_config.out_hidden_size + 14 * self.vision_config.width
        return layer, block

    @property
    def linear_outputs(self) -> tuple[int, int]:
        """Numbers that linear layers compute: per token and layer, per patch and block."""
        return self.count_linear_outputs(
            mlp=2 * self.intermediate_size, vision_mlp=2 * self.vision_config.out_hidden_size
        )

    def config(self) -> Any:
        """Return a configuration of transformers from which a model of this shape can be created.

        Values that are not in the shape are those of the released models.
        """
        text = asdict(self)
        vision = text.pop("vision_config")
        is_tied = text.pop("tie_word_embeddings")
        rope = {
            "rope_type": "default",
            "mrope_section": [8, 12, 12],
            "partial_rotary_factor": 0.5,
            "rope_theta": 10000.0,
        }
        text |= {"max_position_embeddings": 65536, "rope_parameters": rope}
        vision |= {"num_heads": 12}
        return parts().config(text_config=text, vision_config=vision, tie_word_embeddings=is_tied)


PUBLISHED = {"zai-org/GLM-4.1V-9B-Thinking": Glm4vShape(4096, 40, 32, 2, 13696, 151552)}


def parts() -> Parts:
    """Import and return the classes and functions of this family that need torch."""
    from transformers import Glm4vConfig, Glm4vImageProcessorPil, Glm4vTextModel, Glm4vVisionModel

    from mmrm.models.packing.positions import mrope
    from mmrm.models.packing.vision import read_patches
    from mmrm.models.portable.critic import Glm4vCriticRewardModel
    from mmrm.models.portable.language_model import Glm4vLanguageModel
    from mmrm.models.portable.reward import Glm4vScalarRewardModel

    return Parts(
        config=Glm4vConfig,
        scalar=Glm4vScalarRewardModel,
        critic=Glm4vCriticRewardModel,
        language_model=Glm4vLanguageModel,
        stock=(Glm4vTextModel, Glm4vVisionModel),
        image_processor=Glm4vImageProcessorPil,
        read_images=read_patches,
        positions=mrope,
    )


FAMILY = Family(
    title="GLM-4.1V",
    shape=Glm4vShape,
    published=PUBLISHED,
    parts=parts,
    marks=("<|begin_of_image|>", "<|image|>", "<|end_of_image|>"),
    reserved=("<|begin_of_video|>", "<|video|>", "<|end_of_video|>"),
    turn_rules=TurnRules(added_end="<|user|>", text_roles=("system", "assistant")),
    tower_plan=tower_plan,
    projector=("visual.downsample", "visual.merger"),
    # It looks up the size of each patch's image, by a tensor of indices.
    takes_grids=("visual.embeddings",),
    # The vision tower's MLP has a layer of the same name, so the pattern begins with the language
    # model's.
    lora_targets=r".*language_model\..*\.(q|k|v|o|gate_up|down)_proj",
    probe=({}, {"out_hidden_size": 8, "image_size": 28}),
)

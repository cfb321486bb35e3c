"""VideoLLaMA3 on images, in the format of transformers.

The checkpoints are those named `-HF` (arXiv 2501.13106). The vision tower is a SigLIP with rotary
positions in two dimensions. It attends in whole images of any size, and every patch becomes a
token. The language model is Qwen2's and counts one position a token. There are no tokens around an
image.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mmrm.data.errors import CheckpointError
from mmrm.models.families.family import Family, Parameters, Parts, Shape, Size
from mmrm.models.families.image_rules import UNMERGED, ImageLayout

if TYPE_CHECKING:
    from torch import Tensor

    from mmrm.models.packing.vision import VisionPlan


@dataclass(frozen=True, slots=True)
class VideoLlama3TowerShape:
    """The numbers of `vision_config`, named as there; they are the same in both sizes."""

    hidden_size: Size = 1152
    num_hidden_layers: Size = 27
    intermediate_size: Size = 4304
    patch_size: Size = 14
    num_channels: Size = 3

    @property
    def depth(self) -> int:
        """Number of transformer blocks."""
        return self.num_hidden_layers

    @property
    def width(self) -> int:
        """Size of a patch's hidden state."""
        return self.hidden_size


@dataclass(frozen=True, slots=True)
class VideoLlama3Shape(Shape):
    """The sizes of a VideoLLaMA3. Its q, k, v, vision tower and projector have biases."""

    images: ClassVar[ImageLayout] = UNMERGED

    vision_config: VideoLlama3TowerShape = VideoLlama3TowerShape()

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
        last_norm = 2 * vision_size
        projector = vision_size * text_size + text_size  # two layers with biases
        projector += text_size * text_size + text_size
        language_model, per_lora_rank = self.count_language_model(bias=True, head_norms=False)
        return Parameters(
            vision_tower=patch_embedding + tower.depth * block + last_norm,
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
        layer = 4 * self.intermediate_size + 10 * self.hidden_size
        layer += 8 * self.head_size * self.num_key_value_heads
        block = 2 * self.vision_config.intermediate_size + 10 * self.vision_config.width
        return layer, block

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
        vision = text.pop("vision_config")
        is_tied = text.pop("tie_word_embeddings")
        rope = {"rope_type": "default", "rope_theta": 1000000.0}
        text |= {"model_type": "qwen2", "max_position_embeddings": 32768, "rope_parameters": rope}
        vision |= {"num_attention_heads": 16}
        return parts().config(text_config=text, vision_config=vision, tie_word_embeddings=is_tied)


PUBLISHED = {
    "lkhl/VideoLLaMA3-2B-Image-HF": VideoLlama3Shape(
        1536, 28, 12, 2, 8960, 151936, tie_word_embeddings=True
    ),
    "lkhl/VideoLLaMA3-7B-Image-HF": VideoLlama3Shape(3584, 28, 28, 4, 18944, 152064),
}


def parts() -> Parts:
    """Import and return the classes and functions of this family that need torch."""
    from transformers import (
        Qwen2Model,
        VideoLlama3Config,
        VideoLlama3ImageProcessorPil,
        VideoLlama3VisionModel,
    )

    from mmrm.models.packing.positions import sequential
    from mmrm.models.packing.vision import read_patches
    from mmrm.models.portable.critic import VideoLlama3CriticRewardModel
    from mmrm.models.portable.language_model import VideoLlama3LanguageModel
    from mmrm.models.portable.reward import VideoLlama3ScalarRewardModel

    return Parts(
        config=VideoLlama3Config,
        scalar=VideoLlama3ScalarRewardModel,
        critic=VideoLlama3CriticRewardModel,
        language_model=VideoLlama3LanguageModel,
        stock=(Qwen2Model, VideoLlama3VisionModel),
        image_processor=VideoLlama3ImageProcessorPil,
        read_images=read_patches,
        positions=sequential,
    )


def tower_plan(config: Any, grids: Tensor) -> VisionPlan:
    """Return the plan of the vision tower for a row of images. All layers attend in whole images.

    Every patch is a token, so the merge size of each image is 1.

    Args:
        config: The tower's configuration.
        grids: Frames (one), rows and columns of patches of each image, (I, 3).
    """
    from transformers.vision_utils import get_vision_position_ids

    from mmrm.models.packing.vision import PatchRuns, VisionPlan

    return VisionPlan(
        tensors={"position_ids": get_vision_position_ids(grids, 1)},
        runs={"cu_seqlens": PatchRuns.frames(grids)},
        tower_settings={"patch_size": config.patch_size},
        per_image={"merge_sizes": 1},
    )


def correct_config(config: Any, content: Mapping[str, Any]) -> None:
    """Raise CheckpointError for a language model other than Qwen2; nothing has to be corrected.

    Args:
        config: The configuration of transformers.
        content: The content of config.json, which is not used.
    """
    if config.text_config.model_type != "qwen2":
        raise CheckpointError(
            f"config.json: text_config.model_type is {config.text_config.model_type!r}, but packed "
            f"rows were shown to be exact for qwen2 alone. Give one of {', '.join(PUBLISHED)}, or "
            "a checkpoint of their kind."
        )


FAMILY = Family(
    title="VideoLLaMA3",
    shape=VideoLlama3Shape,
    published=PUBLISHED,
    parts=parts,
    marks=(None, "<|image_pad|>", None),
    reserved=("<|video_pad|>",),
    tower_plan=tower_plan,
    tower="vision_model",
    projector=("projector",),
    blocks=("vision_model.encoder.layers", ("mlp", "layer_norm1", "layer_norm2")),
    # The vision tower's q, k and v have the same names, so the pattern begins with the language
    # model's.
    lora_targets=r".*language_model\..*\.(q|k|v|o|gate|up|down)_proj",
    correct_config=correct_config,
    probe=({"model_type": "qwen2"}, {"num_hidden_layers": 1, "num_attention_heads": 1}),
)

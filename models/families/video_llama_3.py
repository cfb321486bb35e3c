"""VideoLLaMA3 in transformers' own form, the checkpoints named `-HF` (arXiv 2501.13106), on images.

A SigLIP tower with rotary positions in two dimensions attends to whole images of any size, and every patch becomes a token; the
language model is Qwen2's and counts one place a token. No marks stand around an image.
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
    """The numbers of `vision_config`, called as they are there; the tower is the same in both sizes."""

    hidden_size: Size = 1152
    num_hidden_layers: Size = 27
    intermediate_size: Size = 4304
    patch_size: Size = 14
    num_channels: Size = 3

    @property
    def depth(self) -> int:
        """Blocks."""
        return self.num_hidden_layers

    @property
    def width(self) -> int:
        """Numbers of a patch's hidden state."""
        return self.hidden_size


@dataclass(frozen=True, slots=True)
class VideoLlama3Shape(Shape):
    """q, k, v and all layers and norms of tower and projector have a bias, the other layers have none."""

    images: ClassVar[ImageLayout] = UNMERGED

    vision_config: VideoLlama3TowerShape = VideoLlama3TowerShape()

    def count(self) -> Parameters:
        """Return the parameters of each part."""
        tower, hidden = self.vision_config, self.hidden_size
        vision, wide = tower.hidden_size, tower.intermediate_size
        block = 4 * vision * vision + 4 * vision + 2 * vision * wide + wide + vision + 4 * vision
        language_model, projections = self.language_model(bias=True, head_norms=False)
        return Parameters(
            vision_tower=(tower.num_channels * tower.patch_size**2 + 1) * vision
            + tower.depth * block
            + 2 * vision,
            projector=vision * hidden + hidden + hidden * hidden + hidden,
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
        return layer, 2 * self.vision_config.intermediate_size + 10 * self.vision_config.width

    def config(self) -> Any:
        """Return transformers' configuration; the number of heads is that of the released tower."""
        text = asdict(self)
        vision, tied = text.pop("vision_config"), text.pop("tie_word_embeddings")
        rope = {"rope_type": "default", "rope_theta": 1000000.0}
        text |= {"model_type": "qwen2", "max_position_embeddings": 32768, "rope_parameters": rope}
        vision |= {"num_attention_heads": 16}
        return parts().config(text_config=text, vision_config=vision, tie_word_embeddings=tied)


PUBLISHED = {
    "lkhl/VideoLLaMA3-2B-Image-HF": VideoLlama3Shape(
        1536, 28, 12, 2, 8960, 151936, tie_word_embeddings=True
    ),
    "lkhl/VideoLLaMA3-7B-Image-HF": VideoLlama3Shape(3584, 28, 28, 4, 18944, 152064),
}


def parts() -> Parts:
    """Return what imports torch."""
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

    ours = VideoLlama3ScalarRewardModel, VideoLlama3CriticRewardModel, VideoLlama3LanguageModel
    stock = Qwen2Model, VideoLlama3VisionModel
    return Parts(
        VideoLlama3Config, *ours, stock, VideoLlama3ImageProcessorPil, read_patches, sequential
    )


def tower_plan(config: Any, grids: Tensor) -> VisionPlan:
    """Plan the images, which all layers see. The tower divides the grids by each image's merge size: both stay on the host."""
    from transformers.vision_utils import get_vision_position_ids

    from mmrm.models.packing.vision import PatchRuns, VisionPlan

    return VisionPlan(
        tensors={"position_ids": get_vision_position_ids(grids, 1)},
        runs={"cu_seqlens": PatchRuns.frames(grids)},
        tower={"patch_size": config.patch_size},
        per_image={"merge_sizes": 1},
    )


def read_config(config: Any, found: Mapping[str, Any]) -> None:
    """Refuse another language model."""
    if config.text_config.model_type != "qwen2":
        raise CheckpointError(
            f"config.json: text_config.model_type is {config.text_config.model_type!r}; packed rows were shown to be exact for "
            f"qwen2 alone. Give one of {', '.join(PUBLISHED)}, or a checkpoint of their kind."
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
    lora_targets=r".*language_model\..*\.(q|k|v|o|gate|up|down)_proj",  # the vision tower's q, k and v have the same names
    read_config=read_config,
    probe=({"model_type": "qwen2"}, {"num_hidden_layers": 1, "num_attention_heads": 1}),
)

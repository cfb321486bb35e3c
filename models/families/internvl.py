"""InternVL 3 and 3.5 in the format of transformers, the checkpoints named `-hf`.

Papers: arXiv 2504.10479 and 2508.18265. Images are cut into tiles, which a plain vision transformer
computes one by one. The language model is Qwen2's or Qwen3's and counts one position a token.
Beyond `max_position_embeddings`, the frequencies of Qwen2's RoPE depend on the longest conversation
of a row. Up to there, packed rows are exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from mmrm.data.errors import CheckpointError
from mmrm.models.families.family import Family, Parameters, Parts, Shape, Size
from mmrm.models.families.image_rules import TILES, ImageLayout, Tile

if TYPE_CHECKING:
    from torch import Tensor

    from mmrm.models.packing.vision import VisionPlan

Sides = Size | tuple[Size, Size]
"""Height and width, or one number for both."""


@dataclass(frozen=True, slots=True)
class InternVLTowerShape:
    """The numbers of `vision_config`, named as there.

    The defaults are those of the tower of 1B to 14B, InternViT-300M.
    """

    hidden_size: Size = 1024
    num_hidden_layers: Size = 24
    intermediate_size: Size = 4096
    image_size: Sides = (448, 448)
    patch_size: Sides = (14, 14)
    num_channels: Size = 3
    attention_bias: bool = True
    use_qk_norm: bool = False
    norm_type: Literal["layer_norm", "rms_norm"] = "layer_norm"
    use_mask_token: bool = False
    use_mean_pooling: bool = True

    @property
    def depth(self) -> int:
        """Number of blocks."""
        return self.num_hidden_layers

    @property
    def width(self) -> int:
        """Size of a patch's hidden state."""
        return self.hidden_size

    def count(self) -> int:
        """Return the number of parameters of the tower."""
        hidden = self.hidden_size
        wide = self.intermediate_size
        attention = 4 * hidden * hidden + hidden
        if self.attention_bias:
            attention += 3 * hidden
        if self.use_qk_norm:
            attention += 2 * hidden
        mlp = 2 * hidden * wide + wide + hidden
        norms = 4 * hidden if self.norm_type == "layer_norm" else 2 * hidden
        layer_scales = 2 * hidden
        block = attention + mlp + norms + layer_scales

        tile = Tile.of(self)
        numbers_per_patch = self.num_channels * (tile.side // tile.patches) ** 2
        projection = (numbers_per_patch + 1) * hidden
        class_token_and_positions = (tile.patches**2 + 2) * hidden
        parameters = projection + class_token_and_positions + self.num_hidden_layers * block
        if self.use_mask_token:
            parameters += hidden
        if not self.use_mean_pooling:
            parameters += 2 * hidden  # the last norm
        return parameters


@dataclass(frozen=True, slots=True)
class InternVLShape(Shape):
    """A model on Qwen2, whose q, k, v have a bias, or Qwen3, whose queries and keys have norms."""

    images: ClassVar[ImageLayout] = TILES

    model_type: Literal["qwen2", "qwen3"] = "qwen2"
    """That of the language model."""
    head_dim: Size | None = None
    vision_config: InternVLTowerShape = InternVLTowerShape()

    @property
    def head_size(self) -> int:
        """Size of an attention head of the language model."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    def count(self) -> Parameters:
        """Return the numbers of parameters of each part."""
        hidden = self.hidden_size
        merged = self.vision_config.hidden_size * self.patches_per_token
        language_model, projections = self.language_model(
            bias=self.model_type == "qwen2", head_norms=self.model_type == "qwen3"
        )
        return Parameters(
            vision_tower=self.vision_config.count(),
            projector=2 * merged + merged * hidden + hidden + hidden * hidden + hidden,
            language_model=language_model,
            lm_head=self.lm_head,
            projections=projections,
        )

    @property
    def kept(self) -> tuple[int, int]:
        """Numbers kept for gradients: by a layer per token, by a vision block per patch."""
        layer = 4 * self.intermediate_size
        if self.model_type == "qwen2":
            layer += 10 * self.hidden_size + 8 * self.head_size * self.num_key_value_heads
        else:
            heads = 5 * self.num_attention_heads + 10 * self.num_key_value_heads
            layer += 7 * self.hidden_size + heads * self.head_size
        block = 2 * self.vision_config.intermediate_size + 10 * self.vision_config.width
        return layer, block

    def config(self) -> Any:
        """Return the configuration of transformers, with the vision heads of released models."""
        text = asdict(self)
        vision = text.pop("vision_config")
        is_tied = text.pop("tie_word_embeddings")
        text |= {
            "max_position_embeddings": 32768,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        }
        if text["head_dim"] is None:
            del text["head_dim"]
        vision |= {"num_attention_heads": 16}
        return parts().config(text_config=text, vision_config=vision, tie_word_embeddings=is_tied)


PUBLISHED = {
    "OpenGVLab/InternVL3-1B-hf": InternVLShape(896, 24, 14, 2, 4864, 151674),
    "OpenGVLab/InternVL3-2B-hf": InternVLShape(1536, 28, 12, 2, 8960, 151674),
    "OpenGVLab/InternVL3-8B-hf": InternVLShape(3584, 28, 28, 4, 18944, 151674),
    "OpenGVLab/InternVL3-14B-hf": InternVLShape(5120, 48, 40, 8, 13824, 151674),
    "OpenGVLab/InternVL3_5-8B-HF": InternVLShape(
        4096, 36, 32, 8, 12288, 151936, model_type="qwen3", head_dim=128
    ),
}


def parts() -> Parts:
    """Return the classes and functions that import torch."""
    from transformers import (
        GotOcr2ImageProcessorPil,
        InternVLConfig,
        InternVLVisionModel,
        Qwen2Model,
    )

    from mmrm.models.packing.positions import sequential
    from mmrm.models.packing.vision import read_tiles
    from mmrm.models.portable.critic import InternVLCriticRewardModel
    from mmrm.models.portable.language_model import InternVLLanguageModel
    from mmrm.models.portable.reward import InternVLScalarRewardModel

    return Parts(
        config=InternVLConfig,
        scalar=InternVLScalarRewardModel,
        critic=InternVLCriticRewardModel,
        language_model=InternVLLanguageModel,
        stock=(Qwen2Model, InternVLVisionModel),
        image_processor=GotOcr2ImageProcessorPil,
        read_images=read_tiles,
        positions=sequential,
    )


def tower_plan(config: Any, grids: Tensor) -> VisionPlan:
    """Return the shape of a tile; a tower that takes tiles computes nothing from grids."""
    from mmrm.models.packing.vision import VisionPlan

    side = Tile.of(config).side
    return VisionPlan(
        tensors={}, runs={}, tower_settings={}, tile=(config.num_channels, side, side)
    )


def read_config(config: Any, found: Mapping[str, Any]) -> None:
    """Correct whether the LM head is tied, and refuse other variants.

    transformers 5 reads a config.json without `tie_word_embeddings` as tied. The released files
    have no such key, and their LM heads are not tied: the setting of the language model is meant.

    Raises:
        CheckpointError: A setting is one for which packed rows were not shown to be exact.
    """
    config.tie_word_embeddings = found.get(
        "tie_word_embeddings", config.text_config.tie_word_embeddings
    )
    height, width = config.vision_config.image_size
    patch_height, patch_width = config.vision_config.patch_size
    is_square = int(height) == int(width) and int(patch_height) == int(patch_width)
    settings = {
        "text_config.model_type": config.text_config.model_type,
        "downsample_ratio": config.downsample_ratio,
        "vision_feature_layer": config.vision_feature_layer,
        "vision_feature_select_strategy": config.vision_feature_select_strategy,
        "square tiles and patches": is_square,
    }
    allowed_values: dict[str, tuple[object, ...]] = {
        "text_config.model_type": ("qwen2", "qwen3"),
        "downsample_ratio": (1 / TILES.MERGE,),
        "vision_feature_layer": (-1,),
        "vision_feature_select_strategy": ("default",),
        "square tiles and patches": (True,),
    }
    for name, value in settings.items():
        allowed = allowed_values[name]
        if value not in allowed:
            raise CheckpointError(
                f"config.json: {name} is {value!r}, but packed rows were shown to be exact for "
                f"{' and '.join(map(str, allowed))} alone. Give one of {', '.join(PUBLISHED)}, or "
                "a checkpoint of their kind."
            )


FAMILY = Family(
    title="InternVL",
    shape=InternVLShape,
    published=PUBLISHED,
    parts=parts,
    marks=("<img>", "<IMG_CONTEXT>", "</img>"),
    reserved=("<video>",),
    tower_plan=tower_plan,
    head_size=lambda text: int(
        vars(text).get("head_dim") or text.hidden_size // text.num_attention_heads
    ),
    tower="vision_tower",
    projector=("multi_modal_projector",),
    blocks=("vision_tower.encoder.layer", ("mlp", "layernorm_before", "layernorm_after")),
    # The vision tower's q, k and v have the same names, so the pattern begins with the language
    # model's.
    lora_targets=r".*language_model\..*\.(q|k|v|o|gate|up|down)_proj",
    read_config=read_config,
    probe=(
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        {"num_hidden_layers": 1, "num_attention_heads": 1, "image_size": (28, 28)},
    ),
)

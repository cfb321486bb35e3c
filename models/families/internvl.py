"""InternVL 3 and 3.5 in transformers' own form, the checkpoints named `-hf` (arXiv 2504.10479, 2508.18265).

Images are cut into tiles, through which a plain vision transformer goes one by one; the language model is Qwen2's or Qwen3's
and counts one place a token. Qwen2's has RoPE whose frequencies change beyond `max_position_embeddings`, with the longest
conversation of a row: up to there packed rows are exact.
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


@dataclass(frozen=True, slots=True)
class InternVLTowerShape:
    """The numbers of `vision_config`, called as they are there; here those of the tower of 1B to 14B, InternViT-300M."""

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
        """Blocks."""
        return self.num_hidden_layers

    @property
    def width(self) -> int:
        """Numbers of a patch's hidden state."""
        return self.hidden_size

    def count(self) -> int:
        """Return the tower's parameters."""
        hidden, wide, tile = self.hidden_size, self.intermediate_size, Tile.of(self)
        norm = hidden * (2 if self.norm_type == "layer_norm" else 1)
        block = 4 * hidden * hidden + (1 + 3 * self.attention_bias + 2 * self.use_qk_norm) * hidden
        block += 2 * hidden * wide + wide + hidden + 2 * norm + 2 * hidden
        pixels = self.num_channels * (tile.side // tile.patches) ** 2
        embedding = (pixels + 1 + tile.patches**2 + 2 + self.use_mask_token) * hidden
        return embedding + self.num_hidden_layers * block + 2 * hidden * (not self.use_mean_pooling)


@dataclass(frozen=True, slots=True)
class InternVLShape(Shape):
    """q, k and v have a bias in Qwen2's language model, queries and keys norms in Qwen3's."""

    images: ClassVar[ImageLayout] = TILES

    model_type: Literal["qwen2", "qwen3"] = "qwen2"
    """The language model's."""
    head_dim: Size | None = None
    vision_config: InternVLTowerShape = InternVLTowerShape()

    @property
    def head_size(self) -> int:
        """Numbers of an attention head of the language model."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    def count(self) -> Parameters:
        """Return the parameters of each part."""
        merged, hidden = self.vision_config.hidden_size * self.patches_per_token, self.hidden_size
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
        """Numbers that a layer keeps of a token for its gradients, and a vision block of a patch."""
        if self.model_type == "qwen2":
            layer = 10 * self.hidden_size + 8 * self.head_size * self.num_key_value_heads
        else:
            layer = (
                7 * self.hidden_size
                + (5 * self.num_attention_heads + 10 * self.num_key_value_heads) * self.head_size
            )
        layer += 4 * self.intermediate_size
        return layer, 2 * self.vision_config.intermediate_size + 10 * self.vision_config.width

    def config(self) -> Any:
        """Return transformers' configuration; the number of heads is that of the released tower."""
        text = asdict(self)
        vision, tied = text.pop("vision_config"), text.pop("tie_word_embeddings")
        text |= {
            "max_position_embeddings": 32768,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        }
        if text["head_dim"] is None:
            del text["head_dim"]
        vision |= {"num_attention_heads": 16}
        return parts().config(text_config=text, vision_config=vision, tie_word_embeddings=tied)


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
    """Return what imports torch."""
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

    ours = InternVLScalarRewardModel, InternVLCriticRewardModel, InternVLLanguageModel
    return Parts(
        InternVLConfig,
        *ours,
        (Qwen2Model, InternVLVisionModel),
        GotOcr2ImageProcessorPil,
        read_tiles,
        sequential,
    )


def tower_plan(config: Any, grids: Tensor) -> VisionPlan:
    """Plan nothing but the shape of a tile: a tower that takes a batch works nothing out."""
    from mmrm.models.packing.vision import VisionPlan

    side = Tile.of(config).side
    return VisionPlan(tensors={}, runs={}, tower={}, tile=(config.num_channels, side, side))


def read_config(config: Any, found: Mapping[str, Any]) -> None:
    """Take the tied LM head from the language model where config.json says nothing, as it was written; refuse other variants.

    transformers 5 reads no word on it as tied, and the released files say none, whose LM heads are of their own.
    """
    config.tie_word_embeddings = found.get(
        "tie_word_embeddings", config.text_config.tie_word_embeddings
    )
    sides = {
        (*map(int, size),)
        for size in (config.vision_config.image_size, config.vision_config.patch_size)
    }
    known = {
        "text_config.model_type": (config.text_config.model_type, ("qwen2", "qwen3")),
        "downsample_ratio": (config.downsample_ratio, (1 / TILES.MERGE,)),
        "vision_feature_layer": (config.vision_feature_layer, (-1,)),
        "vision_feature_select_strategy": (config.vision_feature_select_strategy, ("default",)),
        "square tiles and patches": (all(len(set(size)) == 1 for size in sides), (True,)),
    }
    for name, (value, allowed) in known.items():
        if value not in allowed:
            raise CheckpointError(
                f"config.json: {name} is {value!r}; packed rows were shown to be exact for {' and '.join(map(str, allowed))} "
                f"alone. Give one of {', '.join(PUBLISHED)}, or a checkpoint of their kind."
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
    lora_targets=r".*language_model\..*\.(q|k|v|o|gate|up|down)_proj",  # the vision tower's q, k and v have the same names
    read_config=read_config,
    probe=(
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        {"num_hidden_layers": 1, "num_attention_heads": 1, "image_size": (28, 28)},
    ),
)

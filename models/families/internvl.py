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
        """Number of transformer blocks."""
        return self.num_hidden_layers

    @property
    def width(self) -> int:
        """Size of a patch's hidden state."""
        return self.hidden_size

    def count(self) -> int:
        """Return the number of parameters of the tower."""
        hidden = self.hidden_size
        mlp_size = self.intermediate_size
        attention = 4 * hidden * hidden + hidden  # q, k, v and output, which has a bias
        if self.attention_bias:
            attention += 3 * hidden  # of q, k and v
        if self.use_qk_norm:
            attention += 2 * hidden  # norms of queries and keys
        mlp = 2 * hidden * mlp_size + mlp_size + hidden  # two layers with biases
        norms = 2 * hidden
        if self.norm_type == "layer_norm":
            norms += 2 * hidden  # biases
        layer_scales = 2 * hidden
        block = attention + mlp + norms + layer_scales

        tile = Tile.of(self)
        numbers_per_patch = self.num_channels * (tile.side // tile.patches) ** 2
        projection = (numbers_per_patch + 1) * hidden  # with a bias
        num_positions = tile.patches**2 + 1  # the patches and a class token
        class_token_and_positions = (1 + num_positions) * hidden
        parameters = projection + class_token_and_positions + self.num_hidden_layers * block
        if self.use_mask_token:
            parameters += hidden
        if not self.use_mean_pooling:
            parameters += 2 * hidden  # the last norm
        return parameters


@dataclass(frozen=True, slots=True)
class InternVLShape(Shape):
    """The sizes of an InternVL.

    Its language model is Qwen2, in which q, k and v have biases, or Qwen3, in which queries and
    keys have norms.
    """

    images: ClassVar[ImageLayout] = TILES

    model_type: Literal["qwen2", "qwen3"] = "qwen2"
    """`model_type` of the language model."""
    head_dim: Size | None = None
    """Size of an attention head; None if it is `hidden_size` / `num_attention_heads`."""
    vision_config: InternVLTowerShape = InternVLTowerShape()

    @property
    def head_size(self) -> int:
        """Size of an attention head of the language model."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    def count(self) -> Parameters:
        """Return the number of parameters of each part."""
        text_size = self.hidden_size
        merged_size = self.vision_config.hidden_size * self.patches_per_token
        # The projector maps the joined patches of a token: a norm and two layers, all with biases.
        projector = 2 * merged_size
        projector += merged_size * text_size + text_size
        projector += text_size * text_size + text_size
        language_model, per_lora_rank = self.count_language_model(
            bias=self.model_type == "qwen2", head_norms=self.model_type == "qwen3"
        )
        return Parameters(
            vision_tower=self.vision_config.count(),
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
        layer = 4 * self.intermediate_size
        if self.model_type == "qwen2":
            layer += 10 * self.hidden_size + 8 * self.head_size * self.num_key_value_heads
        else:
            heads = 5 * self.num_attention_heads + 10 * self.num_key_value_heads
            layer += 7 * self.hidden_size + heads * self.head_size
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
    """Import and return the classes and functions of this family that need torch."""
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
    """Return the plan of the vision tower for a row of images: the shape of a tile.

    A tower that takes tiles computes nothing from grids.

    Args:
        config: The tower's configuration.
        grids: Not used; the parameters are those of the other families.
    """
    from mmrm.models.packing.vision import VisionPlan

    side = Tile.of(config).side
    return VisionPlan(
        tensors={}, runs={}, tower_settings={}, tile=(config.num_channels, side, side)
    )


def correct_config(config: Any, content: Mapping[str, Any]) -> None:
    """Correct `config.tie_word_embeddings`, and raise an error for variants that do not work.

    transformers 5 takes the LM head for tied to the embedding if config.json has no
    `tie_word_embeddings`. The released files have no such key, and the LM head is tied only if the
    configuration of the language model says so.

    Args:
        config: The configuration of transformers.
        content: The content of config.json.

    Raises:
        CheckpointError: A setting is one for which packed rows were not shown to be exact.
    """
    config.tie_word_embeddings = content.get(
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
    correct_config=correct_config,
    probe=(
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        {"num_hidden_layers": 1, "num_attention_heads": 1, "image_size": (28, 28)},
    ),
)

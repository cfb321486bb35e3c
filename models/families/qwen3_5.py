"""Qwen3.5, dense: most layers of its language model are recurrent.

Three of four layers are gated delta-rule layers (arXiv 2412.06464) with a causal convolution. The
others attend to all tokens, with a gate on their outputs. Packed rows need plans of both kinds: see
`mmrm.models.packing.recurrent` and `qwen3_5_layers.py`. The vision tower is that of Qwen3-VL
without deepstack. Videos, position ids and image tokens are those of Qwen3-VL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from mmrm.data.errors import CheckpointError
from mmrm.models.families.family import (
    Family,
    Parameters,
    Parts,
    Shape,
    Size,
    VideoLayout,
)
from mmrm.models.families.qwen3_vl import LearnedPositionsTowerShape, tower_plan

if TYPE_CHECKING:
    from collections.abc import Sequence

RECURRENT = "linear_attention"
ATTENTION = "full_attention"
LayerKind = Literal["linear_attention", "full_attention"]
"""A layer of the language model, named as in `layer_types` of config.json."""


@dataclass(frozen=True, slots=True)
class Qwen3_5TowerShape(LearnedPositionsTowerShape):
    """The numbers of `vision_config`, named as there; the defaults are those of 9B and 27B."""

    num_heads: Size = 16


@dataclass(frozen=True, slots=True)
class Qwen3_5Shape(Shape):
    """The sizes of a Qwen3.5. Its language model has no biases, but norms of queries and keys."""

    head_dim: Size = 256
    linear_num_key_heads: Size = 16
    linear_num_value_heads: Size = 32
    linear_key_head_dim: Size = 128
    linear_value_head_dim: Size = 128
    linear_conv_kernel_dim: Size = 4
    layer_types: tuple[LayerKind, ...] | None = None
    """The kind of each layer. With None, every fourth layer attends, as in all released models."""
    vision_config: Qwen3_5TowerShape = Qwen3_5TowerShape()

    @property
    def head_size(self) -> int:
        """Size of an attention head of the language model."""
        return self.head_dim

    @property
    def num_attention_layers(self) -> int:
        """Number of layers that attend; the others are recurrent."""
        if self.layer_types is None:
            return self.num_hidden_layers // 4
        return self.layer_types.count(ATTENTION)

    @property
    def convolution_size(self) -> int:
        """Number of channels of a convolution: queries, keys and values of a recurrent layer."""
        keys = self.linear_num_key_heads * self.linear_key_head_dim
        return 2 * keys + self.value_size

    @property
    def value_size(self) -> int:
        """Size of all values of a recurrent layer together."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    def divides_over(self, ranks: int) -> bool:
        """Return True for one rank: recurrent layers need all tokens before a token."""
        return ranks == 1

    def count(self) -> Parameters:
        """Return the number of parameters of each part."""
        vision_tower, projector = self.vision_config.count(self.hidden_size)
        language_model, per_lora_rank = self._count_hybrid_language_model()
        return Parameters(
            vision_tower=vision_tower,
            projector=projector,
            language_model=language_model,
            lm_head=self.lm_head,
            parameters_per_lora_rank=per_lora_rank,
        )

    def _count_hybrid_language_model(self) -> tuple[int, int]:
        """Return the numbers of parameters of the language model and of LoRA adapters of rank 1."""
        hidden = self.hidden_size
        query = self.num_attention_heads * self.head_dim
        key = self.num_key_value_heads * self.head_dim
        num_heads = self.linear_num_value_heads
        attention_matrices = [
            (hidden, 2 * query),  # q, with a gate for each output
            (hidden, key),  # k
            (hidden, key),  # v
            (query, hidden),  # output
        ]
        recurrent_matrices = [
            (hidden, self.convolution_size),  # q, k and v
            (hidden, self.value_size),  # the gate
            (hidden, num_heads),  # the rate
            (hidden, num_heads),  # the decay
            (self.value_size, hidden),  # output
        ]
        mlp_matrices = 3 * [(hidden, self.intermediate_size)]
        head_norms = 2 * self.head_dim
        # The convolution, two numbers of the decay for each head, and the norm of the outputs.
        recurrent_vectors = (
            self.convolution_size * self.linear_conv_kernel_dim
            + 2 * num_heads
            + self.linear_value_head_dim
        )
        layer_norms = 2 * hidden

        num_attention = self.num_attention_layers
        num_recurrent = self.num_hidden_layers - num_attention
        weights = (
            self.num_hidden_layers * (_num_weights(mlp_matrices) + layer_norms)
            + num_attention * (_num_weights(attention_matrices) + head_norms)
            + num_recurrent * (_num_weights(recurrent_matrices) + recurrent_vectors)
        )
        per_lora_rank = (
            self.num_hidden_layers * _num_sides(mlp_matrices)
            + num_attention * _num_sides(attention_matrices)
            + num_recurrent * _num_sides(recurrent_matrices)
        )
        embedding = self.vocab_size * hidden
        last_norm = hidden
        return embedding + weights + last_norm, per_lora_rank

    @property
    def kept_for_backward(self) -> tuple[int, int]:
        """Numbers kept for the backward pass: their count per token and layer, per patch and block.

        The layer is the mean of the two kinds.
        """
        num_attention = self.num_attention_layers
        num_recurrent = self.num_hidden_layers - num_attention
        layers = num_attention * self._kept_by_attention + num_recurrent * self._kept_by_recurrence
        return layers // self.num_hidden_layers, self.vision_config.kept_for_backward

    @property
    def linear_outputs(self) -> tuple[int, int]:
        """Numbers that linear layers compute: per token and layer, per patch and block.

        The layer is the mean of the two kinds.
        """
        query = self.num_attention_heads * self.head_dim
        key = self.num_key_value_heads * self.head_dim
        attention = 2 * query + 2 * key
        recurrence = self.convolution_size + self.value_size + 2 * self.linear_num_value_heads
        num_attention = self.num_attention_layers
        num_recurrent = self.num_hidden_layers - num_attention
        of_mixers = num_attention * attention + num_recurrent * recurrence
        # The output of the mixer, and the MLP.
        of_others = 2 * self.hidden_size + 2 * self.intermediate_size
        block = 5 * self.vision_config.width + self.vision_config.intermediate_size
        return of_mixers // self.num_hidden_layers + of_others, block

    @property
    def attention_outputs(self) -> tuple[int, int]:
        """Numbers that attention computes; recurrent layers have none."""
        of_layer = self.num_attention_heads * self.head_dim
        mean = self.num_attention_layers * of_layer // self.num_hidden_layers
        return mean, self.vision_config.width

    @property
    def recomputed_for_backward(self) -> int:
        """Numbers that the largest layer keeps for a token, once it has been computed again."""
        return max(self._kept_by_attention, self._kept_by_recurrence)

    @property
    def _kept_by_attention(self) -> int:
        """Numbers that a layer with attention keeps for a token."""
        heads = 9 * self.num_attention_heads + 10 * self.num_key_value_heads
        return 4 * self.intermediate_size + 10 * self.hidden_size + heads * self.head_size

    @property
    def _kept_by_recurrence(self) -> int:
        """Numbers that a recurrent layer keeps for a token, if torch computes the delta rule.

        It computes chunks of 64 tokens: matrices of 64 x 64 numbers for each chunk and head, and a
        state. The factors were counted on segments of 200 and 1,000 tokens, which are padded by 9
        %. Shorter segments are padded more.
        """
        key_size = self.linear_key_head_dim
        num_heads = self.linear_num_value_heads
        chunk = 64
        of_chunks = num_heads * (11 * chunk + key_size * self.linear_value_head_dim // 32)
        values_and_keys = 17 * (self.value_size + num_heads * key_size)
        keys_before_they_are_repeated = 4 * self.linear_num_key_heads * key_size
        return (
            4 * self.intermediate_size
            + 10 * self.hidden_size
            + values_and_keys
            + keys_before_they_are_repeated
            + of_chunks
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
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000000.0,
        }
        layer_types = text.pop("layer_types")
        if layer_types is not None:
            text["layer_types"] = list(layer_types)
        text |= {"max_position_embeddings": 262144, "rope_parameters": rope}
        vision |= {"out_hidden_size": self.hidden_size}
        return parts().config(text_config=text, vision_config=vision, tie_word_embeddings=is_tied)


def _num_weights(matrices: Sequence[tuple[int, int]]) -> int:
    """Return the number of weights of some matrices, given their rows and columns."""
    return sum(rows * columns for rows, columns in matrices)


def _num_sides(matrices: Sequence[tuple[int, int]]) -> int:
    """Return the sum of rows and columns of some matrices, as adapters of rank 1 have weights."""
    return sum(rows + columns for rows, columns in matrices)


SMALLEST_TOWER = Qwen3_5TowerShape(depth=12, hidden_size=768, intermediate_size=3072, num_heads=12)
"""The `vision_config` of 0.8B."""
SMALL_TOWER = Qwen3_5TowerShape(depth=24, hidden_size=1024, intermediate_size=4096)
"""The `vision_config` of 4B."""
PUBLISHED = {
    "Qwen/Qwen3.5-0.8B": Qwen3_5Shape(
        1024,
        24,
        8,
        2,
        3584,
        248320,
        tie_word_embeddings=True,
        linear_num_value_heads=16,
        vision_config=SMALLEST_TOWER,
    ),
    "Qwen/Qwen3.5-4B": Qwen3_5Shape(
        2560, 32, 16, 4, 9216, 248320, tie_word_embeddings=True, vision_config=SMALL_TOWER
    ),
    "Qwen/Qwen3.5-9B": Qwen3_5Shape(4096, 32, 16, 4, 12288, 248320),
    "Qwen/Qwen3.5-27B": Qwen3_5Shape(5120, 64, 24, 4, 17408, 248320, linear_num_value_heads=48),
}


def parts() -> Parts:
    """Import and return the classes and functions of this family that need torch."""
    from transformers import (
        Qwen2VLImageProcessorPil,
        Qwen3_5Config,
        Qwen3_5TextModel,
        Qwen3_5VisionModel,
    )
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

    from mmrm.models.families.qwen3_5_layers import PackedGatedDeltaNet, PackedTextModel
    from mmrm.models.packing.positions import mrope
    from mmrm.models.packing.vision import read_patches
    from mmrm.models.portable.critic import Qwen3_5CriticRewardModel
    from mmrm.models.portable.language_model import Qwen3_5LanguageModel
    from mmrm.models.portable.reward import Qwen3_5ScalarRewardModel

    return Parts(
        config=Qwen3_5Config,
        scalar=Qwen3_5ScalarRewardModel,
        critic=Qwen3_5CriticRewardModel,
        language_model=Qwen3_5LanguageModel,
        stock=(Qwen3_5TextModel, Qwen3_5VisionModel),
        image_processor=Qwen2VLImageProcessorPil,
        read_images=read_patches,
        positions=mrope,
        plan_classes={
            Qwen3_5TextModel: PackedTextModel,
            Qwen3_5GatedDeltaNet: PackedGatedDeltaNet,
        },
    )


def attention_layers(text: Any) -> int:
    """Return the number of layers that attend, given `text_config`."""
    return int(list(text.layer_types).count(ATTENTION))


def state_numbers(text: Any) -> int:
    """Return the count of 16-bit numbers that all recurrent layers keep for a text.

    A layer keeps a matrix for each value head, in fp32, and the last inputs of its convolution.
    """
    matrix = text.linear_key_head_dim * text.linear_value_head_dim
    keys = text.linear_num_key_heads * text.linear_key_head_dim
    values = text.linear_num_value_heads * text.linear_value_head_dim
    state = 2 * text.linear_num_value_heads * matrix
    last_inputs = (2 * keys + values) * text.linear_conv_kernel_dim
    num_layers = text.num_hidden_layers - attention_layers(text)
    return int(num_layers * (state + last_inputs))


def refuse_other_layers(config: Any, content: Mapping[str, Any]) -> None:
    """Raise CheckpointError if the language model has layers of another kind.

    Args:
        config: The configuration of transformers.
        content: The content of config.json.
    """
    others = set(config.text_config.layer_types) - {RECURRENT, ATTENTION}
    if others:
        raise CheckpointError(
            f"config.json has layers of the types {sorted(others)}. Packed rows of Qwen3.5 are "
            f"exact for {RECURRENT} and {ATTENTION} alone. Use another checkpoint."
        )


FAMILY = Family(
    title="Qwen3.5",
    shape=Qwen3_5Shape,
    published=PUBLISHED,
    parts=parts,
    marks=("<|vision_start|>", "<|image_pad|>", "<|vision_end|>"),
    reserved=("<|video_pad|>",),
    videos=VideoLayout(has_timestamps=True),
    tower_plan=tower_plan,
    head_size=lambda text: int(text.head_dim),
    attention_layers=attention_layers,
    state_numbers=state_numbers,
    correct_config=refuse_other_layers,
    lora_targets=(
        r".*language_model\..*\.((q|k|v|o|gate|up|down)_proj|in_proj_(qkv|z|b|a)|out_proj)"
    ),
    probe=(
        {
            "head_dim": 8,
            "num_hidden_layers": 2,
            "layer_types": [RECURRENT, ATTENTION],
            "linear_num_key_heads": 1,
            "linear_num_value_heads": 1,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
        },
        {"out_hidden_size": 8, "num_position_embeddings": 16},
    ),
)

"""The types that describe a family of backbones: `Shape` and `Family`.

A family is one file of this folder and one row of `registry.py`. `Shape` holds the numbers of a
model's config.json and counts its parameters. `Family` holds everything else in which families
differ. Nothing in this folder imports torch before it is needed, because recipes are checked and
planned without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Protocol

from pydantic import Field

from mmrm.data.images import ImageTokens
from mmrm.models.config import BackboneConfig
from mmrm.models.families.image_rules import PATCHES, ImageLayout
from mmrm.models.portable.turns import ENDED_BY_TEMPLATE, TurnRules

if TYPE_CHECKING:
    from torch import Tensor

    from mmrm.models.packing.vision import VisionPlan, VisionTokens

Grid = tuple[int, int, int]
"""Frames (or tiles), rows and columns of an image, in patches."""
Size = Annotated[int, Field(ge=1, le=10**7)]
"""A number of config.json that sets the size of a model, such as `hidden_size`."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """The number of parameters of each part of a model."""

    vision_tower: int
    projector: int
    language_model: int
    """Embedding and layers."""
    lm_head: int
    """0 if it is tied to the embedding."""
    parameters_per_lora_rank: int
    """Parameters of LoRA adapters of rank 1, the sum of rows and columns of the language model's
    linear layers. Adapters of rank r have r times as many. They are in no other part."""
    experts: int = 0
    """Those of `language_model` that are in experts. A token is computed by a few of them."""
    idle_experts: int = 0
    """Those of `experts` that compute nothing for a token, because it is sent to other experts."""
    expert_parameters_per_lora_rank: int = 0
    """Parameters of LoRA adapters of rank 1 on all experts. They are in no other part."""

    @property
    def backbone(self) -> int:
        """Parameters of all parts except the LM head."""
        return self.vision_tower + self.projector + self.language_model


class Experts(NamedTuple):
    """The names of what sends the tokens of a layer to experts, and of their weights.

    Names are those in a layer of the language model.
    """

    block: str
    """Module that takes the place of the MLP."""
    router: str
    """Module that chooses the experts of each token. The first tensor that it returns are its
    logits, (T, experts)."""
    weights: tuple[str, ...]
    """Parameters with the weights of all experts, (experts, rows, columns) each."""


class Tower(Protocol):
    """The sizes of a vision tower from which the memory and time of a run are estimated."""

    @property
    def depth(self) -> int:
        """Number of transformer blocks."""

    @property
    def width(self) -> int:
        """Size of a patch's hidden state."""


@dataclass(frozen=True, slots=True)
class TowerShape:
    """The numbers of `vision_config` that every Qwen family has, named as there."""

    hidden_size: Size = 1280
    depth: Size = 32
    in_channels: Size = 3
    temporal_patch_size: Size = 2
    patch_size: Size = 14
    spatial_merge_size: Size = 2

    @property
    def width(self) -> int:
        """Size of a patch's hidden state."""
        return self.hidden_size

    @property
    def numbers_per_patch(self) -> int:
        """The count of numbers in a patch, over all channels and frames."""
        return self.in_channels * self.temporal_patch_size * self.patch_size**2


@dataclass(frozen=True, slots=True)
class Shape(ABC):
    """The sizes of a model, as in its config.json, from which its parameters are counted.

    The fields are named as in config.json. Each family has a subclass with its own
    `vision_config`, and with further numbers if it needs them.
    """

    images: ClassVar[ImageLayout] = PATCHES
    """The rules by which images are divided into patches and tokens."""
    outside_text_config: ClassVar[tuple[str, ...]] = ("tie_word_embeddings", "vision_config")
    """Fields that config.json has beside `text_config`; all others are inside it."""

    hidden_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    num_key_value_heads: Size
    intermediate_size: Size
    vocab_size: Size
    tie_word_embeddings: bool = False
    vision_config: Tower = TowerShape()

    @abstractmethod
    def count(self) -> Parameters:
        """Return the number of parameters of each part."""

    @abstractmethod
    def config(self) -> Any:
        """Return a configuration of transformers from which a model of this shape can be created.

        Such a model has random weights.
        """

    @property
    @abstractmethod
    def kept_for_backward(self) -> tuple[int, int]:
        """The counts of numbers that a forward pass keeps in memory for the backward pass.

        The first is for a token in a layer of the language model, the second for a patch in a block
        of the vision tower. train/planning/memory.py says how they were counted.
        """

    @property
    @abstractmethod
    def linear_outputs(self) -> tuple[int, int]:
        """The counts of numbers that linear layers compute.

        The first is for a token in a layer of the language model, the second for a patch in a block
        of the vision tower. Most families return `count_linear_outputs`.
        """

    @property
    def mlp_of_layer(self) -> tuple[int, int]:
        """The counts of numbers that the MLP of a layer of the language model has for a token.

        The first is what it keeps for the backward pass, as in `kept_for_backward`; the second is
        what its linear layers compute, as in `linear_outputs`. Both are 0 if layers have experts.
        """
        return 4 * self.intermediate_size, 2 * self.intermediate_size + self.hidden_size

    @property
    def attention_outputs(self) -> tuple[int, int]:
        """The counts of numbers that attention computes, for the same as `linear_outputs`."""
        return self.num_attention_heads * self.head_size, self.vision_config.width

    @property
    def gradients_of_layer(self) -> int:
        """Numbers for each token that a layer's backward pass takes for gradients of its parts.

        They were counted like `kept_for_backward`, on top of it.
        """
        return 2 * self.intermediate_size

    @property
    def largest_module(self) -> int:
        """Parameters of the largest module, which ZeRO-3 gathers whole while it is used."""
        return self.vocab_size * self.hidden_size  # the embedding

    @property
    def recomputed_for_backward(self) -> int:
        """The count of numbers that the largest layer of the language model keeps for a token.

        Under activation checkpointing, one layer at a time is computed again and keeps them.
        """
        per_layer, _ = self.kept_for_backward
        return per_layer

    @property
    def head_size(self) -> int:
        """Size of an attention head of the language model."""
        return self.hidden_size // self.num_attention_heads

    def divides_over(self, ranks: int) -> bool:
        """Return True if so many ranks can compute a packed row together.

        Each computes as many heads of attention as the others.
        """
        return self.num_attention_heads % ranks == 0

    @property
    def exchanged_by_layer(self) -> int:
        """Numbers for each token that ranks which compute a row together exchange in a layer.

        They are queries, keys, values and the output of attention.
        """
        return 2 * (self.num_attention_heads + self.num_key_value_heads) * self.head_size

    def image_tokens(self, limits: BackboneConfig) -> ImageTokens:
        """Return the object that computes how many tokens an image becomes.

        Args:
            limits: The recipe's `backbone` section, with the limits of an image's size.

        Raises:
            UserError: No image can satisfy the limits.
        """
        return self.images.tokens(self.vision_config, limits)

    @property
    def patches_per_token(self) -> int:
        """Number of patches that become one token."""
        merge_size, _ = self.images.sizes(self.vision_config)
        return merge_size**2

    def count_linear_outputs(self, *, mlp: int, vision_mlp: int) -> tuple[int, int]:
        """Return the `linear_outputs` of layers with attention and an MLP.

        Args:
            mlp: The numbers that the MLP of a layer computes for a token before its last linear
                layer: `2 * intermediate_size` with a gate.
            vision_mlp: The same of a block of the vision tower, for a patch.
        """
        query = self.num_attention_heads * self.head_size
        key = self.num_key_value_heads * self.head_size
        layer = query + 2 * key + self.hidden_size + mlp + self.hidden_size
        # Queries, keys and values are computed at once.
        block = 3 * self.vision_config.width
        block += self.vision_config.width + vision_mlp + self.vision_config.width
        return layer, block

    def count_language_model(
        self,
        *,
        bias: bool,
        head_norms: bool,
        mlp: bool = True,
        num_norms: int = 2,
        has_fused_mlp: bool = False,
    ) -> tuple[int, int]:
        """Return the numbers of parameters of the language model and of LoRA adapters of rank 1.

        The LM head is not counted.

        Args:
            bias: The projections to queries, keys and values have a bias.
            head_norms: Queries and keys have norms.
            mlp: Each layer has an MLP of `intermediate_size`. False for layers with experts, which
                the family counts itself.
            num_norms: Number of norms of a layer, without those of queries and keys.
            has_fused_mlp: The gate and up projections of an MLP are one layer.
        """
        hidden = self.hidden_size
        query = self.num_attention_heads * self.head_size
        key = self.num_key_value_heads * self.head_size
        linear_layers = [
            (hidden, query),  # q
            (hidden, query),  # output
            (hidden, key),  # k
            (hidden, key),  # v
        ]
        if mlp and has_fused_mlp:
            linear_layers += [(hidden, 2 * self.intermediate_size)]  # gate and up
            linear_layers += [(hidden, self.intermediate_size)]  # down
        elif mlp:
            linear_layers += [(hidden, self.intermediate_size)] * 3  # gate, up and down
        layer = sum(rows * columns for rows, columns in linear_layers)
        layer += num_norms * hidden
        if bias:
            layer += query + 2 * key
        if head_norms:
            layer += 2 * self.head_size
        embedding = self.vocab_size * hidden
        last_norm = hidden
        parameters = embedding + self.num_hidden_layers * layer + last_norm
        layer_per_lora_rank = sum(rows + columns for rows, columns in linear_layers)
        return parameters, self.num_hidden_layers * layer_per_lora_rank

    @property
    def lm_head(self) -> int:
        """Parameters of the LM head; 0 if it is tied to the embedding."""
        return 0 if self.tie_word_embeddings else self.vocab_size * self.hidden_size


class VideoLayout(NamedTuple):
    """The way in which a family's released models are shown a video.

    Two frames form a temporal patch, and a temporal patch has the tokens of an image.
    """

    has_timestamps: bool
    """True if every temporal patch is an image of its own behind its time as text, such as
    `<0.3 seconds>`. False if all tokens of a video follow one another."""
    positions_per_second: Callable[[Any], float] | None = None
    """Turns `vision_config` into the positions that a second takes on the frame axis. With None, a
    temporal patch takes one position, however long it lasts."""


class Parts(NamedTuple):
    """The classes and functions of a family whose import also imports torch."""

    config: Any
    """Configuration class of transformers."""
    scalar: Any
    """Class of the scalar reward model, from models/portable/reward.py."""
    critic: Any
    """Class of the critic, from models/portable/critic.py."""
    language_model: Any
    """Class of the model that writes text, from models/portable/language_model.py."""
    stock: tuple[Any, Any]
    """Classes of transformers for the language model without a head and for the vision tower, which
    `mmrm.models.compatibility` checks at start."""
    image_processor: Any
    """Class of transformers that needs no torchvision."""
    read_images: Callable[[Any, VisionTokens], tuple[Tensor, tuple[Grid, ...]]]
    """`VisionTokens.read`: a function of models/packing/vision.py."""
    positions: Callable[
        [Sequence[int], int, Sequence[Grid], int, Sequence[float]], tuple[Tensor, int]
    ]
    """`VisionTokens.positions`: a function of models/packing/positions.py."""
    plan_classes: Mapping[type, type] = {}
    """Stock classes of the language model that cannot take the plan of a packed row, and classes
    derived from them that can. The modules of a loaded model take the latter on."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of backbones: everything in which it differs from the others.

    Most members are functions because a family has no class of its own: it is one file of data and
    functions.
    """

    title: str
    """Name in messages and documentation."""
    shape: type[Shape]
    published: Mapping[str, Shape]
    """Shapes of the released checkpoints by hub id, from their config.json on the hub."""
    parts: Callable[[], Parts]
    """Imports and returns the classes and functions that need torch."""
    marks: tuple[str | None, str, str | None]
    """The special tokens before an image, for each of its tokens, and after it; None if there is
    none."""
    reserved: tuple[str, ...] = ()
    """Further special tokens of vision, such as a video's, which no text may contain."""
    turn_rules: TurnRules = ENDED_BY_TEMPLATE
    """The rules of the chat template that differ from those of other families, such as a token that
    has to be added at the end of an answer. Saved checkpoints carry them in config.json."""
    videos: VideoLayout | None = None
    """The way in which a video is shown; None if the family takes images only. A family with videos
    has tokens before and after an image."""
    tower_plan: Callable[[Any, Tensor], VisionPlan]
    """Turns `vision_config` and grids (I, 3) into the plan of the tower; runs in loader workers."""
    head_size: Callable[[Any], int] = lambda text: int(text.hidden_size // text.num_attention_heads)
    """Turns `text_config` into the size of an attention head."""
    attention_layers: Callable[[Any], int] = lambda text: int(text.num_hidden_layers)
    """Turns `text_config` into the number of layers that keep keys and values of every token."""
    state_numbers: Callable[[Any], int] = lambda text: 0
    """Turns `text_config` into the count of 16-bit numbers that all recurrent layers keep for a
    text, however long it is."""
    tower: str = "visual"
    """Name of the vision tower in the backbone."""
    projector: tuple[str, ...] = ("visual.merger",)
    """Names of the modules that map patches to tokens, inside or outside of the tower."""
    takes_grids: tuple[str, ...] = ()
    """Names of modules that index grids by tensors. Grids are on the host, and are copied to the
    device for these modules alone."""
    blocks: tuple[str, tuple[str, str, str]] = ("visual.blocks", ("mlp", "norm1", "norm2"))
    """Name of the tower's blocks, and names in a block of the modules that compute each patch by
    itself."""
    correct_config: Callable[[Any, Mapping[str, Any]], None] = lambda config, content: None
    """Takes the configuration of transformers and the content of config.json. Corrects values of
    the configuration that transformers reads wrongly, and raises CheckpointError for a variant that
    does not work."""
    lora_targets: str
    """Pattern of the names of modules that get adapters."""
    experts: Experts | None = None
    """The names of experts and routers; None if every token is computed by all weights."""
    probe: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})
    """Values of the text and vision configurations of the tiny model in
    `mmrm.models.compatibility`, in addition to those that all families share."""

    @property
    def images(self) -> ImageLayout:
        """The rules by which images are divided into patches and tokens."""
        return self.shape.images

    @property
    def vision_modules(self) -> tuple[str, ...]:
        """The names of the backbone's modules that hold the vision tower and the projector."""
        names = [name.split(".")[0] for name in (self.tower, *self.projector)]
        return tuple(dict.fromkeys(names))

    @property
    def vision_text(self) -> tuple[str, ...]:
        """All special tokens for images and videos."""
        marks = [mark for mark in self.marks if mark is not None]
        return (*marks, *self.reserved)

    def vision_tokens(self, vision_config: Any, mark_ids: Sequence[int | None]) -> VisionTokens:
        """Return the properties of images that packing needs, for one backbone.

        Args:
            vision_config: The backbone's `vision_config`.
            mark_ids: The token ids of `marks`; None for a mark that the family does not have.
        """
        from mmrm.models.packing.vision import VisionTokens

        start, image, end = mark_ids
        assert image is not None, "Every family has a token for each token of an image."
        merge_size, patch_size = self.images.sizes(vision_config)
        parts = self.parts()
        return VisionTokens(
            start=start,
            image=image,
            end=end,
            merge_size=merge_size,
            patch_size=patch_size,
            smallest=self.images.smallest(vision_config),
            read=parts.read_images,
            tower_plan=partial(self.tower_plan, vision_config),
            positions=parts.positions,
        )

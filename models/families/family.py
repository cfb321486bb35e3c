"""What differs from one family of backbones to the next. A family is one file here and one row of `table.py`.

Nothing in this room imports torch before it is needed: recipes are checked and planned without it.
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

if TYPE_CHECKING:
    from torch import Tensor

    from mmrm.models.packing.vision import VisionPlan, VisionTokens

Size = Annotated[int, Field(ge=1, le=10**7)]


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameter counts of a model by part."""

    vision_tower: int
    projector: int
    language_model: int
    """Embedding and layers."""
    lm_head: int
    """0 where it is tied to the embedding."""
    projections: int
    """Rows plus columns of the language model's linear layers: a LoRA of rank r has r times as many parameters."""

    @property
    def backbone(self) -> int:
        """All parts, without the LM head."""
        return self.vision_tower + self.projector + self.language_model


class Tower(Protocol):
    """What a plan asks of the numbers of a `vision_config`."""

    @property
    def depth(self) -> int:
        """Blocks."""

    @property
    def width(self) -> int:
        """Numbers of a patch's hidden state."""


@dataclass(frozen=True, slots=True)
class TowerShape:
    """The numbers of `vision_config` that every Qwen family has, called as they are there."""

    hidden_size: Size = 1280
    depth: Size = 32
    in_channels: Size = 3
    temporal_patch_size: Size = 2
    patch_size: Size = 14
    spatial_merge_size: Size = 2

    @property
    def width(self) -> int:
        """Numbers of a patch's hidden state."""
        return self.hidden_size

    @property
    def patch_numbers(self) -> int:
        """Numbers in a patch."""
        return self.in_channels * self.temporal_patch_size * self.patch_size**2


@dataclass(frozen=True, slots=True)
class Shape(ABC):
    """The numbers of config.json on which a model's parameter count depends, called as they are there.

    A family's own has its own `vision_config`, and what else its parameters depend on.
    """

    images: ClassVar[ImageLayout] = PATCHES
    """How the family sees images."""

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
        """Return the parameters of each part."""

    @abstractmethod
    def config(self) -> Any:
        """Return transformers' configuration of a model of this shape, for random weights."""

    @property
    @abstractmethod
    def kept(self) -> tuple[int, int]:
        """Numbers that a layer keeps of a token for its gradients, and a vision block of a patch."""

    @property
    def head_size(self) -> int:
        """Numbers of an attention head of the language model."""
        return self.hidden_size // self.num_attention_heads

    def image_tokens(self, limits: BackboneConfig) -> ImageTokens:
        """Return how many tokens images become; raises UserError for limits that no image can keep."""
        return self.images.tokens(self.vision_config, limits)

    @property
    def patches_per_token(self) -> int:
        """Patches of an image that become one token."""
        merge, _ = self.images.sizes(self.vision_config)
        return merge**2

    def language_model(self, *, bias: bool, head_norms: bool) -> tuple[int, int]:
        """Return the language model's parameters and its `projections`: `bias` at q, k and v, norms of queries and keys."""
        hidden, head = self.hidden_size, self.head_size
        query, key = self.num_attention_heads * head, self.num_key_value_heads * head
        linear = (
            [(hidden, query)] * 2 + [(hidden, key)] * 2 + [(hidden, self.intermediate_size)] * 3
        )
        layer = sum(rows * columns for rows, columns in linear) + 2 * hidden
        layer += (query + 2 * key) * bias + 2 * head * head_norms
        whole = self.vocab_size * hidden + self.num_hidden_layers * layer + hidden
        return whole, self.num_hidden_layers * sum(rows + columns for rows, columns in linear)

    @property
    def lm_head(self) -> int:
        """The LM head's parameters of its own."""
        return 0 if self.tie_word_embeddings else self.vocab_size * self.hidden_size


class Parts(NamedTuple):
    """What of a family imports torch."""

    config: Any
    """transformers' class of the configuration; the next three are ours, from models/portable."""
    scalar: Any
    critic: Any
    language_model: Any
    stock: tuple[Any, Any]
    """transformers' classes of the language model without a head and of the vision tower, which are probed at start."""
    image_processor: Any
    """transformers' class that needs no torchvision."""
    read_images: Callable[[Any, VisionTokens], tuple[Tensor, tuple[tuple[int, int, int], ...]]]
    """What the image processor made to pixels (patches, numbers) float32 and the grid of each image."""
    positions: Callable[
        [Sequence[int], int, Sequence[tuple[int, int, int]], int], tuple[Tensor, int]
    ]
    """(prompt, its image token, the images' grids, merge size) to the prompt's position ids, (axes, tokens) int64, and the
    position after it on all axes."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """A row of the table: what the rest of the project asks a family."""

    title: str
    """As people call it."""
    shape: type[Shape]
    published: Mapping[str, Shape]
    """Shapes of the released checkpoints by hub id, from their config.json on the hub."""
    parts: Callable[[], Parts]
    marks: tuple[str | None, str, str | None]
    """The special tokens before an image, for each of its tokens, and after it; None where a family has none."""
    reserved: tuple[str, ...] = ()
    """Further special tokens that stand for something seen, such as a video's: none of them may be in a text."""
    tower_plan: Callable[[Any, Tensor], VisionPlan]
    """(vision_config, grids (I, 3)) to what the tower takes ready-made; runs in loader workers."""
    head_size: Callable[[Any], int] = lambda text: int(text.hidden_size // text.num_attention_heads)
    """text_config to the numbers of an attention head."""
    tower: str = "visual"
    """Where the vision tower lies in the backbone."""
    projector: tuple[str, ...] = ("visual.merger",)
    """What maps patches to tokens, in the tower or beside it."""
    blocks: tuple[str, tuple[str, str, str]] = ("visual.blocks", ("mlp", "norm1", "norm2"))
    """Where the tower's blocks lie, and what in each works on every patch by itself."""
    read_config: Callable[[Any, Mapping[str, Any]], None] = lambda config, found: None
    """(configuration, config.json) corrects what transformers reads otherwise than it was meant; raises CheckpointError for a
    variant that does not work."""
    lora_targets: str
    """A pattern of the names of modules that get adapters."""
    probe: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})
    """What the text and vision configurations of `mmrm.models.compatibility`'s two layers need besides their common sizes."""

    @property
    def images(self) -> ImageLayout:
        """How it sees images."""
        return self.shape.images

    @property
    def vision_modules(self) -> tuple[str, ...]:
        """The modules of the backbone in which tower and projector lie."""
        return tuple(dict.fromkeys(name.split(".")[0] for name in (self.tower, *self.projector)))

    @property
    def vision_text(self) -> tuple[str, ...]:
        """All special tokens that stand for something seen."""
        return (*filter(None, self.marks), *self.reserved)

    def vision_tokens(self, vision_config: Any, ids: Sequence[int | None]) -> VisionTokens:
        """Return how images stand in a row, with the ids of `marks`."""
        from mmrm.models.packing.vision import VisionTokens

        (start, image, end), (merge, numbers) = ids, self.images.sizes(vision_config)
        assert image is not None
        smallest, plan, parts = (
            self.images.smallest(vision_config),
            partial(self.tower_plan, vision_config),
            self.parts(),
        )
        return VisionTokens(
            start, image, end, merge, numbers, smallest, parts.read_images, plan, parts.positions
        )

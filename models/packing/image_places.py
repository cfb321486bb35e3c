"""An image that stands at several places of a packed row goes through the vision tower once.

Transformers expects features of an image for every place where an image stands. `place_images`
changes a backbone of transformers so that it takes the distinct images of a row and
`image_places`, which says which of them stands at each place. The features of each image are then
computed once and put at all of its places. If several ranks compute a row together, the backbone
takes the images of this rank and `image_shares`, and gathers the features of the other images.

Transformers 5.23 has an argument for features that are computed beforehand, which 5.17 takes for an
unknown one and ignores, so that images would silently be left out. This module therefore wraps
`get_image_features`, which both versions call.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from mmrm.models.packing.sequence_group import ImageShares


@dataclass(frozen=True, slots=True)
class ImagePlaces:
    """The places of the images of a packed row, as an argument of the backbone."""

    images: tuple[int, ...]
    """For each place in the row, which of the distinct images stands there."""
    tiles: tuple[int, ...]
    """For each distinct image, the number of its frames or tiles."""


class FeaturePlacement:
    """Puts the features of a row's distinct images at all of their places.

    The object is called in place of `get_image_features` of a backbone. In every forward pass of
    the backbone, `begin` is called before it and `end` after it. It is an object and not a function
    so that the copy of a model has its own.
    """

    def __init__(self, backbone: Any) -> None:
        """Remember the backbone's own method; `place_images` installs this object."""
        self.stock_features = backbone.get_image_features
        # `generate` of transformers 5.23 reads the names of the arguments from the signature.
        self.__signature__ = inspect.signature(self.stock_features)
        self.places: ImagePlaces | None = None
        """The places of the forward pass that has begun; None if every image stands at one place,
        or if the features have been placed."""
        self.shares: ImageShares | None = None
        """The shares of the ranks in the images of the forward pass that has begun; None if this
        rank computes all images, or if the features have been gathered."""

    def begin(
        self, backbone: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Take `image_places` and `image_shares` from the arguments; the backbone knows neither."""
        self.places = kwargs.pop("image_places", None)
        self.shares = kwargs.pop("image_shares", None)
        return args, kwargs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the features of the stock method, at all places of the images."""
        features = self.stock_features(*args, **kwargs)
        if self.shares is not None:
            self.shares.complete(features)
            self.shares = None
        if self.places is not None:
            _place(features, self.places)
            self.places = None
        return features

    def end(self, backbone: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Raise RuntimeError if the forward pass has not placed the features of its images."""
        if self.places is not None or self.shares is not None:
            self.places = None
            self.shares = None
            raise RuntimeError(
                f"transformers {transformers.__version__}: the forward pass of "
                f"{type(backbone).__name__} no longer calls `get_image_features` of the model, so "
                "an image of a packed row can neither stand at several places nor be computed by "
                "another rank. Install a version that this project is tested with: 5.17 to 5.23."
            )


def place_images(backbone: Any) -> None:
    """Let a backbone of transformers take `image_places`, an `ImagePlaces`, in its forward pass.

    Without this argument, the forward pass is that of transformers.
    """
    placement = FeaturePlacement(backbone)
    backbone.get_image_features = placement
    backbone.register_forward_pre_hook(placement.begin, with_kwargs=True)
    backbone.register_forward_hook(placement.end)


def _place(features: Any, places: ImagePlaces) -> None:
    """Change the output of `get_image_features` so that it has the features of every place.

    A tower that takes tiles returns one tensor with all tiles. The others return a tensor for each
    image. Qwen3-VL's features for the first language layers ("deepstack") are one tensor for all
    images in transformers 5.17, and one for each image in 5.23.
    """
    if isinstance(features.pooler_output, Tensor):
        by_image = torch.split(features.pooler_output, list(places.tiles))
        features.pooler_output = torch.cat([by_image[image] for image in places.images])
        return
    lengths = [len(tokens) for tokens in features.pooler_output]
    features.pooler_output = [features.pooler_output[image] for image in places.images]
    if "deepstack_features" not in features:
        return
    placed_layers: list[Tensor | Sequence[Tensor]] = []
    for layer in features.deepstack_features:
        if isinstance(layer, Tensor):
            by_image = torch.split(layer, lengths)
            placed_layers.append(torch.cat([by_image[image] for image in places.images]))
        else:
            placed_layers.append([layer[image] for image in places.images])
    features.deepstack_features = placed_layers

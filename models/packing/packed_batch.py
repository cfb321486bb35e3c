"""The packed row of segment trees, as the tensors that a model computes.

`pack` lays trees of segments out in one row, `PackedBatch`, so that whatever conversations share is
computed once. The results are exactly those of each conversation alone. `unpack` returns the trees
of a row, for cutting a row that is too large for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from typing import Any

import torch
from torch import Tensor

from mmrm.models.packing.attention import AttentionPlan, DividedPlan
from mmrm.models.packing.bins import cost
from mmrm.models.packing.image_places import ImagePlaces
from mmrm.models.packing.positions import without_single_axis
from mmrm.models.packing.segments import (
    ImagePlace,
    ProcessedImage,
    Segment,
    SegmentTree,
    distinct_images,
)
from mmrm.models.packing.sequence_group import ImageShares, SequenceGroup, owners_of_images
from mmrm.models.packing.vision import VisionPlan, VisionTokens, map_tensors


def filler_tree(vision: VisionTokens) -> SegmentTree:
    """Return a filler: a segment with the smallest possible image, blank, and no outputs.

    `pack` adds it to a row without an image, so that the vision tower runs on every rank. A rank
    without work runs a row of it alone. It changes no result. It costs 3 tokens, or 1 in a family
    without tokens around an image. In a family with tiles it costs the tokens of a tile.
    """
    num_patches = prod(vision.smallest)
    image = ProcessedImage(
        content="filler",
        grid=vision.smallest,
        num_tokens=num_patches // vision.merge_size**2,
        pixel_values=torch.zeros(num_patches, vision.patch_size),
    )
    ids = vision.with_marks([vision.image] * image.num_tokens)
    place = ImagePlace(ids.index(vision.image), image)
    return SegmentTree((Segment(tuple(ids), images=(place,)),))


@dataclass(frozen=True)
class PackedBatch:
    """A row of trees, as the tensors that the model takes; `pack` has a worked example.

    The row has T tokens, P patches, I distinct images, R positions at which scores are read, and L
    labels, the tokens that carry language-model loss. Its outputs are the conversations about which
    something is asked, counted over the whole row.
    """

    input_ids: Tensor
    """(1, T) int64."""
    position_ids: Tensor
    """(axes, 1, T) int64: frame, row and column if the family has M-RoPE, else one axis."""
    plan: AttentionPlan
    pixel_values: Tensor
    """(P, patch_size) float32, of each distinct image of the row once."""
    image_grid_thw: Tensor
    """(I, 3) int64; stays on the CPU, because the model reads it only from there."""
    vision: VisionPlan
    """Arguments of the vision tower that are computed once from the grids."""
    image_places: tuple[int, ...]
    """For each place of an image in the row, which of the I images stands there."""
    read_positions: Tensor
    """(R,) int64: row positions whose hidden states give scores."""
    read_owners: Tensor
    """(R,) int64: the output of each read position."""
    label_positions: Tensor
    """(L,) int64: row position whose hidden state predicts each label. It is the position before
    the label; for the first token of a segment it is the last of the segment before."""
    labels: Tensor
    """(L,) int64: token ids."""
    label_owners: Tensor
    """(L,) int64: the output of each label."""
    used_positions: Tensor
    """(U,) int64, sorted: the read positions, the label positions, and the first two of the row.
    The first two are there because torch.compile compiles once more for one position, or none."""
    trees: tuple[SegmentTree, ...]
    """The packed trees without patches, and without the filler that `pack` may have added."""
    image_shares: ImageShares | None = None
    """If several ranks compute the row together (`divide`), the images that each of them computes.
    `pixel_values`, `image_grid_thw` and `vision` are then those of this rank's images, while
    `image_places` counts all images of the row. `cost` and `unpack` are for rows that are not divided.
    None if this rank computes all images."""

    @property
    def output_counts(self) -> tuple[int, ...]:
        """Number of outputs of every tree."""
        return tuple(len(tree.outputs) for tree in self.trees)

    @property
    def output_segments(self) -> tuple[int, ...]:
        """The segment of every output, counted over the whole row as in `plan`."""
        segments: list[int] = []
        num_before = 0
        for tree in self.trees:
            segments += [num_before + output.segment for output in tree.outputs]
            num_before += len(tree.segments)
        return tuple(segments)

    @property
    def conversation_counts(self) -> Tensor:
        """The number of outputs whose conversation has each token of the row, (T,) int64, on the CPU.

        Without sharing, a token would be computed as often. It is 0 for the tokens of a filler.
        """
        counts: list[int] = []
        for tree in self.trees:
            counts_of_segments = [0] * len(tree.segments)
            for output in tree.outputs:
                counts_of_segments[output.segment] += 1
            # Parents come before their segments, so from the last segment on, a count is complete.
            for index in range(len(tree.segments) - 1, -1, -1):
                parent = tree.segments[index].parent
                if parent is not None:
                    counts_of_segments[parent] += counts_of_segments[index]
            for segment, count in zip(tree.segments, counts_of_segments, strict=True):
                counts += [count] * len(segment.ids)
        counts += [0] * (self.tokens - len(counts))  # the filler that `pack` may have added
        return torch.tensor(counts, dtype=torch.int64)

    @property
    def tokens(self) -> int:
        """Number of language-model tokens, T."""
        return self.input_ids.shape[1]

    @property
    def cost(self) -> int:
        """Cost of computing the row, in tokens; its vision patches count as parts of a token."""
        return cost(self.tokens, len(self.pixel_values))

    def to(self, device: torch.device | str, non_blocking: bool = False) -> PackedBatch:
        """Return the batch with its tensors on `device`; the grids stay on the CPU."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> PackedBatch:
        """Return the batch in page-locked memory; torch's loaders call this method.

        From there it is copied to the device while the device computes.
        """
        return self._map(Tensor.pin_memory)

    def _map(self, move: Callable[[Tensor], Tensor]) -> PackedBatch:
        """Return the batch with `move` applied to all tensors except the grids."""
        moved: PackedBatch = map_tensors(self, move)
        return replace(moved, image_grid_thw=self.image_grid_thw)

    def model_inputs(self) -> dict[str, Any]:
        """Return the keyword arguments of the backbone's forward, for the hidden states of all tokens.

        `image_places` is among them only if some image stands at several places of the row. The
        backbone then has to be one of `mmrm.models.backbone`, which computes the image once.
        """
        plan: AttentionPlan | DividedPlan = self.plan
        places: dict[str, Any] = {}
        num_images = len(self.image_grid_thw)
        if self.image_shares is not None:
            plan = DividedPlan(self.plan, self.image_shares.group)
            places["image_shares"] = self.image_shares
            num_images = len(self.image_shares.tiles)
        if len(self.image_places) > num_images:
            places["image_places"] = ImagePlaces(self.image_places, self._tiles())
        return {
            "input_ids": self.input_ids,
            "position_ids": without_single_axis(self.position_ids),
            "attention_mask": plan,
            "use_cache": False,
            **places,
            **self.vision.model_inputs(self.pixel_values, self.image_grid_thw),
        }

    def _inputs_for_used_positions(self) -> dict[str, Any]:
        """Return the arguments of the backbone's forward, for hidden states at `used_positions`.

        Those of other positions have no meaning. Ranks that compute a row together compute all.
        """
        inputs = self.model_inputs()
        if self.image_shares is None:
            inputs["attention_mask"] = self.plan.for_positions(self.used_positions)
        return inputs

    def _tiles(self) -> tuple[int, ...]:
        """Return the number of frames or tiles of every image of the row."""
        if self.image_shares is not None:
            return self.image_shares.tiles
        return tuple(self.image_grid_thw[:, 0].tolist())

    def score_inputs(self) -> dict[str, Any]:
        """Return the arguments of `ScalarRewardModel.forward` for a packed row.

        They are those of the backbone, and the positions at which scores are read.
        """
        # A row without read positions gets no scores.
        is_scored = len(self.read_owners) > 0
        return {
            **self._inputs_for_used_positions(),
            "read_positions": self.read_positions,
            "read_owners": self.read_owners,
            "continuations": sum(self.output_counts) if is_scored else 0,
        }

    def label_inputs(self) -> dict[str, Any]:
        """Return the arguments of `LanguageModel.forward` for a packed row.

        They are those of the backbone, and the labels whose log-probabilities are computed.
        """
        return {
            **self._inputs_for_used_positions(),
            "label_positions": self.label_positions,
            "labels": self.labels,
        }

    def joint_inputs(self) -> dict[str, Any]:
        """Return the arguments of `CriticRewardModel.forward` for a packed row.

        They are those of the backbone, the positions at which scores are read, and the labels.
        """
        return {**self.score_inputs(), **self.label_inputs()}


def pack(trees: Sequence[SegmentTree], vision: VisionTokens) -> PackedBatch:
    """Return `trees` laid out in one row, as the tensors that the model takes.

    The segments of the row follow one another, those of the first tree first. The position ids of a
    segment start where those of the segment before it in the tree end: at the largest of them plus
    1, on all axes. The attention plan lets a segment see the segments before it in the tree, and
    itself. An image that stands at several places goes through the vision tower once. If no tree
    has an image, a filler with a blank image is added (see `filler_tree`). A row may have no trees:
    it is then the filler alone.

    Args:
        trees: The trees.
        vision: The properties of the family's images.

    Raises:
        ValueError: Some outputs have read positions and others have none, so the scores of the row
            would have no meaning; or the first token of a conversation carries loss, but nothing
            comes before it from which it could be predicted.

    Example: an image of 2 x 2 tokens between `<v>` and `</v>`, and two questions about it. The
    first question has two responses, of which the first carries loss on all tokens. The second has
    one. All three are read at `<end>`.

        segment 0, the image           <v> I I I I </v>
        segment 1, parent 0            how many
        segment 2, parent 1            two . <end>     the first output
        segment 3, parent 1            six <end>       the second
        segment 4, parent 0            colour
        segment 5, parent 4            red <end>       the third

        row position        0   1 2 3 4  5    6   7     8   9 10     11  12     13      14  15
        input_ids           <v> I I I I  </v> how many  two . <end>  six <end>  colour  red <end>
        position_ids frame  0   1 1 1 1  3    4   5     6   7 8      6   7      4       5   6
                     row    0   1 1 2 2  3    4   5     6   7 8      6   7      4       5   6
                     column 0   1 2 1 2  3    4   5     6   7 8      6   7      4       5   6

        image_grid_thw      [[1, 4, 4]]: a token covers 2 x 2 patches
        plan.cu_seqlens_q   [0, 6, 8, 11, 13, 14, 16]
        plan.cu_seqlens_k   [0, 6, 14, 25, 35, 42, 51]: the keys are 0-5, 0-7, 0-10, 0-7 with
                            11-12, 0-5 with 13, and 0-5 with 13-15
        read_positions      [10, 12, 15], read_owners [0, 1, 2]
        label_positions     [7, 8, 9], labels `two . <end>`, label_owners [0, 0, 0]
    """
    trees_of_row = list(trees)
    has_image = any(tree.images for tree in trees)
    if not has_image:
        trees_of_row.append(filler_tree(vision))
    _refuse_partly_read(trees_of_row)

    token_ids: list[int] = []
    positions: list[Tensor] = []
    read_positions: list[int] = []
    read_owners: list[int] = []
    label_positions: list[int] = []
    labels: list[int] = []
    label_owners: list[int] = []
    owner = 0  # number of the output, over the whole row
    for tree in trees_of_row:
        lengths = [len(segment.ids) for segment in tree.segments]
        # The row position of each segment's first token, and after the tree's last token.
        starts = list(accumulate(lengths, initial=len(token_ids)))
        for segment in tree.segments:
            token_ids += segment.ids
        positions += _position_ids(tree, vision)
        for output in tree.outputs:
            segment = tree.segments[output.segment]
            start = starts[output.segment]
            for index in output.reads:
                read_positions.append(start + index)
                read_owners.append(owner)
            for index in output.labels:
                position = start + index - 1  # a token is predicted at the position before it
                if index == 0:
                    position = _last_position_before(tree, segment, starts)
                label_positions.append(position)
                labels.append(segment.ids[index])
                label_owners.append(owner)
            owner += 1

    images = distinct_images(trees_of_row)
    number_of_image = {image: number for number, image in enumerate(images)}
    grids = torch.tensor([image.grid for image in images])
    return PackedBatch(
        input_ids=torch.tensor([token_ids]),
        position_ids=torch.cat(positions, dim=1)[:, None],
        plan=AttentionPlan.from_trees(trees_of_row),
        pixel_values=torch.cat([patches_of(image) for image in images]),
        image_grid_thw=grids,
        vision=vision.tower_plan(grids),
        image_places=tuple(number_of_image[place.image] for place in _places(trees_of_row)),
        read_positions=torch.tensor(read_positions, dtype=torch.int64),
        read_owners=torch.tensor(read_owners, dtype=torch.int64),
        label_positions=torch.tensor(label_positions, dtype=torch.int64),
        labels=torch.tensor(labels, dtype=torch.int64),
        label_owners=torch.tensor(label_owners, dtype=torch.int64),
        used_positions=_used_positions(len(token_ids), read_positions, label_positions),
        trees=tuple(_without_patches(tree) for tree in trees),
    )


def _used_positions(
    num_tokens: int, read_positions: Sequence[int], label_positions: Sequence[int]
) -> Tensor:
    """Return `PackedBatch.used_positions` of a row of so many tokens."""
    first_positions = range(min(2, num_tokens))
    used_positions = {*first_positions, *read_positions, *label_positions}
    return torch.tensor(sorted(used_positions), dtype=torch.int64)


def divide(batch: PackedBatch, group: SequenceGroup, vision: VisionTokens) -> PackedBatch:
    """Return the row as one rank of a group computes it: with the patches of some of its images.

    The model has to be prepared by `divide_sequences`. A rank that gets no image computes a blank
    one, so that the vision tower runs on every rank.

    Args:
        batch: The row, which the other ranks of the group have as well.
        group: The ranks that compute it together.
        vision: The properties of the family's images.
    """
    num_patches = [prod(grid) for grid in batch.image_grid_thw.tolist()]
    owners = owners_of_images(num_patches, group.size)
    shares = ImageShares(
        group=group,
        owners=owners,
        num_tokens=tuple(patches // vision.merge_size**2 for patches in num_patches),
        tiles=tuple(batch.image_grid_thw[:, 0].tolist()),
        smallest=prod(vision.smallest) // vision.merge_size**2,
    )
    patches_of_images = torch.split(batch.pixel_values, num_patches)
    own_patches = [patches_of_images[image] for image in shares.own_images]
    own_grids = batch.image_grid_thw[shares.own_images]
    if not own_patches:
        own_patches = [batch.pixel_values.new_zeros(prod(vision.smallest), vision.patch_size)]
        own_grids = torch.tensor([vision.smallest])
    return replace(
        batch,
        pixel_values=torch.cat(own_patches),
        image_grid_thw=own_grids,
        vision=vision.tower_plan(own_grids),
        image_shares=shares,
    )


def _refuse_partly_read(trees: Sequence[SegmentTree]) -> None:
    """Raise ValueError if some outputs have read positions and others have none."""
    outputs = [output for tree in trees for output in tree.outputs]
    num_read = sum(1 for output in outputs if output.reads)
    if 0 < num_read < len(outputs):
        raise ValueError(
            f"{num_read} of {len(outputs)} conversations of this row have a read position. A row "
            "is scored as a whole: encode all of its conversations with the same `read`."
        )


def _last_position_before(tree: SegmentTree, segment: Segment, starts: Sequence[int]) -> int:
    """Return the row position of the token before a segment's first token.

    Args:
        tree: The tree of the segment.
        segment: The segment.
        starts: Row position of the first token of every segment of the tree.
    """
    if segment.parent is None:
        raise ValueError(
            "The first token of a conversation carries loss, but no token comes before it from "
            "which it could be predicted."
        )
    return starts[segment.parent] + len(tree.segments[segment.parent].ids) - 1


def _position_ids(tree: SegmentTree, vision: VisionTokens) -> list[Tensor]:
    """Return the position ids of every segment of a tree, (axes, tokens) int64 each."""
    position_ids: list[Tensor] = []
    next_positions: list[int] = []  # after each segment
    for segment in tree.segments:
        grids = [place.image.grid for place in segment.images]
        temporal_steps = [place.image.temporal_step for place in segment.images]
        from_zero, length = vision.positions(
            segment.ids, vision.image, grids, vision.merge_size, temporal_steps
        )
        start = 0 if segment.parent is None else next_positions[segment.parent]
        position_ids.append(from_zero + start)
        next_positions.append(start + length)
    return position_ids


def _places(trees: Sequence[SegmentTree]) -> list[ImagePlace]:
    """Return the places of all images of some trees, in the order of the row."""
    places: list[ImagePlace] = []
    for tree in trees:
        for segment in tree.segments:
            places += segment.images
    return places


def patches_of(image: ProcessedImage) -> Tensor:
    """Return an image's patches, (patches, patch_size)."""
    if image.pixel_values is None:
        raise ValueError(
            "An image of the tree has no patches, as in `PackedBatch.trees`. Take the trees that "
            "`unpack` returns."
        )
    return image.pixel_values


def _without_patches(tree: SegmentTree) -> SegmentTree:
    """Return the tree with its images, but without their patches."""
    return tree.with_images({image: replace(image, pixel_values=None) for image in tree.images})


def unpack(batch: PackedBatch) -> list[SegmentTree]:
    """Return the trees that `batch` was packed from, without a filler that `pack` added.

    Their patches are views of those of the batch.
    """
    images: dict[ProcessedImage, ProcessedImage] = {}
    first_patch = 0
    for image in distinct_images(batch.trees):
        end = first_patch + image.patches
        images[image] = replace(image, pixel_values=batch.pixel_values[first_patch:end])
        first_patch = end
    return [tree.with_images(images) for tree in batch.trees]

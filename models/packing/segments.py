"""The tree of segments: conversations that begin alike, with every common beginning held once.

`Segment` holds tokens that some conversations share, and names the segment that comes before it.
`SegmentTree` holds the segments of some conversations and what is asked about each conversation.
`prefix_tree` makes a tree of whole conversations, and `merge` makes one tree of several.

A pair of responses to one prompt is a tree of three segments: the prompt, and a segment for each
response. Several questions about one image share the segment that ends with the image. Both orders
in which a judge sees two responses share the beginning of the request. Responses may hold images
of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import NamedTuple

from torch import Tensor

from mmrm.models.packing.bins import cost
from mmrm.models.packing.vision import Grid

MIN_SAVED_TOKENS = 16
"""Conversations of different prompts share a beginning only if that saves this many tokens.

Below about this number, the attention of one more segment takes as long as the tokens that it
saves.
"""


MAX_TOKENS_TO_GENERATE = 2.0
"""A merged tree after which texts are generated has at most this many times the tokens of its
longest conversation."""
MIN_SHARED_TO_GENERATE = 0.25
"""A tree after which texts are generated is merged with another one only if this share of its tokens
is in both."""


@dataclass(frozen=True, slots=True)
class ProcessedImage:
    """An image as the family's image processor returns it.

    Two of them are equal if their contents and their grids are equal.
    """

    content: str
    """A digest of the image. Images with the same digest go through the vision tower once a row."""
    grid: Grid
    """Frames (or tiles), rows and columns of patches."""
    num_tokens: int
    """Number of language-model tokens that the image becomes."""
    temporal_step: float = 1.0
    """Positions from one frame of a video to the next; see `mrope`. Always 1 for an image."""
    pixel_values: Tensor | None = field(default=None, compare=False, repr=False)
    """(patches, patch_size) float32; None in the trees of a packed row, which holds them itself."""

    @property
    def patches(self) -> int:
        """Number of vision patches."""
        return prod(self.grid)


class ImagePlace(NamedTuple):
    """An image, and where its tokens begin."""

    start: int
    """Index of the image's first token among the tokens of its segment or conversation."""
    image: ProcessedImage

    @property
    def end(self) -> int:
        """Index after the image's last token."""
        return self.start + self.image.num_tokens


@dataclass(frozen=True, slots=True)
class Segment:
    """Successive tokens that some conversations share.

    They see the tokens of the segments before them, up to the root of the tree, and, causally,
    themselves. An image is never divided between two segments.
    """

    ids: tuple[int, ...]
    """Token ids, at least one."""
    parent: int | None = None
    """Index in the tree of the segment that comes before, which is smaller than this segment's own
    index; None if the conversations begin with this segment."""
    images: tuple[ImagePlace, ...] = ()
    """The images whose tokens are in `ids`, in order."""


@dataclass(frozen=True, slots=True)
class Output:
    """The end of one conversation in a tree, and the tokens that are asked for.

    `reads` and `labels` are indices into the `ids` of the segment.
    """

    segment: int
    """Index in the tree of the segment that ends the conversation. A text may be generated after
    it."""
    reads: tuple[int, ...] = ()
    """Tokens whose mean hidden state gives the score."""
    labels: tuple[int, ...] = ()
    """Tokens that carry language-model loss."""


@dataclass(frozen=True, slots=True)
class TokenisedConversation:
    """A whole conversation as tokens; `reads` and `labels` are indices into `ids`."""

    ids: tuple[int, ...]
    images: tuple[ImagePlace, ...] = ()
    """The images whose tokens are in `ids`, in order."""
    reads: tuple[int, ...] = ()
    """Tokens whose mean hidden state gives the score."""
    labels: tuple[int, ...] = ()
    """Tokens that carry language-model loss."""


@dataclass(frozen=True, slots=True)
class SegmentTree:
    """Conversations as a tree of segments, with every common beginning once.

    The tree has several roots if not all of the conversations begin alike.

    Example: a prompt of 3 tokens with two responses, which are read at their last tokens.

        SegmentTree(
            segments=(
                Segment(ids=(5, 6, 7)),
                Segment(ids=(8, 2), parent=0),
                Segment(ids=(9, 9, 2), parent=0),
            ),
            outputs=(Output(segment=1, reads=(1,)), Output(segment=2, reads=(2,))),
        )
    """

    segments: tuple[Segment, ...]
    """A parent comes before its children, and the segments below a root follow it directly."""
    outputs: tuple[Output, ...] = ()
    """One for each conversation, in the order in which the caller gave them. Several may end in the
    same segment, such as several texts that are generated after one prompt."""

    @property
    def tokens(self) -> int:
        """Number of language-model tokens."""
        return sum(len(segment.ids) for segment in self.segments)

    @property
    def images(self) -> tuple[ProcessedImage, ...]:
        """The distinct images of the tree, in the order of their first places."""
        return distinct_images([self])

    @property
    def patches(self) -> int:
        """Number of vision patches of the distinct images."""
        return sum(image.patches for image in self.images)

    @property
    def cost(self) -> int:
        """Cost of computing the tree, in tokens; its vision patches count as parts of a token.

        It is rounded up, so a row may cost less than the sum of its trees.
        """
        return cost(self.tokens, self.patches)

    @property
    def path_lengths(self) -> tuple[int, ...]:
        """The number of tokens of the conversation that each segment ends."""
        lengths: list[int] = []
        for segment in self.segments:
            length_before = 0 if segment.parent is None else lengths[segment.parent]
            lengths.append(length_before + len(segment.ids))
        return tuple(lengths)

    @property
    def unshared_tokens(self) -> int:
        """Number of tokens if every conversation were computed by itself."""
        lengths = self.path_lengths
        return sum(lengths[output.segment] for output in self.outputs)

    def path(self, segment: int) -> tuple[int, ...]:
        """Return the indices of the segments from a root to `segment`, which is the last."""
        indices = [segment]
        parent = self.segments[segment].parent
        while parent is not None:
            indices.append(parent)
            parent = self.segments[parent].parent
        return tuple(reversed(indices))

    def conversation(self, output: Output) -> TokenisedConversation:
        """Return the whole conversation that ends with `output`."""
        ids: list[int] = []
        images: list[ImagePlace] = []
        start = 0
        for index in self.path(output.segment):
            segment = self.segments[index]
            start = len(ids)
            images += [ImagePlace(start + place.start, place.image) for place in segment.images]
            ids += segment.ids
        return TokenisedConversation(
            ids=tuple(ids),
            images=tuple(images),
            reads=tuple(start + index for index in output.reads),
            labels=tuple(start + index for index in output.labels),
        )

    def conversations(self) -> list[TokenisedConversation]:
        """Return the whole conversation of every output."""
        return [self.conversation(output) for output in self.outputs]

    def with_outputs(self, outputs: Iterable[Output]) -> SegmentTree:
        """Return the tree with other outputs, and without the segments that none of them needs."""
        kept_outputs = tuple(outputs)
        needed: set[int] = set()
        for output in kept_outputs:
            needed.update(self.path(output.segment))
        new_index = {old: new for new, old in enumerate(sorted(needed))}
        segments = []
        for index in sorted(needed):
            segment = self.segments[index]
            parent = None if segment.parent is None else new_index[segment.parent]
            segments.append(replace(segment, parent=parent))
        return SegmentTree(
            segments=tuple(segments),
            outputs=tuple(
                replace(output, segment=new_index[output.segment]) for output in kept_outputs
            ),
        )

    def with_images(self, images: Mapping[ProcessedImage, ProcessedImage]) -> SegmentTree:
        """Return the tree with every image replaced by the equal one in `images`.

        Equal images may differ in whether they hold their patches.
        """
        segments = []
        for segment in self.segments:
            places = [ImagePlace(place.start, images[place.image]) for place in segment.images]
            segments.append(replace(segment, images=tuple(places)))
        return replace(self, segments=tuple(segments))


def distinct_images(trees: Sequence[SegmentTree]) -> tuple[ProcessedImage, ...]:
    """Return the distinct images of some trees, in the order of their first places."""
    images: dict[ProcessedImage, None] = {}
    for tree in trees:
        for segment in tree.segments:
            for place in segment.images:
                images.setdefault(place.image)
    return tuple(images)


def prefix_tree(
    conversations: Sequence[TokenisedConversation], min_saved_at_root: int = 0
) -> SegmentTree:
    """Return whole conversations as a tree, with an output for each of them, in order.

    Beginnings that conversations have in common are shared where this saves at least
    MIN_SAVED_TOKENS. A token that is read or carries loss is shared only by conversations with
    equal tokens and images, which end in the same segment.

    Args:
        conversations: The conversations.
        min_saved_at_root: The beginning that all of the conversations have in common is shared if
            that saves at least this many tokens. With 0 it is shared however short it is.
    """
    return _TreeBuilder(conversations).tree(min_saved_at_root)


def merge(trees: Sequence[SegmentTree]) -> SegmentTree:
    """Return one tree with the conversations of all `trees`; its outputs are theirs, in order.

    Beginnings that the conversations have in common are shared where this saves at least
    MIN_SAVED_TOKENS. A single tree is returned unchanged.
    """
    if len(trees) == 1:
        return trees[0]
    conversations: list[TokenisedConversation] = []
    for tree in trees:
        conversations += tree.conversations()
    return prefix_tree(conversations, MIN_SAVED_TOKENS)


class TreeRun:
    """Trees that are to be merged into one, with what the merged tree costs at most.

    Each tree is compared with the first one alone. With the others it may share more. It may also
    share less, by fewer than MIN_SAVED_TOKENS for each of its conversations: where three
    conversations branch, what the last two have in common may be too short to be shared.
    """

    def __init__(
        self,
        first: SegmentTree,
        cost_of: Callable[[SegmentTree], int],
        *,
        generates: bool = False,
    ) -> None:
        """Begin a run.

        Args:
            first: The first tree.
            cost_of: Returns the number of tokens that a tree needs of a row's budget.
            generates: Texts are generated after the outputs. Each of their tokens reads the keys of
                the whole tree, and needs only those of its own conversation. Such trees are merged
                only if they share MIN_SHARED_TO_GENERATE of their tokens, and up to
                MAX_TOKENS_TO_GENERATE.
        """
        self.first = first
        self.cost_of = cost_of
        self.generates = generates
        self.cost = cost_of(first)
        self.num_tokens = first.tokens
        self.longest = max(first.path_lengths, default=0)

    def take(self, tree: SegmentTree, budget: float) -> bool:
        """Add a tree to the run if it belongs there, and return True if it was added.

        It belongs there if merging it with the first tree saves at least MIN_SAVED_TOKENS (or all
        of its tokens, if it has fewer), and if the merged tree costs at most `budget`. If texts are
        generated, the limits of `__init__` hold as well.
        """
        both = merge([self.first, tree])
        num_added_tokens = both.tokens - self.first.tokens
        num_saved_tokens = tree.tokens - num_added_tokens
        if num_saved_tokens < min(MIN_SAVED_TOKENS, tree.tokens):
            return False  # nothing, or too little, is shared
        num_ends = len({output.segment for output in tree.outputs})
        margin = MIN_SAVED_TOKENS * num_ends
        new_cost = self.cost + self.cost_of(both) - self.cost_of(self.first) + margin
        new_num_tokens = self.num_tokens + num_added_tokens
        new_longest = max(self.longest, *tree.path_lengths)
        if new_cost > budget:
            return False
        if self.generates:
            shares_enough = num_saved_tokens >= MIN_SHARED_TO_GENERATE * tree.tokens
            if not shares_enough or new_num_tokens > MAX_TOKENS_TO_GENERATE * new_longest:
                return False
        self.cost = new_cost
        self.num_tokens = new_num_tokens
        self.longest = new_longest
        return True


def runs_to_merge(
    trees: Sequence[SegmentTree],
    cost_of: Callable[[SegmentTree], int],
    budget: float,
    *,
    generates: bool = False,
) -> list[list[int]]:
    """Divide successive trees into runs, each of which is worth being merged into one tree.

    Args:
        trees: The trees.
        cost_of: As in `TreeRun`.
        budget: Largest cost of a merged tree. A single tree may exceed it.
        generates: As in `TreeRun`.

    Returns:
        The indices of the trees of each run, in order.
    """
    indices_by_run: list[list[int]] = []
    run: TreeRun | None = None
    for index, tree in enumerate(trees):
        if run is not None and run.take(tree, budget):
            indices_by_run[-1].append(index)
            continue
        run = TreeRun(tree, cost_of, generates=generates)
        indices_by_run.append([index])
    return indices_by_run


def merged_runs(trees: Sequence[SegmentTree], runs: Sequence[Sequence[int]]) -> list[SegmentTree]:
    """Return one merged tree for each of the runs that `runs_to_merge` found in `trees`."""
    merged = []
    for run in runs:
        merged.append(merge([trees[index] for index in run]))
    return merged


class _Branch(NamedTuple):
    """Some paths of a tree in the making, which are equal as far as they have been compared."""

    paths: list[int]
    start: int
    """The number of tokens of each path that are in the tree already."""
    compared: int
    """The number of tokens in which the paths are known to be equal, at least `start`."""
    parent: int | None
    """The segment that ends before `start`; None if there is none."""


class _TreeBuilder:
    """Finds the common beginnings of conversations, and adds a segment to the tree for each."""

    def __init__(self, conversations: Sequence[TokenisedConversation]) -> None:
        """Prepare a tree of `conversations`.

        Conversations with equal tokens and images are one path of the tree. It has the questions of
        all of them: the tokens that are read, and those that carry loss.
        """
        self.conversations = conversations
        self.numbers_by_path: list[list[int]] = []
        """For each path, the numbers of its conversations."""
        path_by_content: dict[tuple[object, ...], int] = {}
        for number, conversation in enumerate(conversations):
            content = (conversation.ids, conversation.images)
            path = path_by_content.setdefault(content, len(path_by_content))
            if path == len(self.numbers_by_path):
                self.numbers_by_path.append([])
            self.numbers_by_path[path].append(number)
        self.symbols = [_symbols(self._of_path(path)) for path in self.paths]
        self.shareable = [self._shareable_length(path) for path in self.paths]
        self.segments: list[Segment] = []
        self.outputs: dict[int, Output] = {}
        """The outputs that have been added, by the number of their conversation."""

    @property
    def paths(self) -> list[int]:
        """The indices of all paths."""
        return list(range(len(self.numbers_by_path)))

    def _of_path(self, path: int) -> TokenisedConversation:
        """Return the first of the conversations of a path, which have the same tokens and images."""
        return self.conversations[self.numbers_by_path[path][0]]

    def _shareable_length(self, path: int) -> int:
        """Return how many first tokens of a path may be shared with other paths.

        They end before the first token that is read or carries loss, and not inside an image.
        """
        conversation = self._of_path(path)
        length = len(conversation.ids)
        for number in self.numbers_by_path[path]:
            asked = self.conversations[number]
            length = min([length, *asked.reads, *asked.labels])
        for place in conversation.images:
            if place.start < length < place.end:
                length = place.start
        return length

    def tree(self, min_saved_at_root: int) -> SegmentTree:
        """Return the tree of all conversations.

        Branches wait in a stack instead of in recursive calls, because hundreds of responses may
        each begin like the one before, a little longer.
        """
        waiting = [_Branch(self.paths, start=0, compared=0, parent=None)] if self.paths else []
        min_saved = min_saved_at_root
        while waiting:
            branch = waiting.pop()
            if len(branch.paths) == 1:
                self._end_path(branch.paths[0], branch.start, branch.parent)
                continue
            # The first branch is popped last, so that the tree is in the order of the paths.
            waiting += reversed(self._divide(branch, min_saved))
            min_saved = MIN_SAVED_TOKENS
        outputs = [self.outputs[number] for number in range(len(self.conversations))]
        return SegmentTree(tuple(self.segments), tuple(outputs))

    def _divide(self, branch: _Branch, min_saved: int) -> list[_Branch]:
        """Divide a branch where its paths begin to differ, and return the new branches.

        The next common tokens of the paths become a segment if that saves at least `min_saved`.
        """
        shared_end = self._common_length(branch.paths, branch.compared)
        start = branch.start
        parent = branch.parent
        num_saved = (len(branch.paths) - 1) * (shared_end - start)
        if shared_end > start and num_saved >= min_saved:
            parent = self._add_segment(branch.paths[0], start, shared_end, parent)
            start = shared_end
        # The next symbol divides the paths. A path that may not share it goes on alone.
        paths_by_symbol: dict[object, list[int]] = {}
        for path in branch.paths:
            symbol: object = ("the path alone", path)
            if self.shareable[path] > shared_end:
                symbol = self.symbols[path][shared_end]
            paths_by_symbol.setdefault(symbol, []).append(path)
        return [_Branch(paths, start, shared_end, parent) for paths in paths_by_symbol.values()]

    def _common_length(self, paths: Sequence[int], compared: int) -> int:
        """Return the number of first tokens that all `paths` may share and have in common.

        The paths are equal in their first `compared` tokens.
        """
        first = self.symbols[paths[0]]
        length = min(self.shareable[path] for path in paths)
        for path in paths[1:]:
            length = _first_difference(first, self.symbols[path], compared, length)
        return length

    def _add_segment(self, path: int, start: int, end: int, parent: int | None) -> int:
        """Add the tokens `start:end` of a path as a segment, and return its index."""
        conversation = self._of_path(path)
        images = []
        for place in conversation.images:
            if start <= place.start < end:
                images.append(ImagePlace(place.start - start, place.image))
        self.segments.append(Segment(conversation.ids[start:end], parent, tuple(images)))
        return len(self.segments) - 1

    def _end_path(self, path: int, start: int, parent: int | None) -> None:
        """Add the last segment of a path, and the outputs of its conversations.

        No segment is added if all tokens of the path are in the tree already.
        """
        num_tokens = len(self._of_path(path).ids)
        last = parent
        if start < num_tokens or last is None:
            last = self._add_segment(path, start, num_tokens, parent)
        for number in self.numbers_by_path[path]:
            conversation = self.conversations[number]
            self.outputs[number] = Output(
                segment=last,
                reads=tuple(index - start for index in conversation.reads),
                labels=tuple(index - start for index in conversation.labels),
            )


def _symbols(conversation: TokenisedConversation) -> list[object]:
    """Return a list with one entry for each token of a conversation.

    The lists of two conversations are equal as far as the conversations are. A token is its id,
    but the first token of an image stands for the image: two images of the same size have the same
    ids.
    """
    symbols: list[object] = list(conversation.ids)
    for place in conversation.images:
        symbols[place.start] = (place.image.content, place.image.grid)
    return symbols


def _first_difference(a: list[object], b: list[object], start: int, end: int) -> int:
    """Return the first index from `start` to `end` - 1 at which two lists differ; `end` if none.

    The range is halved until it is a single index, because Python compares slices fast.
    """
    if a[start:end] == b[start:end]:
        return end
    while end - start > 1:
        middle = (start + end) // 2
        if a[start:middle] == b[start:middle]:
            start = middle
        else:
            end = middle
    return start

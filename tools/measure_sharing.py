"""Compute from annotation files what is left to compute if conversations share what they can.

    python tools/measure_sharing.py vl_rewardbench=FILE mm_rlhf_rewardbench=FILE
    python tools/measure_sharing.py mmpr=FILE ultrafeedback=FILE
    python tools/measure_sharing.py --recipe recipes/basereward.yaml --rows 2000

The name before a FILE is a benchmark of BENCHMARKS or the type of a source that reads files. Images
are not needed: those with the same name are taken for the same image. With --recipe, the training
records of the sources of a recipe are read, whose images are compared by content.

For each use of the data, the conversations are put into trees, first a tree for each unit that is
computed by itself without sharing, then one tree for all units that have a beginning in common. The
figures are the tokens and vision patches of the second as shares of the first. Texts are divided
into words and punctuation marks, which are nearly the tokens of Qwen's tokenizer for English. An
image, or a video, is IMAGE_TOKENS tokens. Generated texts are included only if they are read again.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path

from mmrm.data.preference import text_responses

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmrm.data.display.command import exit_on_user_error
from mmrm.data.errors import RecordError
from mmrm.data.preference import EncodedImage, Message, Preference, text, validate
from mmrm.data.preparation.mixing import Mixture
from mmrm.data.preparation.recipe_section import read_data_section
from mmrm.data.preparation.recognition import FILE_SOURCES, files_config
from mmrm.data.prompts import judge_conversation
from mmrm.data.sources.shared.file_source import SourceRow
from mmrm.data.storage.files import content_digest
from mmrm.data.storage.row_files import Row, joined_rows, open_rows
from mmrm.models.packing.segments import (
    ImagePlace,
    ProcessedImage,
    SegmentTree,
    TokenisedConversation,
    distinct_images,
    prefix_tree,
)

IMAGE_TOKENS = 1000
"""Number of tokens of every image. Four patches become a token."""
IMAGE_GRID = (1, 40, 100)
"""Frames, rows and columns of the patches of every image."""
IMAGE_ID = -1
"""Id of the tokens of an image; words have the ids 0, 1, 2 and so on."""
JUDGEMENT_TOKENS = 200
"""Number of tokens of a judgement whose log-probabilities are computed."""
NUM_VOTES = 5
"""Number of judgements of each order."""
PIECE = re.compile(r"<\|\w+\|>| ?[^\W\d_]+| ?\d| ?[^\w\s]|\s+|.", re.DOTALL)
"""A special token, a word, a digit, a punctuation mark, or white space."""
BEGIN = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
"""The text that Qwen's chat template writes before the first turn of the user."""


@dataclass(frozen=True)
class Comparison:
    """A prompt with its images, and two responses that are compared."""

    prompt: tuple[Message, ...]
    images: tuple[str, ...]
    """A name or digest of each image, which is equal for equal images."""
    responses: tuple[str, str]

    @property
    def prompt_key(self) -> object:
        """A value that is equal for equal prompts with equal images."""
        return (repr(self.prompt), self.images)

    @property
    def image_key(self) -> object:
        """A value that is equal for prompts with the same first image, or with equal prompts."""
        return self.images[0] if self.images else self.prompt_key


BENCHMARKS = ("vl_rewardbench", "mm_rlhf_rewardbench", "multimodal_rewardbench")
"""The benchmarks whose annotation files can be read."""
IMAGE_COLUMNS = ("image", "image_path", "Image", "video")
"""Columns with the path of an image or video."""


class NamedImages:
    """Images that are known by their names alone, in place of a folder or archive."""

    def find(self, name: str, record: str) -> EncodedImage:
        """Return the name as a path, which is not opened."""
        return Path(name)


def read_comparisons(kind: str, file: Path) -> list[Comparison]:
    """Return the comparisons of an annotation file. Rows that cannot be used are left out.

    Args:
        kind: A benchmark of BENCHMARKS, or a type of source that reads files.
        file: The file.
    """
    comparisons: list[Comparison] = []
    with tempfile.TemporaryDirectory() as cache:
        table_of_rows = open_rows([file], Path(cache))
        if kind in BENCHMARKS:
            for index in range(len(table_of_rows)):
                comparisons.append(_comparison(table_of_rows.row(index)))
            return comparisons
        # Types of source that are unknown are refused where a row is read.
        num_together = FILE_SOURCES[kind].ROWS_TOGETHER if kind in FILE_SOURCES else 1
        for start in range(0, len(table_of_rows) - num_together + 1, num_together):
            columns = table_of_rows.row(start)
            if num_together > 1:
                columns = joined_rows(
                    [table_of_rows.row(start + offset) for offset in range(num_together)]
                )
            comparisons += _source_comparisons(kind, file, columns, f"{kind}:{start}")
    return comparisons


def _source_comparisons(kind: str, file: Path, columns: Row, identity: str) -> Iterator[Comparison]:
    """Yield the comparisons of a row of a file that a source of type `kind` reads."""
    images = "." if kind == "povid" else None  # a key that this type needs; it is not opened
    config = files_config(type=kind, path=str(file), images=images)
    for index_in_row in range(config.records_per_row):
        try:
            row = SourceRow(identity, columns, NamedImages(), index_in_row)
            yield _of_record(validate(config.convert(row)))
        except RecordError as error:
            print(f"left out: {error}", file=sys.stderr)


def _of_record(record: Preference) -> Comparison:
    """Return a preference record as a comparison; an image counts by its content or its path.

    Raises:
        RecordError: A response has images.
    """
    if any(response.images for response in (record.chosen, record.rejected)):
        raise RecordError(f"{record.identity}: a response has images, which are not measured.")
    images = []
    for image in record.images:
        images.append(content_digest(image) if isinstance(image, bytes) else str(image))
    return Comparison(record.prompt, tuple(images), (record.chosen.text, record.rejected.text))


def _comparison(row: Row) -> Comparison:
    """Return a row of a benchmark's annotation file as a comparison."""
    if "Output1" in row:  # Multimodal RewardBench
        question, responses = row["Text"], (row["Output1"], row["Output2"])
    else:
        question, responses = row["prompt"], (row["chosen"], row["rejected"])
    images = tuple(str(row[name]) for name in IMAGE_COLUMNS if row.get(name))
    words = question.replace("<image>", "").strip()
    return Comparison((text("user", words, len(images)),), images, responses)


def recipe_comparisons(recipe: Path, num_rows: int) -> Iterator[tuple[str, list[Comparison]]]:
    """Yield the name and the first `num_rows` training records of each source of a recipe."""
    mixture = Mixture(read_data_section(recipe))
    start = 0
    for split in mixture.splits:
        comparisons = []
        for index in range(start, start + min(num_rows, len(split.rows))):
            record = mixture[index]
            contents = tuple(content_digest(image).encode() for image in record.images)
            comparisons.append(_of_record(replace(record, images=contents)))
        start += len(split.rows)
        yield split.config.label, comparisons


class Tokeniser:
    """Turns conversations into tokens: words and punctuation marks are numbered as they occur."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def conversation(
        self, messages: Sequence[Message], images: Sequence[str]
    ) -> TokenisedConversation:
        """Return the tokens of a conversation, which ends with the turn of the assistant.

        A conversation that ends with a turn of the user ends where the assistant would begin.
        """
        ids: list[int] = []
        places: list[ImagePlace] = []
        remaining_images = iter(images)
        ids += self.tokens(BEGIN)
        for turn in messages:
            ids += self.tokens(f"<|im_start|>{turn['role']}\n")
            for part in turn["content"]:
                if part["type"] == "text":
                    ids += self.tokens(part["text"])
                    continue
                ids += self.tokens("<|vision_start|>")
                image = ProcessedImage(next(remaining_images), IMAGE_GRID, IMAGE_TOKENS)
                places.append(ImagePlace(len(ids), image))
                ids += [IMAGE_ID] * IMAGE_TOKENS
                ids += self.tokens("<|vision_end|>")
            ids += self.tokens("<|im_end|>\n")
        if messages[-1]["role"] == "user":
            ids += self.tokens("<|im_start|>assistant\n")
            return TokenisedConversation(tuple(ids), tuple(places))
        # The head reads the end of the response, which therefore is a token of this conversation.
        return TokenisedConversation(tuple(ids), tuple(places), reads=(len(ids) - 2,))

    def tokens(self, content: str) -> list[int]:
        """Return the ids of the pieces of a text."""
        return [self.ids.setdefault(piece, len(self.ids)) for piece in PIECE.findall(content)]


@dataclass
class Work:
    """Numbers of tokens and of vision patches to compute."""

    tokens: int = 0
    patches: int = 0

    def add(self, tree: SegmentTree) -> None:
        """Add the tokens and patches of a tree."""
        self.tokens += tree.tokens
        self.patches += sum(image.patches for image in distinct_images([tree]))


Unit = list[TokenisedConversation]
"""Conversations that are computed together even without sharing, such as a pair of responses."""


def left_to_compute(unit_groups: Sequence[Sequence[Unit]]) -> tuple[float, float | None]:
    """Return the shares of tokens and of patches that are left if each group of units is a tree.

    The share of patches is None if there are no images.
    """
    alone = Work()
    shared = Work()
    for units in unit_groups:
        conversations: Unit = []
        for unit in units:
            alone.add(prefix_tree(unit))
            conversations += unit
        shared.add(prefix_tree(conversations))
    patches = shared.patches / alone.patches if alone.patches else None
    return shared.tokens / alone.tokens, patches


def grouped(
    comparisons: Sequence[Comparison], key: Callable[[Comparison], object]
) -> list[list[Comparison]]:
    """Return the comparisons in groups with equal keys, in the order of their first ones."""
    groups: dict[object, list[Comparison]] = {}
    for comparison in comparisons:
        groups.setdefault(key(comparison), []).append(comparison)
    return list(groups.values())


def scored(tokeniser: Tokeniser, comparison: Comparison) -> Unit:
    """Return the two conversations that a scalar reward model reads of a comparison."""
    conversations = []
    for response in comparison.responses:
        messages = (*comparison.prompt, text("assistant", response))
        conversations.append(tokeniser.conversation(messages, comparison.images))
    return conversations


def judged(
    tokeniser: Tokeniser, comparison: Comparison, responses: tuple[str, str], votes: int = 0
) -> Unit:
    """Return the conversations in which a judge sees two responses in one order.

    Without votes it is the request. With votes, each is the request with a judgement of its own,
    whose words occur nowhere else.
    """
    first, second = text_responses(*responses)
    request = judge_conversation("r1_reward", comparison.prompt, first, second)
    conversation = tokeniser.conversation(request, comparison.images)
    conversations = []
    for vote in range(votes):
        first_id = -2 - JUDGEMENT_TOKENS * vote
        judgement = tuple(range(first_id, first_id - JUDGEMENT_TOKENS, -1))
        start = len(conversation.ids)
        conversations.append(
            TokenisedConversation(
                conversation.ids + judgement,
                conversation.images,
                labels=tuple(range(start, start + JUDGEMENT_TOKENS)),
            )
        )
    return conversations or [conversation]


def both_orders(tokeniser: Tokeniser, comparison: Comparison, votes: int = 0) -> list[Unit]:
    """Return the units of both orders of a comparison."""
    first, second = comparison.responses
    return [
        judged(tokeniser, comparison, (first, second), votes),
        judged(tokeniser, comparison, (second, first), votes),
    ]


def tournament(tokeniser: Tokeniser, comparisons: Sequence[Comparison]) -> list[Unit]:
    """Return a unit for every ordered pair of the distinct responses to one prompt."""
    responses: dict[str, None] = {}
    for comparison in comparisons:
        responses.update(dict.fromkeys(comparison.responses))
    return [
        judged(tokeniser, comparisons[0], (first, second))
        for first, second in permutations(responses, 2)
    ]


CASES = (
    "scalar, pairs of a prompt",
    "scalar, prompts of an image",
    "judge, both orders",
    "judge, both orders, 5 judgements each",
    "judge, all pairs of a prompt",
    "judge, tournament of a prompt",
)
"""The uses of the data, in the order of the columns."""


def measured(comparisons: Sequence[Comparison]) -> list[tuple[float, float | None]]:
    """Return for each of CASES the shares of tokens and of patches that are left to compute."""
    tokeniser = Tokeniser()
    by_prompt = grouped(comparisons, lambda comparison: comparison.prompt_key)
    by_image = grouped(comparisons, lambda comparison: comparison.image_key)
    orders_by_prompt: list[list[Unit]] = []
    for group in by_prompt:
        units: list[Unit] = []
        for comparison in group:
            units += both_orders(tokeniser, comparison)
        orders_by_prompt.append(units)
    return [
        left_to_compute([[scored(tokeniser, one) for one in group] for group in by_prompt]),
        left_to_compute([[scored(tokeniser, one) for one in group] for group in by_image]),
        left_to_compute([both_orders(tokeniser, one) for one in comparisons]),
        left_to_compute([both_orders(tokeniser, one, NUM_VOTES) for one in comparisons]),
        left_to_compute(orders_by_prompt),
        left_to_compute([tournament(tokeniser, group) for group in by_prompt]),
    ]


def cell(shares: tuple[float, float | None]) -> str:
    """Return the shares of tokens and patches as text, such as "60 % / 50 %"."""
    tokens, patches = shares
    return f"{tokens:.0%} / {'-' if patches is None else f'{patches:.0%}'}".replace("%", " %")


def table(rows: Sequence[tuple[str, Sequence[Comparison]]]) -> str:
    """Return what is left to compute of some data sets as a Markdown table."""
    lines = [
        f"| data | pairs | {' | '.join(CASES)} |",
        "|---|---|" + "---|" * len(CASES),
    ]
    for name, comparisons in rows:
        cells = [cell(shares) for shares in measured(comparisons)]
        lines.append(f"| {name} | {len(comparisons):,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table of the annotation files, and of the sources of a recipe."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", metavar="NAME=FILE", help="An annotation file.")
    parser.add_argument("--recipe", type=Path, help="A recipe, whose sources are read.")
    parser.add_argument(
        "--rows", type=int, default=2000, help="The most records of a source that are read."
    )
    options = parser.parse_args()
    rows: list[tuple[str, list[Comparison]]] = []
    with exit_on_user_error():
        for argument in options.files:
            name, _, file = argument.partition("=")
            if name not in (*BENCHMARKS, *FILE_SOURCES) or not file:
                names = ", ".join((*BENCHMARKS, *FILE_SOURCES))
                parser.error(f"{argument}: required is NAME=FILE, and NAME is one of {names}")
            rows.append((name, read_comparisons(name, Path(file))))
        if options.recipe is not None:
            rows += recipe_comparisons(options.recipe, options.rows)
        print(table(rows))


if __name__ == "__main__":
    main()

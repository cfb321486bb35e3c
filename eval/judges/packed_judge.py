"""Judges that run a model in this process, on packed rows.

A judge cuts candidates into units. A unit becomes one tree of a packed row: a prompt, with some of
its responses or with the judgements that are to be written. Loader workers encode units, rows of
units run through the model, and the results of a prompt's units are merged into its scores.
`PackedJudge.score_batch` takes these steps one after the other, and the server's batcher takes them
for many clients at a time.
"""

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from time import perf_counter

import numpy as np
import torch

from mmrm.data.encoded_video import video_size
from mmrm.data.errors import NonFiniteError, RecordError
from mmrm.data.images import ImageTokens, image_size
from mmrm.data.preference import Response, control_token, texts
from mmrm.eval.benchmarks.benchmark import Benchmark
from mmrm.eval.candidates import NO_USAGE, Candidates, Scores, Usage
from mmrm.eval.journal import SILENT, Journal
from mmrm.eval.judges.judge import JudgeInfo
from mmrm.eval.judges.messages import candidates_of
from mmrm.eval.judges.packed_inference import CHUNK, Cost, Packed, run_packed
from mmrm.eval.protocol import ProtocolConfig, journal_key
from mmrm.models.config import StoredRead
from mmrm.models.encoder import Conversation, Encoder
from mmrm.models.packing.packed_batch import PackedBatch
from mmrm.models.packing.segments import SegmentTree

BYTES_A_TOKEN = 3
"""Bytes of a response per token, to estimate its tokens before it is tokenised. A token has mostly
more bytes, so that the estimate is rather too high than too low."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Some of the responses to one prompt, which are judged together.

    They become one tree of a packed row: the prompt once, and the texts that follow it.
    """

    key: str
    """The unit's name among the units of its candidates."""
    candidates: Candidates
    shown: tuple[int, ...]
    """Indices of the responses that the tree holds, in the order in which they are shown."""
    seeds: tuple[str, ...] = ()
    """The seed of each text that the judge writes."""

    @property
    def responses(self) -> tuple[Response, ...]:
        """The responses that are shown, in the order of `shown`."""
        return tuple(self.candidates.responses[index] for index in self.shown)


@dataclass(frozen=True, slots=True)
class UnitResult:
    """The model's result for the responses of one unit.

    A journal keeps it, and ranks exchange it.
    """

    values: tuple[float, ...] = ()
    """A score for each response that is shown; empty if the unit's texts name the better one."""
    attributes: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Further numbers by name, one for each response that is shown."""
    texts: tuple[str, ...] = ()
    usage: Usage = NO_USAGE
    """The cost of judging the unit."""


Layout = Callable[[Unit], tuple[list[Conversation], StoredRead | None]]
"""Returns the conversations of a unit with their images, and the token at which each score is read. The latter is
None if no score is read but text is written.

It is a separate object and not a method of the judge, because loader workers receive it by
pickling, and the judge holds the model."""


@dataclass(frozen=True, slots=True)
class UnitEncoder:
    """Encodes a unit, some of the responses to one prompt, as a tree of a packed row.

    It runs in loader workers, so it holds no model.
    """

    encoder: Encoder
    layout: Layout

    def __call__(self, unit: Unit) -> SegmentTree:
        """Return a unit's prompt and responses as a tree of token ids and pixels.

        Raises: RecordError if an image cannot be decoded.
        """
        conversations, scored_token = self.layout(unit)
        identity = unit.candidates.identity
        return self.encoder.encode_conversations(conversations, scored_token, identity)


@dataclass(frozen=True, slots=True)
class ResponsesLayout:
    """Makes the conversations for a model that scores responses, one for each response."""

    read: StoredRead
    """The token of a response at which its score is read."""

    def __call__(self, unit: Unit) -> tuple[list[Conversation], StoredRead]:
        """Return one conversation for each response, and the token at which its score is read."""
        candidates = unit.candidates
        conversations: list[Conversation] = []
        for response in unit.responses:
            conversations.append(
                Conversation.answered(
                    candidates.prompt, candidates.images, response, videos=candidates.videos
                )
            )
        return conversations, self.read


@dataclass(frozen=True, kw_only=True)
class PackedJudge(ABC):
    """A judge whose model runs in this process."""

    packed: Packed
    protocol: ProtocolConfig | None = None
    """The protocol of the benchmark that is judged; None if the judge ranks people's own responses
    (see judge.py)."""
    about: tuple[str, ...] = ()
    """Notes to print with the judge's figures, besides the cost of judging."""

    @property
    @abstractmethod
    def info(self) -> JudgeInfo:
        """Properties of the judge that callers need."""

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """The function that makes the conversations about some of the responses to a prompt."""

    @abstractmethod
    def units(self, candidates: Candidates) -> list[Unit]:
        """Divide the responses to a prompt into units, and return the units in order.

        The responses of a unit are judged together, in one tree of a packed row.
        """

    @abstractmethod
    def run(self, batch: PackedBatch, units: Sequence[Unit]) -> list[UnitResult]:
        """Run the model on a packed row, and return one result for each unit in the row.

        A rank without work calls this with a filler row and no units, because under ZeRO-3 the
        other ranks need its share of the weights.
        """

    @abstractmethod
    def merge(
        self, candidates: Candidates, units: Sequence[Unit], results: Sequence[UnitResult]
    ) -> Scores:
        """Return the scores of all responses to a prompt.

        Args:
            candidates: The prompt and its responses.
            units: The units into which `units` divided the responses, in order.
            results: The model's result for each unit.

        Raises:
            NonFiniteError: A score is not finite, and this is not the judge of a benchmark.
        """

    @property
    def trial(self) -> Candidates:
        """Two responses with which a server tests at its start that the judge can compute."""
        return candidates_of("?", ["-", "."])

    @property
    def can_divide_units(self) -> bool:
        """True if the server may divide the responses of a unit over several rows.

        It is False by default, because the random draws of written texts depend on the unit.
        """
        return False

    @property
    def row_cost(self) -> Cost:
        """A function that returns the number of tokens of a packed row's budget that a tree needs.

        A tree is a prompt with the texts that follow it. The function can be pickled for loader
        workers.
        """
        return attrgetter("cost")

    @property
    def encode(self) -> Callable[[Unit], SegmentTree]:
        """The function that encodes the responses of a unit for the model.

        A unit is some of the responses to one prompt. The function can be pickled for loader
        workers.
        """
        return UnitEncoder(self.packed.encoder, self.layout)

    def under(self, protocol: ProtocolConfig, benchmark: Benchmark) -> "PackedJudge":
        """Return a copy of this judge that follows a benchmark's protocol."""
        return replace(self, protocol=protocol)

    def notes(self, scores: Sequence[Scores]) -> tuple[str, ...]:
        """Return notes to print with figures that are computed from these scores."""
        return self.about

    def checked_units(self, candidates: Candidates) -> list[Unit]:
        """Return the responses to a prompt in units, like `units`, and check their texts first.

        Raises: RecordError if a text holds a control token and this is not the judge of a
        benchmark.
        """
        if self.protocol is None:
            refuse_control_tokens(candidates, self.packed.encoder)
        return self.units(candidates)

    @torch.no_grad()
    def score_batch(self, batch: Sequence[Candidates], journal: Journal = SILENT) -> list[Scores]:
        """Return the scores of each prompt's responses, in the order of `batch`, on every rank.

        All ranks must call together. The journal shows the progress, and keeps the results.

        Raises:
            RecordError: A text or an image cannot be encoded.
            NonFiniteError: A score is not a finite number, and the judge is not a benchmark's.
        """
        started = perf_counter()
        units_by_candidates = [self.checked_units(candidates) for candidates in batch]
        all_units: list[Unit] = []
        keys: list[str] = []
        for candidates, units in zip(batch, units_by_candidates, strict=True):
            content = journal_key(candidates)
            all_units += units
            keys += [f"{content}/{unit.key}" for unit in units]
        with journal.judging(keys, UnitResult, len(batch)) as judging:
            results = run_packed(
                self.packed,
                all_units,
                self.encode,
                self.run,
                self.row_cost,
                judging,
                sets=sets_that_begin_alike(all_units),
                generates=self.info.writes,
            )
        scores: list[Scores] = []
        start = 0
        seconds_per_prompt = (perf_counter() - started) / max(len(batch), 1)
        for candidates, units in zip(batch, units_by_candidates, strict=True):
            end = start + len(units)
            merged = self.merge(candidates, units, results[start:end])
            usage = merged.usage + Usage(seconds=seconds_per_prompt)
            scores.append(replace(merged, usage=usage))
            start = end
        return scores


def beginning(candidates: Candidates) -> bytes:
    """Return a digest that is equal for prompts that begin alike, so that they can share a tree.

    It is that of the first image, or else of the first video, which nearly all of the tokens that
    prompts share belong to. For a prompt without both it is that of the whole prompt.
    """
    files = [*candidates.images, *(video.content for video in candidates.videos)]
    if not files:
        return hashlib.sha256(json.dumps(candidates.prompt).encode()).digest()
    content = files[0] if isinstance(files[0], bytes) else str(files[0]).encode()
    return hashlib.sha256(content).digest()


def sets_that_begin_alike(units: Sequence[Unit]) -> list[list[int]]:
    """Divide units into sets that begin alike, and return the indices of each set's units.

    A set is computed as one tree where that fits into a row. Sets are in the order of their first
    units, and have at most CHUNK units, because all units of a set are encoded together.
    """
    set_by_beginning: dict[bytes, list[int]] = {}
    sets: list[list[int]] = []
    digest_by_prompt: dict[int, bytes] = {}  # by the identity of the candidates, in memory
    for index, unit in enumerate(units):
        identity = id(unit.candidates)
        if identity not in digest_by_prompt:
            digest_by_prompt[identity] = beginning(unit.candidates)
        digest = digest_by_prompt[identity]
        indices = set_by_beginning.get(digest)
        if indices is None or len(indices) == CHUNK:
            indices = []
            set_by_beginning[digest] = indices
            sets.append(indices)
        indices.append(index)
    return sets


def refuse_control_tokens(candidates: Candidates, encoder: Encoder) -> None:
    """Raise RecordError if the prompt or a response holds a control token of the tokenizer."""
    prompt_texts = ["".join(texts([turn])) for turn in candidates.prompt]
    texts_of_responses = [response.text for response in candidates.responses]
    for content in (*prompt_texts, *texts_of_responses):
        token = control_token(content, encoder.control_tokens)
        if token:
            raise RecordError(
                f"{candidates.identity}: a text contains {token!r}, which the tokenizer reads as a "
                "control token, not as text. Remove it."
            )


def units_of_responses(
    candidates: Candidates, token_budget: int | None, count_image_tokens: ImageTokens
) -> Iterator[Unit]:
    """Yield units of consecutive responses that fit together into a packed row.

    The number of tokens of a response's text is estimated. A unit holds at least one response, also
    if that one is longer than the budget.

    Args:
        candidates: The prompt and its responses.
        token_budget: Largest number of tokens in a row; None puts all responses into one unit.
        count_image_tokens: Counts the tokens of images and videos from their sizes.

    Raises:
        ImageError: An image or a video of a response cannot be read.
    """
    num_responses = len(candidates.responses)
    start = 0
    used_tokens = 0
    for index, response in enumerate(candidates.responses):
        num_bytes = len(response.text.encode(errors="surrogatepass"))
        tokens = num_bytes // BYTES_A_TOKEN + 1
        if response.images:
            sizes = [image_size(image, candidates.identity) for image in response.images]
            tokens += int(count_image_tokens(np.array(sizes, np.uint32)).sum())
        if response.videos:
            videos = [video_size(video, candidates.identity) for video in response.videos]
            tokens += int(count_image_tokens.of_videos(np.array(videos, np.float64)).sum())
        is_full = token_budget is not None and used_tokens + tokens > token_budget
        if is_full and index > start:
            yield _unit_of_range(candidates, start, index)
            start = index
            used_tokens = 0
        used_tokens += tokens
    yield _unit_of_range(candidates, start, num_responses)


def _unit_of_range(candidates: Candidates, start: int, end: int) -> Unit:
    """Return the unit of the responses with the indices from `start` to `end` - 1.

    The unit's key, under which its result is stored, names the responses: with another token
    budget, other responses are judged together, and the stored result must not be used.
    """
    return Unit(f"{start}-{end}", candidates, tuple(range(start, end)))


def joined_values(results: Sequence[UnitResult]) -> tuple[float, ...]:
    """Return the scores of all units of a prompt in one tuple."""
    return tuple(value for result in results for value in result.values)


def joined_attributes(results: Sequence[UnitResult]) -> dict[str, tuple[float, ...]]:
    """Return the further numbers of all units of a prompt, in one tuple for each name."""
    joined: dict[str, tuple[float, ...]] = {}
    for result in results:
        for name, numbers in result.attributes.items():
            joined[name] = joined.get(name, ()) + tuple(numbers)
    return joined


def joined_texts(results: Sequence[UnitResult]) -> tuple[str, ...]:
    """Return the texts of all units of a prompt in one tuple."""
    return tuple(written_text for result in results for written_text in result.texts)


def refuse_non_finite(candidates: Candidates, values: Sequence[float]) -> None:
    """Raise NonFiniteError if a score is not a finite number."""
    invalid_indices = [index for index, value in enumerate(values) if not math.isfinite(value)]
    if invalid_indices:
        raise NonFiniteError(
            f"{candidates.identity}: the scores of the responses {invalid_indices[:9]} are no "
            f"finite numbers (the first is {values[invalid_indices[0]]}). The checkpoint is "
            "broken, or computes in a dtype that overflows: take another one."
        )

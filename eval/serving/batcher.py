"""Compute the scores of all clients' groups in packed rows, in order of arrival.

A group is a prompt with the responses to it. A row is a sequence of groups that the model computes
together. Groups are encoded in a pool of threads, and one thread runs the model. As soon as a row
is computed, the next one is made of the groups that have arrived by then. What groups about one
image have in common, the image and whatever else they begin with, is computed once. If a row fails,
its groups are computed one by one, so that only the group that causes the error fails.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

import torch

from mmrm.data.errors import RecordError
from mmrm.data.preference import texts
from mmrm.eval.candidates import Candidates, Scores
from mmrm.eval.judges.packed_judge import PackedJudge, Unit, UnitResult, beginning
from mmrm.eval.serving.metrics import Metrics
from mmrm.eval.serving.request_limits import RequestLimits
from mmrm.models.cancellation import run_abandonable
from mmrm.models.packing.segments import SegmentTree, TreeRun, merge

ResultT = TypeVar("ResultT")

NUM_ENCODERS = min(16, os.cpu_count() or 1)
"""Number of threads that encode groups."""
MAX_ENCODED = 256
"""Largest number of groups that are encoded and not answered yet.

An encoded image of a million pixels takes 24 MB.
"""


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """The scores of a request's group, and the number of tokens that were computed for them."""

    scores: Scores
    tokens: int
    """Number of tokens computed for the group.

    What several groups share is counted at the first of them. Texts that a judge writes are not
    counted.
    """
    tokens_unshared: int
    """The number of tokens if each response were computed with its own copy of the prompt."""


@dataclass(eq=False, slots=True)
class Part:
    """Responses to a prompt that wait to be computed together.

    They are the responses of one unit, or some of them if the unit is too large for a row. A unit
    holds the responses to a prompt that the judge computes together.
    """

    unit: Unit
    tree: SegmentTree
    """The encoded unit. It has an output for each response, or for each judgement that is to be
    written."""
    beginning: object
    """A key that is equal for parts that begin alike: about the same first image, or, without an
    image, with the same prompt. They are computed as one tree."""
    result: "asyncio.Future[UnitResult]"
    num_tokens: int = 0
    """Number of tokens that were computed for the part; 0 before."""

    @property
    def num_outputs(self) -> int:
        """Number of responses, or of judgements that are to be written."""
        return len(self.tree.outputs)

    @property
    def num_tokens_after_root(self) -> int:
        """Number of tokens that the part does not share with parts that begin alike."""
        return self.tree.tokens - len(self.tree.segments[0].ids)


@dataclass(frozen=True, slots=True)
class PendingRow:
    """A row to be computed: parts whose responses the model computes together."""

    trees: Sequence[SegmentTree]
    """Each has the outputs of its parts in their order."""
    parts_by_tree: Sequence[Sequence[Part]]
    """The parts of each tree of the row. Parts that begin alike share a tree."""

    @classmethod
    def of(cls, parts_by_tree: Sequence[Sequence[Part]]) -> "PendingRow":
        """Return the row of some parts.

        Args:
            parts_by_tree: The parts of each tree of the row, which are merged.
        """
        trees = []
        for parts in parts_by_tree:
            trees.append(merge([part.tree for part in parts]))
        return cls(trees, [list(parts) for parts in parts_by_tree])

    @property
    def parts(self) -> list[Part]:
        """The parts of the row in the order of their trees."""
        return [part for parts in self.parts_by_tree for part in parts]


class Batcher:
    """Computes the scores of responses for any number of callers on one event loop.

    The method `run` must run as a task of the same event loop. It packs the responses that wait
    into rows, which the model computes one after the other.
    """

    def __init__(
        self,
        judge: PackedJudge,
        model: ThreadPoolExecutor,
        limits: RequestLimits,
        metrics: Metrics,
    ) -> None:
        """Create a batcher for a loaded judge.

        Args:
            judge: The judge.
            model: An executor with one thread, the one in which the judge's model was loaded.
            limits: The limits on requests.
            metrics: The metrics to which computed rows are added.
        """
        self.judge = judge
        self.model = model
        self.limits = limits
        self.metrics = metrics
        self.encoders = ThreadPoolExecutor(NUM_ENCODERS, "encode")
        self.waiting: list[Part] = []
        self.has_waiting = asyncio.Event()
        self.encoding_slots = asyncio.Semaphore(MAX_ENCODED)

    async def score(self, candidates: Candidates, lane: asyncio.Semaphore) -> ScoredGroup:
        """Wait until a group is computed, and return the judge's scores of its responses.

        A judge that ranks by rounds of comparisons gets the pairs of one round after another.

        Args:
            candidates: The group, a prompt with its responses.
            lane: The semaphore of the request that the group belongs to, from `new_lane`.

        Raises:
            RecordError: If the group cannot be encoded.
            NonFiniteError: If a score is not a finite number.
        """
        ranking = self.judge.ranking(candidates)
        if ranking is None:
            return await self._score_units(candidates, lane)
        num_tokens = 0
        num_tokens_unshared = 0
        while pairs := ranking.next_pairs():
            groups = await asyncio.gather(*(self._score_units(pair, lane) for pair in pairs))
            ranking.add([group.scores for group in groups])
            num_tokens += sum(group.tokens for group in groups)
            num_tokens_unshared += sum(group.tokens_unshared for group in groups)
        return ScoredGroup(ranking.scores(), num_tokens, num_tokens_unshared)

    async def _score_units(self, candidates: Candidates, lane: asyncio.Semaphore) -> ScoredGroup:
        """Wait until all units of a group are computed, and return the scores of its responses.

        The arguments and errors are those of `score`.
        """
        async with lane:
            units, beginning = await self.in_pool(self._units_and_beginning, candidates)
        parts_by_unit = await asyncio.gather(
            *(self._compute_unit(unit, beginning, lane) for unit in units)
        )
        # A part is the responses of a unit, or some of them. Its result is now a finished future.
        parts = [part for parts_of_unit in parts_by_unit for part in parts_of_unit]
        units_of_parts = [part.unit for part in parts]
        results = [part.result.result() for part in parts]
        scores = self.judge.merge(candidates, units_of_parts, results)
        num_tokens = sum(part.num_tokens for part in parts)
        num_tokens_unshared = sum(part.tree.unshared_tokens for part in parts)
        return ScoredGroup(scores, num_tokens, num_tokens_unshared)

    def new_lane(self) -> asyncio.Semaphore:
        """Return a semaphore that limits the number of groups of one request in the encoders' pool.

        The pool works in order of arrival. With the limit, a request of hundreds of groups does not
        fill the pool, and a small request does not have to wait for all of them.
        """
        return asyncio.Semaphore(NUM_ENCODERS)

    async def in_pool(self, function: Callable[..., ResultT], *arguments: object) -> ResultT:
        """Call `function` in a thread of the encoders' pool, and return its result.

        If the caller is cancelled before a thread is free, the function is never called. A function
        that runs already ends when it next calls `stop_if_abandoned`.
        """
        abandoned = threading.Event()
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self.encoders, run_abandonable, abandoned, function, *arguments
            )
        except asyncio.CancelledError:
            abandoned.set()
            raise

    def _units_and_beginning(self, candidates: Candidates) -> tuple[list[Unit], bytes]:
        """Return the judge's units of candidates, and a digest of what they begin with.

        A unit holds the responses that the judge computes together.
        """
        units = self.judge.checked_units(candidates)
        return units, beginning(candidates)

    async def _compute_unit(
        self, unit: Unit, beginning: bytes, lane: asyncio.Semaphore
    ) -> list[Part]:
        """Wait until a unit of the judge is computed, and return its parts with their results.

        Args:
            unit: The responses to a prompt that the judge computes together. If they do not fit
                into one row, they become several parts.
            beginning: A digest that is equal for units that begin alike.
            lane: The semaphore of the request, from `new_lane`.
        """
        loop = asyncio.get_running_loop()
        parts: list[Part] = []
        # Encoding requires a place in the request's lane, which is kept until the unit is encoded,
        # and one of the batcher's slots, which is kept until the unit is computed.
        async with AsyncExitStack() as until_computed:
            async with lane:
                await until_computed.enter_async_context(self.encoding_slots)
                encoded_units = await self.in_pool(self._encode_for_rows, unit)
            for encoded_unit, tree in encoded_units:
                parts.append(Part(encoded_unit, tree, beginning, loop.create_future()))
            self.waiting += parts
            self.has_waiting.set()
            await asyncio.gather(*(part.result for part in parts))
            return parts

    def _encode_for_rows(self, unit: Unit) -> list[tuple[Unit, SegmentTree]]:
        """Encode a unit of the judge, and return it with its tree.

        If one row cannot hold all responses of the unit, the result has several units, each with
        some of the responses, and their trees.

        Raises:
            RecordError: If the prompt with its longest response exceeds the limit of tokens.
        """
        self._refuse_by_longest_response(unit)
        tree = self.judge.encode(unit)
        self._refuse_beyond_tokens(tree)
        return list(self._halve_until_it_fits(unit, tree))

    def _refuse_by_longest_response(self, unit: Unit) -> None:
        """Raise RecordError if a prompt with its longest response exceeds the limit of tokens.

        This check comes before the whole unit is encoded, which takes long, because the prompt is
        tokenised with each response. A prompt with so few characters that it cannot exceed the
        limit is not encoded here.
        """
        if self.judge.info.compares or len(unit.shown) == 1:
            return  # such a unit has few responses, so that its encoding is the check
        responses = unit.candidates.responses
        longest = max(unit.shown, key=lambda index: len(responses[index].text))
        num_characters = sum(map(len, texts(unit.candidates.prompt)))
        num_characters += len(responses[longest].text)
        if num_characters > self.limits.tokens:
            self._refuse_beyond_tokens(self.judge.encode(replace(unit, shown=(longest,))))

    def _refuse_beyond_tokens(self, tree: SegmentTree) -> None:
        """Raise RecordError if a tree exceeds the limit of tokens.

        The limit holds for the prompt with its longest response, because a larger tree is divided.
        """
        lengths = tree.path_lengths
        longest = max(tree.outputs, key=lambda output: lengths[output.segment])
        cost = self.judge.row_cost(tree.with_outputs([longest]))
        if cost > self.limits.tokens:
            raise RecordError(
                f"the prompt with its longest response takes {cost:,} tokens of a row, its images' "
                f"patches among them; this server allows {self.limits.tokens:,}. Shorten it, send "
                "fewer or smaller images, or start with `--max-tokens N`."
            )

    def _halve_until_it_fits(
        self, unit: Unit, tree: SegmentTree
    ) -> Iterator[tuple[Unit, SegmentTree]]:
        """Yield a judge's unit and its tree, or parts of them that fit into a row.

        The responses of a unit that is too large are halved as often as needed. A single response
        that does not fit is yielded unchanged.
        """
        middle = len(tree.outputs) // 2
        fits = self.judge.row_cost(tree) <= self.judge.packed.token_budget
        if fits or middle == 0 or not self.judge.can_divide_units:
            yield unit, tree
            return
        for half in (slice(middle), slice(middle, None)):
            half_of_tree = tree.with_outputs(tree.outputs[half])
            half_of_unit = replace(unit, shown=unit.shown[half], seeds=unit.seeds[half])
            yield from self._halve_until_it_fits(half_of_unit, half_of_tree)

    async def run(self) -> None:
        """Compute the responses that wait, row after row, until the task is cancelled."""
        while True:
            await self.has_waiting.wait()
            row = await self._in_model_thread(self._next_row, list(self.waiting))
            parts_of_row = set(row.parts)
            # The result of a part is done early if its caller was cancelled.
            self.waiting = [
                part for part in self.waiting if part not in parts_of_row and not part.result.done()
            ]
            if not self.waiting:
                self.has_waiting.clear()
            await self._compute_row(row)

    async def _in_model_thread(
        self, function: Callable[..., ResultT], *arguments: object
    ) -> ResultT:
        """Call `function` in the model's thread, and return its result."""
        return await asyncio.get_running_loop().run_in_executor(self.model, function, *arguments)

    def _next_row(self, waiting: Sequence[Part]) -> PendingRow:
        """Return a row with the first waiting part, and with further parts that fit into it.

        A part is responses to a prompt that some caller waits for. Parts that begin like an earlier
        one are tried right after it, because they cost little next to it, and the others in order
        of arrival. The part that waits longest is in every row, so no part waits for ever. Parts
        fit if the row stays within the token budget.
        """
        budget = self.judge.packed.token_budget
        judge = self.judge
        row_cost = 0
        parts_by_tree: list[list[Part]] = []
        # The run of trees that later parts with the same beginning may join, and its parts.
        open_run_by_beginning: dict[object, tuple[TreeRun, list[Part]]] = {}
        for part in _with_equal_beginnings_together(waiting):
            if part.result.done():
                continue  # its caller no longer waits for it
            if parts_by_tree and row_cost + part.num_tokens_after_root > budget:
                continue  # it cannot fit, even if it shares its beginning with a part of the row
            if part.beginning in open_run_by_beginning:
                run, parts_of_run = open_run_by_beginning[part.beginning]
                cost_of_others = row_cost - run.cost
                if run.take(part.tree, budget - cost_of_others):
                    parts_of_run.append(part)
                    row_cost = cost_of_others + run.cost
                    continue
            new_run = TreeRun(part.tree, judge.row_cost, generates=judge.info.writes)
            # The first part is taken even beyond the budget: it would fit into no other row either.
            if not parts_by_tree or row_cost + new_run.cost <= budget:
                parts_by_tree.append([part])
                open_run_by_beginning[part.beginning] = (new_run, parts_by_tree[-1])
                row_cost += new_run.cost
        return PendingRow.of(parts_by_tree)

    async def _compute_row(self, row: PendingRow) -> None:
        """Compute a row, and set the result of each of its parts.

        A part is responses to a prompt that some caller waits for. If the row fails, its parts are
        computed again one by one, and a part that fails alone gets its error as its result.
        """
        parts = row.parts
        if not parts:
            return
        results: list[UnitResult] | BaseException
        # With return_exceptions, `gather` returns an error of the model instead of raising it.
        [results] = await asyncio.gather(
            self._in_model_thread(self._forward, row), return_exceptions=True
        )
        if isinstance(results, BaseException) and len(parts) > 1:
            for part in parts:
                await self._compute_row(PendingRow.of([[part]]))
            return
        for index, part in enumerate(parts):
            if part.result.done():
                continue  # its caller was cancelled
            if isinstance(results, BaseException):
                part.result.set_exception(results)
            else:
                part.result.set_result(results[index])

    @torch.no_grad()
    def _forward(self, row: PendingRow) -> list[UnitResult]:
        """Run the model on a row, and return the results in the order of `row.parts`.

        A part is responses to a prompt that some caller waits for. The number of tokens that were
        computed for a part is noted in it.

        Raises:
            NonFiniteError: If a score is not a finite number.
        """
        judge = self.judge
        batch = judge.packed.encoder.pack(row.trees)
        results = judge.run(batch.to(judge.packed.device), [part.unit for part in row.parts])
        if judge.can_divide_units:
            for part, result in zip(row.parts, results, strict=True):
                # Called only to raise NonFiniteError for this part and not for another one.
                judge.merge(part.unit.candidates, [part.unit], [result])
        for tree, parts in zip(row.trees, row.parts_by_tree, strict=True):
            _count_tokens(tree, parts)
        self._add_to_metrics(row, batch.cost)
        return results

    def _add_to_metrics(self, row: PendingRow, cost: int) -> None:
        """Add a computed row, which takes `cost` tokens of the token budget, to the metrics."""
        parts = row.parts
        self.metrics.add_row(
            fill=cost / self.judge.packed.token_budget,
            tokens=sum(part.num_tokens for part in parts),
            unshared=sum(part.tree.unshared_tokens for part in parts),
            responses=sum(part.num_outputs for part in parts),
            merged=len(parts) - len(row.parts_by_tree),
        )


def _with_equal_beginnings_together(waiting: Sequence[Part]) -> list[Part]:
    """Return the parts so that those that begin alike follow one another, at the first of them."""
    place_of_beginning: dict[object, int] = {}
    for part in waiting:
        place_of_beginning.setdefault(part.beginning, len(place_of_beginning))
    return sorted(waiting, key=lambda part: place_of_beginning[part.beginning])


def _count_tokens(tree: SegmentTree, parts: Sequence[Part]) -> None:
    """Note in every part how many tokens of a tree were computed for it.

    A segment that several parts share is counted at the first of them.
    """
    is_counted = [False] * len(tree.segments)
    outputs = iter(tree.outputs)
    for part in parts:
        for output in islice(outputs, part.num_outputs):
            for segment in tree.path(output.segment):
                if not is_counted[segment]:
                    is_counted[segment] = True
                    part.num_tokens += len(tree.segments[segment].ids)

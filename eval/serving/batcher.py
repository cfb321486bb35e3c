"""Compute the scores of all clients' groups in packed rows, in order of arrival.

A group is a prompt with the responses to it. Groups are encoded in a pool of threads, and one thread runs
the model. A new row is made as soon as the row before it ends, of the groups that have arrived by then.
Equal prompts in a row are computed once. If a row fails, its groups are computed one by one, so that only
the group that causes the error fails.
"""

import asyncio
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from mmrm.data.errors import RecordError
from mmrm.data.preference import texts
from mmrm.eval.candidates import Candidates, Scores
from mmrm.eval.judges.packed_judge import PackedJudge, Unit, UnitResult
from mmrm.eval.serving.metrics import Metrics
from mmrm.eval.serving.request_limits import RequestLimits
from mmrm.models.cancellation import run_abandonable
from mmrm.models.packing.groups import Group, join

ResultT = TypeVar("ResultT")

ENCODERS = min(16, os.cpu_count() or 1)
ENCODED = 256
"""Largest number of groups that are encoded and not answered yet.

An encoded image of a million pixels takes 24 MB.
"""


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """The scores of a request's group, and the number of tokens that were computed for them."""

    scores: Scores
    tokens: int
    """Tokens computed for the group. A prompt that several groups share is counted at the first of them, and what a judge
    writes is not counted."""
    tokens_unshared: int
    """The number of tokens if each response were computed with its own copy of the prompt."""


@dataclass(eq=False, slots=True)
class Part:
    """A unit, or some of its responses, that waits to be computed."""

    unit: Unit
    group: Group
    prompt: object
    """A key that is equal for parts with equal prompts, which may be computed as one group."""
    result: "asyncio.Future[UnitResult]"
    tokens: int = 0

    @property
    def num_continuations(self) -> int:
        """Continuations of its group: responses, or judgements to be written."""
        return len(self.group.continuations)

    @property
    def continuation_tokens(self) -> int:
        """Tokens of its continuations, without the prompt."""
        return sum(len(continuation.ids) for continuation in self.group.continuations)

    @property
    def unshared_tokens(self) -> int:
        """Tokens of its sequences, each with the prompt."""
        return self.num_continuations * len(self.group.prompt_ids) + self.continuation_tokens


@dataclass(frozen=True, slots=True)
class PendingRow:
    """Groups that are computed together, and for each the parts that were merged into it."""

    groups: Sequence[Group]
    parts_by_group: Sequence[Sequence[Part]]

    @property
    def parts(self) -> list[Part]:
        """The parts, group by group."""
        return [part for parts in self.parts_by_group for part in parts]


class Batcher:
    """Scores the candidates of any number of callers on one event loop.

    The method `run` must run as a task of this event loop.
    """

    def __init__(
        self,
        judge: PackedJudge,
        model: ThreadPoolExecutor,
        limits: RequestLimits,
        metrics: Metrics,
    ) -> None:
        """`model` has the one thread in which the model was loaded."""
        self.judge = judge
        self.model = model
        self.limits = limits
        self.metrics = metrics
        self.encoders = ThreadPoolExecutor(ENCODERS, "encode")
        self.waiting: list[Part] = []
        self.arrived = asyncio.Event()
        self.room = asyncio.Semaphore(ENCODED)

    async def score(self, candidates: Candidates, lane: asyncio.Semaphore) -> ScoredGroup:
        """Return the judge's scores of a group.

        Args:
            candidates: The prompt with its responses.
            lane: The semaphore of the request that the group belongs to, from `new_lane`.

        Raises:
            RecordError: If the group cannot be encoded.
            NonFiniteError: If a score is not a finite number.
        """
        async with lane:
            units, prompt = await self.in_pool(self._split, candidates)
        computed = await asyncio.gather(*(self._computed(unit, prompt, lane) for unit in units))
        parts = [part for parts_of_unit in computed for part in parts_of_unit]
        scores = self.judge.merge(
            candidates, [part.unit for part in parts], [part.result.result() for part in parts]
        )
        tokens = sum(part.tokens for part in parts)
        tokens_unshared = sum(part.unshared_tokens for part in parts)
        return ScoredGroup(scores, tokens, tokens_unshared)

    def new_lane(self) -> asyncio.Semaphore:
        """Return a semaphore that limits how many groups of one request are in the encoders' pool.

        The pool works in order of arrival. With the limit, a request of hundreds of groups does not
        fill the pool, and a small request does not have to wait for all of them.
        """
        return asyncio.Semaphore(ENCODERS)

    async def in_pool(self, function: Callable[..., ResultT], *arguments: object) -> ResultT:
        """Call a function in the pool of encoders, outside of the event loop and the model's thread.

        If the caller is cancelled, a function that waits for a thread is never called, and a running
        one ends at its next step.
        """
        abandoned = threading.Event()
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self.encoders, run_abandonable, abandoned, function, *arguments
            )
        except asyncio.CancelledError:
            abandoned.set()
            raise

    def _split(self, candidates: Candidates) -> tuple[list[Unit], object]:
        """Return the units of candidates, and a digest of their prompt and images.

        The digest is None if the judge cannot compute several units as one group.
        """
        units = self.judge.checked_units(candidates)
        if not self.judge.units_share_groups:
            return units, None
        digest = hashlib.sha256(json.dumps(candidates.prompt).encode())
        for image in candidates.images:
            content = image if isinstance(image, bytes) else str(image).encode()
            digest.update(hashlib.sha256(content).digest())
        return units, digest.digest()

    async def _computed(self, unit: Unit, prompt: object, lane: asyncio.Semaphore) -> list[Part]:
        """Wait until a unit is computed, and return its parts with their results."""
        async with AsyncExitStack() as until_computed:
            async with lane:
                await until_computed.enter_async_context(self.room)
                encoded = await self.in_pool(self._encoded, unit)
            loop = asyncio.get_running_loop()
            parts = [
                Part(piece, group, prompt or object(), loop.create_future())
                for piece, group in encoded
            ]
            self.waiting += parts
            self.arrived.set()
            await asyncio.gather(*(part.result for part in parts))
            return parts

    def _encoded(self, unit: Unit) -> list[tuple[Unit, Group]]:
        """Return a unit with its group, or several with some of the responses each if one row is too small."""
        self._refuse_if_too_long(unit)
        group = self.judge.encode(unit)
        self._refuse_beyond_tokens(group)
        return list(self._pieces(unit, group))

    def _refuse_if_too_long(self, unit: Unit) -> None:
        """Raise RecordError if a prompt with its longest response is beyond the limit of tokens.

        A text of few characters cannot be. A longer one is encoded with its longest response alone,
        before the prompt is tokenised once for each of the others.
        """
        if self.judge.info.compares or len(unit.shown) == 1:
            return
        responses = unit.candidates.responses
        longest = max(unit.shown, key=lambda index: len(responses[index]))
        num_characters = sum(map(len, texts(unit.candidates.prompt))) + len(responses[longest])
        if num_characters > self.limits.tokens:
            self._refuse_beyond_tokens(self.judge.encode(replace(unit, shown=(longest,))))

    def _refuse_beyond_tokens(self, group: Group) -> None:
        """Raise RecordError if a group's prompt with its longest response is beyond the limit of tokens."""
        longest = max(group.continuations, key=lambda continuation: len(continuation.ids))
        cost = self.judge.row_cost(replace(group, continuations=(longest,)))
        if cost > self.limits.tokens:
            raise RecordError(
                f"the prompt with its longest response takes {cost:,} tokens of a row, its images' patches among them; this "
                f"server allows {self.limits.tokens:,}. Shorten it, send fewer or smaller images, or "
                "start with `--max-tokens N`."
            )

    def _pieces(self, unit: Unit, group: Group) -> Iterator[tuple[Unit, Group]]:
        """Yield a unit in halves, again and again, until each fits into a row."""
        middle = len(group.continuations) // 2
        fits = self.judge.row_cost(group) <= self.judge.packed.token_budget
        if fits or middle == 0 or not self.judge.units_share_groups:
            yield unit, group
            return
        for half in (slice(middle), slice(middle, None)):
            half_of_group = replace(group, continuations=group.continuations[half])
            half_of_unit = replace(unit, shown=unit.shown[half], seeds=unit.seeds[half])
            yield from self._pieces(half_of_unit, half_of_group)

    async def run(self) -> None:
        """Compute the waiting parts, row after row, until the task is cancelled."""
        while True:
            await self.arrived.wait()
            row = await self._in_model(self._next_row, list(self.waiting))
            taken = set(row.parts)
            self.waiting = [
                part for part in self.waiting if part not in taken and not part.result.done()
            ]
            if not self.waiting:
                self.arrived.clear()
            await self._answer(row)

    async def _in_model(self, function: Callable[..., ResultT], *arguments: object) -> ResultT:
        """Call a function in the model's thread."""
        return await asyncio.get_running_loop().run_in_executor(self.model, function, *arguments)

    def _next_row(self, waiting: Sequence[Part]) -> PendingRow:
        """Return a row with the first waiting part, and further parts that fit into the token budget.

        The further parts are tried in order of arrival.
        """
        budget = self.judge.packed.token_budget
        group_by_prompt: dict[object, Group] = {}
        parts_by_prompt: dict[object, list[Part]] = {}
        used = 0
        for part in waiting:
            if part.result.done():
                continue  # its caller no longer waits for it
            if group_by_prompt and used + part.continuation_tokens > budget:
                continue  # it cannot fit, even if its prompt is in the row already
            same_prompt = group_by_prompt.get(part.prompt)
            if same_prompt is None:
                group = part.group
                added_cost = self.judge.row_cost(group)
            else:
                group = join([same_prompt, part.group])
                added_cost = self.judge.row_cost(group) - self.judge.row_cost(same_prompt)
            if not group_by_prompt or used + added_cost <= budget:
                group_by_prompt[part.prompt] = group
                parts_by_prompt.setdefault(part.prompt, []).append(part)
                used += added_cost
        return PendingRow(list(group_by_prompt.values()), list(parts_by_prompt.values()))

    async def _answer(self, row: PendingRow) -> None:
        """Compute a row, and set the result of each part, or the error that the part causes alone."""
        if not row.groups:
            return
        parts = row.parts
        results: list[UnitResult] | BaseException
        [results] = await asyncio.gather(self._in_model(self._forward, row), return_exceptions=True)
        if isinstance(results, BaseException) and len(parts) > 1:
            for part in parts:
                await self._answer(PendingRow([part.group], [[part]]))
            return
        for index, part in enumerate(parts):
            if part.result.done():
                continue
            if isinstance(results, BaseException):
                part.result.set_exception(results)
            else:
                part.result.set_result(results[index])

    @torch.no_grad()
    def _forward(self, row: PendingRow) -> list[UnitResult]:
        """Return the result of each part; raise NonFiniteError if a score is not a finite number."""
        judge = self.judge
        batch = judge.packed.encoder.pack(row.groups)
        units = [merged_unit(parts) for parts in row.parts_by_group]
        results_by_group = judge.run(batch.to(judge.packed.device), units)
        results: list[UnitResult] = []
        for group, parts, group_result in zip(
            row.groups, row.parts_by_group, results_by_group, strict=True
        ):
            start = 0
            for part in parts:
                end = start + part.num_continuations
                part.tokens = part.continuation_tokens
                if start == 0:
                    part.tokens += len(group.prompt_ids)
                result = group_result
                if judge.units_share_groups:
                    result = group_result.of_responses(slice(start, end))
                    judge.merge(part.unit.candidates, [part.unit], [result])  # refuses bad scores
                results.append(result)
                start = end
        self._count(row, batch.cost)
        return results

    def _count(self, row: PendingRow, cost: int) -> None:
        """Add a row that was computed to the metrics."""
        parts = row.parts
        self.metrics.ran(
            cost / self.judge.packed.token_budget,
            sum(part.tokens for part in parts),
            sum(part.unshared_tokens for part in parts),
            sum(part.num_continuations for part in parts),
            len(parts) - len(row.groups),
        )


def merged_unit(parts: Sequence[Part]) -> Unit:
    """Return one unit with the responses of several parts that have the same prompt."""
    if len(parts) == 1:
        return parts[0].unit
    first = parts[0].unit
    responses = tuple(response for part in parts for response in part.unit.responses)
    seeds = tuple(seed for part in parts for seed in part.unit.seeds)
    candidates = replace(first.candidates, responses=responses)
    return Unit(first.key, candidates, tuple(range(len(responses))), seeds)

"""The batcher: groups of all clients in packed rows, in order of arrival; equal prompts that wait together are computed once.

Groups are encoded in a pool of threads, and one thread runs the model. It never waits while there is work: a row holds what has
arrived when the row before it ends, so that a server without load answers at once and one under load fills its rows. A row
that fails is run again group by group, so that the group at fault harms no other.
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
from typing import Any, TypeVar

import torch

from mmrm.data.errors import RecordError
from mmrm.data.preference import texts
from mmrm.eval.candidates import Candidates, Ranking
from mmrm.eval.judges.packed_judge import PackedRanker
from mmrm.eval.serving.metrics import Metrics
from mmrm.eval.serving.request_limits import RequestLimits
from mmrm.models.cancellation import run_abandonable
from mmrm.models.packing.groups import Group, join

Done = TypeVar("Done")

ENCODERS = min(16, os.cpu_count() or 1)
ENCODED = 256
"""Groups that are encoded and not answered at one time; an image of a million pixels takes 24 MB then."""


@dataclass(frozen=True, slots=True)
class Scored:
    """What the judge says of a group, and what that took."""

    ranking: Ranking
    tokens: int
    """Computed for it; of a prompt that several groups share, at the first of them. What a judge writes is not counted."""
    tokens_unshared: int
    """What each prompt with one response would take by itself."""


@dataclass(eq=False, slots=True)
class Part:
    """What waits to be computed: a prompt and some of its responses, or a judgement."""

    item: Any
    group: Group
    prompt: object
    """Equal for what may be computed as one group."""
    found: "asyncio.Future[Any]"
    tokens: int = 0

    @property
    def unshared(self) -> int:
        """Tokens of its sequences, each by itself."""
        return sum(len(self.group.prompt_ids) + len(one.ids) for one in self.group.continuations)


@dataclass(frozen=True, slots=True)
class Row:
    """Groups that are computed together, and the parts that each was merged of."""

    groups: Sequence[Group]
    parts: Sequence[Sequence[Part]]

    @property
    def all(self) -> list[Part]:
        """The parts, group by group."""
        return [part for parts in self.parts for part in parts]


class Batcher:
    """Ranks candidates of any number of callers on one event loop; `run` must run there."""

    def __init__(
        self,
        ranker: PackedRanker[Any, Any],
        model: ThreadPoolExecutor,
        limits: RequestLimits,
        metrics: Metrics,
    ) -> None:
        """Take the one thread in which the model was loaded."""
        self.ranker, self.limits, self.metrics = ranker, limits, metrics
        self.encoders, self.model = ThreadPoolExecutor(ENCODERS, "encode"), model
        self.waiting: list[Part] = []
        self.arrived, self.room = asyncio.Event(), asyncio.Semaphore(ENCODED)

    async def rank(self, candidates: Candidates, lane: asyncio.Semaphore) -> Scored:
        """Return what the judge says; raises RecordError for what cannot be encoded, NonFiniteError for such a score.

        `lane` is that of the request, from `new_lane`.
        """
        async with lane:
            items, prompt = await self.in_pool(self._split, candidates)
        found = await asyncio.gather(*(self._computed(item, prompt, lane) for item in items))
        parts = [part for some in found for part in some]
        ranking = self.ranker.join(candidates, [part.found.result() for part in parts])
        return Scored(
            ranking, sum(part.tokens for part in parts), sum(part.unshared for part in parts)
        )

    def new_lane(self) -> asyncio.Semaphore:
        """Return what limits the groups of one request that are in the pool of encoders at one time.

        The pool is first come, first served. A request of hundreds of groups puts its next one behind
        those of the others, so that a small request waits for one group of it, not for all.
        """
        return asyncio.Semaphore(ENCODERS)

    async def in_pool(self, function: Callable[..., Done], *arguments: Any) -> Done:
        """Call a function beside the event loop and the model.

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

    def _split(self, candidates: Candidates) -> tuple[list[Any], object]:
        items = [item for _, item in self.ranker.split(candidates)]
        if self.ranker.share is None:
            return items, None
        digest = hashlib.sha256(json.dumps(candidates.prompt).encode())
        for image in candidates.images:
            digest.update(
                hashlib.sha256(image if isinstance(image, bytes) else str(image).encode()).digest()
            )
        return items, digest.digest()

    async def _computed(self, item: Any, prompt: object, lane: asyncio.Semaphore) -> list[Part]:
        """Return the parts of an item once they were computed."""
        async with AsyncExitStack() as until_computed:
            async with lane:
                await until_computed.enter_async_context(self.room)
                encoded = await self.in_pool(self._encoded, item)
            loop = asyncio.get_running_loop()
            parts = [
                Part(one, group, prompt or object(), loop.create_future()) for one, group in encoded
            ]
            self.waiting += parts
            self.arrived.set()
            await asyncio.gather(*(part.found for part in parts))
            return parts

    def _encoded(self, item: Any) -> list[tuple[Any, Group]]:
        """Return an item's group, in pieces of some of its responses each where it is larger than a row."""
        self._refuse_if_too_long(item)
        group = self.ranker.encode(item)
        self._refuse_beyond_tokens(group)
        return list(self._pieces(item, group))

    def _refuse_if_too_long(self, item: Any) -> None:
        """Raise RecordError if a prompt with its longest response is beyond the limit of tokens.

        A text of few characters cannot be. A longer one is encoded with its longest response alone,
        before the prompt is tokenised once for each of the others.
        """
        if not isinstance(item, Candidates) or len(item.responses) == 1:
            return
        longest = max(item.responses, key=len)
        num_characters = sum(map(len, texts(item.prompt))) + len(longest)
        if num_characters > self.limits.tokens:
            self._refuse_beyond_tokens(self.ranker.encode(replace(item, responses=(longest,))))

    def _refuse_beyond_tokens(self, group: Group) -> None:
        """Raise RecordError if a group's prompt with its longest response is beyond the limit of tokens."""
        longest = max(group.continuations, key=lambda one: len(one.ids))
        cost = self.ranker.cost(replace(group, continuations=(longest,)))
        if cost > self.limits.tokens:
            raise RecordError(
                f"the prompt with its longest response takes {cost:,} tokens of a row, its images' patches among them; this "
                f"server allows {self.limits.tokens:,}. Shorten it, send fewer or smaller images, or "
                "start with `--max-tokens N`."
            )

    def _pieces(self, item: Any, group: Group) -> Iterator[tuple[Any, Group]]:
        middle = len(group.continuations) // 2
        if (
            not middle
            or self.ranker.share is None
            or self.ranker.cost(group) <= self.ranker.packed.token_budget
        ):
            yield item, group
            return
        for places in (slice(middle), slice(middle, None)):
            piece = replace(group, continuations=group.continuations[places])
            yield from self._pieces(replace(item, responses=item.responses[places]), piece)

    async def run(self) -> None:
        """Compute what waits, row after row, until it is cancelled."""
        while True:
            await self.arrived.wait()
            row = await self._in_model(self._row, list(self.waiting))
            taken = set(row.all)
            self.waiting = [
                part for part in self.waiting if part not in taken and not part.found.done()
            ]
            if not self.waiting:
                self.arrived.clear()
            await self._answer(row)

    async def _in_model(self, function: Callable[..., Done], *arguments: Any) -> Done:
        return await asyncio.get_running_loop().run_in_executor(self.model, function, *arguments)

    def _row(self, waiting: Sequence[Part]) -> Row:
        """Return a row of the first part and of what fits beside it under the token budget, in order of arrival."""
        budget = self.ranker.packed.token_budget
        groups: dict[object, Group] = {}
        parts: dict[object, list[Part]] = {}
        used = 0
        for part in waiting:
            same, own = (
                groups.get(part.prompt),
                sum(len(one.ids) for one in part.group.continuations),
            )
            if part.found.done() or (
                groups and used + own > budget
            ):  # nobody waits for it any more, or it cannot fit
                continue
            group = part.group if same is None else join([same, part.group])
            more = self.ranker.cost(group) - (self.ranker.cost(same) if same else 0)
            if not groups or used + more <= budget:
                groups[part.prompt], used = group, used + more
                parts.setdefault(part.prompt, []).append(part)
        return Row(list(groups.values()), list(parts.values()))

    async def _answer(self, row: Row) -> None:
        """Compute a row, and give each part what was found of it, or the error that it causes by itself."""
        if not row.groups:
            return
        parts = row.all
        found: list[Any] | BaseException
        [found] = await asyncio.gather(self._in_model(self._forward, row), return_exceptions=True)
        if isinstance(found, BaseException) and len(parts) > 1:
            for part in parts:
                await self._answer(Row([part.group], [[part]]))
            return
        for place, part in enumerate(parts):
            if part.found.done():
                continue
            if isinstance(found, BaseException):
                part.found.set_exception(found)
            else:
                part.found.set_result(found[place])

    @torch.no_grad()
    def _forward(self, row: Row) -> list[Any]:
        """Return what the judge finds of each part; raises NonFiniteError for a score that is no finite number."""
        ranker = self.ranker
        found: list[Any] = []
        batch = ranker.packed.encoder.pack(row.groups)
        items = [parts[0].item if len(parts) == 1 else together(parts) for parts in row.parts]
        for group, parts, one in zip(
            row.groups, row.parts, ranker.run(batch.to(ranker.packed.device), items), strict=True
        ):
            lengths, start = [len(continuation.ids) for continuation in group.continuations], 0
            for part in parts:
                places = slice(start, start + len(part.group.continuations))
                part.tokens = sum(lengths[places]) + (len(group.prompt_ids) if start == 0 else 0)
                start = places.stop
                found.append(one if ranker.share is None else ranker.share(one, places))
                if ranker.share is not None:
                    ranker.join(part.item, found[-1:])
        tokens, unshared, responses = (
            sum(counts)
            for counts in zip(
                *((p.tokens, p.unshared, len(p.group.continuations)) for p in row.all), strict=True
            )
        )
        merged = len(found) - len(row.groups)
        self.metrics.ran(
            batch.cost / ranker.packed.token_budget, tokens, unshared, responses, merged
        )
        return found


def together(parts: Sequence[Part]) -> Candidates:
    """Return the candidates of several parts with one prompt as one."""
    first: Candidates = parts[0].item
    responses = tuple(response for part in parts for response in part.item.responses)
    return Candidates(first.key, first.images, first.prompt, responses, first.identity)

"""A reward model behind eval/serve.py as a judge in this process.

Its scores come over HTTP, by the client of eval/adapters/.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from mmrm.data.errors import EndpointError, RecordError
from mmrm.data.preference import Response
from mmrm.eval.adapters.reward_client import RewardServer, RewardServerError, sendable
from mmrm.eval.benchmarks.benchmark import Benchmark
from mmrm.eval.candidates import Candidates, Scores
from mmrm.eval.journal import SILENT, Journal
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.judge import JudgeInfo
from mmrm.eval.judges.server.config import ServerConfig
from mmrm.eval.protocol import ProtocolConfig, journal_key
from mmrm.models.distributed import gather, rank, world_size


@dataclass(frozen=True, slots=True)
class ServedJudge:
    """A judge that uses the scores of a server unchanged. The ranks share the requests."""

    server: RewardServer

    @property
    def info(self) -> JudgeInfo:
        """Properties of the judge: it scores each response. This process generates no text."""
        return JudgeInfo()

    def under(self, protocol: ProtocolConfig, benchmark: Benchmark) -> ServedJudge:
        """Return this judge itself, because its requests do not depend on a protocol."""
        return self

    def score_batch(self, batch: Sequence[Candidates], journal: Journal = SILENT) -> list[Scores]:
        """Return the scores of each prompt's responses, in the order of `batch`, on every rank.

        All ranks must call together. The journal shows the progress, and keeps the results.

        Raises: EndpointError on all ranks if one of them gets no scores.
        """
        keys = [journal_key(candidates) for candidates in batch]
        with journal.judging(keys, tuple[float, ...], len(keys)) as judging:
            missing = [index for index in range(len(keys)) if index not in judging.results]
            own_indices = missing[rank() :: world_size()]
            values, problem = self._request_scores([batch[index] for index in own_indices])
            values_by_index: dict[int, tuple[float, ...]] = {}
            if not problem:
                values_by_index = dict(zip(own_indices, values, strict=True))
            for values_of_rank, problem_of_rank in gather((values_by_index, problem)):
                if problem_of_rank:
                    raise EndpointError(problem_of_rank)
                judging.add(values_of_rank)
        return [Scores(judging.results[index]) for index in range(len(keys))]

    def _request_scores(self, batch: Sequence[Candidates]) -> tuple[list[tuple[float, ...]], str]:
        """Return the server's scores of each prompt's responses, and "".

        If the server returns no scores, the list is empty, and the second value is the reason.
        """
        rows: list[tuple[Any, Any]] = []
        for candidates in batch:
            _refuse_videos(candidates)
            messages = sendable(candidates.prompt, candidates.images)
            rows += [(messages, _sent(response)) for response in candidates.responses]
        try:
            scores = iter(asyncio.run(self.server.score(rows)))
        except RewardServerError as error:
            return [], str(error)
        values = [tuple(islice(scores, len(candidates.responses))) for candidates in batch]
        return values, ""

    def notes(self, scores: Sequence[Scores]) -> tuple[str, ...]:
        """Return a note that names the server and its checkpoint, as the server reports it."""
        return (f"scored by {self.server.url}, checkpoint {self.server.fingerprint}",)


def _refuse_videos(candidates: Candidates) -> None:
    """Raise RecordError if the prompt or a response has a video, which the client does not send."""
    if candidates.all_videos:
        raise RecordError(
            f"{candidates.identity}: the row has a video, and a judge of `type: server` is sent "
            "texts and images only. Evaluate the checkpoint itself, or leave the row out."
        )


def _sent(response: Response) -> Any:
    """Return a response as the server reads it: a text, or a list of parts if it has images."""
    if not response.images:
        return response.text
    [turn] = sendable([response.turn], response.images)
    return turn["content"]


def load_server_judge(path: Path, runtime: Runtime, config: ServerConfig) -> ServedJudge:
    """Return the judge behind the server that `config` names. No request is sent yet.

    Raises: EndpointError if a variable such as REWARD_API_KEY_FILE cannot be used.
    """
    try:
        return ServedJudge(RewardServer(config.url, timeout=config.timeout_seconds))
    except RewardServerError as error:
        raise EndpointError(str(error)) from error

"""A reward model behind eval/serve.py as a judge in this process.

Its scores come over HTTP, by the client of eval/adapters/.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from mmrm.data.errors import EndpointError
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
        """The server returns scores, and this process generates no text."""
        return JudgeInfo()

    def under(self, protocol: ProtocolConfig, benchmark: Benchmark) -> ServedJudge:
        """Return the same judge, because its requests do not depend on a protocol."""
        return self

    def score_batch(self, batch: Sequence[Candidates], journal: Journal = SILENT) -> list[Scores]:
        """Return the scores of each; all ranks must call together.

        Raises: EndpointError on all ranks if one of them gets no scores.
        """
        keys = list(map(journal_key, batch))
        with journal.judging(keys, tuple[float, ...], len(keys)) as judging:
            missing = [index for index in range(len(keys)) if index not in judging.results]
            share = missing[rank() :: world_size()]
            values = self._values([batch[index] for index in share])
            own: dict[int, tuple[float, ...]] | str
            own = values if isinstance(values, str) else dict(zip(share, values, strict=True))
            for part in gather(own):
                if isinstance(part, str):
                    raise EndpointError(part)
                judging.add(part)
        return [Scores(judging.results[index]) for index in range(len(keys))]

    def _values(self, batch: Sequence[Candidates]) -> list[tuple[float, ...]] | str:
        """Return the scores of each, or the reason why there are none."""
        rows = [
            (sendable(candidates.prompt, candidates.images), response)
            for candidates in batch
            for response in candidates.responses
        ]
        try:
            values = iter(asyncio.run(self.server.score(rows)))
        except RewardServerError as error:
            return str(error)
        return [tuple(islice(values, len(candidates.responses))) for candidates in batch]

    def notes(self, scores: Sequence[Scores]) -> tuple[str, ...]:
        """Return the identity of the server's checkpoint, as the server reports it."""
        return (f"scored by {self.server.url}, checkpoint {self.server.fingerprint}",)


def load_server_judge(path: Path, runtime: Runtime, config: ServerConfig) -> ServedJudge:
    """Return the judge behind the server that `config` names."""
    return ServedJudge(RewardServer(config.url, timeout=config.timeout_seconds))

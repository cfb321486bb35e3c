"""A reward model behind eval/serve.py as a judge in this process: its scores come over HTTP, by the client of eval/adapters/."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mmrm.data.errors import EndpointError
from mmrm.eval.adapters.trl_reward import RewardServer, RewardServerError, sendable
from mmrm.eval.candidates import Candidates, Ranking, Verdict
from mmrm.eval.journal import SILENT, Journal
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.loaded import LoadedJudge
from mmrm.eval.judges.server.config import ServerConfig
from mmrm.eval.protocol import journal_key
from mmrm.models.distributed import gather, rank, world_size


@dataclass(frozen=True, slots=True)
class ServedJudge:
    """Ranks by the scores of a server; ranks share the work."""

    server: RewardServer

    @classmethod
    def of(cls, config: ServerConfig) -> ServedJudge:
        """Return the judge that a YAML file names."""
        return cls(RewardServer(config.url, timeout=config.timeout_seconds))

    def rank(self, candidates: Sequence[Candidates], journal: Journal = SILENT) -> list[Ranking]:
        """Return a ranking for each; all ranks must call together.

        Raises: EndpointError on all ranks where one of them gets no scores.
        """
        keys = list(map(journal_key, candidates))
        with journal.judging(keys, tuple[float, ...], len(keys)) as judging:
            todo = [place for place in range(len(keys)) if place not in judging.found]
            own = todo[rank() :: world_size()]
            found = self._scores([candidates[place] for place in own])
            for part in gather(
                found if isinstance(found, str) else dict(zip(own, found, strict=True))
            ):
                if isinstance(part, str):
                    raise EndpointError(part)
                judging.add(part)
        return [Ranking(judging.found[place]) for place in range(len(keys))]

    def _scores(self, candidates: Sequence[Candidates]) -> list[tuple[float, ...]] | str:
        """Return the scores of each, or why there are none."""
        rows = [
            (sendable(one.prompt, one.images), response)
            for one in candidates
            for response in one.responses
        ]
        try:
            scores = iter(asyncio.run(self.server.score(rows)))
        except RewardServerError as error:
            return str(error)
        return [tuple(next(scores) for _ in one.responses) for one in candidates]

    def judge(self, examples: Sequence[Candidates], journal: Journal = SILENT) -> list[Verdict]:
        """Return the scores of the responses to each example."""
        return [Verdict(scores=found.scores) for found in self.rank(examples, journal)]

    def notes(self) -> tuple[str, ...]:
        """Return which checkpoint the server said that it holds."""
        return (f"scored by {self.server.url}, checkpoint {self.server.fingerprint}",)


def load_server_judge(path: Path, runtime: Runtime, config: ServerConfig) -> LoadedJudge:
    """Return the judge behind the server that `config` names."""
    judge = ServedJudge.of(config)
    return LoadedJudge(judge, lambda benchmark, protocol: judge)

"""A model behind an OpenAI-compatible endpoint that annotates pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from mmrm.data.prompts import TEMPLATES, JudgeTemplate, judge_conversation
from mmrm.eval.annotation.pair_annotator import AnnotatorOptions, PairJudgement, ShownPair
from mmrm.eval.candidates import Side
from mmrm.eval.judges.endpoint.client import Answer, messages, open_client
from mmrm.eval.judges.endpoint.config import EndpointConfig

RECORDS_PER_REQUEST = 8
"""Records that are asked about together, for each request that may be in progress. With more of
them, fewer requests wait for the last one of their try, and a kill loses more."""

Complete = Callable[[Mapping[str, Any]], Answer]
"""Sends a chat request and returns the reply, as `Client.answer` in
`mmrm.eval.judges.endpoint.client` does."""


@dataclass(frozen=True, slots=True)
class EndpointAnnotator:
    """Sends one request for each judgement, several at one time."""

    complete: Complete
    """The function that sends a request to the model. Several threads call it."""
    model: str
    url: str = ""
    template: JudgeTemplate = "r1_reward"
    max_tokens: int = 2048
    concurrency: int = 1
    """Largest number of requests in progress at one time."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings that decide the judgements, besides temperature and seed."""
        return {
            "url": self.url,
            "model": self.model,
            "template": self.template,
            "max_tokens": self.max_tokens,
        }

    @property
    def records_together(self) -> int:
        """Several for each request that may be in progress, so that requests seldom wait."""
        return RECORDS_PER_REQUEST * self.concurrency

    @property
    def notes(self) -> Sequence[str]:
        """No notes: the endpoint's file and the command line say how the model is asked."""
        return ()

    def judge(
        self, pairs: Sequence[ShownPair], temperature: float, seed: int
    ) -> list[tuple[PairJudgement, ...]]:
        """Return the judgements of each pair, one for each of its `sides`.

        The arguments are those of `PairAnnotator.judge`.

        Raises:
            EndpointError: If the endpoint does not reply.
        """
        futures: list[Future[PairJudgement]] = []
        pool = ThreadPoolExecutor(self.concurrency)
        try:
            for pair in pairs:
                for side in pair.sides:
                    futures.append(pool.submit(self._judgement, pair, side, temperature, seed))
            judgements = [future.result() for future in futures]
        finally:
            # After an error, requests in progress are finished, whose replies are cached. Those that
            # have not begun are not sent.
            pool.shutdown(cancel_futures=True)
        remaining = iter(judgements)
        return [tuple(islice(remaining, len(pair.sides))) for pair in pairs]

    def _judgement(
        self, pair: ShownPair, side: Side, temperature: float, seed: int
    ) -> PairJudgement:
        """Return the judgement of a pair whose chosen response is shown at the position `side`."""
        record = pair.record
        responses = [record.chosen, record.rejected]
        if side == 1:
            responses.reverse()
        question = judge_conversation(self.template, record.prompt, *responses)
        images = list(record.images)
        videos = list(record.videos)
        for response in responses:
            images += response.images
            videos += response.videos
        reply = self.complete(
            {
                "model": self.model,
                "messages": messages(question, images, videos, record.identity),
                "temperature": temperature,
                "max_tokens": self.max_tokens,
                "seed": seed,
            }
        )
        judgement = TEMPLATES[self.template].form.read(reply.text)
        named: Side | None = None
        if judgement.answer is not None:
            named = 0 if judgement.answer == 1 else 1
        return PairJudgement(named, (judgement.reasoning or "").strip())


def open_endpoint_annotator(
    path: Path, config: EndpointConfig, options: AnnotatorOptions
) -> EndpointAnnotator:
    """Return the model behind the endpoint that `config` describes; `path` is the file it is from.

    Raises: EndpointError if the environment has no API key under the configured name.
    """
    client = open_client(config)
    template = options.template or "r1_reward"
    return EndpointAnnotator(
        client.answer,
        config.model,
        config.url,
        template,
        options.max_tokens,
        config.concurrency,
    )

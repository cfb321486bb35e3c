"""A judge with its weights loaded: scores for people's own prompts and responses, and for a trainer of TRL's in this process."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmrm.data.sources.shared.conversation import response
from mmrm.eval.benchmarks.benchmark import Benchmark
from mmrm.eval.candidates import Candidates, Ranking
from mmrm.eval.judges.judge import NotedJudge, Ranker
from mmrm.eval.judges.messages import candidates_of
from mmrm.eval.protocol import ProtocolConfig
from mmrm.models.distributed import alone

JudgeFor = Callable[[Benchmark, ProtocolConfig], NotedJudge]
"""Makes the judge for a benchmark under a protocol."""


@dataclass(frozen=True, slots=True)
class LoadedJudge:
    """A judge whose weights are loaded, for people's own prompts and responses and for any benchmark.

    `messages` are a text or turns in transformers' or OpenAI's form, images as PIL images, bytes, paths or data URIs; see
    `mmrm.models.portable.conversations`.
    """

    ranker: Ranker
    benchmark: JudgeFor

    def score(
        self, messages: Any, responses: Sequence[str], images: Iterable[Any] = ()
    ) -> list[float]:
        """Return the score of each response; higher is better."""
        return list(self.rank(messages, responses, images).scores)

    def rank(self, messages: Any, responses: Sequence[str], images: Iterable[Any] = ()) -> Ranking:
        """Return scores, order and margin of the responses, and what the judge wrote; raises RecordError.

        In a distributed run each rank asks for itself.
        """
        with alone():
            return self.ranker.rank([candidates_of(messages, responses, images)])[0]

    def compare(self, messages: Any, a: str, b: str, images: Iterable[Any] = ()) -> Ranking:
        """Return the ranking of two responses: `order[0]` is 0 for `a`; a `margin` of 0 is a tie."""
        return self.rank(messages, [a, b], images)

    def reward(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float]:
        """Return the scores of a batch of TRL's, whose `reward_funcs` may name this method; each rank asks for itself.

        A completion is a text or turns, of which the last is scored; `columns` may hold `images` or `image`.
        """
        groups: dict[str, tuple[Candidates, list[int], list[str]]] = {}
        for place, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            beside = (
                columns["images"][place] or ()
                if "images" in columns
                else (columns["image"][place],)
                if "image" in columns
                else ()
            )
            asked = candidates_of(
                prompt, ["-"], () if _holds_images(prompt) else beside, f"row {place}"
            )
            written = response(completion if isinstance(completion, str) else completion[-1:])
            _, places, responses = groups.setdefault(asked.key, (asked, [], []))
            places.append(place)
            responses.append(written)
        with alone():
            found = self.ranker.rank(
                [replace(one, responses=tuple(texts)) for one, _, texts in groups.values()]
            )
        scores = {
            place: score
            for (_, places, _), ranking in zip(groups.values(), found, strict=True)
            for place, score in zip(places, ranking.scores, strict=True)
        }
        return [scores[place] for place in range(len(prompts))]


def _holds_images(prompt: Any) -> bool:
    """Say whether a prompt of TRL's carries its images, which then stand in a column of the batch as well."""
    contents = [] if isinstance(prompt, str) else [turn["content"] for turn in prompt]
    return any(
        part.get("image") is not None
        for content in contents
        if not isinstance(content, str)
        for part in content
    )

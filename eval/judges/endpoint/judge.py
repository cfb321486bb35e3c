"""A judge behind an OpenAI-compatible endpoint.

Its prompts, and the reading of its answers, are those of the benchmark's authors.
"""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from mmrm.data.errors import EndpointError
from mmrm.eval.benchmarks.benchmark import Benchmark, PairwisePrompt
from mmrm.eval.benchmarks.multimodal_rewardbench import GENERAL_PROMPT
from mmrm.eval.candidates import Candidates, Scores, Vote
from mmrm.eval.journal import SILENT, Journal, Judging
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.endpoint.client import Answer, messages, open_client
from mmrm.eval.judges.endpoint.config import EndpointConfig
from mmrm.eval.judges.judge import JudgeInfo
from mmrm.eval.judges.tournament import (
    Comparison,
    comparisons,
    pair_conversation,
    scores_from_votes,
)
from mmrm.eval.protocol import ProtocolConfig
from mmrm.models.distributed import gather, rank, world_size


@dataclass(frozen=True, slots=True)
class PairQuestion:
    """One request: a prompt, and two responses to it in an order."""

    candidates: Candidates
    comparison: Comparison


@dataclass(slots=True)
class EndpointJudge:
    """Asks the endpoint once for every comparison."""

    config: EndpointConfig
    prompt: PairwisePrompt
    protocol: ProtocolConfig
    about: tuple[str, ...] = ()
    """Notes to print with the judge's figures, besides the cost of judging."""
    answers: list[Answer] = field(default_factory=list)
    """All ranks' answers of the last call."""

    @property
    def info(self) -> JudgeInfo:
        """An endpoint compares two responses. This process generates no text."""
        return JudgeInfo(compares=True)

    def under(self, protocol: ProtocolConfig, benchmark: Benchmark) -> "EndpointJudge":
        """Return the judge of a benchmark. It uses the benchmark's prompt if one is published."""
        if benchmark.prompt is not None:
            return EndpointJudge(self.config, benchmark.prompt, protocol)
        note = f"{benchmark.name} publishes no prompt that shows both responses; asked with the words of Multimodal RewardBench."
        return EndpointJudge(self.config, GENERAL_PROMPT, protocol, (note,))

    def score_batch(self, batch: Sequence[Candidates], journal: Journal = SILENT) -> list[Scores]:
        """Return the votes on each, on every rank; ranks share the requests and must call together.

        Raises: EndpointError on all ranks if a request fails for good on one of them, or if all
            are refused.
        """
        questions = [
            PairQuestion(candidates, comparison)
            for candidates in batch
            for comparison in comparisons(candidates)
        ]
        share = questions[rank() :: world_size()]
        # The progress bar shows the first rank's share in place of all. Answers are kept in
        # the client's cache and not in the journal.
        with replace(journal, file=None).judging([""] * len(share), Answer, len(batch)) as judging:
            gathered = gather(self._ask_all(share, judging))
        for _, problem in gathered:
            if problem:
                raise EndpointError(problem)
        answers_by_rank = [answers for answers, _ in gathered]
        num_ranks = len(answers_by_rank)
        self.answers = [
            answers_by_rank[number % num_ranks][number // num_ranks]
            for number in range(len(questions))
        ]
        if self.answers and all(answer.refusal for answer in self.answers):
            raise EndpointError(
                f"{self.config.url} refused every request; the first: {self.answers[0].refusal}"
            )
        votes = iter(map(self._vote, questions, self.answers))
        scores: list[Scores] = []
        for candidates in batch:
            its_votes = list(islice(votes, len(comparisons(candidates))))
            scores.append(scores_from_votes(candidates, its_votes))
        return scores

    def _vote(self, question: PairQuestion, answer: Answer) -> Vote:
        """Return the vote that an answer casts; a refusal names no response."""
        shown = question.comparison.shown
        position = None if answer.refusal else self.prompt.read(answer.text)
        named = None if position is None else shown[position]
        return Vote(shown, named, answer.text)

    def _ask_all(
        self, questions: Sequence[PairQuestion], judging: Judging[Answer]
    ) -> tuple[list[Answer], str]:
        """Return the answers in order and "", or the reason as soon as one request fails for good.

        Requests already in progress are finished and cached; the others are not sent.
        """
        problems: list[str] = []

        def ask(question: PairQuestion) -> Answer | None:
            try:
                return None if problems else client.answer(self._body(question))
            except EndpointError as error:
                problems.append(str(error))
                return None

        num_threads = max(1, self.config.concurrency // world_size())
        try:
            client = open_client(self.config)
            with ThreadPoolExecutor(num_threads) as pool:
                for number, answer in enumerate(pool.map(ask, questions)):
                    if answer is not None:
                        judging.add({number: answer})
                return list(judging.found.values()), "".join(problems[:1])
        except EndpointError as error:
            return [], str(error)

    def notes(self, scores: Sequence[Scores]) -> tuple[str, ...]:
        """Return notes to print with the figures, with the cost of the last call."""
        config = self.config
        asked_now = [answer for answer in self.answers if not answer.cached]
        num_cached = len(self.answers) - len(asked_now)
        tokens_in, tokens_out = _tokens(self.answers)
        tokens_in_now, tokens_out_now = _tokens(asked_now)
        price_in = config.dollars_per_million_input
        price_out = config.dollars_per_million_output
        dollars = ""
        if price_in is not None and price_out is not None:
            paid = (tokens_in * price_in + tokens_out * price_out) / 1e6
            paid_now = (tokens_in_now * price_in + tokens_out_now * price_out) / 1e6
            dollars = f"; {paid:.4f} dollars in all, {paid_now:.4f} of them now"
        notes = [
            *self.about,
            f"{config.model}: {len(self.answers)} judgements ({num_cached} from the cache), {tokens_in:,} tokens in and "
            f"{tokens_out:,} out; asked now: {tokens_in_now:,} and {tokens_out_now:,}{dollars}.",
        ]
        refusals = [answer.refusal for answer in self.answers if answer.refusal]
        if refusals:
            notes.append(
                f"{len(refusals)} requests were refused and count as unreadable votes; the first: {refusals[0]}"
            )
        num_cut_off = sum(answer.cut_off for answer in self.answers)
        if num_cut_off:
            notes.append(f"{num_cut_off} judgements were cut off at the limit of new tokens.")
        return tuple(notes)

    def _body(self, question: PairQuestion) -> dict[str, Any]:
        """Return the request for one judgement. Each has its own seed: votes differ and repeat."""
        candidates = question.candidates
        comparison = question.comparison
        seed = hashlib.sha256(f"{self.protocol.seed}/{comparison.label}".encode()).digest()
        conversation = pair_conversation(self.prompt.ask, candidates, comparison.shown)
        request = {
            "model": self.config.model,
            "messages": messages(conversation, candidates.images, candidates.identity),
            "max_tokens": self.prompt.max_new_tokens,
            "temperature": self.prompt.temperature,
            "top_p": self.prompt.top_p,
            "seed": int.from_bytes(seed[:4]) >> 1,
            **self.config.request,
        }
        return {name: value for name, value in request.items() if value is not None}


def _tokens(answers: Sequence[Answer]) -> tuple[int, int]:
    """Return the numbers of prompt tokens and of generated tokens of the answers."""
    num_input = sum(answer.input_tokens for answer in answers)
    num_output = sum(answer.output_tokens for answer in answers)
    return num_input, num_output


def load_endpoint_judge(path: Path, runtime: Runtime, config: EndpointConfig) -> EndpointJudge:
    """Return the judge behind the endpoint that `config` names."""
    return EndpointJudge(config, GENERAL_PROMPT, ProtocolConfig())

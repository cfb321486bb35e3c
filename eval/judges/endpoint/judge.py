"""A judge behind an OpenAI-compatible endpoint.

It asks with the prompts of the benchmark's authors, and its answers are read by their rules.
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
from mmrm.eval.candidates import Candidates, Scores, Vote, images_as_shown, videos_as_shown
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
    """The content of one request: a prompt, and the two responses that are compared."""

    candidates: Candidates
    comparison: Comparison


@dataclass(slots=True)
class EndpointJudge:
    """A judge that sends one request to an endpoint for every comparison of two responses."""

    config: EndpointConfig
    prompt: PairwisePrompt
    protocol: ProtocolConfig
    about: tuple[str, ...] = ()
    """Notes to print with the judge's figures, besides the cost of judging."""
    answers: list[Answer] = field(default_factory=list)
    """All ranks' answers of the last call."""

    @property
    def info(self) -> JudgeInfo:
        """Properties of the judge: it compares two responses. This process generates no text."""
        return JudgeInfo(compares=True)

    def under(self, protocol: ProtocolConfig, benchmark: Benchmark) -> "EndpointJudge":
        """Return a copy of this judge that follows a benchmark's protocol.

        The copy asks with the benchmark's own prompt if its authors published one.
        """
        if benchmark.prompt is not None:
            return EndpointJudge(self.config, benchmark.prompt, protocol)
        note = (
            f"{benchmark.name} publishes no prompt that shows both responses; asked with the words "
            "of Multimodal RewardBench."
        )
        return EndpointJudge(self.config, GENERAL_PROMPT, protocol, (note,))

    def score_batch(self, batch: Sequence[Candidates], journal: Journal = SILENT) -> list[Scores]:
        """Return the scores of each prompt's responses from the judge's votes, on every rank.

        All ranks must call together, and share the requests.

        Raises: EndpointError on all ranks if a request still fails after its retries on one of
        them, or if all requests are refused.
        """
        questions = [
            PairQuestion(candidates, comparison)
            for candidates in batch
            for comparison in comparisons(candidates)
        ]
        own_questions = questions[rank() :: world_size()]
        # The progress bar shows the first rank's requests in place of all. Answers are kept in
        # the client's cache and not in the journal, so that its keys are not used.
        progress = replace(journal, file=None)
        keys = [""] * len(own_questions)
        with progress.judging(keys, Answer, len(batch)) as judging:
            gathered = gather(self._ask_all(own_questions, judging))
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
        remaining_votes = iter(map(self._vote, questions, self.answers))
        scores: list[Scores] = []
        for candidates in batch:
            num_votes = len(comparisons(candidates))
            votes = list(islice(remaining_votes, num_votes))
            scores.append(scores_from_votes(candidates, votes))
        return scores

    def _vote(self, question: PairQuestion, answer: Answer) -> Vote:
        """Return the vote in an answer. It names no response if the request was refused."""
        shown = question.comparison.shown
        position = None if answer.refusal else self.prompt.read(answer.text)
        named = None if position is None else shown[position]
        return Vote(shown, named, answer.text)

    def _ask_all(
        self, questions: Sequence[PairQuestion], judging: Judging[Answer]
    ) -> tuple[list[Answer], str]:
        """Send all requests in parallel, and return the answers in order and "".

        If a request still fails after its retries, the second value is the reason, and some answers
        are missing. Requests already in progress are then finished and cached, and the others are
        not sent.
        """
        problems: list[str] = []

        def ask(question: PairQuestion) -> Answer | None:
            """Return the answer; None if this or an earlier request failed."""
            if problems:
                return None
            try:
                return client.answer(self._body(question))
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
        except EndpointError as error:
            return [], str(error)
        first_problem = problems[0] if problems else ""
        return list(judging.results.values()), first_problem

    def notes(self, scores: Sequence[Scores]) -> tuple[str, ...]:
        """Return notes to print with figures that are computed from these scores.

        They contain the tokens and the price of the last call of `score_batch`, in all and without
        the answers from the cache.
        """
        config = self.config
        new_answers = [answer for answer in self.answers if not answer.cached]
        num_cached = len(self.answers) - len(new_answers)
        input_tokens, output_tokens = _count_tokens(self.answers)
        new_input_tokens, new_output_tokens = _count_tokens(new_answers)
        input_price = config.dollars_per_million_input
        output_price = config.dollars_per_million_output
        cost = ""
        if input_price is not None and output_price is not None:
            dollars = (input_tokens * input_price + output_tokens * output_price) / 1e6
            new_dollars = (new_input_tokens * input_price + new_output_tokens * output_price) / 1e6
            cost = f"; {dollars:.4f} dollars in all, {new_dollars:.4f} of them now"
        notes = [
            *self.about,
            f"{config.model}: {len(self.answers)} judgements ({num_cached} from the cache), "
            f"{input_tokens:,} tokens in and {output_tokens:,} out; asked now: "
            f"{new_input_tokens:,} and "
            f"{new_output_tokens:,}{cost}.",
        ]
        refusals = [answer.refusal for answer in self.answers if answer.refusal]
        if refusals:
            notes.append(
                f"{len(refusals)} requests were refused and count as unreadable votes; the first: "
                f"{refusals[0]}"
            )
        num_cut_off = sum(answer.cut_off for answer in self.answers)
        if num_cut_off:
            notes.append(f"{num_cut_off} judgements were cut off at the limit of new tokens.")
        return tuple(notes)

    def _body(self, question: PairQuestion) -> dict[str, Any]:
        """Return the body of the request for one judgement.

        Each judgement has its own seed, so that several votes on a pair differ, and a repeated
        evaluation sends the same requests.
        """
        candidates = question.candidates
        comparison = question.comparison
        seed_digest = hashlib.sha256(f"{self.protocol.seed}/{comparison.label}".encode()).digest()
        seed = int.from_bytes(seed_digest[:4]) >> 1  # a signed 32-bit number that is not negative
        conversation = pair_conversation(self.prompt.ask, candidates, comparison.shown)
        images = images_as_shown(candidates, comparison.shown)
        videos = videos_as_shown(candidates, comparison.shown)
        request = {
            "model": self.config.model,
            "messages": messages(conversation, images, videos, candidates.identity),
            "max_tokens": self.prompt.max_new_tokens,
            "temperature": self.prompt.temperature,
            "top_p": self.prompt.top_p,
            "seed": seed,
            **self.config.request,
        }
        # A null in the settings removes a key.
        return {name: value for name, value in request.items() if value is not None}


def _count_tokens(answers: Sequence[Answer]) -> tuple[int, int]:
    """Return the numbers of prompt tokens and of generated tokens of the answers."""
    num_input = sum(answer.input_tokens for answer in answers)
    num_output = sum(answer.output_tokens for answer in answers)
    return num_input, num_output


def load_endpoint_judge(path: Path, runtime: Runtime, config: EndpointConfig) -> EndpointJudge:
    """Return the judge behind the endpoint that `config` names. No request is sent yet."""
    return EndpointJudge(config, GENERAL_PROMPT, ProtocolConfig())

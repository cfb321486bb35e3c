"""A judge behind an OpenAI-compatible endpoint, asked with the benchmark's own prompt and read with its own parser.

Requests are repeated where that helps, and answers are kept on disk.
"""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from mmrm.data.errors import EndpointError
from mmrm.eval.benchmarks.benchmark import Benchmark, PairwisePrompt
from mmrm.eval.benchmarks.multimodal_rewardbench import GENERAL_PROMPT
from mmrm.eval.benchmarks.preference_folder import PREFERENCE_FOLDER
from mmrm.eval.candidates import Example, Side, Verdict, Vote
from mmrm.eval.journal import SILENT, Journal, Judging
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.endpoint.client import Answer, Question, messages, open_client
from mmrm.eval.judges.endpoint.config import EndpointConfig
from mmrm.eval.judges.loaded import LoadedJudge
from mmrm.eval.judges.tournament import Tournament
from mmrm.eval.protocol import ProtocolConfig, presentations
from mmrm.models.distributed import gather, rank, world_size


@dataclass(slots=True)
class EndpointJudge:
    """Asks once for each presentation that the protocol names."""

    config: EndpointConfig
    prompt: PairwisePrompt
    protocol: ProtocolConfig
    about: tuple[str, ...] = ()
    """What must be said beside its figures, whatever judging costs."""
    answers: list[Answer] = field(default_factory=list)
    """Of the last call, all ranks together."""

    def judge(self, examples: Sequence[Example], journal: Journal = SILENT) -> list[Verdict]:
        """Return the votes on every example, on every rank; ranks share the requests and must call together.

        Raises: EndpointError on all ranks if a request fails for good on one of them, or all are refused.
        """
        shown = [presentations(example, self.protocol) for example in examples]
        questions = [
            (example, first, turn)
            for example, order in zip(examples, shown, strict=True)
            for turn, first in enumerate(order)
        ]
        own = questions[rank() :: world_size()]
        # the first rank's share stands for all in what is shown; answers are kept in the cache, not in the journal
        with replace(journal, file=None).judging([""] * len(own), Answer, len(examples)) as judging:
            gathered = gather(self._ask(own, judging))
        for _, problem in gathered:
            if problem:
                raise EndpointError(problem)
        parts = [part for part, _ in gathered]
        self.answers = [
            parts[number % len(parts)][number // len(parts)] for number in range(len(questions))
        ]
        if self.answers and all(answer.refusal for answer in self.answers):
            raise EndpointError(
                f"{self.config.url} refused every request; the first: {self.answers[0].refusal}"
            )
        answers = iter(self.answers)
        return [
            Verdict(votes=tuple(self._vote(next(answers), first) for first in order))
            for order in shown
        ]

    def _vote(self, answer: Answer, first: Side) -> Vote:
        return Vote.at(
            answer.text, first, None if answer.refusal else self.prompt.read(answer.text)
        )

    def _ask(
        self, questions: Sequence[Question], judging: Judging[Answer]
    ) -> tuple[list[Answer], str]:
        """Return the answers in order and "", or what is wrong as soon as one request fails for good.

        What is under way then is finished (and cached), the rest is not asked.
        """
        problems: list[str] = []

        def ask(question: Question) -> Answer | None:
            try:
                return None if problems else client.answer(self._body(question))
            except EndpointError as error:
                problems.append(str(error))
                return None

        threads = max(1, self.config.concurrency // world_size())
        try:
            client = open_client(self.config)
            with ThreadPoolExecutor(threads) as pool:
                for number, answer in enumerate(pool.map(ask, questions)):
                    if answer is not None:
                        judging.add({number: answer})
                return list(judging.found.values()), "".join(problems[:1])
        except EndpointError as error:
            return [], str(error)

    def notes(self) -> tuple[str, ...]:
        """Return what must be said beside the figures: also what judging cost."""
        config, asked = self.config, [answer for answer in self.answers if not answer.cached]
        whole, now = (
            (
                sum(answer.input_tokens for answer in part),
                sum(answer.output_tokens for answer in part),
            )
            for part in (self.answers, asked)
        )
        price_in, price_out, dollars = (
            config.dollars_per_million_input,
            config.dollars_per_million_output,
            "",
        )
        if price_in is not None and price_out is not None:
            paid = [
                (tokens_in * price_in + tokens_out * price_out) / 1e6
                for tokens_in, tokens_out in (whole, now)
            ]
            dollars = f"; {paid[0]:.4f} dollars in all, {paid[1]:.4f} of them now"
        refusals = [answer.refusal for answer in self.answers if answer.refusal]
        cut_off = sum(answer.cut_off for answer in self.answers)
        found = [
            f"{config.model}: {len(self.answers)} judgements ({len(self.answers) - len(asked)} from the cache), "
            f"{whole[0]:,} tokens in and {whole[1]:,} out; asked now: {now[0]:,} and {now[1]:,}{dollars}."
        ]
        if refusals:
            found.append(
                f"{len(refusals)} requests were refused and count as unreadable votes; the first: {refusals[0]}"
            )
        if cut_off:
            found.append(f"{cut_off} judgements were cut off at the limit of new tokens.")
        return (*self.about, *found)

    def _body(self, question: Question) -> dict[str, Any]:
        """Return the request for one judgement; each has a seed of its own, so that votes differ and repeat."""
        example, first, turn = question
        seed = hashlib.sha256(f"{self.protocol.seed}/{example.key}/{turn}".encode()).digest()
        request = {
            "model": self.config.model,
            "messages": messages(self.prompt.ask(example, first), example.images, example.identity),
            "max_tokens": self.prompt.max_new_tokens,
            "temperature": self.prompt.temperature,
            "top_p": self.prompt.top_p,
            "seed": int.from_bytes(seed[:4]) >> 1,
            **self.config.request,
        }
        return {name: value for name, value in request.items() if value is not None}


def endpoint_judge(
    config: EndpointConfig, benchmark: Benchmark, protocol: ProtocolConfig
) -> EndpointJudge:
    """Return the judge for a benchmark."""
    if benchmark.prompt is not None:
        return EndpointJudge(config, benchmark.prompt, protocol)
    note = f"{benchmark.name} publishes no prompt that shows both responses; asked with the words of Multimodal RewardBench."
    return EndpointJudge(config, GENERAL_PROMPT, protocol, (note,))


def load_endpoint_judge(path: Path, runtime: Runtime, config: EndpointConfig) -> LoadedJudge:
    """Return the judge behind the endpoint that `config` names."""
    judge_for = partial(endpoint_judge, config)
    return LoadedJudge(Tournament(judge_for(PREFERENCE_FOLDER, ProtocolConfig())), judge_for)

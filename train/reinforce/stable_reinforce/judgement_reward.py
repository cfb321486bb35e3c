"""What a judgement earns: result x (1 + 0.5 x consistency) + 0.5 x format (R1-RewardParts, arXiv 2505.02835, section 4.3).

One pure function, `earned`, and the readers of consistency that feed it: a rule, a server, or a frozen model on this machine
that reads the last lines of a reasoning. Nothing here pays for an error: a text that cannot be read, a judge that cannot be
reached or understood and a judgement cut off by the limit earn nothing.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from mmrm.data.errors import EndpointError
from mmrm.data.preference import text
from mmrm.data.prompts import Answer, Judgement, conclusion, read
from mmrm.eval.judges.endpoint.client import open_client
from mmrm.eval.judges.endpoint.config import EndpointConfig
from mmrm.models.config import SamplingConfig
from mmrm.models.encoder import Encoder
from mmrm.models.packed_generation import generate_packed
from mmrm.train.reinforce.rollouts import Prompt
from mmrm.train.reinforce.stable_reinforce.config import RewardsConfig, ServerJudge

Consistency = Literal[-1, 0, 1]
"""The reasoning's conclusion disagrees with the answer, is not clear (or nobody could read it), or agrees."""
Consistencies = Callable[[Sequence[Judgement]], list[Consistency]]

RETRIES = 2
REPLY_TOKENS = 4
LAST_LINES = 3
"""Lines of the reasoning that a consistency judge reads, as in the released code."""
QUESTION = (
    "Below are the last lines of a comparison of two responses, and the choice that its author then stated.\n\n"
    "[Comparison]\n{reasoning}\n\n[Choice]\nResponse {answer} is better.\n\n"
    "Does the comparison conclude with that very choice? Say 1 if it does. Say 0 if it names the other response, both, or "
    "none. Reply with the digit alone."
)


class RewardParts(NamedTuple):
    """A reward and its parts, each as it enters the formula."""

    result: float
    consistency: float
    format: float
    total: float


NOTHING = RewardParts(0.0, 0.0, 0.0, 0.0)


def earned(
    judgement: Judgement, winner: Answer, consistency: Consistency, config: RewardsConfig
) -> RewardParts:
    """Return the reward of a judgement of a pair whose better response is `winner`.

    `paper`: consistency counts 1 or 0. `r1_released`: +1, 0 or -1, as the released code scores it; that code also pays
    a full result for any exception of its checker, which is not reproduced.
    """
    result = float(judgement.answer == winner)
    counted = float(consistency if config.variant == "r1_released" else max(consistency, 0))
    form = float(judgement.formatted)
    return RewardParts(
        result,
        counted,
        form,
        result * (1 + config.consistency_weight * counted) + config.format_weight * form,
    )


def by_rule(judgements: Sequence[Judgement]) -> list[Consistency]:
    """Compare the last choice that each reasoning names with its answer; no model is asked."""
    found: list[Consistency] = []
    for judgement in judgements:
        concluded = None if judgement.reasoning is None else conclusion(judgement.reasoning)
        unclear = concluded is None or judgement.answer is None
        found.append(0 if unclear else 1 if concluded == judgement.answer else -1)
    return found


def consistency_question(judgement: Judgement) -> str | None:
    """Return what a model is asked about a judgement; None for one without reasoning or answer, which earns nothing anyway."""
    if judgement.reasoning is None or judgement.answer is None:
        return None
    lines = [line for line in judgement.reasoning.splitlines() if line.strip()][-LAST_LINES:]
    return QUESTION.format(reasoning="\n".join(lines), answer=judgement.answer)


def reply(text: str) -> Consistency:
    """Read a model's reply to `consistency_question`; anything but a lone 0 or 1 is not clear."""
    return {"1": 1, "0": -1}.get(text.strip().rstrip("."), 0)  # type: ignore[return-value]


def by_model(
    replies: Callable[[Sequence[str]], Sequence[str]], judgements: Sequence[Judgement]
) -> list[Consistency]:
    """Ask a model, whose `replies` to questions come in their order, about every judgement with a reasoning and an answer."""
    questions = [consistency_question(judgement) for judgement in judgements]
    found = iter(replies([question for question in questions if question is not None]))
    return [0 if question is None else reply(next(found)) for question in questions]


def server_replies(judge: ServerJudge, cache: Path, questions: Sequence[str]) -> list[str]:
    """Return the replies of a server that is asked several questions at a time, empty where there is none.

    The folder `cache` keeps them, so that a resumed run gets the same ones.
    """
    asked = judge.model_dump(include={"url", "model", "timeout_seconds"})
    config = EndpointConfig(type="endpoint", **asked, retries=RETRIES, cache=str(cache))
    client = open_client(config)
    with ThreadPoolExecutor(config.concurrency) as pool:

        def answer(question: str) -> str:
            turn = {"role": "user", "content": question}
            try:
                return client.answer(
                    {
                        "model": config.model,
                        "messages": [turn],
                        "temperature": 0.0,
                        "max_tokens": REPLY_TOKENS,
                    }
                ).text
            except EndpointError:
                return ""

        return list(pool.map(answer, questions))


def model_replies(
    model: Any, encoder: Encoder, token_budget: int, questions: Sequence[str]
) -> list[str]:
    """Return a language model's greedy replies; all ranks must call together."""
    groups = [
        encoder.encode_conversations((), [(text("user", question),)], None, "")
        for question in questions
    ]
    greedy, seeds = SamplingConfig(max_new_tokens=REPLY_TOKENS), [[""]] * len(groups)
    written = generate_packed(model, encoder, groups, seeds, greedy, token_budget)
    return [encoder.tokenizer.decode(one.ids) for (one,) in written]


class JudgementReward:
    """The reward of a rollout batch as trl calls it; the parts are logged as means and as columns of the rollout table."""

    __name__ = "judgement"

    def __init__(
        self, config: RewardsConfig, consistencies: Consistencies, encoder: Encoder
    ) -> None:
        self.config, self.consistencies, self.encoder = config, consistencies, encoder

    def __call__(
        self,
        completion_ids: Sequence[list[int]],
        asked: Sequence[Prompt],
        log_metric: Callable[[str, float], None],
        log_extra: Callable[[str, list[Any]], None],
        **rest: Any,
    ) -> list[float]:
        """Return the rewards; a judgement that does not end by itself was cut off by the limit and earns nothing."""
        whole = [ids[-1] == self.encoder.end_of_turn for ids in completion_ids]
        winner = [cast(Answer, prompt.winner) for prompt in asked]
        judgements = [read(self.encoder.tokenizer.decode(ids[:-1])) for ids in completion_ids]
        agree = self.consistencies(judgements)
        found = [
            earned(judgement, better, consistent, self.config) if ended else NOTHING
            for judgement, better, consistent, ended in zip(
                judgements, winner, agree, whole, strict=True
            )
        ]
        parts: dict[str, list[Any]] = {
            name: [getattr(one, name) for one in found]
            for name in ("result", "consistency", "format")
        }
        for name, values in parts.items():
            log_metric(f"rewards/{name}", sum(values) / len(values))
        unread = [judgement.answer is None for judgement in judgements]
        log_metric("rollouts/unreadable", sum(unread) / len(unread))
        log_metric("rollouts/cut_off", 1 - sum(whole) / len(whole))
        for name, values in {
            **parts,
            "winner": winner,
            "record": [prompt.record for prompt in asked],
        }.items():
            log_extra(name, values)
        return [one.total for one in found]

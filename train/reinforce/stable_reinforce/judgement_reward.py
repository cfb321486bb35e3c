"""The reward of a judgement: result x (1 + 0.5 x consistency) + 0.5 x format.

The source is R1-Reward (arXiv 2505.02835, section 4.3). `earned` is a pure function. The readers of
consistency feed it: a rule, a server, or a frozen model in this process that reads the last lines of
a reasoning. No error earns a reward: a text that cannot be read, a judge that cannot be reached or
understood, and a judgement that the limit cut off earn nothing.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from mmrm.data.errors import EndpointError
from mmrm.data.preference import text
from mmrm.data.prompts import Answer, Judgement, conclusion, read_judgement
from mmrm.eval.judges.endpoint.client import open_client
from mmrm.eval.judges.endpoint.config import EndpointConfig
from mmrm.models.config import SamplingConfig
from mmrm.models.encoder import Encoder
from mmrm.models.packed_generation import generate_packed
from mmrm.train.reinforce.rollouts import Prompt
from mmrm.train.reinforce.stable_reinforce.config import RewardsConfig, ServerJudge

Consistency = Literal[-1, 0, 1]
"""The reasoning's conclusion disagrees with the answer (-1), is not clear or unreadable, or agrees."""
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
    """A reward and its parts, with the values that enter the formula."""

    result: float
    consistency: float
    format: float
    total: float


NOTHING = RewardParts(0.0, 0.0, 0.0, 0.0)


def earned(
    judgement: Judgement, winner: Answer, consistency: Consistency, config: RewardsConfig
) -> RewardParts:
    """Return the reward of a judgement of a pair whose better response is `winner`.

    With `variant: paper` consistency counts 1 or 0. With `r1_released` it counts +1, 0 or -1, as the
    released code scores it. That code also pays a full result for any exception of its checker,
    which is not reproduced.
    """
    result = float(judgement.answer == winner)
    counted = float(max(consistency, 0))
    if config.variant == "r1_released":
        counted = float(consistency)
    form = float(judgement.formatted)
    total = result * (1 + config.consistency_weight * counted) + config.format_weight * form
    return RewardParts(result, counted, form, total)


def by_rule(judgements: Sequence[Judgement]) -> list[Consistency]:
    """Check consistency by a rule: the last choice that a reasoning names must be its answer."""
    consistencies: list[Consistency] = []
    for judgement in judgements:
        concluded = None
        if judgement.reasoning is not None:
            concluded = conclusion(judgement.reasoning)
        if concluded is None or judgement.answer is None:
            consistencies.append(0)
        elif concluded == judgement.answer:
            consistencies.append(1)
        else:
            consistencies.append(-1)
    return consistencies


def consistency_question(judgement: Judgement) -> str | None:
    """Return the question to a model about the consistency of a judgement.

    The result is None for a judgement without reasoning or answer, which earns nothing anyway.
    """
    if judgement.reasoning is None or judgement.answer is None:
        return None
    lines = [line for line in judgement.reasoning.splitlines() if line.strip()][-LAST_LINES:]
    return QUESTION.format(reasoning="\n".join(lines), answer=judgement.answer)


def reply(text: str) -> Consistency:
    """Parse a model's reply to `consistency_question`; only a lone 0 or 1 is a clear reply."""
    return {"1": 1, "0": -1}.get(text.strip().rstrip("."), 0)  # type: ignore[return-value]


def by_model(
    replies: Callable[[Sequence[str]], Sequence[str]], judgements: Sequence[Judgement]
) -> list[Consistency]:
    """Ask a model about every judgement with a reasoning and an answer.

    `replies` takes questions and returns the model's replies in the same order.
    """
    questions = [consistency_question(judgement) for judgement in judgements]
    remaining_replies = iter(replies([question for question in questions if question is not None]))
    consistencies: list[Consistency] = []
    for question in questions:
        if question is None:
            consistencies.append(0)
        else:
            consistencies.append(reply(next(remaining_replies)))
    return consistencies


def server_replies(judge: ServerJudge, cache: Path, questions: Sequence[str]) -> list[str]:
    """Return the replies of a server, which is asked several questions at a time.

    A question without a reply has an empty one. The folder `cache` keeps the replies, so that a
    resumed run gets the same ones.
    """
    settings = judge.model_dump(include={"url", "model", "timeout_seconds"})
    config = EndpointConfig(type="endpoint", **settings, retries=RETRIES, cache=str(cache))
    client = open_client(config)
    with ThreadPoolExecutor(config.concurrency) as pool:

        def answer(question: str) -> str:
            request = {
                "model": config.model,
                "messages": [{"role": "user", "content": question}],
                "temperature": 0.0,
                "max_tokens": REPLY_TOKENS,
            }
            try:
                return client.answer(request).text
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
    greedy = SamplingConfig(max_new_tokens=REPLY_TOKENS)
    seeds = [[""]] * len(groups)
    replies_by_question = generate_packed(model, encoder, groups, seeds, greedy, token_budget)
    return [encoder.tokenizer.decode(reply.ids) for (reply,) in replies_by_question]


class JudgementReward:
    """The reward of a rollout batch as trl calls it.

    Its parts are logged as means, and as columns of the table of rollouts.
    """

    __name__ = "judgement"

    def __init__(
        self, config: RewardsConfig, consistencies: Consistencies, encoder: Encoder
    ) -> None:
        self.config = config
        self.consistencies = consistencies
        self.encoder = encoder

    def __call__(
        self,
        completion_ids: Sequence[list[int]],
        asked: Sequence[Prompt],
        log_metric: Callable[[str, float], None],
        log_extra: Callable[[str, list[Any]], None],
        **rest: Any,
    ) -> list[float]:
        """Return the rewards of judgements.

        A judgement that does not end by itself was cut off by the limit, and earns nothing.

        Args:
            completion_ids: The tokens of every judgement.
            asked: The prompt of every judgement. It has trl's name for this column.
            log_metric: Logs a number by its name.
            log_extra: Adds a column to the table of rollouts.
            rest: Further columns that trl hands over.
        """
        judgements = [
            read_judgement(self.encoder.tokenizer.decode(ids[:-1])) for ids in completion_ids
        ]
        consistencies = self.consistencies(judgements)
        winners = [cast(Answer, prompt.winner) for prompt in asked]
        is_whole = [ids[-1] == self.encoder.end_of_turn for ids in completion_ids]
        rewards: list[RewardParts] = []
        for judgement, winner, consistency, whole in zip(
            judgements, winners, consistencies, is_whole, strict=True
        ):
            if whole:
                rewards.append(earned(judgement, winner, consistency, self.config))
            else:
                rewards.append(NOTHING)

        columns: dict[str, list[Any]] = {
            "result": [reward.result for reward in rewards],
            "consistency": [reward.consistency for reward in rewards],
            "format": [reward.format for reward in rewards],
        }
        for name, values in columns.items():
            log_metric(f"rewards/{name}", sum(values) / len(values))
        num_unreadable = sum(judgement.answer is None for judgement in judgements)
        log_metric("rollouts/unreadable", num_unreadable / len(judgements))
        log_metric("rollouts/cut_off", 1 - sum(is_whole) / len(is_whole))
        columns["winner"] = winners
        columns["record"] = [prompt.record for prompt in asked]
        for name, values in columns.items():
            log_extra(name, values)
        return [reward.total for reward in rewards]

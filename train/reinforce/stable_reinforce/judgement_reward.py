"""The reward of a judgement: result x (1 + 0.5 x consistency) + 0.5 x format.

The source is R1-Reward (arXiv 2505.02835, section 4.3). Consistency says if the reasoning of a
judgement agrees with its answer. It is decided by a rule, by a server, or by a frozen model in this
process, and models read the last lines of the reasoning.

No error earns a reward. A judgement that cannot be read or that the length limit cut off earns
nothing. A consistency that could not be found out, or a reply that is not clear, counts as 0.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from mmrm.data.errors import EndpointError
from mmrm.data.preference import text
from mmrm.data.prompts import THINK_FORM, Answer, Judgement, JudgementForm
from mmrm.eval.judges.endpoint.client import open_client
from mmrm.eval.judges.endpoint.config import EndpointConfig
from mmrm.models.config import SamplingConfig
from mmrm.models.encoder import Conversation, Encoder
from mmrm.models.packed_generation import generate_packed
from mmrm.models.packing.segments import SegmentTree
from mmrm.train.reinforce.rollouts import Prompt
from mmrm.train.reinforce.stable_reinforce.config import RewardsConfig, ServerJudge
from mmrm.train.reinforce.stable_reinforce.rubric_reader import RubricReader

Consistency = Literal[-1, 0, 1]
"""1 if a reasoning agrees with its answer, -1 if it disagrees, and 0 if this is not clear."""

ConsistencyCheck = Callable[[Sequence[Judgement]], list[Consistency]]
"""A function that returns the consistency of every judgement."""

RETRIES = 2
"""The number of times that a server is asked again after an error."""

REPLY_TOKENS = 4
"""The maximum length of a model's reply, which should be one digit."""

LAST_LINES = 3
"""The number of lines of the reasoning that a model reads, as in the released code."""

QUESTION = (
    "Below are the last lines of a comparison of two responses, and the choice that its author "
    "then stated.\n\n"
    "[Comparison]\n{reasoning}\n\n[Choice]\nResponse {answer} is better.\n\n"
    "Does the comparison conclude with that very choice? Say 1 if it does. Say 0 if it names the "
    "other response, both, or none. Reply with the digit alone."
)
"""The question to a model about the consistency of a judgement."""


class RewardParts(NamedTuple):
    """The reward of a judgement (`total`), and the values from which its formula computes it."""

    result: float
    consistency: float
    format: float
    total: float
    reader: float = 0.0


NO_REWARD = RewardParts(0.0, 0.0, 0.0, 0.0)
"""The reward of a judgement that the length limit cut off."""


def earned(
    judgement: Judgement, winner: Answer, consistency: Consistency, config: RewardsConfig
) -> RewardParts:
    """Return the reward of a judgement of a pair whose better response is `winner`.

    A consistency of -1 counts as 0 with `variant: paper`, and as -1 with `r1_released`, as in the
    released code. The released code also gives the full reward of a right answer if its check
    raises an exception. This is not reproduced.
    """
    result = float(judgement.answer == winner)
    consistency_value = float(max(consistency, 0))
    if config.variant == "r1_released":
        consistency_value = float(consistency)
    format_value = float(judgement.formatted)
    consistency_factor = 1 + config.consistency_weight * consistency_value
    total = result * consistency_factor + config.format_weight * format_value
    return RewardParts(result, consistency_value, format_value, total)


def consistency_by_rule(
    judgements: Sequence[Judgement], form: JudgementForm = THINK_FORM
) -> list[Consistency]:
    """Return the consistency of judgements by a rule, without a model.

    It is 1 if the choice that the reasoning concludes with is the answer, -1 if it is another one,
    and 0 if the reasoning names no choice or the judgement has no answer. The conclusion of a
    rubric is the response that meets more criteria.
    """
    consistencies: list[Consistency] = []
    for judgement in judgements:
        last_choice = None
        if judgement.reasoning is not None:
            last_choice = form.conclusion(judgement.reasoning)
        if last_choice is None or judgement.answer is None:
            consistencies.append(0)
        elif last_choice == judgement.answer:
            consistencies.append(1)
        else:
            consistencies.append(-1)
    return consistencies


def consistency_question(judgement: Judgement) -> str | None:
    """Return the question to a model about the consistency of a judgement.

    The result is None for a judgement without reasoning or without answer, which has no
    consistency.
    """
    if judgement.reasoning is None or judgement.answer is None:
        return None
    lines = [line for line in judgement.reasoning.splitlines() if line.strip()]
    return QUESTION.format(reasoning="\n".join(lines[-LAST_LINES:]), answer=judgement.answer)


def consistency_of_reply(reply: str) -> Consistency:
    """Return the consistency that a model's reply to `QUESTION` states.

    A reply other than a single 0 or 1 is not clear, and the result is 0.
    """
    digit = reply.strip().rstrip(".")
    if digit == "1":
        return 1
    if digit == "0":
        return -1
    return 0


def consistency_by_model(
    replies: Callable[[Sequence[str]], Sequence[str]], judgements: Sequence[Judgement]
) -> list[Consistency]:
    """Return the consistency of judgements as a model decides it.

    The consistency of a judgement without a reasoning or an answer is 0, and the model is not
    asked.

    Args:
        replies: A function that takes questions and returns the model's replies in the same order.
        judgements: The judgements.
    """
    questions: list[str] = []
    question_indices: list[int] = []
    for index, judgement in enumerate(judgements):
        question = consistency_question(judgement)
        if question is not None:
            questions.append(question)
            question_indices.append(index)
    consistencies: list[Consistency] = [0] * len(judgements)
    for index, reply in zip(question_indices, replies(questions), strict=True):
        consistencies[index] = consistency_of_reply(reply)
    return consistencies


def server_replies(judge: ServerJudge, cache: Path, questions: Sequence[str]) -> list[str]:
    """Return the replies of a server to questions, an empty text for a question that failed.

    Several questions are asked at a time.

    Args:
        judge: The section of the recipe on the server.
        cache: The folder in which replies are kept, so that a resumed run gets the same ones.
        questions: The questions.
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
    """Return a language model's greedy replies to questions; all ranks must call together.

    `token_budget` is the largest size of a packed row, in tokens.
    """
    trees: list[SegmentTree] = []
    for question in questions:
        # A single turn, without images, without scores to read, and of no record.
        conversation = Conversation((text("user", question),))
        trees.append(encoder.encode_conversations([conversation], None, ""))
    greedy = SamplingConfig(max_new_tokens=REPLY_TOKENS)
    seeds = [[""]] * len(trees)  # greedy texts do not depend on a seed
    replies_by_question = generate_packed(model, encoder, trees, seeds, greedy, token_budget)
    # Each question has a single reply.
    return [encoder.tokenizer.decode(reply.ids) for (reply,) in replies_by_question]


class JudgementReward:
    """The function that trl calls for the rewards of judgements.

    It logs every part of the reward: its mean, and a column in trl's table of rollouts.
    """

    __name__ = "judgement"  # trl logs the rewards under the name of the function

    def __init__(
        self,
        config: RewardsConfig,
        check_consistency: ConsistencyCheck,
        encoder: Encoder,
        form: JudgementForm = THINK_FORM,
        reader: RubricReader | None = None,
    ) -> None:
        self.config = config
        self.reader = reader
        self.form = form
        self.check_consistency = check_consistency
        self.encoder = encoder

    def __call__(
        self,
        completion_ids: Sequence[list[int]],
        asked: Sequence[Prompt],
        log_metric: Callable[[str, float], None],
        log_extra: Callable[[str, list[Any]], None],
        **rest: Any,
    ) -> list[float]:
        """Return the reward of every judgement.

        A judgement without the token that ends a turn was cut off by the length limit. It earns
        nothing.

        Args:
            completion_ids: The tokens of every judgement.
            asked: The prompt of every judgement. trl passes each column of its rows by the column's
                name, and `asked` is the column that the trainer adds.
            log_metric: A function that logs a number, given its name and its value.
            log_extra: A function that adds a column to the table of rollouts, given its name and
                its values.
            rest: Further columns and values that trl passes.
        """
        # The last token ends the turn, and is no part of the text.
        judgements = [
            self.form.read(self.encoder.tokenizer.decode(ids[:-1])) for ids in completion_ids
        ]
        consistencies = self.check_consistency(judgements)
        winners = [cast(Answer, prompt.winner) for prompt in asked]
        is_whole = [ids[-1] == self.encoder.end_of_turn for ids in completion_ids]
        rewards: list[RewardParts] = []
        for judgement, winner, consistency, whole in zip(
            judgements, winners, consistencies, is_whole, strict=True
        ):
            if whole:
                rewards.append(earned(judgement, winner, consistency, self.config))
            else:
                rewards.append(NO_REWARD)
        if self.reader is not None:
            # A judgement that was cut off has no readable rubric, so that its reward stays 0.
            verdicts = self.reader.verdicts(asked, judgements)
            rewards = self._with_reader(rewards, verdicts, winners)

        columns: dict[str, list[Any]] = {
            "result": [reward.result for reward in rewards],
            "consistency": [reward.consistency for reward in rewards],
            "format": [reward.format for reward in rewards],
        }
        if self.reader is not None:
            columns["reader"] = [reward.reader for reward in rewards]
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

    def _with_reader(
        self,
        rewards: Sequence[RewardParts],
        verdicts: Sequence[Answer | None],
        winners: Sequence[Answer],
    ) -> list[RewardParts]:
        """Return the rewards, each with the reader's weight if its verdict names the winner."""
        assert self.config.reader is not None, "a reader has settings"
        weight = self.config.reader.weight
        with_reader: list[RewardParts] = []
        for reward, verdict, winner in zip(rewards, verdicts, winners, strict=True):
            reader = float(verdict == winner)
            total = reward.total + weight * reader
            with_reader.append(reward._replace(reader=reader, total=total))
        return with_reader

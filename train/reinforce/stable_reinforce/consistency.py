"""Consistency: whether the reasoning of a judgement agrees with its answer.

The source is R1-Reward (arXiv 2505.02835, section 4.3). It is decided by a rule, by a server, or by
a frozen model in this process, and models read the last lines of the reasoning. A consistency that
could not be found out, or a reply that is not clear, counts as 0.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal

from mmrm.data.errors import EndpointError
from mmrm.data.preference import text
from mmrm.data.prompts import Judgement, JudgementForm
from mmrm.eval.judges.endpoint.client import open_client
from mmrm.eval.judges.endpoint.config import EndpointConfig
from mmrm.models.config import SamplingConfig
from mmrm.models.encoder import Conversation, Encoder
from mmrm.models.packed_generation import generate_packed
from mmrm.models.packing.segments import SegmentTree
from mmrm.train.reinforce.stable_reinforce.judgement_term_config import (
    CheckpointJudge,
    RuleJudge,
    ServerJudge,
)
from mmrm.train.reinforce.stable_reinforce.judgement_term_setting import JudgementTermSetting

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


def rule_check(judge: RuleJudge, setting: JudgementTermSetting) -> tuple[ConsistencyCheck, None]:
    """Return the check by a rule, and None, because it runs no model."""
    return partial(consistency_by_rule, setting.form), None


def server_check(
    judge: ServerJudge, setting: JudgementTermSetting
) -> tuple[ConsistencyCheck, None]:
    """Return the check by a server, and None, because it runs no model in this process."""
    ask_server = partial(server_replies, judge, setting.folder / "consistency")
    return partial(consistency_by_model, ask_server), None


def checkpoint_check(
    judge: CheckpointJudge, setting: JudgementTermSetting
) -> tuple[ConsistencyCheck, Any]:
    """Return the check by a model in this process, and the model."""
    model, encoder = setting.load_model(judge.path)
    ask_model = partial(model_replies, model, encoder, setting.token_budget)
    return partial(consistency_by_model, ask_model), model


def consistency_by_rule(form: JudgementForm, judgements: Sequence[Judgement]) -> list[Consistency]:
    """Return the consistency of judgements by a rule, without a model.

    It is 1 if the choice that the reasoning concludes with is the answer, -1 if it is another one,
    and 0 if the reasoning names no choice or the judgement has no answer. The conclusion of a
    rubric is the response that meets more criteria.

    Args:
        form: The form in which the judgements are written.
        judgements: The judgements.
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

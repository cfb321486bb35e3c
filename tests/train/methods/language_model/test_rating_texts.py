"""Ratings as texts: which tokens are learned, from which responses, and how training is judged."""

from __future__ import annotations

from dataclasses import replace
from math import nan
from typing import Any

import pytest

from mmrm.data.errors import RecordError
from mmrm.data.point_prompt import PointPrompt
from mmrm.data.preference import Preference, Response, text, text_responses
from mmrm.eval.candidates import Candidates
from mmrm.eval.judges.packed_judge import Unit, UnitEncoder
from mmrm.eval.judges.points.judge import PromptedPoint
from mmrm.eval.judges.pointwise import PointLayout
from mmrm.train.methods.language_model.rating_texts import RatingEncoder, ratings_of
from tests.eval.make import png
from tests.models import tiny

RECORD = Preference(
    "row 1",
    (text("user", "What is it?", images=1),),
    (
        Response.of_text("a red square"),
        Response(("like ", png("red", (60, 60)))),
        Response.of_text("no"),
    ),
    (png("blue", (60, 60)),),
    ranks=(0, 1, 2),
    attributes={"helpfulness": (4.0, 2.0, nan), "brevity": (1.0, 2.0, 4.0)},
)
SHORT = "{question} {response} How good?"


def encoder(**settings: Any) -> RatingEncoder:
    prompt = PointPrompt(**{"question": SHORT, **settings.pop("prompt", {})})
    return RatingEncoder(
        tiny.encoder(),
        prompt,
        **{
            "ratings_from": "attributes",
            "rating": "helpfulness",
            "loss_on": "answer",
            **settings,
        },
    )


def learned(example: Any) -> list[str]:
    """Return the text of the tokens that carry loss, for each output."""
    tokenizer = tiny.tokenizer()
    found = []
    for conversation in example.tree.conversations():
        found.append(tokenizer.decode([conversation.ids[index] for index in conversation.labels]))
    return found


def test_the_answer_or_the_score_alone_is_learned_of_every_rated_response() -> None:
    assert learned(encoder()(RECORD)) == ["Score: 4<|im_end|>", "Score: 2<|im_end|>"]
    assert learned(encoder(loss_on="score")(RECORD)) == ["4", "2"]
    in_full = encoder(rating="brevity", loss_on="score", prompt={"scores": "1-10"})(RECORD)
    assert learned(in_full) == ["1<|im_end|>", "2", "4"]  # 1 is also the beginning of 10
    highest = replace(RECORD, attributes={"brevity": (10.0, 1.0, 9.0)})
    of_ten = encoder(rating="brevity", loss_on="score", prompt={"scores": "1-10"})(highest)
    assert learned(of_ten) == ["10", "1<|im_end|>", "9"]
    assert learned(encoder(rating=None, loss_on="score", prompt={"scores": "1-10"})(RECORD)) == [
        "2",  # the mean is 2.5, and the lower of two equally close scores is taken
        "2",
    ]


def test_a_preference_rates_the_responses_of_a_pair() -> None:
    pair = replace(
        RECORD, responses=text_responses("a red square", "no"), ranks=(0, 1), attributes={}
    )
    by_preference = {"ratings_from": "preference", "rating": None, "loss_on": "score"}
    assert learned(encoder(**by_preference)(pair)) == ["5", "1"]
    scores = {"scores": {"wrong": -1, "right": 2, "unclear": 0}}
    assert learned(encoder(**by_preference, prompt=scores)(pair)) == ["right", "wrong"]


def test_a_question_is_the_one_that_the_judge_asks() -> None:
    """Training and judging end a question with the same tokens, after the same images."""
    prompt = PointPrompt(question=SHORT)
    tree = encoder(loss_on="score")(RECORD).tree
    for index in range(2):
        conversation = tree.conversations()[index]
        candidates = Candidates("k", RECORD.images, RECORD.prompt, RECORD.responses, "row 1")
        layout = PointLayout(PromptedPoint(prompt).ask)
        asked = UnitEncoder(tiny.encoder(), layout)(Unit("0", candidates, (index,)))
        [question] = asked.conversations()
        choice = PromptedPoint(prompt).place.choice_at_once(tiny.tokenizer())
        assert conversation.ids[: len(question.ids)] == question.ids
        assert conversation.images == question.images
        assert conversation.labels == (len(question.ids) + len(choice.written),)
        scores = list(choice.alternatives)
        assert (conversation.ids[conversation.labels[0]],) in scores


def test_prompt_and_image_are_in_the_tree_once() -> None:
    tree = encoder()(RECORD).tree
    assert tree.tokens < sum(len(one.ids) for one in tree.conversations())


def test_a_critique_comes_before_the_score() -> None:
    pair = replace(
        RECORD,
        responses=text_responses("a red square", "no"),
        ranks=(0, 1),
        attributes={"helpfulness": (5.0, 1.0)},
        chosen_critique="It is right. Score: good",
        rejected_critique="It is wrong.",
    )
    with_critique = encoder(prompt={"rationale": True})
    assert learned(with_critique(pair)) == [
        "It is right. Score: good\nScore: 5<|im_end|>",
        "It is wrong.\nScore: 1<|im_end|>",
    ]
    with pytest.raises(RecordError, match="no critique of each response"):
        with_critique(replace(pair, rejected_critique=None))


def test_ratings_that_cannot_be_learned_are_refused() -> None:
    with pytest.raises(RecordError, match=r"has the rating 'harmlessness'.*helpfulness, brevity"):
        encoder(rating="harmlessness")(RECORD)
    with pytest.raises(RecordError, match="'of any attribute'"):
        ratings_of(replace(RECORD, attributes={}), None)
    high = replace(RECORD, attributes={"helpfulness": (11.0, 2.0, nan)})
    with pytest.raises(
        RecordError, match=r"11 is not between the lowest score 1 and the highest, 5"
    ):
        encoder()(high)

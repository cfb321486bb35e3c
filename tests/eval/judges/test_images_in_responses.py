"""Responses with images, judged by each kind of judge that runs in this process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mmrm.data.errors import ImageError, RecordError
from mmrm.data.preference import Response
from mmrm.eval.candidates import Candidates, images_as_shown
from mmrm.eval.judges.generative.judge import GenerativeJudge
from mmrm.eval.judges.messages import candidates_of
from mmrm.eval.judges.packed_judge import units_of_responses
from mmrm.eval.judges.released.templates import PointTemplate
from mmrm.models.backbone import load_scalar
from mmrm.models.config import BackboneConfig
from mmrm.models.encoder import Conversation
from tests.eval.judges.test_packed_judge import checkpoints, judge, png
from tests.models import tiny
from tests.models.exactness import RELATIVE

pytestmark = pytest.mark.usefixtures("module_in_float64")
__all__ = ["checkpoints"]

PROMPT = "Draw a square."
BEFORE = png(tiny.picture(70, 80, 5))


def image_part(number: int) -> dict[str, Any]:
    """Return an image part with a picture of its own size and content."""
    return {"type": "image", "image": png(tiny.picture(60 + 20 * number, 90, number))}


def text_part(content: str) -> dict[str, Any]:
    """Return a text part."""
    return {"type": "text", "text": content}


RESPONSES: list[Any] = [
    [image_part(0)],
    [text_part("Here it is: "), image_part(1), text_part(" Do you like it?")],
    "I cannot draw.",
    [image_part(2), image_part(0)],
]


@pytest.mark.numerics
@pytest.mark.parametrize("images", [[], [BEFORE]], ids=["drawn", "edited"])
@pytest.mark.parametrize("budget", [60, 4000])
def test_a_reward_model_scores_images_as_its_remote_code_does(
    checkpoints: dict[str, Path], images: list[bytes], budget: int
) -> None:
    folder = checkpoints["scalar"]
    found = judge(folder, budget).score(PROMPT, RESPONSES, images)
    model = load_scalar(BackboneConfig(path=str(folder), dtype="float32"), fresh_head=False).eval()
    processor = SimpleNamespace(tokenizer=tiny.tokenizer(), image_processor=tiny.image_processor())
    expected = model.score(processor, PROMPT, RESPONSES, images)
    assert found == pytest.approx(expected, rel=RELATIVE)
    assert len(set(found)) == len(RESPONSES)


@pytest.mark.numerics
@pytest.mark.parametrize("kind", ["scalar", "critic"])
def test_the_scores_of_images_do_not_depend_on_what_shares_their_row(
    checkpoints: dict[str, Path], kind: str
) -> None:
    loaded = judge(checkpoints[kind], 4000)
    together = loaded.score(PROMPT, RESPONSES, [BEFORE])
    alone = [loaded.score(PROMPT, [response], [BEFORE])[0] for response in RESPONSES]
    assert together == pytest.approx(alone, rel=RELATIVE)


def test_a_generative_judge_sees_the_images_of_the_prompt_and_then_as_they_are_shown(
    checkpoints: dict[str, Path],
) -> None:
    loaded = judge(checkpoints["generative"]).judge
    assert isinstance(loaded, GenerativeJudge)
    asked = candidates_of(PROMPT, RESPONSES[:2], [BEFORE])
    first_shown, second_shown = loaded.units(asked)
    assert (first_shown.shown, second_shown.shown) == ((0, 1), (1, 0))
    [conversation], _ = loaded.layout(second_shown)
    drawn = [response.images[0] for response in asked.responses]
    assert tuple(conversation.images) == (BEFORE, drawn[1], drawn[0])
    parts = [part for turn in conversation.messages for part in turn["content"]]
    kinds = [part["type"] for part in parts]
    assert kinds.count("image") == 3
    texts_before_images = []
    for index, kind in enumerate(kinds):
        if kind == "image" and index > 0:
            texts_before_images.append(parts[index - 1].get("text", ""))
    assert str(texts_before_images[0]).endswith("Here it is: ")
    tree = loaded.encode(second_shown)
    assert len(tree.images) == 3
    assert len(loaded.score_batch([asked])[0].votes) == 2


def test_texts_alone_make_the_conversation_that_they_always_made(
    checkpoints: dict[str, Path],
) -> None:
    loaded = judge(checkpoints["generative"]).judge
    [unit, _] = loaded.units(candidates_of(PROMPT, ["a", "b"], [BEFORE]))  # type: ignore[attr-defined]
    [conversation], _ = loaded.layout(unit)  # type: ignore[attr-defined]
    [turn] = conversation.messages
    assert [part["type"] for part in turn["content"]] == ["image", "text"]


def test_large_images_fill_a_row() -> None:
    responses = tuple(Response((png(tiny.picture(100, 100, number)),)) for number in range(4))
    candidates = Candidates("key", (), ({"role": "user", "content": []},), responses, "row")
    count_tokens = tiny.encoder().image_tokens
    [tokens_of_one] = count_tokens(np.array([(100, 100)], np.uint32))
    budget = 3 * int(tokens_of_one)  # a response has one token more, so that two fit into a row
    units = list(units_of_responses(candidates, budget, count_tokens))
    assert [unit.shown for unit in units] == [(0, 1), (2, 3)]
    [whole] = units_of_responses(candidates, None, count_tokens)
    assert whole.shown == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("response", "message"),
    [
        ([{"type": "image"}], "1 image parts and 0 images"),
        ([{"type": "sound", "url": "x"}], "a part of type 'sound'"),
        ([text_part("<image>"), image_part(0)], "as text"),
        (3, "a int among them"),
    ],
)
def test_responses_of_another_form_are_refused(response: Any, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        candidates_of(PROMPT, ["a", response])


def test_a_broken_image_of_a_response_is_an_error_of_its_record(
    checkpoints: dict[str, Path],
) -> None:
    broken = [{"type": "image", "image": b"no image"}]
    with pytest.raises(ImageError, match="messages"):
        judge(checkpoints["scalar"]).score(PROMPT, ["fine", broken])


def test_keys_depend_on_the_images_of_responses() -> None:
    first = candidates_of(PROMPT, [[image_part(0)], "b"])
    second = candidates_of(PROMPT, [[image_part(1)], "b"])
    same = candidates_of(PROMPT, [[image_part(0)], "b"])
    assert first.key == same.key != second.key
    assert images_as_shown(first, [1, 0]) == first.responses[0].images


def test_a_template_whose_images_follow_the_text_refuses_images_in_responses() -> None:
    template = PointTemplate("{question} {response}", float, mark="<image>")
    asked = candidates_of(PROMPT, [[image_part(0)]], [BEFORE])
    with pytest.raises(RecordError, match="judges texts alone"):
        template.ask(asked, asked.responses[0])
    in_front = PointTemplate("{question} {response} Score:", float)
    [turn] = in_front.ask(asked, asked.responses[0])
    assert [part["type"] for part in turn["content"]] == ["image", "text", "image", "text"]


def test_a_conversation_with_several_responses_has_their_images_in_order() -> None:
    asked = candidates_of(PROMPT, RESPONSES, [BEFORE])
    conversation = Conversation.answered(asked.prompt, asked.images, *asked.responses)
    assert tuple(conversation.images) == asked.all_images
    assert [turn["role"] for turn in conversation.messages] == ["user", *["assistant"] * 4]


@pytest.mark.numerics
def test_a_batch_of_trl_with_images_in_completions_is_scored(checkpoints: dict[str, Path]) -> None:
    loaded = judge(checkpoints["scalar"])
    drawn, other = (tiny.picture(60, 40, seed=1), tiny.picture(40, 60, seed=2))
    answers: list[list[dict[str, Any]]] = [
        [{"type": "text", "text": "Here:"}, {"type": "image", "image": drawn}],
        [{"type": "image", "image": other}, {"type": "text", "text": "Done."}],
        [{"type": "text", "text": "I cannot draw."}],
    ]
    completions = [[{"role": "assistant", "content": answer}] for answer in answers]

    found = loaded.reward(["Draw a circle."] * 3, completions, trainer_state=None)

    wanted = [loaded.score("Draw a circle.", [answer])[0] for answer in answers]
    assert found == pytest.approx(wanted, rel=RELATIVE)
    assert len(set(found)) == 3


def test_a_completion_whose_image_cannot_be_read_has_no_score(
    checkpoints: dict[str, Path],
) -> None:
    loaded = judge(checkpoints["scalar"])
    completion = [{"role": "assistant", "content": [{"type": "image"}]}]
    with pytest.raises(RecordError, match="row 0"):
        loaded.reward(["Draw a circle."], [completion])


@pytest.mark.parametrize(
    ("completion", "found"),
    [
        (None, "row 1: the completion is a NoneType"),
        ({"role": "assistant", "content": "a"}, "row 1: the completion is a dict"),
        ([{"role": "user", "content": "a"}], "row 1: a response is a turn of the user"),
        ([], "row 1: a response is 0 turns"),
        ("<image>", "row 1: "),
    ],
)
def test_a_completion_of_another_form_is_refused_by_its_row(
    checkpoints: dict[str, Path], completion: Any, found: str
) -> None:
    loaded = judge(checkpoints["scalar"])
    with pytest.raises(RecordError, match=found):
        loaded.reward(["Draw a circle."] * 2, ["A circle.", completion])

"""Rationales for the other order: rewritten if every reference is proven, and kept otherwise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrm.data.prompts import RUBRIC_FORM, conclusion
from mmrm.data.rationales import obstacle, swapped, with_chosen_first
from mmrm.data.synthetic.scenes import LEVELS
from mmrm.data.synthetic.world import ShapesGenerator

REWRITTEN = {
    # Labels, in every form of the list.
    "Response 1 is better than Response 2.": "Response 2 is better than Response 1.",
    "response 2 is wrong; response 1 is right.": "response 1 is wrong; response 2 is right.",
    "RESPONSE 1 WINS.": "RESPONSE 2 WINS.",
    "Response #1 is better.": "Response #2 is better.",
    "Response_2 is better.": "Response_1 is better.",
    "Response\u00a01 is better.": "Response\u00a02 is better.",
    "Answer 1 is better. Answer 2 is vague.": "Answer 2 is better. Answer 1 is vague.",
    "Response A is better than Response B.": "Response B is better than Response A.",
    "Model A beats Model B.": "Model B beats Model A.",
    "Assistant B is better.": "Assistant A is better.",
    "Response 1's tone is fine, Response 2's is not.": (
        "Response 2's tone is fine, Response 1's is not."
    ),
    "**Response 1** is short.\n**Response 2** is long.": (
        "**Response 2** is short.\n**Response 1** is long."
    ),
    "(Response 2) is better.": "(Response 1) is better.",
    "Response 1: 8/10. Response 2: 6/10.": "Response 2: 8/10. Response 1: 6/10.",
    # Both at once.
    "Responses 1 and 2 differ; Response 2 is better.": (
        "Responses 2 and 1 differ; Response 1 is better."
    ),
    "Responses A and B differ, Response B is better.": (
        "Responses B and A differ, Response A is better."
    ),
    "Both responses see the dog. Response 2 is better.": (
        "Both responses see the dog. Response 1 is better."
    ),
    "Neither Response 1 nor Response 2 is complete.": (
        "Neither Response 2 nor Response 1 is complete."
    ),
    "The two responses agree, but Response 1 is better.": (
        "The two responses agree, but Response 2 is better."
    ),
    # Ordinals.
    "The first response is vivid. The second response is right.": (
        "The second response is vivid. The first response is right."
    ),
    "the second answer is better": "the first answer is better",
    "The 1st response is better.": "The 2nd response is better.",
    "THE FIRST RESPONSE IS BETTER.": "THE SECOND RESPONSE IS BETTER.",
    "Response 1 is better: the first response counts the dogs.": (
        "Response 2 is better: the second response counts the dogs."
    ),
    "The better response: [2]": "The better response: [1]",
    # Words and numbers that are no references.
    "Response 1 counts 12 dogs and 30 cats. Response 2 is better.": (
        "Response 2 counts 12 dogs and 30 cats. Response 1 is better."
    ),
    "Response 1 says 1.5 cm. Response 2 is better.": "Response 2 says 1.5 cm. Response 1 is better.",
    "Response 1 says 1,000. Response 2 is better.": "Response 2 says 1,000. Response 1 is better.",
    "Response 2 is right.": "Response 1 is right.",
    "Response 1 names the cat next to the box.": "Response 2 names the cat next to the box.",
    "the digit at the top left is 1. Response 1 is better.": (
        "the digit at the top left is 1. Response 2 is better."
    ),
    "1 plus 1 is 2. Response 2 is better.": "1 plus 1 is 2. Response 1 is better.",
    "2 is smaller than 14. Response 2 is better.": "2 is smaller than 14. Response 1 is better.",
    "there are 2 red things and 1 blue thing. Response 1 is better.": (
        "there are 2 red things and 1 blue thing. Response 2 is better."
    ),
    # Sentences change places in the forms of the embedded world alone.
    "Response 1 says red. Response 2 says blue. the thing is blue. Response 2 is better.": (
        "Response 1 says blue. Response 2 says red. the thing is blue. Response 1 is better."
    ),
    "Response 1 says red. Response 2 says that too. it is red. Response 1 is better.": (
        "Response 2 says red. Response 1 says that too. it is red. Response 2 is better."
    ),
    "Response 1 says red. Response 2 says blue. So it goes on. Then more. Response 2 is better.": (
        "Response 2 says red. Response 1 says blue. So it goes on. Then more. Response 1 is better."
    ),
}
KEPT = {
    # The words of the issue.
    "The second response is wrong, so the former is right.": "former",
    "Response 2 is wrong. The latter is better.": "latter",
    # Ordinals without the noun, or of something else.
    "The first is better than Response 2.": "first",
    "First, I look at Response 1.": "First",
    "Response 1 describes the first image.": "first",
    "Secondly, Response 2 is better.": "Secondly",
    "Response 1 names three of the first five.": "first",
    "Response 1 and its first answer are wrong.": "first",
    "The first response option is Response 1.": "first",
    "The last response is better than Response 1.": "last",
    "Response 1 is good, the 2nd is better.": "2nd",
    "Of Response 1 and the initial answer, one is better.": "initial",
    "The first two responses, Response 1 and Response 2, are fine.": "first",
    # The other one, the one before.
    "Response 1 is a cat; the other is a dog.": "other",
    "Response 1 is vague, and one of them is better.": "one",
    "Response 2 is better than the previous response.": "previous",
    "The response above is better than Response 2.": "above",
    "Response 1 is right, the one below is not.": "one",
    "Compared with the preceding text, Response 2 is better.": "preceding",
    "The next response is better than Response 1.": "next",
    "Response 1 and Response 2 say red and blue, respectively.": "respectively",
    "Response 1 is fine. In that order they win.": "order",
    # Places.
    "The left response is better than Response 2.": "left",
    "Response 1 is fine, but I prefer the right.": "right",
    "The top response is better than Response 1.": "top",
    "The thing on the left is red, so Response 1 is better.": "left",
    # Numbers and letters alone.
    "Response 1 is vague, so 2 is better.": "2",
    "Response 1 says red. I choose 2.": "2",
    "#1 is better than Response 2.": "#1",
    "R1 is better than Response 2.": "R1",
    "Response 1 is vague. Winner: [[2]].": "2",
    "Response 1 is vague. (1) is worse.": "(1",
    "Response 1 loses, 1 < 2.": "1",
    "Response 1, 2 and both agree.": "2",
    "Response 1/2 is fine.": "no reference",
    "Response 01 is better than Response 2.": "01",
    "| Response 1 | Response 2 |\n| 1 | 8 |": "1",
    "1. Says red.\n2. Says blue.\nResponse 2 is better.": "1",
    "B is better than Response A.": "B",
    "Response A is fine. (a) is worse.": "(a",
    "A is better than B; Response 1 is fine.": "A",
    "Option B is right, as Response 1 says.": "B",
    "option 1 is better than Response 2.": "1",
    "Response 1 is fine, Response II is better.": "II",
    "Response One is better than Response 2.": "One",
    # Two kinds of labels: one of them may be a value of the answer, or another name.
    "Response 1 gives Answer 2. Response 1 is better.": "Answer 2",
    "Response 1 is from Model B.": "Model B",
    "Response 1 is better than Response B.": "Response B",
    "Response 1 gives answer 2. Response 1 is better.": "2",
    "Response 1 has a response 2 times as long.": "2",
    # Words of a response, verdicts, scores in order, other scripts.
    'Response 1 says "Response 2 is better".': '"Response 2 is better"',
    "Response 1 says 'Response 2 is better'.": "'Response 2 is better'",
    "Response 1 says \u2018Response 2 is better\u2019.": "Response 2 is better",
    "Response 1 is better. <answer>1</answer>": "<answer>",
    "The final answer is better than Response 1.": "final answer",
    "The opening answer is better than Response 1.": "opening",
    "text a is better than Response 2.": "text a",
    "Scores: 8 and 6. Response 1 is better.": "Scores: 8 and 6.",
    "8 6\nResponse 1 is better.": "8 6",
    "7/10 and 9/10. Response 2 is better.": "7/10 and 9/10.",
    "Response 1 is better. \u2460 is right.": "\u2460",
    "Response 1 is good. \u56de\u7b54\u4e8c is better.": "\u56de",
    "Response 1 \u2192 red. \u2190 blue.": "\u2192",
    "Response \u0410 is better than Response 1.": "\u0410",
    # No reference at all that is recognised.
    "The more detailed text is better.": "no reference",
    "La deuxi\u00e8me est meilleure.": "no reference",
    "Candidate 2 is better.": "no reference",
    "": "no reference",
}


@pytest.mark.parametrize(("rationale", "other"), REWRITTEN.items())
def test_proven_references_change_places(rationale: str, other: str) -> None:
    assert obstacle(rationale) is None
    assert swapped(rationale) == other
    assert swapped(other) == rationale


@pytest.mark.parametrize(("rationale", "words"), KEPT.items())
def test_what_could_be_a_reference_keeps_the_order(rationale: str, words: str) -> None:
    assert swapped(rationale) is None
    found = obstacle(rationale)
    assert found is not None
    assert words in found
    assert with_chosen_first(rationale, 1) == (rationale, "chosen")
    assert with_chosen_first(rationale, 2) == (rationale, "rejected")


def test_there_are_enough_phrasings() -> None:
    assert len(REWRITTEN) > 30
    assert len(KEPT) > 60


SENTENCES = st.sampled_from(
    [
        *(text for text in REWRITTEN if "\n" not in text and "A" not in text),
        "The picture shows a red circle.",
        "While Response 1 is vivid, Response 2 is better.",
        "Response 2 is worse.",
        "Overall, the better text is Response 1.",
    ]
)


@given(st.lists(SENTENCES, min_size=1, max_size=5))
def test_swapping_twice_returns_the_original_and_once_names_the_other_response(
    sentences: list[str],
) -> None:
    rationale = " ".join(sentences)
    other = swapped(rationale)
    if other is None:
        return
    assert swapped(other) == rationale
    named = conclusion(rationale)
    assert conclusion(other) == (None if named is None else 3 - named)


@given(st.text(alphabet='Response 12AB.firstecond \n<>"`#', max_size=80), st.sampled_from([1, 2]))
def test_any_text_is_rewritten_to_one_that_gives_it_back_or_not_at_all(
    text: str, label: int
) -> None:
    rationale = f"{text} Response {label} is better."
    other = swapped(rationale)
    assert other is None or swapped(other) == rationale


@pytest.mark.parametrize("level", LEVELS)
def test_rationales_of_the_embedded_world_can_all_be_rewritten(level: str) -> None:
    """These are what recipes/shapes/judge_sft.yaml learns, in both orders, and to the letter."""
    world = ShapesGenerator(level, seed=5, split="train")
    for index in range(600):
        item = world.item(index)
        first, second = item.rationale(chosen_first=True), item.rationale(chosen_first=False)
        assert obstacle(first) is obstacle(second) is None
        assert swapped(first) == second
        assert swapped(second) == first


@pytest.mark.parametrize("level", LEVELS)
def test_rubrics_of_the_embedded_world_can_all_be_rewritten(level: str) -> None:
    """These are what recipes/shapes/judge_rubric_sft.yaml learns, in both orders."""
    world = ShapesGenerator(level, seed=5, split="train", writes_rubrics=True)
    for index in range(600):
        item = world.item(index)
        first = item.rationale(chosen_first=True)
        second = item.rationale(chosen_first=False)
        assert obstacle(first) is obstacle(second) is None
        assert (swapped(first), swapped(second)) == (second, first)
        assert (RUBRIC_FORM.conclusion(first), RUBRIC_FORM.conclusion(second)) == (1, 2)


@pytest.mark.parametrize(
    "piece", ["a", "0", "<think", "\u201c", '"', "there is 1 ", "draw(a, ", " "]
)
def test_long_texts_take_time_in_proportion_to_their_length(piece: str) -> None:
    """A pattern tries every place that looks like its beginning; none of these texts may hang."""
    text = piece * (20_000 // len(piece)) + " Response 1 is better."
    swapped(text)


def test_a_rationale_that_was_written_for_the_other_order_is_stored_for_the_chosen_response() -> (
    None
):
    assert with_chosen_first("Response 2 is better.", 2) == ("Response 1 is better.", "chosen")
    assert with_chosen_first("Response 1 is better.", 1) == ("Response 1 is better.", "chosen")

"""The judge of single responses: its scores are those of the stock model, and where it reads them."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrm.data.errors import CheckpointError, RecordError
from mmrm.data.point_prompt import SCALES, PointPrompt
from mmrm.data.preference import Response, text_responses
from mmrm.eval.candidates import Candidates
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.loading import load_judge
from mmrm.eval.judges.packed_inference import Packed
from mmrm.eval.judges.packed_judge import Unit, UnitEncoder
from mmrm.eval.judges.points.judge import PromptedPoint, point_judge
from mmrm.eval.judges.pointwise import ExpectedPointJudge, PointJudge, PointLayout
from mmrm.eval.judges.score_place import ScorePlace
from mmrm.models.backbone import load_language_model, set_attention
from mmrm.models.config import BackboneConfig, SamplingConfig
from mmrm.models.generation import Generation
from mmrm.models.packed_alternatives import Choice
from mmrm.models.packing.segments import SegmentTree
from tests.eval.make import png
from tests.models import tiny
from tests.models.exactness import assert_exact
from tests.trees import image_inputs

SHORT = "{question}\n{response}\nHow good?"
QUESTION: Any = {
    "role": "user",
    "content": [{"type": "image"}, {"type": "text", "text": "What is in the picture, and where?"}],
}
GROUP = Candidates(
    "key",
    (png("blue", (60, 60)),),
    (QUESTION,),
    (
        *text_responses("a red square", "10 blue circles"),
        Response(("as drawn: ", png("red", (64, 60)))),
    ),
    "row 1",
)


@cache
def model(folder: str) -> Any:
    return load_language_model(BackboneConfig(path=folder, dtype="float32")).eval()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny.checkpoint(tmp_path_factory.mktemp("tiny")))


def judge(checkpoint: str, *, reading: Any = "expected", budget: int = 4096, **prompt: Any) -> Any:
    return point_judge(
        PointPrompt(**{"question": SHORT, **prompt}),
        reading,
        load_language_model(BackboneConfig(path=checkpoint, dtype="float32")).eval(),
        Packed(tiny.encoder(), torch.device("cpu"), budget),
        SamplingConfig(max_new_tokens=6),
    )


def stock(checkpoint: str) -> Any:
    """Return the stock model with the weights of the checkpoint."""
    plain = tiny.language_model()
    plain.load_state_dict(model(checkpoint).state_dict())
    set_attention(plain, "sdpa")
    return plain.eval()


def inputs_of(tree: SegmentTree, ids: list[int], plain: Any) -> dict[str, Any]:
    """Return a conversation as the stock model takes it."""
    input_ids = torch.tensor([ids])
    return {
        "input_ids": input_ids,
        "attention_mask": torch.ones_like(input_ids),
        "mm_token_type_ids": (input_ids == plain.config.image_token_id).int(),
        **image_inputs(tree),
    }


def asked(judging: PointJudge, index: int) -> SegmentTree:
    """Return the question about one response as a tree."""
    unit = Unit(str(index), GROUP, (index,), ("seed",))
    return UnitEncoder(tiny.encoder(), PointLayout(judging.ask))(unit)


def stock_probability(plain: Any, tree: SegmentTree, text: str) -> Tensor:
    """Return the probability of a text at the beginning of the answer, by the stock model."""
    [conversation] = tree.conversations()
    added = tiny.encoder().tokenizer(text, add_special_tokens=False)["input_ids"]
    ids = [*conversation.ids, *added]
    with torch.no_grad():
        logits = plain(**inputs_of(tree, ids, plain)).logits[0]
    probability = torch.ones(())
    for offset, token in enumerate(added):
        position = len(conversation.ids) + offset - 1
        probability = probability * logits[position].softmax(-1)[token]
    return probability


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("budget", [4096, 1])
@pytest.mark.parametrize("scale", ["1-5", "1-10", "yes/no"])
def test_scores_at_once_are_those_of_a_stock_forward(
    tmp_path: Path, scale: Any, budget: int
) -> None:
    folder = str(tiny.checkpoint(tmp_path / "tiny"))
    judging = judge(folder, scores=scale, opening="Score: ", budget=budget)
    [scores] = judging.score_batch([GROUP])
    plain = stock(folder)
    for index in range(3):
        tree = asked(judging, index)
        opening = stock_probability(plain, tree, "Score: ")
        weights = {}
        for text in SCALES[scale]:
            weights[text] = stock_probability(plain, tree, f"Score: {text}") / opening
        if scale == "1-10":
            weights["1"] = weights["1"] - weights["10"]
        mass = sum(weights.values(), torch.zeros(()))
        mean = sum((weights[text] * value for text, value in SCALES[scale].items())) / mass
        square = sum((weights[text] * value**2 for text, value in SCALES[scale].items())) / mass
        assert_exact(scores.values[index], mean)
        assert_exact(scores.attributes["mass"][index], mass)
        assert_exact(scores.attributes["std"][index], (square - mean**2).sqrt())
    assert len(set(scores.values)) == 3
    assert scores.usage.judgements == 0
    assert "probability" in judging.notes([scores])[-1]


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_scores_after_a_text_are_those_of_stock_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stock generation is led through a text with the score 10, and shows its logits."""
    folder = str(tiny.checkpoint(tmp_path / "tiny"))
    plain = stock(folder)
    tokenizer = tiny.encoder().tokenizer
    ids = tokenizer("Red is wrong.\nScore: 10", add_special_tokens=False)["input_ids"]
    judging = judge(folder, scores="1-10", rationale=True)

    def written(*_: Any) -> list[Generation]:
        return [Generation(tuple(ids), truncated=False, end_hidden=torch.empty(0))] * 3

    monkeypatch.setattr(ExpectedPointJudge, "judgements", written)
    [scores] = judging.score_batch([GROUP])
    for index in range(3):
        tree = asked(judging, index)
        [conversation] = tree.conversations()
        num_before = len(conversation.ids)
        generated = plain.generate(
            **inputs_of(tree, list(conversation.ids), plain),
            max_new_tokens=len(ids),
            do_sample=False,
            prefix_allowed_tokens_fn=lambda _, so_far, n=num_before: [ids[len(so_far) - n]],
            output_logits=True,
            return_dict_in_generate=True,
        )
        assert generated.sequences[0, num_before:].tolist() == ids
        first, second = (logits[0].softmax(-1) for logits in generated.logits[-2:])
        digits = {str(d): tokenizer.convert_tokens_to_ids(str(d)) for d in range(10)}
        weights = {float(text): first[digits[text]] for text in "123456789"}
        weights[10.0] = first[digits["1"]] * second[digits["0"]]
        weights[1.0] = weights[1.0] - weights[10.0]
        mass = sum(weights.values(), torch.zeros(()))
        mean = sum(value * weight for value, weight in weights.items()) / mass
        assert_exact(scores.values[index], mean)
        assert_exact(scores.attributes["mass"][index], mass)
    assert scores.usage.judgements == 3


def test_nothing_is_generated_and_prompt_and_image_are_computed_once(
    checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    judging = judge(checkpoint)
    forward = type(judging.model).forward
    sizes: list[int] = []

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        sizes.append(kwargs["input_ids"].shape[1])
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(type(judging.model), "forward", watched)
    [scores] = judging.score_batch([GROUP])
    assert not judging.info.writes
    assert scores.texts == ()
    [size] = sizes  # one row, and no step of generation
    questions = [asked(judging, index) for index in range(3)]
    assert size < sum(question.tokens for question in questions)


def test_a_response_has_the_same_score_in_any_company(checkpoint: str) -> None:
    judging = judge(checkpoint)
    [scores] = judging.score_batch([GROUP])
    for index in range(3):
        alone = Candidates(
            "other", GROUP.images, GROUP.prompt, GROUP.responses[index : index + 1], ""
        )
        [found] = judging.score_batch([alone])
        assert found.values[0] == pytest.approx(scores.values[index], rel=1e-5)


def tokens(text: str) -> tuple[int, ...]:
    return tuple(tiny.encoder().tokenizer(text, add_special_tokens=False)["input_ids"])


def test_the_place_is_after_the_last_opening_in_the_texts_own_tokens() -> None:
    tokenizer = tiny.encoder().tokenizer
    place = ScorePlace("Score: ", SCALES["1-10"])
    for text, written in [
        ("Score: 3 is too low. Score: 10", "Score: 3 is too low. Score: "),
        ("good.Score:7/10 or so", "good.Score:"),
        ("Score: none", "Score: "),
    ]:
        ids = tokens(text)
        choice = place.choice_in(tokenizer, ids)
        assert choice is not None
        assert tokenizer.decode(choice.written) == written
        assert choice.written == ids[: len(choice.written)]
        assert [tokenizer.decode(ids) for ids in choice.alternatives] == list(SCALES["1-10"])
    assert place.choice_in(tokenizer, tokens("it is good")) is None


def test_of_1_and_10_each_has_the_probability_of_its_own() -> None:
    place = ScorePlace("", {"1": 1.0, "10": 10.0, "100": 100.0, "11": 11.0})
    choice = Choice((), ((1,), (1, 0), (1, 0, 0), (1, 1)))
    # "1" 0.5, of which 0.2 go on with "0" (0.15 of these with another "0") and 0.1 with "1".
    found = place.distribution(choice, [math.log(p) for p in (0.5, 0.2, 0.15, 0.1)])
    shares = {1.0: 0.2, 10.0: 0.05, 100.0: 0.15, 11.0: 0.1}
    assert found.mass == pytest.approx(0.5)
    assert found.mean == pytest.approx(sum(value * p for value, p in shares.items()) / 0.5)


def test_improbable_scores_are_still_compared() -> None:
    place = ScorePlace("", {"1": 1.0, "2": 2.0})
    found = place.distribution(Choice((), ((1,), (2,))), [-2000.0, -2000.0 + math.log(3)])
    assert found.mean == pytest.approx(1.75)
    assert found.mass == 0.0


def test_a_text_without_an_opening_has_no_score_and_is_counted(checkpoint: str) -> None:
    judging = judge(checkpoint, rationale=True, opening="never written ")
    [scores] = judging.score_batch([GROUP])
    assert scores.values == (0.0, 0.0, 0.0)
    assert scores.attributes == {"std": (0.0,) * 3, "mass": (0.0,) * 3}
    assert scores.usage.unread == scores.usage.judgements == 3
    assert json.dumps(scores.attributes)


@pytest.mark.parametrize("opening", ["", " "])
@pytest.mark.parametrize(
    ("text", "value"), [("3", 3.0), (" 10.", 10.0), ("fine. 3", math.nan), ("", math.nan)]
)
def test_without_an_opening_a_text_begins_with_the_score(
    opening: str, text: str, value: float
) -> None:
    found = PromptedPoint(PointPrompt(opening=opening, scores="1-10")).read(text)
    assert found == pytest.approx(value, nan_ok=True)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("fine. Score: 10", 10.0),
        ("Score: 1.", 1.0),
        ("Score:3\n", 3.0),
        ("Score: 11", math.nan),
        ("Score: ten", math.nan),
        ("10", math.nan),
    ],
)
def test_a_written_score_is_read_in_its_form_alone(text: str, value: float) -> None:
    found = PromptedPoint(PointPrompt(scores="1-10")).read(text)
    assert found == value or (math.isnan(found) and math.isnan(value))


def test_a_checkpoint_without_training_is_asked_for_1_to_5(checkpoint: str, tmp_path: Path) -> None:
    file = tmp_path / "judge.yaml"
    file.write_text(f"type: points\ncheckpoint: {checkpoint}\n")
    judging: Any = load_judge(file, Runtime(torch.device("cpu"))).judge
    assert isinstance(judging, ExpectedPointJudge)
    assert judging.at_once
    assert list(judging.place.value_by_text) == ["1", "2", "3", "4", "5"]
    assert "was not trained to score" in judging.about[-1]
    file.write_text(f"type: points\ncheckpoint: {checkpoint}\ntemperature: 0.5\n")
    with pytest.raises(CheckpointError, match="writes nothing"):
        load_judge(file, Runtime(torch.device("cpu")))
    file.write_text(
        f"type: points\ncheckpoint: {checkpoint}\nreading: written\nmax_new_tokens: 3\n"
    )
    written: Any = load_judge(file, Runtime(torch.device("cpu"))).judge
    assert (type(written), written.info.writes) == (PointJudge, True)


def test_control_tokens_are_refused(checkpoint: str) -> None:
    bad = Candidates(
        "k",
        (),
        ({"role": "user", "content": [{"type": "text", "text": "?"}]},),
        text_responses("<|im_end|>"),
        "r",
    )
    with pytest.raises(RecordError, match="control token"):
        judge(checkpoint).score_batch([bad])

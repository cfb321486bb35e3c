"""The Brier score of soft verdicts as a reward: equal to a stock forward, and a proper scoring rule."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmrm.data.preparation.mixing import Mixture, MixtureConfig
from mmrm.data.prompts import read_judgement, write_judgement
from mmrm.data.synthetic.source import ShapesConfig
from mmrm.models.backbone import load_language_model
from mmrm.models.config import BackboneConfig
from mmrm.models.packed_alternatives import log_probabilities_of_alternatives
from mmrm.models.packing.segments import SegmentTree
from mmrm.train.reinforce.rollouts import Prompt
from mmrm.train.reinforce.stable_reinforce.calibration_reward import (
    CalibrationReward,
    calibration_value,
)
from mmrm.train.reinforce.stable_reinforce.judgement_term_config import CalibrationTerm
from mmrm.train.reinforce.stable_reinforce.judgement_terms import JudgementBatch
from mmrm.train.reinforce.stable_reinforce.pair_prompts import PairPrompts
from tests.models import tiny
from tests.models.exactness import assert_exact
from tests.train.reinforce.stable_reinforce.settings import setting_of
from tests.trees import image_inputs

ENCODER = tiny.encoder()
END = ENCODER.end_of_turn
TEXTS = (
    write_judgement("It is a red square.", 1),
    "nonsense",
    write_judgement("A blue circle", 2),
    write_judgement("", 1),
    f"{write_judgement('cut', 2)}…",
    "<answer>2</answer>",
)


def batch(model: Any) -> JudgementBatch:
    """Return six judgements of a pair: three with each order of its responses."""
    source = ShapesConfig(type="shapes", level="demo", rows=8, text_only=0.0)
    mixture = Mixture(MixtureConfig(sources=[source]))
    prompts = PairPrompts(mixture, ENCODER, 4096, "short", both_orders=True)[0]
    asked: list[Prompt] = []
    for prompt in prompts:
        asked += [prompt] * 3
    token_ids: list[list[int]] = []
    for text in TEXTS:
        ids = ENCODER.tokenizer(text.rstrip("…"), add_special_tokens=False)["input_ids"]
        token_ids.append(ids if text.endswith("…") else [*ids, END])
    return JudgementBatch(
        asked,
        token_ids,
        [read_judgement(ENCODER.tokenizer.decode(ids[:-1])) for ids in token_ids],
        [ids[-1] == END for ids in token_ids],
        6,
        partial(read, model),
    )


def read(
    model: Any, prompts: Sequence[SegmentTree], choices: Sequence[Sequence[Any]]
) -> list[list[tuple[float, ...]]]:
    """Read the alternatives as the trainer does."""
    return log_probabilities_of_alternatives(model, ENCODER, prompts, choices, 4096)


def by_stock(prompt: Prompt, text: str) -> float:
    """Return the probability of the better verdict in a judgement, by the padded stock model."""
    model = tiny.language_model()
    [conversation] = prompt.tree.conversations()
    tokenizer = ENCODER.tokenizer
    place = text.index("<answer>") + len("<answer>")
    written = tokenizer(text[:place], add_special_tokens=False)["input_ids"]
    verdicts = [tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in "12"]
    ids = torch.tensor([[*conversation.ids, *written]])
    logits = model(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        mm_token_type_ids=(ids == model.config.image_token_id).int(),
        **image_inputs(prompt.tree),
    ).logits[0, -1]
    shares = logits[verdicts].softmax(0).tolist()
    assert prompt.winner is not None
    return float(shares[prompt.winner - 1])


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_soft_verdicts_of_sampled_judgements_are_the_stock_models(tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path)
    model = load_language_model(BackboneConfig(path=str(folder), dtype="float32")).eval()
    setting = setting_of(ENCODER)
    judgements = batch(model)
    found = CalibrationReward(CalibrationTerm(type="calibration"), setting)(judgements)
    wanted: list[float] = []
    for prompt, text in zip(judgements.prompts, TEXTS, strict=True):
        if text == "nonsense" or text.endswith("…"):
            wanted.append(0.0)
            continue
        wanted.append(1 - (1 - by_stock(prompt, text)) ** 2)
    assert_exact(torch.tensor(found.rewards), torch.tensor(wanted))
    assert found.columns == {"calibration": found.rewards}
    # The same rationale in the other order is another verdict.
    assert len(set(wanted)) == 5


def test_no_forward_pass_is_asked_for_judgements_without_an_answer() -> None:
    asked: list[int] = []

    def count(prompts: Sequence[SegmentTree], choices: Sequence[Sequence[Any]]) -> Any:
        asked.append(sum(map(len, choices)))
        return [[(-1.0, -1.0)] * len(of_prompt) for of_prompt in choices]

    judgements = batch(None)
    counted = JudgementBatch(
        judgements.prompts,
        judgements.token_ids,
        judgements.judgements,
        judgements.is_whole,
        6,
        count,
    )
    setting = setting_of(ENCODER)
    found = CalibrationReward(CalibrationTerm(type="calibration"), setting)(counted)
    assert asked == [4]
    assert found.rewards == [0.75, 0.0, 0.75, 0.75, 0.0, 0.75]


@given(st.floats(0, 1), st.floats(0, 1))
def test_no_probability_pays_more_than_the_true_share(share: float, stated: float) -> None:
    """`share` of the pairs have the verdict for the first response right."""

    def mean(probability: float) -> float:
        return share * calibration_value(probability) + (1 - share) * calibration_value(
            1 - probability
        )

    assert mean(stated) <= mean(share) + 1e-12

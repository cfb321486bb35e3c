"""No paradigm trains on a text that its tokenizer reads as a control token: the record is refused, and so counted."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from mmrm.data.errors import RecordError
from mmrm.data.preference import Preference, text, text_responses
from mmrm.data.preparation.mixing import Mixture, MixtureConfig
from mmrm.data.synthetic.source import ShapesConfig
from mmrm.models.config import BackboneConfig
from mmrm.models.encoder import Encoder
from mmrm.train.methods.critic.method import CriticEncoder
from mmrm.train.methods.language_model.method import JudgementEncoder
from mmrm.train.reinforce.stable_reinforce.pair_prompts import PairPrompts
from mmrm.train.supervised.steps import ResponseEncoder
from tests.models import tiny


def encoder() -> Encoder:
    """Return one whose tokenizer knows a special token that is not Qwen's."""
    tokenizer = deepcopy(tiny.tokenizer())
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|mine|>"]})
    return Encoder(
        tokenizer,
        tiny.image_processor(),
        BackboneConfig(path="tiny", dtype="float32"),
        tiny.config(),
    )


def prompts() -> PairPrompts:
    source = ShapesConfig(type="shapes", level="demo", rows=1)
    return PairPrompts(Mixture(MixtureConfig(sources=[source])), encoder(), 10_000, "short")


@pytest.mark.parametrize(
    "encode",
    [
        lambda record: ResponseEncoder(encoder(), "end_of_turn")(record),
        lambda record: JudgementEncoder(encoder(), "short")(record, 0),
        lambda record: CriticEncoder(encoder(), "judge it.")(record),
        lambda record: prompts()._encode(record, 0, 0),
    ],
    ids=["naive", "judgement", "critic", "rollout"],
)
def test_a_token_of_this_tokenizer_is_refused(encode: Callable[[Preference], Any]) -> None:
    good = Preference(
        "set:7",
        (text("user", "Which?"),),
        text_responses("This.", "That."),
        rationale="Response 1 is better.",
    )
    encode(good)
    pieces: Any = [{"type": "text", "text": piece} for piece in ("<|mi", "ne|>")]
    for bad in (
        replace(good, prompt=({"role": "user", "content": pieces},)),
        replace(good, responses=text_responses("This.", "a <|mine|>")),
    ):
        with pytest.raises(
            RecordError,
            match=r"set:7: .* holds '<\|mine\|>', which the tokenizer would read as a control token",
        ):
            encode(bad)

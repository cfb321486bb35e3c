"""The cold start's records: which order, which tokens are learned, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.errors import RecordError
from data.mixture import Mixture, MixtureConfig
from data.prompts import conclusion, read
from data.sources.shapes import ShapesConfig
from tests.models import tiny
from train.supervised.judgements import JudgementEncoder, JudgementRecords, with_winners


@given(st.integers(1, 60), st.integers(0, 3))
def test_the_winner_is_first_in_exactly_half(count: int, epoch: int) -> None:
    records = np.random.default_rng(epoch).permutation(count)
    found = with_winners(records, seed=1, epoch=epoch)
    assert (found // 2).tolist() == records.tolist()
    assert int((found % 2 == 1).sum()) == count // 2
    both = with_winners(records, seed=1, epoch=epoch, both=True)
    assert sorted(both.tolist()) == list(range(2 * count))


def test_the_winner_is_first_in_half_of_every_even_step_and_nobody_knows_which() -> None:
    sides = (with_winners(np.arange(400), seed=1, epoch=0) % 2).reshape(-1, 2)
    assert (sides.sum(1) == 1).all()
    assert 60 < sides[:, 0].sum() < 140


def test_every_epoch_draws_anew_and_every_rank_alike() -> None:
    records = np.arange(40)
    assert (with_winners(records, 1, 0) == with_winners(records, 1, 0)).all()
    assert (with_winners(records, 1, 0) != with_winners(records, 1, 1)).any()


def judgements(*, both: bool = False) -> JudgementRecords:
    mixture = Mixture(
        MixtureConfig(sources=[ShapesConfig(type="shapes", level="demo", rows=12, text_only=0.3)])
    )
    return JudgementRecords(mixture, JudgementEncoder(tiny.encoder(), "short"), both=both)


def test_the_judgement_and_its_end_are_learned_and_nothing_else() -> None:
    records, tokenizer = judgements(), tiny.tokenizer()
    for index in records.order(0).tolist():
        group = records[index].group
        (continuation,) = group.continuations
        learned = tokenizer.decode([continuation.ids[i] for i in continuation.loss_tokens])
        assert learned.endswith("<|im_end|>")
        found = read(learned.removesuffix("<|im_end|>"))
        shown = tokenizer.decode(group.prompt_ids)
        record = records.mixture[index // 2]
        first, second = (
            (record.chosen, record.rejected) if index % 2 == 0 else (record.rejected, record.chosen)
        )
        assert f"Response 1: {first}\nResponse 2: {second}\n" in shown
        assert found.formatted
        assert found.answer == conclusion(found.reasoning or "") == 1 + index % 2


def test_both_orders_double_the_epoch() -> None:
    assert (
        len(judgements(both=True)) == 2 * len(judgements()) == len(judgements(both=True).order(0))
    )


def test_a_record_without_a_rationale_is_refused_with_what_to_do() -> None:
    record = replace(judgements().mixture[0], rationale=None)
    with pytest.raises(RecordError, match="Annotate the records"):
        JudgementEncoder(tiny.encoder(), "short")(record, 0)

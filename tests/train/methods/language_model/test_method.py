"""The cold start's records: which order, which tokens are learned, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmrm.data.errors import RecordError
from mmrm.data.preference import Preference, text, text_responses
from mmrm.data.preparation.mixing import Mixture, MixtureConfig
from mmrm.data.prompts import RUBRIC_FORM, conclusion, read_judgement
from mmrm.data.synthetic.source import ShapesConfig
from mmrm.data.synthetic.world import ShapesGenerator
from mmrm.eval.judges.generative.soft_verdicts import WrittenJudgement, soft_verdicts
from mmrm.eval.judges.packed_inference import Packed
from mmrm.eval.verdict_form import TAGGED
from mmrm.models.backbone import load_language_model
from mmrm.models.config import BackboneConfig
from mmrm.train.methods.language_model.method import (
    JudgementEncoder,
    JudgementRecords,
    VerdictEncoder,
    asked_pair,
    indices_with_sides,
    shown_responses,
)
from tests.data.mixtures import mixture, project, row
from tests.models import tiny
from tests.models.exactness import assert_exact


@given(st.integers(1, 60), st.integers(0, 3))
def test_the_winner_is_first_in_exactly_half(count: int, epoch: int) -> None:
    records = np.random.default_rng(epoch).permutation(count)
    found = indices_with_sides(records, seed=1, epoch=epoch)
    assert (found // 2).tolist() == records.tolist()
    assert int((found % 2 == 1).sum()) == count // 2
    both = indices_with_sides(records, seed=1, epoch=epoch, both=True)
    assert sorted(both.tolist()) == list(range(2 * count))


def test_the_winner_is_first_in_half_of_every_even_step_and_nobody_knows_which() -> None:
    sides = (indices_with_sides(np.arange(400), seed=1, epoch=0) % 2).reshape(-1, 2)
    assert (sides.sum(1) == 1).all()
    assert 60 < sides[:, 0].sum() < 140


def test_every_epoch_draws_anew_and_every_rank_alike() -> None:
    records = np.arange(40)
    assert (indices_with_sides(records, 1, 0) == indices_with_sides(records, 1, 0)).all()
    assert (indices_with_sides(records, 1, 0) != indices_with_sides(records, 1, 1)).any()


def judgements(*, both: bool = False) -> JudgementRecords:
    mixture = Mixture(
        MixtureConfig(sources=[ShapesConfig(type="shapes", level="demo", rows=12, text_only=0.3)])
    )
    encode = JudgementEncoder(tiny.encoder(), "short")
    return JudgementRecords(mixture, encode, both=both, only_sides=mixture.rationale_sides)


def test_the_judgement_and_its_end_are_learned_and_nothing_else() -> None:
    records, tokenizer = judgements(), tiny.tokenizer()
    for index in records.order(0).tolist():
        (conversation,) = records[index].tree.conversations()
        learned = tokenizer.decode([conversation.ids[i] for i in conversation.labels])
        assert learned.endswith("<|im_end|>")
        found = read_judgement(learned.removesuffix("<|im_end|>"))
        shown = tokenizer.decode(conversation.ids[: conversation.labels[0]])
        record = records.mixture[index // 2]
        first, second = (
            (record.chosen, record.rejected) if index % 2 == 0 else (record.rejected, record.chosen)
        )
        assert f"Response 1: {first.text}\nResponse 2: {second.text}\n" in shown
        assert found.formatted
        assert found.answer == conclusion(found.reasoning or "") == 1 + index % 2


def test_a_verdict_is_learned_without_a_rationale() -> None:
    """The judgement is that which the judge gives at once, also if the record has a rationale."""
    tokenizer = tiny.tokenizer()
    encode = VerdictEncoder(tiny.encoder(), "short")
    with_rationale = judgements().mixture[0]
    for record in (with_rationale, replace(with_rationale, rationale=None)):
        for side in (0, 1):
            (conversation,) = encode(record, side).tree.conversations()
            learned = tokenizer.decode([conversation.ids[i] for i in conversation.labels])
            assert learned == TAGGED.judgement_at_once(side) + "<|im_end|>"
            shown = tokenizer.decode(conversation.ids[: conversation.labels[0]])
            first, second = shown_responses(record, side)
            assert f"Response 1: {first.text}\nResponse 2: {second.text}\n" in shown


@pytest.mark.usefixtures("float64")
def test_the_loss_of_a_verdict_alone_is_that_of_the_soft_verdict(tmp_path: Path) -> None:
    """The token that is learned is the one whose probability an evaluation without rationales reads."""
    tiny.checkpoint(tmp_path)
    config = BackboneConfig(path=str(tmp_path), dtype="float32")
    model = load_language_model(config).eval()
    encoder = tiny.encoder()
    packed = Packed(encoder, torch.device("cpu"), 8192)
    encode = VerdictEncoder(encoder, "short", "verdict")
    mixture = judgements().mixture
    for record in [mixture[index] for index in range(4)]:
        for side in (0, 1):
            tree = encode(record, side).tree
            (conversation,) = tree.conversations()
            learned = tiny.tokenizer().decode([conversation.ids[i] for i in conversation.labels])
            assert learned == str(1 + side)
            assert conversation.labels == (len(conversation.ids) - 1,)
            nll = -model(**encoder.pack([tree]).label_inputs()).sum()

            question = encoder.encode_conversations(
                [asked_pair("short", record, side)], None, record.identity
            )
            nothing = [WrittenJudgement(ids=(), text="")]
            (verdict,) = soft_verdicts(model, packed, encoder.pack([question]), nothing, TAGGED)
            share = verdict.first if side == 0 else 1 - verdict.first
            assert_exact(nll, torch.tensor(-math.log(share * verdict.mass), dtype=torch.float64))


def test_a_rubric_is_learned_before_its_verdict() -> None:
    source = ShapesConfig(type="shapes", level="demo", rows=4, rationales="rubric")
    mixture = Mixture(MixtureConfig(sources=[source]))
    encode = JudgementEncoder(tiny.encoder(), "rubric_turns")
    for index in range(4):
        for side in (0, 1):
            (conversation,) = encode(mixture[index], side).tree.conversations()
            learned = tiny.tokenizer().decode([conversation.ids[i] for i in conversation.labels])
            found = RUBRIC_FORM.read(learned.removesuffix("<|im_end|>"))
            assert found.formatted
            assert found.answer == RUBRIC_FORM.conclusion(found.reasoning or "") == 1 + side


def test_parts_of_a_rubric_are_learned_without_what_they_do_not_see() -> None:
    source = ShapesConfig(type="shapes", level="demo", rows=4, rationales="rubric", text_only=0)
    record = Mixture(MixtureConfig(sources=[source]))[0]
    encode = JudgementEncoder(tiny.encoder(), "rubric_turns", ("criteria", "reading"))
    alone = JudgementEncoder(tiny.encoder(), "rubric_turns")
    tree = encode(record, 1).tree
    judgement, criteria, reading = tree.conversations()
    [judgement_alone] = alone(record, 1).tree.conversations()
    assert judgement.ids == judgement_alone.ids
    tokenizer = tiny.tokenizer()
    learned = []
    for conversation in (judgement, criteria, reading):
        ids = [conversation.ids[index] for index in conversation.labels]
        learned.append(tokenizer.decode(ids).removesuffix("<|im_end|>"))
    assert learned[0].startswith(learned[1] + "\n<eval>")
    assert learned[2] == "<answer>2</answer>"
    assert len(criteria.images) == 1
    assert len(reading.images) == 0
    for conversation in (criteria, reading):
        request = tokenizer.decode(conversation.ids[: conversation.labels[0]])
        assert record.rejected.text not in request.replace(record.rationale or "", "")
    assert "1. Response 1: no. Response 2: yes." in tokenizer.decode(reading.ids)


def test_a_rationale_without_a_rubric_is_refused_with_what_to_do() -> None:
    with pytest.raises(RecordError, match="--template rubric_turns"):
        JudgementEncoder(tiny.encoder(), "rubric_turns")(judgements().mixture[0], 0)


def test_both_orders_double_the_epoch() -> None:
    assert (
        len(judgements(both=True)) == 2 * len(judgements()) == len(judgements(both=True).order(0))
    )


def test_a_record_without_a_rationale_is_refused_with_what_to_do() -> None:
    record = replace(judgements().mixture[0], rationale=None)
    with pytest.raises(RecordError, match="Annotate the records"):
        JudgementEncoder(tiny.encoder(), "short")(record, 0)


def sided(rationale: str, first: Literal["chosen", "rejected"] = "chosen") -> Preference:
    return Preference(
        "set:1",
        (text("user", "Which colour?"),),
        text_responses("Red.", "Blue."),
        rationale=rationale,
        first_in_rationale=first,
    )


@given(st.lists(st.sampled_from([-1, -1, 0, 1]), min_size=1, max_size=60), st.integers(0, 3))
def test_winners_are_balanced_among_records_that_can_be_shown_on_both_sides(
    sides: list[int], epoch: int
) -> None:
    records, only = np.arange(len(sides)), np.array(sides)
    found = indices_with_sides(records, seed=1, epoch=epoch, only_sides=only)
    assert (found // 2).tolist() == records.tolist()
    shown, free = found % 2, only < 0
    assert shown[~free].tolist() == only[~free].tolist()
    assert int(shown[free].sum()) == int(free.sum()) // 2
    again = indices_with_sides(records, seed=1, epoch=epoch, only_sides=only)
    assert found.tolist() == again.tolist()
    both = indices_with_sides(records, seed=1, epoch=epoch, both=True, only_sides=only)
    wanted = [2 * index + side for index, side in enumerate(sides) if side >= 0] * 2
    wanted += [2 * index + side for index in np.flatnonzero(free).tolist() for side in (0, 1)]
    assert sorted(both.tolist()) == sorted(wanted)


def test_records_without_a_side_of_their_own_are_drawn_as_before() -> None:
    """Nothing changes for the embedded world, whose rationales can all be rewritten."""
    records = np.random.default_rng(0).permutation(50)
    for both in (False, True):
        free = indices_with_sides(records, 3, 2, both=both, only_sides=np.full(50, -1))
        assert free.tolist() == indices_with_sides(records, 3, 2, both=both).tolist()
    assert indices_with_sides(np.arange(10), 1, 0).tolist() == [0, 3, 4, 7, 9, 10, 12, 15, 16, 19]


KEEPS = "The second response is wrong, so the former is right."
REWRITES = "The second response is wrong, so the first response is right."


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(
    ("rationale", "first", "answers"),
    [
        (KEEPS, "chosen", {0: (KEEPS, 1), 1: (KEEPS, 1)}),
        (KEEPS, "rejected", {0: (KEEPS, 2), 1: (KEEPS, 2)}),
        (
            REWRITES,
            "chosen",
            {
                0: (REWRITES, 1),
                1: ("The first response is wrong, so the second response is right.", 2),
            },
        ),
    ],
)
def test_a_rationale_is_learned_with_the_responses_that_it_speaks_of(
    rationale: str,
    first: Literal["chosen", "rejected"],
    answers: dict[int, tuple[str, int]],
    side: int,
) -> None:
    tokenizer = tiny.tokenizer()
    tree = JudgementEncoder(tiny.encoder(), "short")(sided(rationale, first), side).tree
    (conversation,) = tree.conversations()
    shown = tokenizer.decode(conversation.ids[: conversation.labels[0]])
    learned = tokenizer.decode([conversation.ids[i] for i in conversation.labels])
    words, answer = answers[side]
    assert learned == f"<think>{words}</think><answer>{answer}</answer><|im_end|>"
    responses = ["Red.", "Blue."] if answer == 1 else ["Blue.", "Red."]
    assert f"Response 1: {responses[0]}\nResponse 2: {responses[1]}\n" in shown


def test_an_epoch_shows_every_record_in_an_order_that_its_rationale_is_right_for(
    tmp_path: Path,
) -> None:
    rows = [row(f"free {n}", rationale=REWRITES) for n in range(20)]
    rows += [row(f"first {n}", rationale=KEEPS) for n in range(6)]
    rows += [row(f"second {n}", rationale=KEEPS, first_in_rationale="rejected") for n in range(3)]
    found = mixture(tmp_path, [project(tmp_path, "one", rows)])
    encode = JudgementEncoder(tiny.encoder(), "short")
    records = JudgementRecords(found, encode, only_sides=found.rationale_sides)
    for epoch in range(3):
        order = records.order(epoch)
        sides_by_kind: dict[str, list[int]] = {"free": [], "first": [], "second": []}
        for index, side in zip((order // 2).tolist(), (order % 2).tolist(), strict=True):
            sides_by_kind[found[index].chosen.text.split()[1]].append(side)
        assert sum(sides_by_kind["free"]) == 10
        assert sides_by_kind["first"] == [0] * 6
        assert sides_by_kind["second"] == [1] * 3
    answers = [record_answer(records, index) for index in records.order(0).tolist()]
    assert answers == [1 + index % 2 for index in records.order(0).tolist()]
    again = mixture(tmp_path, [project(tmp_path, "one", rows)])
    assert (
        JudgementRecords(again, records.encode, only_sides=again.rationale_sides).order(1)
        == records.order(1)
    ).all()

    (card,) = found.card().sources
    counts = card.rationales
    assert (counts.rationales, counts.one_order, counts.winner_first) == (29, 9, 6)
    assert counts.examples == [f"one:{n}: so the former is right." for n in (20, 21, 22)]
    lines = "\n".join(counts.lines("one"))
    assert (
        "one: 9 of 29 rationales are shown only in the order in which they were written, 6" in lines
    )


def record_answer(records: JudgementRecords, index: int) -> int | None:
    (conversation,) = records[index].tree.conversations()
    learned = tiny.tokenizer().decode([conversation.ids[i] for i in conversation.labels])
    return read_judgement(learned.removesuffix("<|im_end|>")).answer


def test_the_cold_start_of_the_embedded_world_learns_what_it_learned() -> None:
    """Every judgement is the one that the world writes for the order that was drawn before."""
    records = judgements()
    world = ShapesGenerator("demo", 0, "train", 0.3, None)
    order = records.order(1)
    assert order.tolist() == indices_with_sides(records.mixture.order(1), 0, 1).tolist()
    for index in order.tolist():
        (conversation,) = records[index].tree.conversations()
        learned = tiny.tokenizer().decode([conversation.ids[i] for i in conversation.labels])
        wanted = world.item(index // 2).rationale(chosen_first=index % 2 == 0)
        assert f"<think>{wanted}</think>" in learned

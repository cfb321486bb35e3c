"""Pairs of one prompt as one packed tree: the loss and gradients of separate trees, on any number of ranks and in any rows."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrm.data.preference import Preference, text, text_responses
from mmrm.data.preparation.mixing import Mixture
from mmrm.data.prompts import CRITIQUE_REQUEST
from mmrm.models.backbone import load_critic, load_scalar
from mmrm.models.config import BackboneConfig
from mmrm.train.methods.critic.config import CriticConfig
from mmrm.train.methods.critic.method import CriticEncoder
from mmrm.train.methods.critic.objective import JointCritique
from mmrm.train.methods.naive.config import NaiveConfig
from mmrm.train.methods.naive.objective import make_objective
from mmrm.train.supervised.budget import split
from mmrm.train.supervised.objectives import Objective
from mmrm.train.supervised.steps import (
    Encode,
    MixtureRecords,
    PackedRow,
    ResponseEncoder,
    StepDataset,
    TrainingExample,
    make_row,
    merged_tree,
    shared_costs,
    split_by_prompt,
)
from tests.data.mixtures import mixture, project, row
from tests.models import tiny
from tests.models.exactness import assert_exact, float64

ANSWERS = ("A red square, and nothing else.", "A blue circle.", "Red. A", "No picture.")
WHAT = "What is in the picture?"
PROMPTS: tuple[tuple[str, list[str]], ...] = (
    (WHAT, ["red.png"]),
    (WHAT, []),
    ("A and a blue one?", ["red.png", "wide.png"]),
)
STEP = 12


@pytest.fixture
def pairs(tmp_path: Path) -> Mixture:
    """Return all pairs of four answers to each of three prompts, and two prompts that occur once."""
    for name, width in (("red", 30), ("wide", 90)):
        tiny.picture(width, 40, seed=width).save(tmp_path / f"{name}.png")
    chosen = [(a, b) for number, a in enumerate(ANSWERS) for b in ANSWERS[number + 1 :]]
    rows = [
        row(
            question,
            images=images,
            chosen=a,
            rejected=b,
            margin=0.1 * number,
            **critiques(a, b, number),
        )
        for question, images in PROMPTS
        for number, (a, b) in enumerate(chosen)
    ]
    return mixture(
        tmp_path, [project(tmp_path, "rated", [*rows, row("one"), row("two", images=["wide.png"])])]
    )


def critiques(chosen: str, rejected: str, number: int) -> dict[str, str]:
    """Return critiques for two of three pairs, some of them equal."""
    return (
        {"chosen_critique": f"Good: {chosen}", "rejected_critique": f"Bad: {rejected}"}
        if number % 3
        else {}
    )


class Apart(MixtureRecords):
    """The same records, each a tree of its own."""

    def __getitem__(self, index: int) -> TrainingExample:
        return replace(super().__getitem__(index), prompt=None)


def naive() -> Encode:
    return ResponseEncoder(tiny.encoder(), "end_of_turn")


def critic() -> Encode:
    """Return a critic's encoder in which the half of the records is scored on critiques of its own, many of them equal."""
    return CriticEncoder(
        tiny.encoder(),
        CRITIQUE_REQUEST,
        lambda record: OWN if len(record.chosen.text) % 2 else None,
    )


OWN = ("Some words.", "Some words on the second.")
METHODS: dict[str, tuple[Callable[[], Encode], Callable[..., Any], Objective]] = {
    "naive": (naive, load_scalar, make_objective(NaiveConfig(type="naive"))),
    "naive, all terms": (
        naive,
        load_scalar,
        make_objective(
            NaiveConfig(type="naive", margin=True, zero_coefficient=0.1, length_normalisation=True)
        ),
    ),
    "critic": (
        critic,
        load_critic,
        JointCritique(CriticConfig(type="critic", margin=True, cross_entropy_weight=0.5)),
    ),
}


@pytest.fixture(scope="module", params=METHODS)
def method(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Encode, Any, Objective]:
    """Return an encoder, a model in float64 and an objective."""
    encode, load, objective = METHODS[request.param]
    with float64():
        folder = tiny.checkpoint(tmp_path_factory.mktemp("backbone"))
        model = load(BackboneConfig(path=str(folder), dtype="float32"))
        torch.manual_seed(0)
        tiny.stir(model.head, 0.3)
    return encode(), model, objective


def steps(
    records: MixtureRecords, ranks: int = 1, rank: int = 0, budget: int = 10**6
) -> StepDataset:
    shape: dict[str, Any] = {
        "records_per_step": STEP,
        "steps": 2,
        "token_budget": budget,
        "rank": rank,
        "world_size": ranks,
    }
    return StepDataset(records, tiny.encoder().pack, costs=shared_costs(records.mixture), **shape)


def learned(
    model: Any, objective: Objective, rows: Sequence[PackedRow]
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Return the figures of a step's rows, its loss among them, and the gradients of all parameters."""
    totals = torch.stack([one.totals() for one in rows]).sum(0)
    found: dict[str, float] = {}
    model.zero_grad()
    for one in rows:
        loss, sums = objective.loss(model, one, totals)
        torch.autograd.backward(loss)
        for name, value in {"step loss": loss, **sums}.items():
            found[name] = found.get(name, 0.0) + float(value.detach())
    return found, {
        name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None
    }


def assert_same(
    found: tuple[dict[str, float], dict[str, Tensor]],
    wanted: tuple[dict[str, float], dict[str, Tensor]],
) -> None:
    assert_exact(found[0], wanted[0])
    assert_exact(found[1], wanted[1])


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "ranks", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("budget", [pytest.param(10**6, marks=pytest.mark.slow), 250])
def test_a_step_is_that_of_separate_trees(
    pairs: Mixture, method: Any, ranks: int, budget: int
) -> None:
    encode, model, objective = method
    apart = Apart(pairs, encode, 8)
    for number in range(2):
        dealt = [
            steps(MixtureRecords(pairs, encode, 8), ranks, rank, budget)[number]
            for rank in range(ranks)
        ]
        rows, alone = [one for share in dealt for one in share["rows"]], steps(apart)[number]
        assert sorted(one for share in dealt for one in share["records"]) == sorted(
            alone["records"]
        )
        assert_same(learned(model, objective, rows), learned(model, objective, alone["rows"]))
        assert all(
            one.batch.cost <= budget + 5 or one.records == 1 for one in rows
        )  # with a filler
        if budget == 10**6:
            drawn = steps(apart).global_indices(range(number, number + 1))
            assert sum(one.batch.tokens for one in rows) < sum(
                one.batch.tokens for one in alone["rows"]
            )
            # An image is computed once a row, so the records together save patches in any case.
            assert sum(len(one.batch.pixel_values) for one in rows) < sum(
                apart[index].tree.patches for index in drawn
            )


@pytest.mark.slow
@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_a_tree_that_is_cut_for_a_lack_of_memory_is_the_same_records(
    pairs: Mixture, method: Any
) -> None:
    encode, model, objective = method
    (whole,) = steps(MixtureRecords(pairs, encode, 8))[0]["rows"]
    for budget, most in ((whole.batch.cost - 1, 2), (whole.batch.cost // 2, 5), (1, STEP)):
        parts = split(whole, tiny.encoder().pack, budget)
        assert 1 < len(parts) <= most
        assert_same(learned(model, objective, parts), learned(model, objective, [whole]))


def test_a_response_is_computed_once_for_all_that_compare_it(pairs: Mixture) -> None:
    records = MixtureRecords(pairs, naive(), 8)
    examples = [records[index] for index in range(6)]
    row = make_row(examples, tiny.encoder().pack)
    assert (row.records, row.batch.output_counts) == (6, (12,))
    assert row.output_counts.tolist() == [2] * 6
    (tree,) = row.batch.trees
    alone = [conversation for one in examples for conversation in one.tree.conversations()]
    assert [one.ids for one in tree.conversations()] == [one.ids for one in alone]
    assert [one.reads for one in tree.conversations()] == [one.reads for one in alone]
    ends = [output.segment for output in tree.outputs]
    places = [ends.index(end) for end in ends]  # the first output with the same end
    assert places == [0, 1, 0, 3, 0, 5, 1, 3, 1, 5, 3, 5]
    assert tree.tokens < sum(len(set_of_ids) for set_of_ids in {one.ids for one in alone})
    assert make_row(
        [records[index] for index in (0, 6, 12)], tiny.encoder().pack
    ).batch.output_counts == (2, 2, 2)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_order_is_that_of_the_step_alone_and_pairs_of_a_prompt_stay_on_one_rank(
    pairs: Mixture, ranks: int
) -> None:
    records = MixtureRecords(pairs, naive(), 3)
    data = [steps(records, ranks, rank) for rank in range(ranks)]
    forwards = [[one.indices(step) for step in range(4)] for one in data]
    backwards = [
        [pickle.loads(pickle.dumps(one)).indices(step) for step in reversed(range(4))][::-1]
        for one in data
    ]
    assert forwards == backwards
    for step in range(4):
        shares = [mine[step] for mine in forwards]
        assert [len(share) for share in shares] in ([STEP // ranks] * ranks, [8 // ranks] * ranks)
        drawn = data[0].global_indices(range(step, step + 1))
        assert sorted(index for share in shares for index in share) == sorted(drawn)
        for number in range(0, len(drawn) - 2):
            if len(set(pairs.prompts[drawn[number : number + 3]])) == 1 and number in starts(
                pairs.prompts[drawn]
            ):
                assert any(set(drawn[number : number + 3]) <= set(share) for share in shares)


def starts(prompts: Any) -> list[int]:
    return [
        place for place in range(len(prompts)) if place == 0 or prompts[place] != prompts[place - 1]
    ]


def test_generated_records_keep_their_trees(tmp_path: Path) -> None:
    """Questions of the embedded world that happen to be equal stay where they were drawn, as trees of their own."""
    found = mixture(tmp_path, [{"type": "shapes", "level": "demo", "rows": 8}])
    assert found.order(0, 4).tolist() == found.order(0).tolist()
    records = MixtureRecords(
        found, lambda record, side: replace(naive()(found[0], side), prompt="the same"), 4
    )
    assert (
        make_row([records[index] for index in range(8)], tiny.encoder().pack).batch.output_counts
        == (2,) * 8
    )


def test_copies_of_an_image_in_other_files_are_one_prompt(tmp_path: Path) -> None:
    """Data sets often hold a file for each row, also if many rows show the same picture."""
    encode = ResponseEncoder(tiny.encoder(), "end_of_turn")
    examples = []
    for name in ("one.png", "two.png"):
        tiny.picture(56, 84).save(tmp_path / name)
        turn = text("user", "What is in it?", images=1)
        pair = Preference(name, (turn,), text_responses("Red.", f"Not {name}"), (tmp_path / name,))
        examples.append(encode(pair))
    assert examples[0].prompt == examples[1].prompt
    [together] = split_by_prompt(examples)
    assert len(merged_tree(together).images) == 1
    tiny.picture(56, 84, seed=1).save(tmp_path / "three.png")
    turn = text("user", "What is in it?", images=1)
    other = encode(
        Preference("other", (turn,), text_responses("Red.", "Blue."), (tmp_path / "three.png",))
    )
    assert other.prompt != examples[0].prompt

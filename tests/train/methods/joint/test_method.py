"""Joint reward models in training: orders by epoch, labels, losses, the recipe's rules and whole runs."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from itertools import permutations
from math import exp, log
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch.utils.data import DataLoader

from mmrm.data.errors import RecipeError, RecordError
from mmrm.data.preference import Preference, text, text_responses
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.judge_card import judge_card_of
from mmrm.eval.judges.loading import load_judge
from mmrm.eval.judges.messages import candidates_of
from mmrm.eval.judges.registry import judge_config
from mmrm.eval.results.result import read_result
from mmrm.models.backbone import load_scalar
from mmrm.models.config import BackboneConfig
from mmrm.models.encoder import Conversation
from mmrm.models.heads.score_head import ScoreHeadConfig
from mmrm.models.packing.segments import SegmentTree
from mmrm.train.methods.joint.method import (
    JointCosts,
    JointEncoder,
    JointMethod,
    JointRecords,
    shown_order,
)
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.runs.merging import merge
from mmrm.train.runs.model import make_model
from mmrm.train.supervised.objectives import Objective
from mmrm.train.supervised.steps import PackedRow, StepDataset, TrainingExample, make_row
from tests.data.mixtures import mixture, project, row
from tests.data.sources.fixtures import png
from tests.eval.judges.joint.make import joint_checkpoint
from tests.models import tiny
from tests.models.exactness import assert_exact, float64
from tests.train import worker
from tests.train.minimal import MINIMAL, write
from tests.train.ranks import run_ranks
from tests.train.worker import difference, ended, lines

RESPONSES = ("It is a red square.", "Red.", "I do not know.", "A blue circle, or two.")


def record(number: int, count: int = 4, ranks: tuple[int, ...] = (), images: int = 0) -> Preference:
    prompt = (text("user", f"What is in picture {number}?", images),)
    return Preference(
        f"made:{number}",
        prompt,
        responses=text_responses(*RESPONSES[:count]),
        ranks=ranks or tuple(range(count)),
        images=(png(),) * images,
    )


def joint_encoder(seed: int = 0, most: int = 4) -> JointEncoder:
    return JointEncoder(tiny.encoder(), "end_of_turn", seed, most)


def text_before_read(tree: SegmentTree, output: int) -> str:
    """Return the text of the conversation up to the token at which an output is read."""
    [segment] = tree.segments
    end = tree.outputs[output].reads[0]
    decoded: str = tiny.tokenizer().decode(segment.ids[:end])
    return decoded


def test_outputs_are_in_the_order_of_the_record_whatever_order_is_shown() -> None:
    encode = joint_encoder()
    shown = set()
    for epoch in range(8):
        example = encode(record(0, images=1), epoch)
        assert example.ranks == (0, 1, 2, 3)
        for index, response in enumerate(RESPONSES):
            assert text_before_read(example.tree, index).endswith(f"assistant\n{response}")
        shown.add(tuple(output.reads for output in example.tree.outputs))
        # The conversation is the one in which the responses stand in the drawn order.
        order = shown_order(0, epoch, record(0))
        answers = [text("assistant", RESPONSES[index]) for index in order]
        messages = (*record(0, images=1).prompt, *answers)
        turns = Conversation(messages, record(0, images=1).images)
        alone = tiny.encoder().encode_conversations([turns], None, "alone")
        assert alone.segments[0].ids == example.tree.segments[0].ids
    assert len(shown) > 4


def test_an_order_depends_on_seed_epoch_and_record_alone() -> None:
    orders = [shown_order(0, epoch, record(1)) for epoch in range(30)]
    assert orders == [shown_order(0, epoch, record(1)) for epoch in range(30)]
    assert len(set(map(tuple, orders))) > 12  # of 24
    assert orders != [shown_order(1, epoch, record(1)) for epoch in range(30)]
    assert orders != [shown_order(0, epoch, record(2)) for epoch in range(30)]
    first = [order[0] for order in orders]
    assert {first.count(index) > 1 for index in range(4)} == {True}


def test_more_responses_than_the_recipe_allows_are_refused() -> None:
    with pytest.raises(RecordError, match=r"made:3: the record has 4 responses.*responses=4"):
        joint_encoder(most=3)(record(3))


def pairs(folder: Path, count: int = 10) -> JointRecords:
    """Return the records of a small file of pairs, some with an image."""
    (folder / "one.png").write_bytes(png("grey", (56, 56)))
    rows = [
        row(f"{number} what", **({"images": ["one.png"]} if number % 3 else {}))
        for number in range(count)
    ]
    found = mixture(folder, [project(folder, "pairs", rows)])
    return JointRecords(found, JointEncoder(tiny.encoder(), "end_of_turn", 7, 4))


def reads(example: TrainingExample) -> tuple[Any, ...]:
    """Return what decides an example: its tokens, and where each response is read."""
    return (example.record, example.tree.segments[0].ids, example.tree.outputs)


def test_an_index_tells_the_epoch(tmp_path: Path) -> None:
    records = pairs(tmp_path)
    orders = [records.order(epoch) for epoch in range(3)]
    for epoch, order in enumerate(orders):
        assert sorted(order.tolist()) == list(range(10 * epoch, 10 * epoch + 10))
        assert (order - 10 * epoch == records.mixture.order(epoch)).all()
    by_epoch = [[reads(records[10 * epoch + index]) for index in range(10)] for epoch in range(3)]
    names = [[found[0] for found in examples] for examples in by_epoch]
    assert names[0] == names[1] == names[2]
    changed = [
        sum(one != other for one, other in zip(by_epoch[0], examples, strict=True))
        for examples in by_epoch[1:]
    ]
    assert all(0 < count < 10 for count in changed)  # each order of two is drawn half of the time
    costs = JointCosts(torch.arange(10).numpy() + 1.0)
    drawn, sizes = costs.of_sets(orders[2])
    assert drawn.tolist() == (orders[2] - 20 + 1.0).tolist()
    assert sizes.tolist() == [1] * 10


def steps_of(records: JointRecords, rank: int = 0, world_size: int = 1) -> StepDataset:
    return StepDataset(
        records,
        tiny.encoder().pack,
        records_per_step=4,
        steps=9,
        token_budget=10**6,
        rank=rank,
        world_size=world_size,
        costs=JointCosts(torch.ones(10).numpy()),
    )


def rows_of(steps: StepDataset, num_workers: int = 0) -> list[Any]:
    """Return tokens and reads of all steps, as a loader with some workers gives them."""
    loader = DataLoader(steps, batch_size=None, num_workers=num_workers)
    return [
        (step["records"], [(row.batch.input_ids, row.batch.read_positions) for row in step["rows"]])
        for step in loader
    ]


def assert_same_rows(found: Sequence[Any], wanted: Sequence[Any]) -> None:
    assert len(found) == len(wanted)
    for (found_names, found_rows), (wanted_names, wanted_rows) in zip(found, wanted, strict=True):
        assert found_names == wanted_names
        for one, other in zip(found_rows, wanted_rows, strict=True):
            for tensor, other_tensor in zip(one, other, strict=True):
                assert tensor.equal(other_tensor)


def test_loader_workers_a_resume_and_ranks_see_the_same_orders(tmp_path: Path) -> None:
    records = pairs(tmp_path)
    alone = rows_of(steps_of(records))
    assert_same_rows(rows_of(steps_of(records), num_workers=2), alone)
    # A resumed run asks for later steps of a new object first.
    again = steps_of(pairs(tmp_path))
    for number in (8, 3):
        assert [row.batch.input_ids.tolist() for row in again[number]["rows"]] == [
            ids.tolist() for ids, _ in alone[number][1]
        ]
    for number in range(9):
        examples = {reads(records[index]) for index in steps_of(records).indices(number)}
        shared = set()
        for rank in range(2):
            shared |= {reads(records[i]) for i in steps_of(records, rank, 2).indices(number)}
        assert shared == examples


def objective(tmp_path: Path, likelihood: str = "best") -> Objective:
    """Return the objective of a recipe."""
    text_of_recipe = MINIMAL.replace("{type: naive}", "{type: joint}")
    change = f"method.objective={{type: listwise, likelihood: {likelihood}}}"
    recipe = read_recipe(write(tmp_path, text_of_recipe), [change])
    method = JointMethod(recipe, tiny.encoder(), Console(quiet=True))
    method.setup()
    return method.objective


def joint_row(records: Sequence[Preference], epoch: int = 0) -> PackedRow:
    encode = joint_encoder()
    return make_row([encode(one, epoch) for one in records], tiny.encoder().pack)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a model in float64."""
    with float64():
        folder = tiny.checkpoint(tmp_path_factory.mktemp("backbone"))
        backbone = BackboneConfig(path=str(folder), dtype="float32")
        loaded = load_scalar(backbone, ScoreHeadConfig(width=24))
        tiny.stir(loaded.head, 0.5)
        return loaded.eval()


def ranking_loss(scores: list[float], ranks: Sequence[int], choices: int = 99) -> float:
    """Return -log of the probability of all orders that agree with the ranks, one after the other.

    Only the first `choices` responses of an order are chosen; the others are left in any order.
    """
    total = 0.0
    beginnings = {order[:choices] for order in permutations(range(len(scores)))}
    for first in beginnings:
        chosen_ranks = [ranks[index] for index in first]
        if chosen_ranks != sorted(ranks)[:choices]:
            continue
        left = set(range(len(scores)))
        probability = 1.0
        for index in first:
            probability *= exp(scores[index]) / sum(exp(scores[other]) for other in left)
            left.remove(index)
        total += probability
    return -log(total)


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("likelihood", ["best", "ranking"])
def test_the_loss_is_the_sum_over_records_of_their_own_losses(
    model: Any, likelihood: str, tmp_path: Path
) -> None:
    records = [record(0, 4), record(1, 2), record(2, 3, (0, 0, 1)), record(3, 3, (0, 0, 0))]
    found, sums = objective(tmp_path, likelihood).loss(
        model, joint_row(records), torch.tensor([8.0, 1.0])
    )
    wanted = []
    for one in records:
        scores = model(**joint_row([one]).batch.score_inputs()).tolist()
        num_choices = sum(rank < max(one.ranks) for rank in one.ranks)
        if likelihood == "ranking":
            wanted.append(ranking_loss(scores, one.ranks) / max(num_choices, 1))
        else:
            wanted.append(ranking_loss(scores, [min(rank, 1) for rank in one.ranks], choices=1))
    assert wanted[3] == pytest.approx(0.0)
    assert_exact(found.item(), sum(wanted) / 8)
    assert sums["tied_records"] == 1


def test_a_filler_has_no_loss(model: Any, tmp_path: Path) -> None:
    with float64():
        loss, sums = objective(tmp_path).loss(model, joint_row([]), torch.ones(2))
    assert (loss.item(), sums) == (0.0, {})


def refused(tmp_path: Path, *changes: str) -> str:
    recipe = write(tmp_path, MINIMAL.replace("{type: naive}", "{type: joint}"))
    with pytest.raises(RecipeError) as error:
        read_recipe(recipe, changes)
    return str(error.value)


def test_a_recipe_is_refused_whose_head_cannot_score_together(tmp_path: Path) -> None:
    assert "set head.read=end_of_turn" in refused(tmp_path, "head.read=last_token")
    said = refused(tmp_path, "head={type: gaussian}")
    assert "a joint reward model are about one score" in said


def test_a_run_of_pairs_is_trained_on_two_responses(tmp_path: Path) -> None:
    recipe = read_recipe(write(tmp_path, MINIMAL.replace("{type: naive}", "{type: joint}")))
    assert recipe.method.joint_responses(recipe) == 2
    assert "up to 4 responses in one conversation" in recipe.method.summary
    method = JointMethod(recipe, tiny.encoder(), Console(quiet=True))
    judge = method.judge(None)
    assert (judge.most_trained, judge.orders, judge.read) == (2, 4, "end_of_turn")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a recipe that trains a joint reward model on 16 rankings of three, some with ties."""
    found = worker.prepare(tmp_path_factory.mktemp("runs"))
    written = found.read_text(encoding="utf-8").replace("{type: naive}", "{type: joint}")
    written = written.replace("{type: shapes,", "{type: shapes_rated, responses: 3,")
    found.write_text(written, encoding="utf-8")
    return found


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in lines(ended(folder)) if "loss" in line]


@pytest.mark.slow
def test_a_killed_run_ends_like_an_uninterrupted_one_on_any_number_of_ranks(
    recipe: Path, tmp_path: Path
) -> None:
    command = [str(recipe), "data.validation=4"]  # an epoch is three of the six steps
    for name, ranks, workers in (("alone", 1, 0), ("whole", 2, 0), ("loaded", 2, 1)):
        folder = [f"output.folder={tmp_path / name}", f"workers={workers}"]
        run_ranks(tmp_path / f"log-{name}", worker.recipe_run, [*command, *folder], ranks=ranks)
    killed = [*command, f"output.folder={tmp_path / 'killed'}"]
    run_ranks(tmp_path / "first", worker.dying_run, killed, 5, "step", status=-signal.SIGKILL)
    run_ranks(tmp_path / "second", worker.recipe_run, [*killed, "--resume"])
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole") == losses(tmp_path / "loaded")
    assert difference(ended(tmp_path / "killed"), ended(tmp_path / "whole")) == 0.0
    assert difference(ended(tmp_path / "loaded"), ended(tmp_path / "whole")) == 0.0
    assert losses(tmp_path / "whole") == pytest.approx(losses(tmp_path / "alone"), abs=2e-5)
    assert difference(ended(tmp_path / "whole"), ended(tmp_path / "alone")) < 2e-4

    saved = ended(tmp_path / "whole")
    assert json.loads((saved / "config.json").read_text())["joint_responses"] == 4
    card = judge_card_of(saved)
    assert card is not None
    assert (card.judge_type, card.joint_responses) == ("joint", 4)
    assert judge_config(saved).type == "joint"
    held_out = read_result(saved / "eval" / "held_out.json")
    assert held_out.joint
    assert held_out.micro.n > 4  # the pairs of different rank of four records
    log = json.loads((saved / "trainer_state.json").read_text())["log_history"]
    assert sum("eval_held_out/loss" in line for line in log) == 4
    assert [line["accuracy"] for line in lines(saved)] != [0.0] * 6


@pytest.mark.slow
def test_adapters_and_what_they_are_merged_into_score_alike(recipe: Path, tmp_path: Path) -> None:
    command = [
        *(str(recipe), "optim.max_steps=2", "optim.lora={rank: 4, alpha: 8}"),
        *("evaluation.benchmarks=[]", "evaluation.best_metric=null"),
        f"output.folder={tmp_path / 'run'}",
    ]
    run_ranks(tmp_path / "log", worker.recipe_run, command, ranks=1)
    adapters = tmp_path / "run" / "checkpoint-2"
    assert judge_config(adapters).type == "joint"
    merge(adapters, tmp_path / "merged")
    assert json.loads((tmp_path / "merged/config.json").read_text())["joint_responses"] == 4
    candidates = candidates_of("What is in it?", RESPONSES[:3])
    scores = []
    for folder in (adapters, tmp_path / "merged"):
        judge: Any = load_judge(folder, Runtime(torch.device("cpu"))).judge
        assert judge.most_trained == 4
        scores.append(judge.score_batch([candidates])[0].values)
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)
    assert len(set(scores[0])) == 3


def test_a_run_that_starts_from_a_joint_checkpoint_forgets_the_note(tmp_path: Path) -> None:
    start = joint_checkpoint(tmp_path)
    text_of_recipe = MINIMAL.replace("path: embedded", f"path: {start}")
    head = "head={width: 24}"
    naive: Any = make_model(read_recipe(write(tmp_path, text_of_recipe), [head]))
    assert "joint_responses" not in vars(naive.config)
    naive.save_pretrained(tmp_path / "naive")
    assert judge_config(tmp_path / "naive").type == "scalar"
    text_of_recipe = text_of_recipe.replace("{type: naive}", "{type: joint}")
    joint: Any = make_model(read_recipe(write(tmp_path, text_of_recipe), [head]))
    assert joint.config.joint_responses == 2  # those of this run's pairs, not the 3 of before

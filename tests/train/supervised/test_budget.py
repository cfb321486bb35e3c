"""A step is the same step whatever its rows: cut for a lack of memory, dealt by cost, on one rank or on two."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrm.data.errors import ImageError, UserError
from mmrm.train.runs import build as run
from mmrm.train.supervised.budget import (
    LOWERED,
    NO_LIMIT,
    RowBudget,
    ceiling,
    out_of_memory_message,
    split,
    write_lowered_budget,
)
from mmrm.train.supervised.packed_trainer import PackedTrainer
from mmrm.train.supervised.steps import PackedRow, ResponseLabels, StepDataset, make_row
from tests.models import tiny
from tests.models.exactness import assert_exact, float64
from tests.train import short_worker, worker
from tests.train.ranks import run_ranks
from tests.train.worker import assert_same_steps, difference, lines, weights

KINDS = "titi" + "tttt" + "iiii" + "t"  # of the last, smaller step one of two ranks has nothing
LIMIT = 160
EQUAL = ("loss", "grad_norm", "accuracy", "margin", "reward_mean")


def row(kinds: str) -> PackedRow:
    records = worker.Written(kinds)
    return make_row([records[i] for i in range(len(kinds))], tiny.encoder().pack)


def budget(
    told: list[str], device: str = "cpu", begin: int = 10**6, ceiling: int = NO_LIMIT
) -> RowBudget:
    steps = StepDataset(
        worker.Written("itit"), tiny.encoder().pack, records_per_step=4, steps=1, token_budget=begin
    )
    return RowBudget(steps, torch.device(device), ceiling, report=told.append)


def test_a_row_is_cut_into_rows_of_the_same_records() -> None:
    whole = row("itti")
    parts = split(whole, tiny.encoder().pack, whole.batch.cost // 2)
    assert len(parts) > 1
    assert sum(part.records for part in parts) == 4
    assert all(part.batch.cost <= whole.batch.cost // 2 for part in parts)
    assert sorted(part.batch.labels.numel() for part in parts) == [0] * len(parts)
    assert sum(len(part.batch.read_positions) for part in parts) == len(whole.batch.read_positions)
    assert split(whole, tiny.encoder().pack, whole.batch.cost) == [whole]
    assert split(parts[0], tiny.encoder().pack, 1)[0].records == 1


def test_the_numbers_of_the_records_go_with_them() -> None:
    whole = row("itti")
    labels = ResponseLabels(
        records=torch.arange(4).repeat_interleave(2),
        ranks=torch.tensor([0, 1, 0, 0, 0, 1, 0, 0]),
        attributes=torch.arange(16.0).view(8, 2),
        margins=torch.arange(4.0),
        tokens=torch.arange(8),
    )
    critiques = torch.tensor([True, False, False, True])
    numbered = PackedRow(whole.batch, labels, critiques, torch.full((4,), 2))
    parts = split(numbered, tiny.encoder().pack, 1)
    found = sorted(
        (
            float(part.response_labels.margins[0]),
            part.response_labels.tokens.tolist(),
            part.response_labels.ranks.tolist(),
            part.response_labels.attributes.tolist(),
            bool(part.has_model_critiques[0]),
        )
        for part in parts
    )
    assert found == [
        (0.0, [0, 1], [0, 1], [[0.0, 1.0], [2.0, 3.0]], True),
        (1.0, [2, 3], [0, 0], [[4.0, 5.0], [6.0, 7.0]], False),
        (2.0, [4, 5], [0, 1], [[8.0, 9.0], [10.0, 11.0]], False),
        (3.0, [6, 7], [0, 0], [[12.0, 13.0], [14.0, 15.0]], True),
    ]


def test_memory_that_ends_halves_the_rows_and_says_so() -> None:
    told: list[str] = []
    found, whole = budget(told), row("itit")
    found.lower([whole])
    assert found.steps.token_budget == whole.batch.cost // 2
    assert told == [
        f"out of memory: token budget lowered to {whole.batch.cost // 2:,}, the step is computed again"
    ]
    assert all(part.batch.cost <= found.steps.token_budget for part in found.fit([whole]))
    with pytest.raises(UserError, match=r"single record, \d+ tokens.*activation_checkpointing"):
        found.lower([row("i"), row("t")])


def test_the_cheapest_row_comes_last() -> None:
    found = [part.batch.cost for part in budget([]).fit([row("t"), row("iiii"), row("i")])]
    assert found == sorted(found, reverse=True)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Pretend a device of 1,000 bytes, of which a computation has used `peak` at most."""
    held = {"peak": 0}
    cuda: dict[str, Callable[..., Any]] = {
        "reset_peak_memory_stats": lambda _: None,
        "memory_allocated": lambda _: 300,
        "max_memory_allocated": lambda _: held["peak"],
        "memory_reserved": lambda _: 350,
        "mem_get_info": lambda _: (600, 1000),
        "get_device_properties": lambda _: SimpleNamespace(total_memory=1000),
        "set_per_process_memory_fraction": lambda share, _: held.update(
            allowed=round(share * 1000)
        ),
    }
    for name, function in cuda.items():
        monkeypatch.setattr(torch.cuda, name, function)
    return held


def step(found: RowBudget, *rows: PackedRow) -> None:
    for number, one in enumerate(rows):
        with found.watch(one, number):
            pass
    found.end_step(rows)


@pytest.mark.parametrize(
    ("ceiling", "times", "told"),
    [(NO_LIMIT, 5.5, ""), (500, 5.5, " of 500"), (10**6, 5.5, " of 1,000,000")],
)
def test_the_budget_rises_to_what_the_second_step_leaves_room_for(
    memory: dict[str, int], ceiling: int, times: float, told: str
) -> None:
    """The second row of the step used 100 bytes; 650 are free or held in reserve, and 100 of 1,000 stay free."""
    said: list[str] = []
    found, one = budget(said, "cuda", 100, ceiling), row("it")
    memory["peak"] = 310
    step(found, one, one)
    assert found.steps.token_budget == 100
    memory["peak"] = 400
    step(found, one, one)
    assert found.steps.token_budget == min(ceiling, int(one.batch.cost * times))
    assert said == [f"token budget {found.steps.token_budget:,}{told}, from the memory of step 2"]
    memory["peak"] = 301
    step(found, one, one)
    assert len(said) == 1


def test_libraries_keep_a_share_that_no_row_takes(memory: dict[str, int]) -> None:
    """On a full device cuBLAS fails, with an error that is no lack of memory: the allocator stops 80 of 1,000 bytes before."""
    found, one = budget([], "cuda", 100), row("it")
    assert memory["allowed"] == 920
    memory["peak"] = 400
    step(found, one, one)
    step(found, one, one)
    held_by_a_row_of_the_budget = 300 + 100 * found.steps.token_budget / one.batch.cost
    assert held_by_a_row_of_the_budget + 50 <= memory["allowed"], (
        "50 bytes of the device are others'"
    )
    memory.clear()
    budget([])
    assert not memory


def test_a_step_of_one_row_measures_nothing_and_the_next_one_is_measured(
    memory: dict[str, int],
) -> None:
    said: list[str] = []
    found, one = budget(said, "cuda", 100), row("it")
    memory["peak"] = 400
    step(found, one)
    step(found, one)
    assert (found.steps.token_budget, said) == (100, [])
    step(found, one, one)
    assert said == [f"token budget {int(one.batch.cost * 5.5):,}, from the memory of step 3"]


def test_only_later_rows_that_are_half_full_are_measured(memory: dict[str, int]) -> None:
    """In a cheap row what it takes beside its tokens would be taken for their price; a filler is the cheapest."""
    said: list[str] = []
    found, one, filler = budget(said, "cuda", 100), row("it"), row("")
    memory["peak"] = 400
    step(found, one, filler)
    step(found, one, filler)
    found.steps.token_budget = 2 * one.batch.cost + 1
    step(found, one, one)
    assert said == []
    found.steps.token_budget -= 1
    step(found, one, one, filler, filler)
    assert said == [f"token budget {int(one.batch.cost * 5.5):,}, from the memory of step 4"]
    assert len(found.measured_budgets) == 1


def test_a_budget_that_is_reached_is_not_measured(memory: dict[str, int]) -> None:
    found, one = budget([], "cuda", 100, 100), row("it")
    step(found, one, one)
    step(found, one, one)
    assert found.measured_budgets == []


def test_where_a_step_cannot_be_repeated_the_next_start_takes_half(tmp_path: Path) -> None:
    whole = row("itit")
    assert ceiling(5000, tmp_path) == 5000
    assert ceiling("auto", tmp_path) == NO_LIMIT
    half = whole.batch.cost // 2
    write_lowered_budget(whole, tmp_path)
    assert re.search(
        rf"{LOWERED} now contains {half:,}: give the same command again with --resume",
        out_of_memory_message(whole, tmp_path),
    )
    assert ceiling("auto", tmp_path) == ceiling(5000, tmp_path) == half
    assert ceiling(1, tmp_path) == 1
    write_lowered_budget(row("i"), tmp_path)
    assert "single record" in out_of_memory_message(row("i"), tmp_path)
    assert ceiling("auto", tmp_path) == half


@pytest.mark.parametrize(("stage", "kept"), [(1, 1), (2, 2)])
def test_a_trial_holds_what_the_gradients_will_take(stage: int, kept: int) -> None:
    """ZeRO-1 has whole gradients until the step's end, ZeRO-2 a share; what a gradient has already taken is not held again."""
    model = torch.nn.Linear(6, 4)
    model.bias.grad = torch.zeros(4)
    plugin: Any = SimpleNamespace(
        state=SimpleNamespace(deepspeed_plugin=SimpleNamespace(zero_stage=stage))
    )
    trainer: Any = SimpleNamespace(
        model=model, accelerator=plugin, args=SimpleNamespace(world_size=2)
    )
    assert [len(one) for one in PackedTrainer._gradients_to_come(trainer)] == [24 // kept]


def test_a_step_does_not_fit_if_its_gradients_do_not() -> None:
    def full() -> list[Tensor]:
        raise torch.OutOfMemoryError("pretended")

    tight = SimpleNamespace(may_run_out=lambda _: True)
    trainer: Any = SimpleNamespace(
        budget=tight,
        group=None,
        _gradients_to_come=full,
        args=SimpleNamespace(device=torch.device("cpu")),
    )
    assert not PackedTrainer._fits(trainer, row("i"), torch.ones(1))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("short")
    with float64():
        recipe = worker.prepare(folder)
    alone = [(str(folder / "plain"), 10**6, False), (str(folder / "short"), LIMIT, False)]
    two = [(str(folder / "short2"), LIMIT, False), (str(folder / "dealt2"), 10**6, True)]
    said = run_ranks(
        folder / "one", short_worker.train, recipe, KINDS, alone, ranks=1, in_float64=True
    )
    said += run_ranks(folder / "two", short_worker.train, recipe, KINDS, two, in_float64=True)
    sharded = [(str(folder / "sharded2"), LIMIT, False)]
    said += run_ranks(
        folder / "zero2", short_worker.train, recipe, KINDS, sharded, "zero2", in_float64=True
    )
    whole = [(str(folder / "sharded3"), LIMIT, False)]
    said += run_ranks(
        folder / "zero3",
        short_worker.train,
        recipe,
        KINDS,
        whole,
        "zero3",
        status=1,
        in_float64=True,
    )
    return folder, said + run_ranks(
        folder / "zero3", short_worker.train, recipe, KINDS, whole, "zero3", in_float64=True
    )


@pytest.mark.slow
@pytest.mark.numerics
@pytest.mark.parametrize("case", ["short", "short2", "dealt2", "sharded2", "sharded3"])
def test_the_same_is_learnt(trained: tuple[Path, str], case: str) -> None:
    folder, _ = trained
    assert difference(folder / "plain", folder / "base") > 1e-3
    assert_exact(weights(folder / case), weights(folder / "plain"))
    stage = "zero3" if case == "sharded3" else "none"
    assert_same_steps(lines(folder / case), lines(folder / "plain"), EQUAL, stage)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["short", "short2", "sharded2"])
def test_memory_did_end(trained: tuple[Path, str], case: str) -> None:
    found = re.search(rf"{case}: refused (\d+), budget (\d+)", trained[1])
    assert found is not None, trained[1]
    assert int(found[1]) >= 1
    assert int(found[2]) < 10**6
    assert "out of memory: token budget lowered to" in trained[1]


@pytest.mark.slow
def test_zero3_ends_with_a_budget_for_the_next_start(trained: tuple[Path, str]) -> None:
    folder, said = trained
    left = int((folder / "sharded3" / LOWERED).read_text())
    assert f"{LOWERED} now contains {left:,}: give the same command again" in said
    assert re.search(rf"sharded3: refused 0, budget {left}", said)


WORKER = "Caught UserError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n  File ...\n"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (UserError("give the same command again"), "give the same command again"),
        (UserError("2 records could not be used"), "2 records could not be used"),
        (ImageError("a:5: the image is truncated"), "a:5: the image is truncated"),
        (
            UserError(f"{WORKER}data.prepare.UserError: 2 records could not be used\n"),
            "2 records could not be used",
        ),
    ],
)
def test_a_run_that_cannot_go_on_says_so_without_a_traceback(
    error: Exception, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(**_: Any) -> None:
        raise error

    nothing: Any = None
    trainer: Any = SimpleNamespace(train=train, staging=None)
    with pytest.raises(SystemExit) as end:
        run.train(nothing, trainer, None, nothing)
    assert end.value.code == 1
    assert capsys.readouterr().err == f"rank 0: {said}\n"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_budget_grows_to_what_the_device_holds() -> None:
    """A row that is said to have used all but nothing of a large device may grow, and one on a full device may not."""
    device = torch.device("cuda", 0)
    steps = StepDataset(
        worker.Written("itit"), tiny.encoder().pack, records_per_step=4, steps=1, token_budget=100
    )
    found = RowBudget(steps, device, NO_LIMIT, report=lambda _: None)
    found.end_step([row("it")])
    held = torch.empty(0)
    with found.watch(row("it"), 1):
        held = torch.empty(2**26, dtype=torch.uint8, device=device)
    found.end_step([row("it")])
    total = torch.cuda.get_device_properties(device).total_memory
    assert 100 < steps.token_budget <= row("it").batch.cost * total / held.numel()

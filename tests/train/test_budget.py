"""A step is the same step whatever its rows: cut for a lack of memory, dealt by cost, on one rank or on two."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.models import tiny
from tests.train import short_worker, worker
from tests.train.ranks import run_ranks
from tests.train.worker import difference, lines
from train.budget import MemoryBudgetError, RowBudget, affordable, split
from train.steps import Row, StepDataset, make_row

KINDS = "titi" + "tttt" + "iiii" + "t"  # of the last, smaller step one of two ranks has nothing
LIMIT = 160
EQUAL = ("loss", "grad_norm", "accuracy", "margin", "reward_mean")


def row(kinds: str) -> Row:
    records = worker.Written(kinds)
    return make_row([records[i] for i in range(len(kinds))], tiny.encoder().pack)


def budget(told: list[str]) -> RowBudget:
    steps = StepDataset(worker.Written("itit"), tiny.encoder().pack, records_per_step=4, steps=1, token_budget=10**6)
    return RowBudget(steps, torch.device("cpu"), grows=True, tell=told.append)


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
    numbered = Row(whole.batch, 4, torch.arange(4.0), torch.arange(8), torch.tensor([True, False, False, True]))
    parts = split(numbered, tiny.encoder().pack, 1)
    found = sorted((float(part.margins[0]), part.response_tokens.tolist(), bool(part.own_critiques[0])) for part in parts)
    assert found == [(0.0, [0, 1], True), (1.0, [2, 3], False), (2.0, [4, 5], False), (3.0, [6, 7], True)]


def test_memory_that_ends_halves_the_rows_and_says_so() -> None:
    told: list[str] = []
    found, whole = budget(told), row("itit")
    found.lower([whole])
    assert found.steps.token_budget == whole.batch.cost // 2
    assert told == [f"out of memory: token budget lowered to {whole.batch.cost // 2:,}, the step is computed anew"]
    assert all(part.batch.cost <= found.steps.token_budget for part in found.fit([whole]))
    with pytest.raises(MemoryBudgetError, match=r"single record, \d+ tokens.*activation_checkpointing"):
        found.lower([row("i"), row("t")])


def test_the_cheapest_row_comes_last() -> None:
    found = [part.batch.cost for part in budget([]).fit([row("t"), row("iiii"), row("i")])]
    assert found == sorted(found, reverse=True)


def test_what_fits_follows_from_what_a_row_used() -> None:
    """A row of 4,000 took 10 GB; of 100 GB on the device 60 are free and 10 stay free: five times as much fits."""
    assert affordable(4000, used=10, free=60, total=100) == 20000
    assert affordable(4000, used=10, free=5, total=100) == 0


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("short")
    recipe = worker.prepare(folder)
    alone = [(str(folder / "plain"), 10**6, False), (str(folder / "short"), LIMIT, False)]
    two = [(str(folder / "short2"), LIMIT, False), (str(folder / "dealt2"), 10**6, True)]
    said = run_ranks(folder / "one", short_worker.train, recipe, KINDS, alone, ranks=1)
    said += run_ranks(folder / "two", short_worker.train, recipe, KINDS, two)
    sharded = [(str(folder / "sharded2"), LIMIT, False)]
    return folder, said + run_ranks(folder / "zero2", short_worker.train, recipe, KINDS, sharded, "zero2")


@pytest.mark.parametrize("case", ["short", "short2", "dealt2", "sharded2"])
def test_the_same_is_learnt(trained: tuple[Path, str], case: str) -> None:
    folder, _ = trained
    assert difference(folder / "plain", folder / "base") > 1e-3
    assert difference(folder / case, folder / "plain") < 1e-6
    for found, expected in zip(lines(folder / case), lines(folder / "plain"), strict=True):
        assert {name: found[name] for name in EQUAL} == pytest.approx({name: expected[name] for name in EQUAL}, abs=1e-6)


@pytest.mark.parametrize("case", ["short", "short2", "sharded2"])
def test_memory_did_end(trained: tuple[Path, str], case: str) -> None:
    found = re.search(rf"{case}: refused (\d+), budget (\d+)", trained[1])
    assert found is not None, trained[1]
    assert int(found[1]) >= 1
    assert int(found[2]) < 10**6
    assert "out of memory: token budget lowered to" in trained[1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_budget_grows_to_what_the_device_holds() -> None:
    """A row that is said to have used all but nothing of a large device may grow, and one on a full device may not."""
    device = torch.device("cuda", 0)
    steps = StepDataset(worker.Written("itit"), tiny.encoder().pack, records_per_step=4, steps=1, token_budget=100)
    found = RowBudget(steps, device, grows=True, tell=lambda _: None)
    found.end_step([row("it")])
    held = torch.empty(0)
    with found.watch(row("it"), 1):
        held = torch.empty(2**26, dtype=torch.uint8, device=device)
    found.end_step([row("it")])
    total = torch.cuda.get_device_properties(device).total_memory
    assert 100 < steps.token_budget <= row("it").batch.cost * total / held.numel()

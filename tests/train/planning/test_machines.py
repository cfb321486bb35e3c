"""The plan says truly on which machines a recipe fits, and its advice makes it fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmrm.models.families.backbone_shape import shape_of
from mmrm.models.families.family import Shape
from mmrm.train.planning.dry_run import advice, duration
from mmrm.train.planning.machines import (
    GPUS,
    changed,
    fit,
    need,
    possible_changes,
    smallest_machine,
)
from mmrm.train.planning.memory import GIB, per_rank
from mmrm.train.recipe.parsing import parse_arguments, read_recipe
from mmrm.train.recipe.recipe import Recipe
from tests.train.shipped import FOLDER

GPU = {gpu.name: gpu for gpu in GPUS}
LORA = ["optim.lora={rank: 64}", "deepspeed=none"]


def basereward(size: str, *overrides: str) -> tuple[Recipe, Shape]:
    """Return BaseReward's recipe on a size of Qwen2.5-VL, and the shape of that backbone."""
    name = f"Qwen/Qwen2.5-VL-{size}-Instruct"
    shape = shape_of(name)
    assert shape is not None
    return read_recipe(FOLDER / "basereward.yaml", [f"backbone.path={name}", *overrides]), shape


def test_the_need_holds_all_that_a_rank_holds() -> None:
    recipe, shape = basereward("7B")
    memory = per_rank(recipe, shape, "zero3", 8)
    parts = need(recipe, shape, 8).parts
    kept = parts["weights"] + parts["gradients"] + parts["optimizer states"]
    assert kept == pytest.approx(memory.device)
    assert parts["activations of one record"] > 0.5 * GIB
    assert parts["gathered weights"] == 2 * shape.vocab_size * shape.hidden_size


@pytest.mark.parametrize(
    ("size", "num_gpus", "gpu", "changes"),
    [
        ("3B", 1, "80 GB", ()),
        ("7B", 1, "24 GB", ("deepspeed=none", "optim.lora.rank=64", "optim.lora.quantise=nf4")),
        ("7B", 1, "48 GB", ("deepspeed=none", "optim.lora.rank=64")),
        ("7B", 2, "80 GB", ()),
        ("7B", 8, "80 GB", ()),
        ("72B", 1, "24 GB", ("deepspeed=zero3_offload",)),
    ],
)
def test_the_least_change_that_fits_is_named(
    size: str, num_gpus: int, gpu: str, changes: tuple[str, ...]
) -> None:
    recipe, shape = basereward(size)
    answer = fit(recipe, shape, GPU[gpu], num_gpus)
    assert answer.fits
    assert answer.changes == changes
    # The command line with this advice is a recipe that fits as it is.
    overrides = [f"backbone.path=Qwen/Qwen2.5-VL-{size}-Instruct", *answer.changes]
    changed_recipe = read_recipe(FOLDER / "basereward.yaml", overrides)
    assert fit(changed_recipe, shape, GPU[gpu], num_gpus).changes == ()
    assert need(changed_recipe, shape, num_gpus) == answer.need


@pytest.mark.parametrize("overrides", [[], LORA, ["optim.activation_checkpointing=false"]])
@pytest.mark.parametrize("num_gpus", [1, 2, 8])
def test_every_possible_change_is_a_valid_recipe(overrides: list[str], num_gpus: int) -> None:
    recipe, shape = basereward("7B", *overrides)
    for changes in possible_changes(recipe, shape, num_gpus):
        given = [f"{key}={str(value).lower()}" for key, value in changes.items()]
        read = read_recipe(
            FOLDER / "basereward.yaml",
            ["backbone.path=Qwen/Qwen2.5-VL-7B-Instruct", *overrides, *given],
        )
        assert need(read, shape, num_gpus) == need(changed(recipe, changes), shape, num_gpus)


def test_what_fits_nowhere_is_said() -> None:
    shape = shape_of("Qwen/Qwen2.5-VL-72B-Instruct")
    assert shape is not None
    recipe, _ = basereward("72B", "optim.lora={rank: 64, quantise: nf4}", "deepspeed=none")
    answer = fit(recipe, shape, GPU["24 GB"], 1)
    assert not answer.fits
    assert "smaller backbone" in advice(answer)


def test_the_smallest_machine_has_the_least_memory() -> None:
    recipe, shape = basereward("3B")
    assert smallest_machine(recipe, shape) == (1, GPU["80 GB"])
    recipe, shape = basereward("3B", "optim.lora={rank: 64, quantise: nf4}", "deepspeed=none")
    assert smallest_machine(recipe, shape) == (1, GPU["24 GB"])
    recipe, shape = basereward("72B")
    assert smallest_machine(recipe, shape) is None


def test_a_short_run_has_a_length() -> None:
    assert duration(0.0001) == "1 min"
    assert duration(0.5) == "30 min"
    assert duration(164.6) == "164.6 h"


def test_a_number_of_gpus_is_planned_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(FOLDER / "basereward.yaml")
    assert parse_arguments([path, "--dry-run", "--gpus", "3"], "rm", "").gpus == 3
    with pytest.raises(SystemExit):
        parse_arguments([path, "--dry-run", "--gpus", "0"], "rm", "")
    assert "number of GPUs" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse_arguments([path, "--gpus", "2"], "rm", "")
    assert "deepspeed --num_gpus 2" in capsys.readouterr().err


PAGE = FOLDER.parent / "docs" / "hardware.md"


def cells_of(first: str) -> list[str]:
    """Return the cells of the row of the hardware page that begins with a cell."""
    (line,) = (line for line in PAGE.read_text().splitlines() if line.startswith(f"| {first} |"))
    return [cell.strip() for cell in line.strip("|").split("|")[1:]]


PLANNED = [path for path in FOLDER.glob("*.yaml") if read_recipe(path).method.script != "rl"]


@pytest.mark.parametrize("path", PLANNED, ids=lambda path: str(path.name))
def test_the_page_has_the_smallest_machine_of_every_recipe(path: Path) -> None:
    recipe = read_recipe(path)
    shape = shape_of(recipe.backbone.path)
    assert shape is not None
    machine = smallest_machine(recipe, shape)
    assert machine is not None
    num_gpus, gpu = machine
    gib = need(recipe, shape, num_gpus).device / GIB
    assert cells_of(f"`{path.name}`") == [f"{num_gpus} × {gpu.name}", f"{gib:.0f}"]


@pytest.mark.parametrize("size", ["3B", "7B"])
def test_the_page_says_how_each_machine_trains_each_size(size: str) -> None:
    recipe, shape = basereward(size)
    cells = []
    for num_gpus, name in ((1, "24 GB"), (2, "48 GB"), (8, "80 GB")):
        answer = fit(recipe, shape, GPU[name], num_gpus)
        assert answer.fits
        cells.append(f"`{' '.join(answer.changes)}`" if answer.changes else "unchanged")
    assert cells_of(f"Qwen2.5-VL-{size}") == cells

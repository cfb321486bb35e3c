"""The time of a step is divided among all of its operations, by kinds."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn

from mmrm.train.studies.speed.operation_times import (
    KINDS,
    OTHERS,
    OUTSIDE,
    kind_of,
    operation_seconds,
    seconds_by_kind,
)
from mmrm.train.throughput import main


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::mm", "matrix products"),
        ("aten::addmm", "matrix products"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "attention"),
        ("torch_attn::_varlen_attn", "attention"),
        ("aten::index_select", "copies and zeros"),
        ("aten::index_add_", "copies and zeros"),
        ("aten::mul", OTHERS),
        ("aten::silu_backward", OTHERS),
    ],
)
def test_the_kind_of_an_operation(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_the_operations_of_a_step_are_counted_once() -> None:
    layer = nn.Linear(256, 256)
    inputs = torch.randn(512, 256)

    def step() -> None:
        torch.autograd.backward(layer(inputs).relu().sum())

    seconds_by_name, seconds = operation_seconds(step, 3, torch.device("cpu"))
    assert {"aten::mm", "aten::addmm", "aten::clamp_min", "aten::sum"} <= seconds_by_name.keys()
    assert not any(name.startswith("autograd") for name in seconds_by_name)
    # Were the time of an operation also that of those which call it, the sum would be larger.
    assert 0 < sum(seconds_by_name.values()) <= seconds


def test_every_operation_is_in_one_kind() -> None:
    seconds = Counter({"aten::mm": 3.0, "aten::addmm": 1.0, "aten::copy_": 2.0, "aten::mul": 0.5})
    assert seconds_by_kind(seconds) == {
        "matrix products": 4.0,
        "attention": 0.0,
        "copies and zeros": 2.0,
        OTHERS: 0.5,
    }


@pytest.mark.slow
def test_the_command_divides_the_time_of_a_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "found.json"
    main(["--operations", "--pairs", "1", "--repeats", "1", "--json", str(file)])
    said = capsys.readouterr().out
    assert "matrix products" in said
    found = json.loads(file.read_text())["operations"]
    assert found["shares"].keys() == {*KINDS, OTHERS, OUTSIDE}
    assert sum(found["shares"].values()) == pytest.approx(1)
    assert all(share >= 0 for share in found["shares"].values())
    assert found["shares"]["matrix products"] > 0
    assert "aten::mm" in found["operations"]
    assert found["seconds_a_step"] > 0

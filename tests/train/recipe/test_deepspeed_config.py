"""DeepSpeed configurations by name."""

from __future__ import annotations

import pytest

from mmrm.train.recipe.deepspeed_config import (
    copies_within,
    deepspeed_config,
    deepspeed_names,
    offloads,
    stage,
    sums_in_fp32,
)


def test_names_are_the_files() -> None:
    assert deepspeed_names() == [
        "none",
        "zero0",
        "zero1",
        "zero2",
        "zero2_offload",
        "zero3",
        "zero3_hpz",
        "zero3_offload",
    ]


@pytest.mark.parametrize("name", deepspeed_names()[1:])
def test_a_name_says_what_its_file_does(name: str) -> None:
    assert stage(name) == int(name[4])
    assert offloads(name) == ("offload" in name, name == "zero3_offload")
    assert sums_in_fp32(name) == (stage(name) >= 2)
    assert copies_within(name) == (8 if name == "zero3_hpz" else 0)


def test_none_is_no_deepspeed() -> None:
    assert deepspeed_config("none", "float32", cpu=True) is None
    assert (stage("none"), offloads("none"), sums_in_fp32("none")) == (0, (False, False), True)


@pytest.mark.parametrize("name", deepspeed_names()[1:])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_dtype_is_the_backbones(name: str, dtype: str) -> None:
    config = deepspeed_config(name, dtype, cpu=False)
    assert config is not None
    assert config["bf16"] == {"enabled": dtype == "bfloat16"}
    assert config["fp16"] == {"enabled": False}
    assert "optimizer" not in config
    assert "zero_force_ds_cpu_optimizer" not in config


def test_a_cpu_pins_nothing_and_compiles_nothing() -> None:
    config = deepspeed_config("zero3_offload", "float32", cpu=True)
    assert config is not None
    assert config["zero_force_ds_cpu_optimizer"] is False
    assert {
        part: config["zero_optimization"][part]["pin_memory"]
        for part in ("offload_optimizer", "offload_param")
    } == {
        "offload_optimizer": False,
        "offload_param": False,
    }


def test_a_checkpoint_under_zero3_holds_whole_weights() -> None:
    config = deepspeed_config("zero3", "bfloat16", cpu=False)
    assert config is not None
    assert config["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] is True

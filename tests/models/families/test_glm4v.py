"""What only GLM-4.1V has: limits of two frames, short sides that are enlarged, grids on the device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrm.data.images import image_tokens_of
from mmrm.models.backbone import copy_grids, load_encoder
from mmrm.models.config import BackboneConfig
from mmrm.models.families.glm4v import PUBLISHED
from tests.models import tiny
from tests.models.families.counted_tokens import assert_counted_as_by_the_processor

FAMILY = "glm4v"
CONFIG = tiny.config(FAMILY)


@given(
    st.lists(st.tuples(st.integers(1, 400), st.integers(1, 400)), min_size=1, max_size=3),
    st.integers(784, 20_000),
    st.integers(20_000, 10**5),
)
@settings(deadline=None, max_examples=100)
def test_tokens_that_are_counted_are_those_of_the_processor(
    sizes: list[tuple[int, int]], low: int, high: int
) -> None:
    assert_counted_as_by_the_processor(FAMILY, sizes, low, high)


def test_a_saved_config_has_the_key_by_which_its_images_are_counted(tmp_path: Path) -> None:
    CONFIG.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    counter: Any = image_tokens_of(saved, 784, 10**6)
    assert counter.enlarges_short_sides
    assert not image_tokens_of(tiny.config().to_dict(), 784, 10**6).enlarges_short_sides  # type: ignore[union-attr]


def test_the_released_limits_are_read_as_those_of_one_frame(tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path, family=FAMILY)
    file = folder / "preprocessor_config.json"
    saved = json.loads(file.read_text())
    released = saved | {"size": {"shortest_edge": 12544, "longest_edge": 47040000}}
    file.write_text(json.dumps(released))
    layout = PUBLISHED["zai-org/GLM-4.1V-9B-Thinking"].images
    assert layout.limits(released) == {"min_pixels": 6272, "max_pixels": 23520000}
    config = BackboneConfig(path=str(folder), dtype="float32", max_pixels=9 * 784)
    processor = load_encoder(config).image_processor
    made = processor(images=[tiny.picture(400, 400)], return_tensors="pt")
    assert int(made["image_grid_thw"].prod()) == 9 * 4


def test_grids_on_the_host_reach_the_module_that_indexes_them_by_tensors() -> None:
    """As on CUDA, a tensor of another device cannot be indexed by those of the model's."""
    with torch.device("meta"):
        model = tiny.stock_class(FAMILY)(CONFIG)
    copied: list[torch.device] = []
    embeddings = model.model.visual.embeddings
    copy_grids(model)
    embeddings.register_forward_pre_hook(
        lambda module, args: copied.extend(argument.device for argument in args)
    )
    patches = torch.zeros(4, CONFIG.vision_config.hidden_size, device="meta")
    coordinates = torch.zeros(4, dtype=torch.long, device="meta")
    embeddings(
        patches,
        torch.tensor([4], device="meta"),
        torch.tensor([[1, 2, 2]]),
        coordinates,
        coordinates,
    )
    assert {device.type for device in copied} == {"meta"}
    assert len(copied) == 5


def test_videos_have_another_layout_and_are_not_taken() -> None:
    """A frame's time stands behind it and marks around all frames, unlike in Qwen3-VL."""
    assert tiny.encoder(FAMILY).videos is None
    for token in ("<|begin_of_video|>", "<|video|>", "<|end_of_video|>"):
        assert token in tiny.encoder(FAMILY).vision_text

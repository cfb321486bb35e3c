"""What vLLM is asked for a prompt with images; tests/train/test_vllm.py asks a real one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from models.encoder import Encoder
from tests.models import tiny
from train.reinforce.rollouts import Prompt
from train.reinforce.trainer import roll_out

ENCODER = tiny.encoder()
PAD, PROCESSOR = ENCODER.vision.image, ENCODER.image_processor


def request(encoder: Encoder, *sizes: tuple[int, int]) -> Prompt:
    """Return a prompt about pictures of `sizes`, one directly after the other."""
    pictures = tuple(tiny.picture(*size, seed=place) for place, size in enumerate(sizes))
    asked: Any = {"role": "user", "content": [{"type": "image"}] * len(sizes) + [{"type": "text", "text": "What is it?"}]}
    found = encoder.encode(pictures, [encoder.render([asked])], None)
    group = replace(found, prompt_ids=found.prompt_ids + found.continuations[0].ids, continuations=())
    return Prompt(group, pictures, 1, "What is it?", 0, f"about {len(sizes)}")


PROMPTS = [request(ENCODER, *sizes) for sizes in ([], [(80, 60)], [(60, 80), (100, 30)])]


def expanded(ids: list[int], images: Any) -> list[int]:
    """Do what vLLM does: each image is put at the next pad that is found, whatever follows it."""
    counts = [int(grid.prod()) // 4 for image in images or () for grid in PROCESSOR(image, return_tensors="pt")["image_grid_thw"]]
    found: list[int] = []
    for token in ids:
        found += [token] * (counts.pop(0) if token == PAD and counts else 1)
    return found


class Double:
    """Stands for trl's VLLMGeneration; `given` is what it was asked, and an engine of its own expands that."""

    def __init__(self, mode: str) -> None:
        self.mode = mode

    def generate(self, prompts: list[list[int]], images: list[Any], num_generations: int) -> tuple[Any, ...]:
        """Note what is asked, and answer with the ids that were sampled from."""
        self.given, self.images = prompts, images
        own = self.mode == "colocate"
        used = [expanded(ids, found) if own else ids for ids, found in zip(prompts, images or [None] * len(prompts), strict=True)]
        return used, [[5, 6]] * len(prompts), [[[-0.5], [-0.25]]] * len(prompts), None


def trainer(mode: str, asked: list[Prompt]) -> Any:
    return SimpleNamespace(
        _asked=asked,
        num_generations=2,
        use_vllm=True,
        vllm_mode=mode,
        encoder=ENCODER,
        vllm_generation=Double(mode),
        model=nn.Linear(1, 1),
        state=SimpleNamespace(global_step=0),
        args=SimpleNamespace(output_dir="."),
    )


def test_a_colocated_engine_gets_one_pad_an_image_and_a_server_the_whole_runs() -> None:
    wanted = [list(one.group.prompt_ids) for one in PROMPTS for _ in range(2)]
    assert [ids.count(PAD) for ids in wanted[::2]] == [0, 6, 10]
    for mode, pads in (("colocate", [0, 1, 2]), ("server", [0, 6, 10])):
        asking = trainer(mode, PROMPTS)
        found = roll_out([], asking)
        assert found == {"prompt_ids": wanted, "completion_ids": [[5, 6]] * 6, "logprobs": [[-0.5, -0.25]] * 6}
        assert [ids.count(PAD) for ids in asking.vllm_generation.given[::2]] == pads
        assert [len(images or ()) for images in asking.vllm_generation.images] == [0, 0, 1, 1, 2, 2]
        roll_out([], texts := trainer(mode, PROMPTS[:1]))
        assert texts.vllm_generation.images is None


def test_other_ids_than_those_trained_on_stop_the_run() -> None:
    other = replace(PROMPTS[1], images=(tiny.picture(200, 200),))
    with pytest.raises(RuntimeError, match=r"about 1: vLLM sampled from .* make backbone.min_pixels and max_pixels agree"):
        roll_out([], trainer("colocate", [other]))

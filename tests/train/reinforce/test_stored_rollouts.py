"""A rollout buffer in a checkpoint comes back as it was, and no code comes with it."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from PIL import Image

from models.packing.groups import Continuation, Group
from train.reinforce.rollouts import Prompt
from train.reinforce.trainer import stored_rollouts


class Code:
    """Makes a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.target,)


def test_prompts_and_tensors_come_back_and_code_is_not_run(tmp_path: Path) -> None:
    group = Group((1, 2), (Continuation((3, 4), (1,), (0,)),), torch.ones(4, 3), ((1, 2, 2),))
    prompt = Prompt(group, (Image.new("RGB", (4, 5), "red"),), 1, "shown", 7, "record")
    torch.save({"step": 3, "buffer": [{"mask": torch.ones(2)}], "prompts": [prompt]}, tmp_path / "rollouts-0.pt")
    (found,) = stored_rollouts(tmp_path)["prompts"]
    assert (found.group.continuations, found.place, found.record) == (group.continuations, 7, "record")
    assert found.images[0].tobytes() == prompt.images[0].tobytes()
    assert torch.equal(found.group.pixel_values, torch.ones(4, 3))
    torch.save({"step": 3, "buffer": [], "prompts": [Code(tmp_path / "ran")]}, tmp_path / "rollouts-0.pt")
    with pytest.raises(pickle.UnpicklingError):
        stored_rollouts(tmp_path)
    assert not (tmp_path / "ran").exists()

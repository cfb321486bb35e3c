"""Our rows of released models that score pictures against the authors' own classes.

The released class runs in a process of its own with the version of transformers that its authors
name. It loads the same file of small random weights as our judge, and gets the inputs that the
authors' inference scripts make of a prompt and a picture. Scores are compared in float64.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mmrm.eval.judges.released.config import ReleasedModel
from tests.eval.judges.released.pictures import (
    PICTURES,
    candidates_for,
    picture_judge,
    questions_about,
    released,
)
from tests.models.exactness import assert_exact
from tests.released.sources import EDIT_REWARD, FOLDER, HPSV3, Release

pytestmark = [pytest.mark.slow, pytest.mark.numerics]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("release", "model", "weights"),
    [
        (HPSV3, "hpsv3", "HPSv3.safetensors"),
        (EDIT_REWARD, "edit_reward", "model.safetensors"),
    ],
    ids=["HPSv3", "EditReward"],
)
def test_a_judge_computes_what_the_released_class_computes(
    tmp_path: Path, release: Release, model: ReleasedModel, weights: str
) -> None:
    environment = FOLDER / f"transformers-{release.transformers}"
    for path in (FOLDER / release.file, environment):
        if not path.exists():
            pytest.skip(f"{path} does not exist: run `make released`, which downloads it")
    files = released(tmp_path, model, weights=weights)
    tokens = files.stock.config
    pictures = []
    for picture in PICTURES:
        pictures.append([dict(inputs) for inputs in questions_about(files, model, picture)])
    content = {
        "tensors": load_file(files.weights),
        "pictures": pictures,
        "vocabulary": tokens.text_config.vocab_size,
        "reward_token": tokens.text_config.vocab_size - 1,
        "pad_token": tokens.text_config.pad_token_id,
        "marks": {
            "image_token_id": tokens.image_token_id,
            "video_token_id": tokens.video_token_id,
            "vision_start_token_id": tokens.vision_start_token_id,
            "vision_end_token_id": tokens.vision_end_token_id,
        },
    }
    torch.save(content, tmp_path / "content.pt")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.released.row_probe",
            release.name,
            str(tmp_path / "content.pt"),
            str(tmp_path / "numbers.pt"),
        ],
        env={**os.environ, "PYTHONPATH": str(environment.resolve())},
        check=True,
        timeout=300,
    )
    theirs = torch.load(tmp_path / "numbers.pt")

    [scores] = picture_judge(files.judge_file).score_batch([candidates_for(model)])
    difference = (torch.tensor(scores.values) - theirs[:, 0]).abs().max() / theirs.abs().max()
    print(f"\n{release.name}: scores {scores.values}, differ by {difference:.1e}")
    assert_exact(scores.values, theirs[:, 0])
    # Their second number is the logarithm of the deviation.
    assert_exact(scores.attributes["std"], theirs[:, 1].exp())

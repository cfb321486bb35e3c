"""Random rows that two ranks compute together, against the same rows on one rank.

    python -m tests.models.families.divided_rows 50             # of every family; prints the largest differences in float64
    python -m tests.models.families.divided_rows 50 qwen3_vl    # of this family

The rows are those of `arrangements` and, in families with tokens of videos, of `random_videos`.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from mmrm.models.activations import set_checkpointing
from mmrm.models.config import CheckpointingMode
from mmrm.models.families.registry import FAMILIES
from mmrm.models.packing.packed_batch import PackedBatch, divide, filler_tree
from mmrm.models.packing.sequence_group import make_group
from mmrm.models.packing.sequence_parallel import divide_sequences
from tests.models import tiny
from tests.models.families.arrangements import arrangement, reward_model
from tests.models.families.random_videos import FAMILIES as WITH_VIDEOS
from tests.models.families.random_videos import arrangement as video_arrangement
from tests.train.ranks import run_ranks

DIVIDED = [family for family in FAMILIES if family != "qwen3_5"]
"""The families without recurrent layers."""


def random_row(encoder: Any, family: str, seed: int) -> PackedBatch:
    """Return a row of random trees with texts, images and videos, and fillers anywhere among them."""
    draw = random.Random(seed)
    prompts = arrangement(draw, family)
    if family in WITH_VIDEOS and seed % 2:
        prompts = video_arrangement(draw, family)
    row = []
    for conversations in prompts:
        row += [filler_tree(encoder.vision)] * draw.randint(0, 1)
        row.append(encoder.encode_conversations(conversations, "end_of_turn", "a random record"))
    return encoder.pack(row)  # type: ignore[no-any-return]


def gradients_of(model: Any, batch: PackedBatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the scores of a row, and the gradients of a sum of them by the name of the weight."""
    model.zero_grad()
    scores = model(**batch.score_inputs())
    weights = torch.linspace(-1, 2, len(scores))
    torch.autograd.backward((scores * weights).sum())
    gradients = {}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{name} took no part on this rank"
        gradients[name] = parameter.grad.clone()
    return scores.detach(), gradients


def differences(model: Any, whole: PackedBatch, own: PackedBatch) -> tuple[float, float]:
    """Return the largest difference of a score and of a gradient, each relative to the largest one."""
    scores, gradients = gradients_of(model, whole)
    divided_scores, divided_gradients = gradients_of(model, own)
    largest_gradient = max(float(one.abs().max()) for one in gradients.values())
    of_scores = float((divided_scores - scores).abs().max() / scores.abs().max())
    of_gradients = 0.0
    for name, gradient in divided_gradients.items():
        distributed.all_reduce(gradient)
        # The loss of a step is divided by its records, and both ranks count those of the row.
        difference = gradient / distributed.get_world_size() - gradients[name]
        of_gradients = max(of_gradients, float(difference.abs().max()) / largest_gradient)
    return of_scores, of_gradients


def compare(
    folder: Path, families: Sequence[str], count: int, modes: Sequence[CheckpointingMode]
) -> None:
    """Compare random rows on this rank, and write the largest differences of each family."""
    # Before there is a process group, because only the first rank of one writes checkpoints.
    rank = os.environ["RANK"]
    models = [reward_model(folder / f"{family}-{rank}", family) for family in families]
    distributed.init_process_group("gloo")
    group = make_group(distributed.get_world_size())
    assert group is not None
    for family, model in zip(families, models, strict=True):
        encoder = tiny.encoder(family)
        divide_sequences(model, group.size)
        model.train()
        found = []
        for seed in range(count):
            set_checkpointing(model, modes[seed % len(modes)])
            whole = random_row(encoder, family, seed)
            found.append(differences(model, whole, divide(whole, group, encoder.vision)))
        scores, gradients = zip(*found, strict=True)
        path = folder / f"{family}-{group.rank}.json"
        path.write_text(json.dumps([max(scores), max(gradients)]))
    distributed.destroy_process_group()


def main(count: int, families: Sequence[str]) -> None:
    """Print the largest differences over `count` rows of families, in float64."""
    with tempfile.TemporaryDirectory() as folder:
        modes = ("none", "full", "attention", "linear")
        run_ranks(
            Path(folder),
            compare,
            Path(folder),
            families,
            count,
            modes,
            seconds=3600,
            in_float64=True,
        )
        for family in families:
            scores, gradients = json.loads(Path(folder, f"{family}-0.json").read_text())
            print(f"{family}: {count} rows, scores {scores:.1e}, gradients {gradients:.1e}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:] or DIVIDED)

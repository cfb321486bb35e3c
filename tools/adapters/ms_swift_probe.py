"""python ms_swift_probe.py FILE NAME ROWS: ms-swift's own loader imports a plug-in, and its GRPO code asks it for rewards.

ROWS: JSON, a list of `{"question", "images": [paths], "responses": [texts]}`. The last line printed: JSON, versions and rewards.
Runs in ms-swift's environment, without this project.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from swift.rewards import orms
from swift.rl_core.data import GRPOSample
from swift.rl_core.grpo_algorithm import score_completions
from swift.utils import import_external_file


def samples(row: dict[str, Any], place: int) -> list[GRPOSample]:
    """Return a group as rollouts leave it; images as a data set read by ms-swift has them."""
    question = "<image>" * len(row["images"]) + row["question"]
    images = [{"bytes": None, "path": path} for path in row["images"]]
    chats = [
        [{"role": "user", "content": question}, {"role": "assistant", "content": one}]
        for one in row["responses"]
    ]
    ids = {"prompt_id": str(place), "request_id": "probe"}
    return [GRPOSample.from_row({"messages": chat, "images": images, **ids}) for chat in chats]


def main(file: str, name: str, rows: str) -> None:
    """Print what the plug-in gives for all rows, which are one batch."""
    import_external_file(file)
    groups = [
        samples(row, place)
        for place, row in enumerate(json.loads(Path(rows).read_text(encoding="utf-8")))
    ]
    batch = [sample for group in groups for sample in group]
    found = score_completions(
        batch, [orms[name](args=None)], [None], use_gym_env=False, device=torch.device("cpu")
    )[:, 0]
    rewards = [part.tolist() for part in found.split([len(group) for group in groups])]
    print(
        json.dumps(
            {
                "versions": {name: version(name) for name in ("ms-swift", "transformers", "trl")},
                "rewards": rewards,
            }
        )
    )


main(*sys.argv[1:])

"""python verl_probe.py FILE CLASS TOKENIZER ROWS: verl's own reward worker loads a manager from a file and asks it for rewards.

ROWS: JSON, a list of `{"question", "images": [paths], "responses": [texts]}`. The last line printed: JSON, versions and rewards.
Runs in verl's environment, without this project.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import verl
from hydra import compose, initialize_config_dir
from PIL import Image
from tensordict import TensorDict
from verl import DataProto
from verl.experimental.reward_loop import RewardLoopWorker


def batch(worker: Any, row: dict[str, Any]) -> DataProto:
    """Return a group as rollouts leave it: prompts padded on the left, responses on the right, messages as numpy objects."""
    tokenizer, images = (
        worker.input_tokenizer,
        [{"type": "image", "image": Image.open(path)} for path in row["images"]],
    )
    content = [*images, {"type": "text", "text": row["question"]}] if images else row["question"]
    prompt = tokenizer(row["question"], return_tensors="pt")["input_ids"]
    answers = tokenizer(
        [one + tokenizer.eos_token for one in row["responses"]],
        padding=True,
        padding_side="right",
        return_tensors="pt",
    )
    count, ids = (
        len(row["responses"]),
        torch.cat([prompt.expand(len(row["responses"]), -1), answers["input_ids"]], 1),
    )
    mask = torch.cat([torch.ones_like(prompt).expand(count, -1), answers["attention_mask"]], 1)
    parts = {
        "prompts": prompt.expand(count, -1),
        "responses": answers["input_ids"],
        "input_ids": ids,
        "attention_mask": mask,
    }
    others = {
        "raw_prompt": [{"role": "user", "content": content}],
        "data_source": "probe",
        "reward_model": {"ground_truth": ""},
    }
    return DataProto(
        TensorDict(parts, count),
        {name: np.array([value] * count) for name, value in others.items()},
    )


def main(file: str, name: str, tokenizer: str, rows: str) -> None:
    """Print what the manager gives."""
    changes = ["source=importlib", f"name={name}", f"module.path={Path(file).resolve()}"]
    with initialize_config_dir(
        str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None
    ):
        settings = [f"reward.reward_manager.{change}" for change in changes]
        config = compose("ppo_trainer", [*settings, f"actor_rollout_ref.model.path={tokenizer}"])
    worker = RewardLoopWorker(config)
    groups = [batch(worker, row) for row in json.loads(Path(rows).read_text(encoding="utf-8"))]
    found = [
        [
            one["reward_score"]
            for one in worker.loop.run_until_complete(worker.compute_score_batch(group))
        ]
        for group in groups
    ]
    print(
        json.dumps(
            {
                "versions": {name: version(name) for name in ("verl", "transformers", "ray")},
                "rewards": found,
            }
        )
    )


main(*sys.argv[1:])

"""python trl_probe.py FILE NAME ROWS: the reward code of TRL's GRPO and RLOO trainers calls a function of a file.

ROWS: JSON, a list of `{"question", "images": [paths], "responses": [texts]}`. The last line printed: JSON, versions and rewards.
The trainers have no model, which their rewards don't need.
"""

import json
import runpy
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from accelerate import Accelerator
from PIL import Image
from trl import GRPOTrainer, RLOOTrainer
from trl.data_utils import prepare_multimodal_messages
from trl.trainer.utils import shutdown_event_loop_in_daemon, start_event_loop_in_daemon


def rewards(kind: Any, function: Any, rows: list[dict[str, Any]]) -> list[float]:
    """Return the rewards of all responses of `rows`, which are one batch, as trainer `kind` computes them."""
    trainer = kind.__new__(kind)
    trainer.accelerator, trainer.args, trainer.state = (
        Accelerator(cpu=True),
        SimpleNamespace(report_to=[]),
        SimpleNamespace(global_step=0),
    )
    trainer.reward_funcs, trainer.reward_processing_classes, trainer.reward_func_names = (
        [function],
        [None],
        ["probe"],
    )
    trainer._log_completion_extra, trainer._log_metric, trainer.environments = print, print, None
    thread, trainer.async_loop, ready = start_event_loop_in_daemon(name="rewards")
    ready.wait()
    inputs = [
        {
            "prompt": [{"role": "user", "content": row["question"]}],
            "images": list(map(Image.open, row["images"])),
        }
        for row in rows
    ]
    inputs = [one for one, row in zip(inputs, rows, strict=True) for _ in row["responses"]]
    prompts = [prepare_multimodal_messages(one["prompt"], images=one["images"]) for one in inputs]
    completions = [
        [{"role": "assistant", "content": response}]
        for row in rows
        for response in row["responses"]
    ]
    try:
        return list(
            trainer._calculate_rewards(inputs, prompts, completions, [[0]] * len(prompts))[
                :, 0
            ].tolist()
        )
    finally:
        shutdown_event_loop_in_daemon(thread, trainer.async_loop)


def main(file: str, name: str, path: str) -> None:
    """Print what the function gives: in GRPO as groups, in RLOO as one list."""
    function, rows = runpy.run_path(file)[name], json.loads(Path(path).read_text(encoding="utf-8"))
    flat = iter(rewards(GRPOTrainer, function, rows))
    found = [[next(flat) for _ in row["responses"]] for row in rows]
    versions = {one: version(one) for one in ("trl", "transformers")}
    print(
        json.dumps(
            {"versions": versions, "rewards": found, "rloo": rewards(RLOOTrainer, function, rows)}
        )
    )


main(*sys.argv[1:])

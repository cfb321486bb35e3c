"""python inside.py JOB: runs a framework's own training in its own environment, and clocks its steps; without this project.

JOB is a JSON file: `entry`, a module or a file that is run as a program; `arguments`, its command line; `report`, the file that
is written after the last step; `image_token`, the backbone's. All frameworks here train with transformers' Trainer, so one
callback clocks them all. The process ends with the last step: nothing is saved.
"""

import json
import os
import runpy
import sys
import time
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from transformers import TrainerCallback, trainer

JOB: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
REPORTED = ("ms-swift", "llamafactory", "trl", "transformers", "torch")


def memory(line: str) -> int:
    """Return `VmRSS` (held now) or `VmHWM` (the most since the last reset) of this process, in bytes."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition(f"{line}:")[2].split()[0]) * 1024


class Clock(TrainerCallback):  # type: ignore[misc]
    """Notes wall and processor time at the end of every step, its loss, and the memory of the training."""

    def __init__(self) -> None:
        self.report: dict[str, Any] = {"wall": [], "cpu": [], "losses": []}

    def on_train_begin(self, *args: Any, **rest: Any) -> None:
        """Forget the peak of what came before."""
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        self.report["before"] = memory("VmRSS")

    def on_step_end(self, *args: Any, **rest: Any) -> None:
        """Note both clocks: from one end to the next is a whole step, its data included."""
        self.report["wall"].append(time.perf_counter())
        self.report["cpu"].append(time.process_time())

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any], **rest: Any
    ) -> None:
        """Note the loss; after the last step's write the report and end."""
        if "loss" not in logs:
            return
        self.report["losses"].append(logs["loss"])
        if state.global_step == state.max_steps:
            found = {one.name.replace("_", "-"): one.version for one in distributions()}
            self.report |= {
                "peak": memory("VmHWM"),
                "threads": torch.get_num_threads(),
                "versions": {name: found[name] for name in REPORTED if name in found},
            }
            Path(JOB["report"]).write_text(json.dumps(self.report), encoding="utf-8")
            sys.stdout.flush()
            os._exit(0)


def main() -> None:
    """Run the framework with the clock."""
    entry, sys.argv = JOB["entry"], [JOB["entry"], *JOB["arguments"]]
    if entry.startswith("llamafactory."):
        try:
            import_module("torchaudio")
        except OSError:  # a build for CUDA beside a torch for CPUs; it is imported there for sounds, and there are none
            stand_in = ModuleType("torchaudio")
            stand_in.__spec__ = ModuleSpec("torchaudio", None)
            sys.modules["torchaudio"] = stand_in
    if entry.startswith("swift."):
        import_module("swift.trainers")  # it puts its own callbacks in place of transformers'
        from swift.template.templates.qwen import Qwen2VLTemplate

        Qwen2VLTemplate.image_token_id = JOB[
            "image_token"
        ]  # it is a constant there, the released vocabulary's
    trainer.DEFAULT_CALLBACKS.append(Clock)
    if entry.endswith(".py"):
        runpy.run_path(entry, run_name="__main__")
    else:
        runpy.run_module(entry, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

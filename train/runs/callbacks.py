"""What happens beside the loop: the `best` link and the console.

The end of a run: one table of the best checkpoint, and where everything lies.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from eval.results.result import Result
from eval.results.tables import results_table
from train.supervised.checkpoints import checkpoints

BEST = "best"
"""The link in the run folder."""

COLUMNS = {
    "loss": "{:.4f}",
    "accuracy": "{:.3f}",
    "margin": "{:+.3f}",
    "perplexity": "{:.3f}",
    "reward_mean": "{:+.3f}",
    "reward_spread": "{:.3f}",
    "grad_norm": "{:.2f}",
    "learning_rate": "{:.2e}",
    "records_per_second": "{:.1f}",
    "tokens_per_second": "{:.0f}",
    "compiled_graphs": "{:.0f}",
}
"""What a console line shows, in this order, of all that is logged."""


def point_link(link: Path, target: Path) -> None:
    """Let `link` point at `target` by a relative path, in one atomic step; a kill leaves the old link or the new one."""
    beside = link.with_name(link.name + ".new")
    beside.unlink(missing_ok=True)
    beside.symlink_to(os.path.relpath(target, link.parent), target_is_directory=True)
    beside.replace(link)


class BestLink(TrainerCallback):  # type: ignore[misc]
    """Keeps `best` in the run folder pointing at the best checkpoint so far; Trainer finds it and rotation spares it."""

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any) -> None:
        """Set the link on resume, in case a kill came between a save and its link."""
        self.on_save(args, state, control, **rest)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any) -> None:
        """Move the link after a save; `state.best_model_checkpoint` is restored on resume."""
        if state.is_world_process_zero and state.best_model_checkpoint:
            point_link(Path(args.output_dir) / BEST, Path(args.output_dir) / Path(state.best_model_checkpoint).name)


class ConsoleProgress(TrainerCallback):  # type: ignore[misc]
    """A progress bar and a line of figures at every logging step, on the first rank."""

    def __init__(self, console: Console, columns: Mapping[str, str] = COLUMNS) -> None:
        self.console, self.columns = console, columns
        self.progress: Progress | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any) -> None:
        """Open the bar at the step from which the run starts or resumes."""
        if state.is_world_process_zero:
            columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
            self.progress = Progress(*columns, console=self.console)
            self.progress.start()
            self.task = self.progress.add_task("steps", total=state.max_steps, completed=state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any) -> None:
        """Move the bar."""
        if self.progress:
            self.progress.update(self.task, completed=state.global_step)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict[str, float], **rest: Any
    ) -> None:
        """Print the figures of COLUMNS that this line holds."""
        shown = [f"{name} {form.format(logs[name])}" for name, form in self.columns.items() if logs.get(name) is not None]
        dropped = [f"{name} {value:.0f}" for name, value in logs.items() if name.startswith("dropped/")]
        if self.progress and shown:
            line = f"step {state.global_step:>6}  " + "  ".join(shown + dropped)
            self.progress.console.print(line, highlight=False, soft_wrap=True)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any) -> None:
        """Close the bar."""
        if self.progress:
            self.progress.stop()
            self.progress = None


def read_results(folder: Path) -> dict[str, Result]:
    """Return the results in a checkpoint's `eval` folder by benchmark; empty where it was never evaluated."""
    return {
        path.stem: Result.model_validate_json(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("eval/*.json"))
    }


def summarise(folder: Path, console: Console, *, baselines: bool) -> None:
    """Print the table of the best checkpoint (of the last one where nothing was evaluated), and the places."""
    found = checkpoints(folder)
    if not found:
        return
    chosen = (folder / BEST).resolve() if (folder / BEST).exists() else found[-1]
    results = read_results(chosen)
    if results:
        console.print(results_table(results, title=f"{folder}: best is {chosen.name}", baselines=baselines))
    places = {
        "weights": chosen,
        "figures and predictions": chosen / "eval",
        "recipe, versions, data": folder / "provenance.json",
        "other checkpoints": ", ".join(path.name for path in found if path.name != chosen.name) or "none",
    }
    for name, place in places.items():
        console.print(f"{name:<25}{place}", highlight=False, soft_wrap=True)

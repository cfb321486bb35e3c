"""The callbacks of a run: checks, model cards, checkpoints, console and log; and its last table."""

import json
import time
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mmrm.data.storage.files import write_json_lines
from mmrm.eval.results.run_folder import LOG
from mmrm.eval.results.summary_table import results_table
from mmrm.train.checkpoints.rotation import KeepCheckpoints, checkpoints, chosen_checkpoint
from mmrm.train.methods.method import Method
from mmrm.train.runs.model_card import RunOrigin, read_results, write_cards
from mmrm.train.supervised.optimizer import FiniteWeights


def run_callbacks(method: Method) -> list[TrainerCallback]:
    """Return the callbacks of a run."""
    cards = partial(write_cards, method.recipe, RunOrigin.of_mixture(method.mixture))
    kept = KeepCheckpoints(method.recipe.output.keep_checkpoints, cards, method.staging)
    return [FiniteWeights(), kept, ConsoleProgress(method.console, method.columns), LogFile()]


class ConsoleProgress(TrainerCallback):  # type: ignore[misc]
    """A progress bar, and lines of figures and of saves, on the first rank.

    A log file has no progress bar. There, the remaining steps and time are in each line.

    Trainer logs, evaluates and saves after a step, in this order. So a save begins when the last
    one of the other events has ended, and training waits for it until all callbacks that are before
    this one have ended, too.
    """

    def __init__(self, console: Console, columns: Mapping[str, str]) -> None:
        self.columns = columns
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
        )

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any
    ) -> None:
        """Open the progress bar at the step from which the run starts or resumes."""
        if state.is_world_process_zero:
            self.first_step = state.global_step
            self.started = time.monotonic()
            self.progress.start()
            self.task = self.progress.add_task(
                "steps", total=state.max_steps, completed=state.global_step
            )

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any
    ) -> None:
        """Move the progress bar to the current step."""
        self.save_began = time.monotonic()
        if state.is_world_process_zero:
            self.progress.update(self.task, completed=state.global_step)

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any
    ) -> None:
        """Note the end of an evaluation, after which a checkpoint is saved."""
        self.save_began = time.monotonic()

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any
    ) -> None:
        """Print how long training waited for the checkpoint."""
        if state.is_world_process_zero:
            seconds = time.monotonic() - self.save_began
            line = f"step {state.global_step:>6}  saved in {seconds:.1f} s"
            self.progress.console.print(line, highlight=False)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float],
        **rest: Any,
    ) -> None:
        """Print the columns that this line holds, and how many records were dropped."""
        self.save_began = time.monotonic()
        cells = [
            f"{name} {form.format(logs[name])}"
            for name, form in self.columns.items()
            if logs.get(name) is not None
        ]
        if not state.is_world_process_zero or not cells:
            return
        for name, value in logs.items():
            if name.startswith("dropped/"):
                cells.append(f"{name} {value:.0f}")
        if not self.progress.console.is_terminal:
            cells.append(self.remainder(state))
        line = f"step {state.global_step:>6}  " + "  ".join(cells)
        self.progress.console.print(line, highlight=False, soft_wrap=True)

    def remainder(self, state: TrainerState) -> str:
        """Return the steps that remain, and the time that they take at the speed of this process.

        The speed includes evaluations and saves. There is no time before the first step.
        """
        num_remaining = state.max_steps - state.global_step
        remaining_steps = f"{num_remaining:,} of {state.max_steps:,} steps left"
        num_done = state.global_step - self.first_step
        if num_done == 0:
            return remaining_steps
        seconds_per_step = (time.monotonic() - self.started) / num_done
        remaining_time = timedelta(seconds=round(seconds_per_step * num_remaining))
        return f"{remaining_steps}, {remaining_time}"

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any
    ) -> None:
        """Close the progress bar."""
        if state.is_world_process_zero:
            self.progress.stop()


class LogFile(TrainerCallback):  # type: ignore[misc]
    """Writes every line of the log into the run folder at once.

    A resume removes the lines after its checkpoint. The last step always has a line.
    """

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any
    ) -> None:
        """Write the log lines of the checkpoint from which the run continues."""
        if state.is_world_process_zero:
            write_json_lines(Path(args.output_dir) / LOG, state.log_history)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any
    ) -> None:
        """Request a log line at the last step."""
        control.should_log |= state.global_step >= state.max_steps

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any
    ) -> None:
        """Append the line that Trainer has just added to its history."""
        if state.is_world_process_zero:
            with (Path(args.output_dir) / LOG).open("a", encoding="utf-8") as file:
                file.write(json.dumps(state.log_history[-1]) + "\n")


def summarise(folder: Path, console: Console, *, baselines: bool) -> None:
    """Print the table of a run's best checkpoint, and where its files are.

    If nothing was evaluated the table is left out, and the checkpoint is the last one.
    """
    all_checkpoints = checkpoints(folder)
    if not all_checkpoints:
        return
    chosen = chosen_checkpoint(folder)
    results = read_results(chosen)
    if results:
        title = f"{folder}: best is {chosen.name}"
        console.print(results_table(results, title=title, baselines=baselines).rich())
    others = [path.name for path in all_checkpoints if path.name != chosen.name]
    places = {
        "weights": chosen,
        "figures and predictions": chosen / "eval",
        "recipe, versions, data": folder / "provenance.json",
        "other checkpoints": ", ".join(others) or "none",
    }
    for name, place in places.items():
        console.print(f"{name:<25}{place}", highlight=False, soft_wrap=True)

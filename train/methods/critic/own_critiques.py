"""The critic: critiques by cross-entropy and scores by Bradley-Terry, from one pass over a packed row.

The scores may be trained on critiques that the critic itself writes at stated steps, to close the gap to inference. At the first
step of every window of `refresh_every_steps` steps, all ranks write the critiques of the window's records together and store
them in the run folder; loader workers, which run ahead, wait for that file. A resume inside a window finds the file and goes on
with the very same critiques; files of other windows are left from what the run did before it was cut off, perhaps with another
recipe, and are removed when it starts. Critiques are stored under a digest of their record, as two sources may call different
records alike.
"""

import json
import random
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mmrm.data.errors import UserError
from mmrm.data.preference import Preference
from mmrm.data.preparation.mixing import Mixture
from mmrm.data.storage.content import record_key
from mmrm.data.storage.files import read_json, write_whole
from mmrm.eval.candidates import Candidates, Scores, candidates_from_record
from mmrm.models.distributed import barrier, gather, rank
from mmrm.train.recipe.methods import CriticConfig
from mmrm.train.supervised.steps import StepDataset

CONTENT_KEY = re.compile(r"[0-9a-f]{64}")
"""A key as `record_key` returns it."""


Write = Callable[[Any, Sequence[Candidates]], Sequence[Scores]]
"""(critic, examples) -> verdicts with critiques; called on all ranks together."""

WAIT_SECONDS = 0.2

WAIT_LIMIT = 6 * 3600
"""Seconds that a loader's worker waits for the critiques of a window, which take minutes to an hour."""


@dataclass
class CritiqueStore:
    """The critiques of one window, on disk and, once asked for, in memory."""

    folder: Path
    config: CriticConfig
    seed: int
    end: int = sys.maxsize
    """Steps of the run, at which its last window ends: one that is given more steps writes that window anew."""
    _window: range | None = None
    _critiques_by_record: dict[str, list[str]] = field(default_factory=dict)

    def window(self, step: int) -> range | None:
        """Return the optimizer steps of the window of `step`, None during the warm-up on ground-truth critiques."""
        after, length = step - self.config.warmup_steps, self.config.refresh_every_steps
        first = step - after % length
        return None if after < 0 else range(first, min(first + length, self.end))

    def path(self, window: range) -> Path:
        """Return the file of a window, named by its first step and the one after its last."""
        return self.folder / f"steps-{window.start}-{window.stop}.json"

    def own(self, identity: str) -> bool:
        """Return True if a record is one of the share that is scored on the model's own critique.

        The identity is the label from which this is drawn, and no key.
        """
        share = 1.0 if self.config.own_share is None else self.config.own_share
        return random.Random(f"{self.seed}/{identity}").random() < share

    def load(self, step: int) -> None:
        """Take up the window of `step`, waiting until it is written."""
        window = self.window(step)
        if window is None or window == self._window:
            return
        path, begin = self.path(window), time.monotonic()
        while not path.exists():
            if time.monotonic() - begin > WAIT_LIMIT:
                raise UserError(
                    f"{path}: nobody has written the critiques for these steps in {WAIT_LIMIT / 3600:g} hours. The first rank "
                    "writes them; all ranks must see the run folder. Look at what it printed, then continue with --resume."
                )
            time.sleep(WAIT_SECONDS)
        self._window = window
        self._critiques_by_record = read_json(path)

    def __call__(self, record: Preference) -> list[str] | None:
        """Return the model's own critiques of a record, None if it is scored on the ground truth."""
        if self._window is None or not self.own(record.identity):
            return None
        return self._critiques_by_record.get(record_key(record))

    def can_continue(self, path: Path) -> bool:
        """Return True if a window's file is keyed by content; an earlier version keyed it by identity."""
        return all(CONTENT_KEY.fullmatch(key) for key in read_json(path))


class WriteCritiques(TrainerCallback):  # type: ignore[misc]
    """Writes the critiques of a window when its first step is next."""

    def __init__(
        self, store: CritiqueStore, steps: StepDataset, mixture: Mixture, write: Write
    ) -> None:
        self.store, self.steps, self.mixture, self.write = store, steps, mixture, write
        store.end = len(steps)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any
    ) -> None:
        """Write the window in which the run starts or resumes, unless it resumes inside it."""
        if rank() == 0:
            # A run that starts again must not train on what another one wrote here.
            window = self.store.window(state.global_step) if state.global_step else None
            for path in self.store.folder.glob("steps-*"):
                if window is None or path != self.store.path(window):
                    path.unlink()
                elif not self.store.can_continue(path):
                    path.unlink()
                    print(
                        f"{path} was written by an earlier version, which kept critiques under names that records may "
                        "share. The critiques of these steps are written again.",
                        file=sys.stderr,
                        flush=True,
                    )
        barrier()
        self.on_step_end(args, state, control, **rest)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any
    ) -> None:
        """Write the next window before its first step is asked for."""
        step, model = state.global_step, rest["model"]
        window = self.store.window(step)
        if window is None or step >= len(self.steps):
            return
        path = self.store.path(window)
        if gather(path.exists())[0]:
            return
        indices = dict.fromkeys(self.steps.global_indices(window))
        records = [self.mixture.load(index, lambda record: record) for index in indices]
        records = [record for record in records if self.store.own(record.identity)]
        batch = list(map(candidates_from_record, records))
        training = model.training
        model.eval()
        scores_of_batch = self.write(model, batch)
        model.train(training)
        critiques_by_record = {
            record_key(record): scores.texts
            for record, scores in zip(records, scores_of_batch, strict=True)
            if scores.texts
        }
        if rank() == 0:
            write_whole(path, json.dumps(critiques_by_record))

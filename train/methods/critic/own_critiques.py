"""Critiques that a critic writes during training, on which its scores are trained.

In use a critic scores a response after its own critique, not after one from the data. To train it
on such critiques, the run is divided into windows of `refresh_every_steps` optimizer steps. Before
the first step of a window, all ranks together write critiques for the records of the window, and
store them in a file of the run folder. Loader workers, which run ahead, wait for that file.

A resume inside a window finds the file and continues with the same critiques. Files of other
windows were written before the run was cut off, perhaps with another recipe, and are removed when
it starts. Critiques are stored under a digest of their record, because two sources may give one
identity to different records.
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
from mmrm.train.methods.critic.config import CriticConfig
from mmrm.train.supervised.steps import StepDataset

CONTENT_KEY = re.compile(r"[0-9a-f]{64}")
"""A key as `record_key` returns it."""

Write = Callable[[Any, Sequence[Candidates]], Sequence[Scores]]
"""Takes the model and pairs of responses, and returns scores whose texts are the model's critiques.
All ranks call it together."""

WAIT_SECONDS = 0.2
"""Seconds between two looks for a file of critiques."""
WAIT_LIMIT = 6 * 3600
"""Seconds that a loader's worker waits for critiques. Writing them takes minutes to an hour."""


@dataclass
class CritiqueStore:
    """The critiques that the model wrote for a window of optimizer steps.

    They are read from the file of the window by `load`. A call with a record then returns the
    critiques of this record.
    """

    folder: Path
    config: CriticConfig
    seed: int
    end: int = sys.maxsize
    """Number of steps of the run, at which its last window ends. If a run is given more steps, the
    last window becomes longer, and its critiques are written again."""
    _loaded_window: range | None = None
    _critiques_by_record: dict[str, list[str]] = field(default_factory=dict)
    """The critiques of the chosen and the rejected response, by `record_key`."""

    def window(self, step: int) -> range | None:
        """Return the steps of the window to which an optimizer step belongs.

        A window consists of `refresh_every_steps` steps, whose critiques are written at once.
        Returns None during the warm-up, in which scores are trained on critiques from the data.
        """
        steps_after_warmup = step - self.config.warmup_steps
        if steps_after_warmup < 0:
            return None
        length = self.config.refresh_every_steps
        first = step - steps_after_warmup % length
        return range(first, min(first + length, self.end))

    def path(self, window: range) -> Path:
        """Return the file of a window, named by its first step and the one after its last."""
        return self.folder / f"steps-{window.start}-{window.stop}.json"

    def uses_model_critique(self, identity: str) -> bool:
        """Return True if the score of a record is trained on critiques that the model wrote.

        The record is drawn with the probability `own_share`. The draw depends on the seed and the
        identity of the record alone, so that all processes agree.
        """
        share = 1.0 if self.config.own_share is None else self.config.own_share
        return random.Random(f"{self.seed}/{identity}").random() < share

    def load(self, step: int) -> None:
        """Wait for the critiques of the window of steps to which `step` belongs, and read them.

        Nothing happens during the warm-up, or if they have been read.

        Raises:
            UserError: If they are not written within WAIT_LIMIT.
        """
        window = self.window(step)
        if window is None or window == self._loaded_window:
            return
        path = self.path(window)
        started = time.monotonic()
        while not path.exists():
            if time.monotonic() - started > WAIT_LIMIT:
                raise UserError(
                    f"{path}: nobody has written the critiques for these steps in "
                    f"{WAIT_LIMIT / 3600:g} hours. The first rank writes them; all ranks must see "
                    "the run folder. Look at what it printed, then continue with --resume."
                )
            time.sleep(WAIT_SECONDS)
        self._loaded_window = window
        self._critiques_by_record = read_json(path)

    def __call__(self, record: Preference) -> list[str] | None:
        """Return the critiques that the model wrote of a record's chosen and rejected response.

        Returns None if the record is scored on the critiques from the data instead, or if the model
        wrote none for it.
        """
        if self._loaded_window is None or not self.uses_model_critique(record.identity):
            return None
        return self._critiques_by_record.get(record_key(record))

    def can_continue(self, path: Path) -> bool:
        """Return True if a run can continue with a file of critiques.

        It cannot if an earlier version wrote the file. The keys of such a file are the identities
        of records, and not digests of their content.
        """
        return all(CONTENT_KEY.fullmatch(key) for key in read_json(path))


class WriteCritiques(TrainerCallback):  # type: ignore[misc]
    """Lets the model write critiques for a window of optimizer steps before its first step.

    A window has `refresh_every_steps` steps, whose records are scored on these critiques.
    """

    def __init__(
        self, store: CritiqueStore, steps: StepDataset, mixture: Mixture, write: Write
    ) -> None:
        """Prepare the callback, and tell the store the length of the run.

        Args:
            store: Decides which steps are a window, and into which file its critiques are written.
            steps: The optimizer steps of the run.
            mixture: The records of the run.
            write: Lets the model write critiques.
        """
        self.store = store
        self.steps = steps
        self.mixture = mixture
        self.write = write
        store.end = len(steps)  # the last window ends there

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write critiques for the first window of steps, and remove the critiques of other windows.

        A window is a sequence of steps whose critiques are written at once. A run that is resumed
        inside a window keeps the critiques of this window.
        """
        if rank() == 0:
            self._remove_other_windows(state.global_step)
        barrier()
        # Writes the critiques of the window of the next step, unless its file exists.
        self.on_step_end(args, state, control, **kwargs)

    def _remove_other_windows(self, step: int) -> None:
        """Remove the files of critiques that this run must not train on.

        Args:
            step: The step at which the run starts. If it is not 0, the run is resumed, and the file
                of the window of this step is kept, unless an earlier version wrote it.
        """
        window = self.store.window(step) if step else None
        for path in self.store.folder.glob("steps-*"):
            if window is None or path != self.store.path(window):
                path.unlink()
            elif not self.store.can_continue(path):
                path.unlink()
                print(
                    f"{path} was written by an earlier version, which kept critiques under names "
                    "that records may share. The critiques of these steps are written again.",
                    file=sys.stderr,
                    flush=True,
                )

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write critiques for the window of steps to which the next step belongs.

        Nothing happens if the file of the window exists. All ranks call together.
        """
        step = state.global_step
        window = self.store.window(step)
        if window is None or step >= len(self.steps):
            return
        path = self.store.path(window)
        exists_on_first_rank = gather(path.exists())[0]
        if exists_on_first_rank:
            return
        # An index can occur twice, if an epoch ends inside the window.
        unique_indices = dict.fromkeys(self.steps.global_indices(window))
        records = []
        for index in unique_indices:
            record = self.mixture.load(index, lambda record: record)
            if self.store.uses_model_critique(record.identity):
                records.append(record)
        batch = [candidates_from_record(record) for record in records]

        model = kwargs["model"]
        was_training = model.training
        model.eval()
        scores_of_batch = self.write(model, batch)
        model.train(was_training)
        critiques_by_record = {}
        for record, scores in zip(records, scores_of_batch, strict=True):
            if scores.texts:
                critiques_by_record[record_key(record)] = scores.texts
        if rank() == 0:
            write_whole(path, json.dumps(critiques_by_record))

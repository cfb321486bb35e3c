"""Critiques that a critic writes during training, to be scored on them as at inference.

At the first step of every window of `refresh_every_steps` steps, all ranks write the critiques of
the window's records together and store them in the run folder. Loader workers, which run ahead,
wait for that file. A resume inside a window finds the file and continues with the same critiques.
Files of other windows are left from what the run did before it was cut off, perhaps with another
recipe, and are removed when it starts. Critiques are stored under a digest of their record, because
two sources may call different records alike.
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
"""(critic, batch) -> scores, whose texts are the critiques; called on all ranks together."""

WAIT_SECONDS = 0.2

WAIT_LIMIT = 6 * 3600
"""Seconds that a loader's worker waits for critiques. Writing them takes minutes to an hour."""


@dataclass
class CritiqueStore:
    """The critiques of one window, on disk and, once asked for, in memory."""

    folder: Path
    config: CriticConfig
    seed: int
    end: int = sys.maxsize
    """The steps of the run, at which its last window ends. A run that is given more steps writes
    that window again."""
    _window: range | None = None
    _critiques_by_record: dict[str, list[str]] = field(default_factory=dict)

    def window(self, step: int) -> range | None:
        """Return the optimizer steps of the window that holds `step`.

        It is None during the warm-up on ground-truth critiques.
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

    def own(self, identity: str) -> bool:
        """Return True if a record is one of the share that is scored on the model's own critique.

        The identity is the label from which this is drawn, and no key.
        """
        share = 1.0 if self.config.own_share is None else self.config.own_share
        return random.Random(f"{self.seed}/{identity}").random() < share

    def load(self, step: int) -> None:
        """Read the critiques of the window that holds `step`, once they are written.

        Raises:
            UserError: If they are not written within WAIT_LIMIT.
        """
        window = self.window(step)
        if window is None or window == self._window:
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
        self._window = window
        self._critiques_by_record = read_json(path)

    def __call__(self, record: Preference) -> list[str] | None:
        """Return the model's own critiques of a record, None if the record's are used."""
        if self._window is None or not self.own(record.identity):
            return None
        return self._critiques_by_record.get(record_key(record))

    def can_continue(self, path: Path) -> bool:
        """Return True if a file is keyed by content; an earlier version keyed it by identity."""
        return all(CONTENT_KEY.fullmatch(key) for key in read_json(path))


class WriteCritiques(TrainerCallback):  # type: ignore[misc]
    """Writes the critiques of a window when its first step is next."""

    def __init__(
        self, store: CritiqueStore, steps: StepDataset, mixture: Mixture, write: Write
    ) -> None:
        self.store = store
        self.steps = steps
        self.mixture = mixture
        self.write = write
        store.end = len(steps)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any
    ) -> None:
        """Write the window in which the run starts or resumes, unless it resumes inside it."""
        if rank() == 0:
            self._remove_other_windows(state.global_step)
        barrier()
        self.on_step_end(args, state, control, **rest)

    def _remove_other_windows(self, step: int) -> None:
        """Remove what another run wrote, so that this one does not train on it.

        A run that resumes at `step` keeps the window that holds it, if its file can be continued.
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
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any
    ) -> None:
        """Write the next window before its first step is asked for."""
        step = state.global_step
        window = self.store.window(step)
        if window is None or step >= len(self.steps):
            return
        path = self.store.path(window)
        exists_on_first_rank = gather(path.exists())[0]
        if exists_on_first_rank:
            return
        indices = dict.fromkeys(self.steps.global_indices(window))
        records = [self.mixture.load(index, lambda record: record) for index in indices]
        records = [record for record in records if self.store.own(record.identity)]
        batch = [candidates_from_record(record) for record in records]

        model = rest["model"]
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

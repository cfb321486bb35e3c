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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from data.errors import UserError
from data.mixture import Mixture
from data.preference import Preference, text
from data.prompts import critiques_of, with_critique
from data.storage.content import record_key
from data.storage.files import read_json, write_whole
from eval.judges.critic import CriticJudge, CritiqueEncoder, as_example
from eval.protocol import Example, Verdict
from models.config import SamplingConfig
from models.distributed import barrier, gather, rank, world_size
from models.encoder import Encoder
from train.recipe.methods import CriticConfig
from train.supervised.method import SupervisedMethod, unwrapped
from train.supervised.objectives import Objective, pair_loss, score_report, score_sums
from train.supervised.steps import (
    MixtureRecords,
    PackedRow,
    StepDataset,
    TrainingExample,
    shared_costs,
)
from train.supervised.whole_weights import whole_weights

CONTENT_KEY = re.compile(r"[0-9a-f]{64}")
"""A key as `record_key` returns it."""
Critiques = Callable[[Preference], Sequence[str] | None]
"""The critiques on which a record is scored; None for a record that has none."""


@dataclass(frozen=True, slots=True)
class CriticEncoder:
    """A preference as one group `prompt | response, request, critique | response, request, critique`, chosen first.

    The critiques are the record's, and their tokens are learned. A record that is to be scored on critiques by the model
    gets two more continuations with those, which are not learned. A record without any critique is scored after the bare
    responses.
    """

    encoder: Encoder
    request: str
    written: Critiques | None = None
    """Critiques by the model for the records that are to be scored on its own; None, or a None from it: the ground truth."""

    def __call__(self, record: Preference, side: int = 0) -> TrainingExample:
        """Decode the images and encode all continuations."""
        self.encoder.refuse_control_tokens(record)
        true, own = critiques_of(record), None if self.written is None else self.written(record)
        responses = (record.chosen, record.rejected)
        conversations = [
            with_critique(record.prompt, response, self.request, critique)
            for critiques in (true, own)
            if critiques is not None
            for response, critique in zip(responses, critiques, strict=True)
        ] or [(*record.prompt, text("assistant", response)) for response in responses]
        with_loss = 0 if true is None else 2
        group = self.encoder.encode_conversations(
            record.images, conversations, "end_of_turn", record.identity, with_loss=with_loss
        )
        prompt = record.prompt, record.images
        return TrainingExample(
            group,
            record.margin or 0.0,
            record=record.identity,
            prompt=prompt,
            own_critiques=own is not None,
        )


class JointCritique(Objective):
    """Cross-entropy on critique tokens plus Bradley-Terry after them (MM-RLHF, arXiv 2502.10391, section 4)."""

    def __init__(self, config: CriticConfig) -> None:
        self.config = config

    def loss(
        self, model: nn.Module, row: PackedRow, totals: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return both losses, each over its own total of the step, weighted as the recipe says."""
        scores, log_probabilities = model(**row.batch.joint_inputs())
        nll = -log_probabilities.sum()
        critique = self.config.cross_entropy_weight * nll / totals[1]
        if not row.records:
            return critique + scores.sum() * 0.0, {}
        pairs = scores.index_select(0, row.places).view(-1, 2)
        last = row.counts.cumsum(0) // 2 - 1
        chosen, rejected = pairs[last].unbind(1)
        margins = row.margins if self.config.margin else None
        ranking = pair_loss(chosen, rejected, margins, self.config.zero_coefficient).sum()
        weight = self.config.score_weight if self.step >= self.config.score_warmup_steps else 0.0
        sums = {
            "nll": nll.detach(),
            "labels": totals.new_tensor(len(row.batch.labels)),
            "ranking": ranking.detach(),
        }
        right = critique_sums(pairs.detach(), last, row)
        return critique + weight * ranking / totals[0], {
            **sums,
            **right,
            **score_sums(chosen.detach(), rejected.detach()),
        }

    def report(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return both losses, the critiques' perplexity, accuracy by critique, and the figures of the scored pairs."""
        figures = {"loss_score": sums["ranking"] / max(sums["records"], 1.0), **score_report(sums)}
        if sums["labels"]:
            critique = sums["nll"] / sums["labels"]
            figures |= {"loss_critique": critique, "perplexity": exp(min(critique, 50.0))}
        for kind in ("true", "own"):
            if sums[f"{kind}_pairs"]:
                figures[f"accuracy_{kind}_critique"] = sums[f"{kind}_right"] / sums[f"{kind}_pairs"]
        return figures

    def mean_loss(self, sums: Mapping[str, float]) -> float:
        """Return both losses as the recipe weighs them, the score's without its warm-up: checkpoints are compared by it."""
        critique, ranking = (
            sums["nll"] / max(sums["labels"], 1.0),
            sums["ranking"] / max(sums["records"], 1.0),
        )
        return self.config.cross_entropy_weight * critique + self.config.score_weight * ranking


def critique_sums(pairs: Tensor, last: Tensor, row: PackedRow) -> dict[str, Tensor]:
    """Count pairs, and those ranked right, with the records' critiques (their tokens are learned) and with the model's own.

    `pairs` (P, 2) fp32 are the scores of all pairs of the row, `last` (records,) int64 those that are trained on.
    """
    right = pairs[:, 0] > pairs[:, 1]
    learned = right.new_zeros(sum(row.batch.group_sizes)).index_fill_(
        0, row.batch.label_owners, True
    )
    true = learned[row.places].view(-1, 2)[:, 0]
    own = torch.zeros_like(right).index_fill_(0, last[row.own_critiques], True)
    return {
        f"{kind}_{name}": (mask & what).sum()
        for kind, mask in (("true", true), ("own", own))
        for name, what in (("pairs", mask), ("right", right))
    }


def refuse_missing_critiques(mixture: Mixture) -> None:
    """Refuse the mixture if some records lack a critique; raises UserError with their number.

    All ranks call together and read a share of the records each. Records of a generator are all alike: one of them is read.
    """
    missing: list[int] = []
    start = 0
    for part in mixture.parts:
        records = range(start, start + len(part.rows))
        read = records[:1] if part.source.generated else records[rank() :: world_size()]
        missing += [index for index in read if critiques_of(mixture[index]) is None]
        start = records.stop
    missing = sorted(index for part_of_rank in gather(missing) for index in part_of_rank)
    if missing:
        raise UserError(
            f"{len(missing):,} of {len(mixture):,} records have no critique of both responses (the first: "
            f"{mixture[missing[0]].identity}). A critic learns from them. Add chosen_critique and rejected_critique to the "
            "records, or set method.records_without_critique: score_only to train their scores alone."
        )


Write = Callable[[Any, Sequence[Example]], Sequence[Verdict]]
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
        examples = list(map(as_example, records))
        training = model.training
        model.eval()
        verdicts = self.write(model, examples)
        model.train(training)
        critiques_by_record = {
            record_key(record): verdict.critiques
            for record, verdict in zip(records, verdicts, strict=True)
            if verdict.critiques
        }
        if rank() == 0:
            write_whole(path, json.dumps(critiques_by_record))


class CriticMethod(SupervisedMethod):
    """A critic (MM-RLHF-Reward)."""

    config: CriticConfig

    def prepare(self) -> None:
        """Take critiques, and the store of the critic's own where the recipe asks for some."""
        config = self.config
        if config.records_without_critique == "refuse":
            refuse_missing_critiques(self.mixture)
        self.store: CritiqueStore | None = None
        if config.critique != "ground_truth":
            self.store = CritiqueStore(self.folder / "critiques", config, self.recipe.seed)
            self.prepare_step = self.store.load
        self.encode = CriticEncoder(self.encoder, config.writing.request)
        self.records = MixtureRecords(
            self.mixture, replace(self.encode, written=self.store), config.pairs_together
        )
        self.costs = shared_costs(self.mixture)
        self.objective = JointCritique(config)

    def judge(self, model: Any, *, forgiving: bool = False) -> CriticJudge:
        """Return the critic that writes its own critiques, greedily."""
        return CriticJudge(
            model=unwrapped(model),
            encode=CritiqueEncoder(
                self.encoder, "own", self.config.writing.request, forgiving=forgiving
            ),
            packed=self.packed(),
            sampling=SamplingConfig(max_new_tokens=self.config.critique_max_tokens),
        )

    def trainer(self, **trainer: Any) -> Trainer:
        """Return the packed trainer, which writes the critic's own critiques on the way."""
        found = super().trainer(**trainer)
        if self.store is not None:

            def write(model: Any, examples: Sequence[Example]) -> Sequence[Verdict]:
                with whole_weights(found.model_wrapped):
                    return self.judge(model, forgiving=True).judge(examples)

            found.add_callback(WriteCritiques(self.store, self.steps, self.mixture, write))
        return found

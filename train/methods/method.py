"""The base of all methods: their records and costs, objective, judge, evaluation and trainer."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from rich.console import Console
from torch import nn
from transformers import Trainer, TrainingArguments

from mmrm.data.preference import Preference
from mmrm.data.preparation.mixing import Mixture
from mmrm.eval.journal import Journal
from mmrm.eval.judges.checkpoint import TOKEN_BUDGET
from mmrm.eval.judges.judge import Judge
from mmrm.eval.judges.packed_inference import Packed, run_packed
from mmrm.models.distributed import rank, world_size
from mmrm.models.encoder import Encoder
from mmrm.models.packing.groups import Group, PackedBatch
from mmrm.train.methods.trainer_arguments import training_arguments
from mmrm.train.recipe.deepspeed_config import stage
from mmrm.train.recipe.recipe import Recipe
from mmrm.train.recipe.sections import HELD_OUT_LOSS
from mmrm.train.supervised.budget import FIRST_BUDGET, LOWERED, ceiling, lowered
from mmrm.train.supervised.devices import device
from mmrm.train.supervised.objectives import Objective
from mmrm.train.supervised.packed_trainer import PackedTrainer
from mmrm.train.supervised.steps import (
    Costs,
    Encode,
    EncodedRecords,
    PackedRow,
    StepDataset,
    response_tokens,
)
from mmrm.train.supervised.whole_weights import whole_weights


class Method(ABC):
    """A method of a run, on every rank; made before the model is loaded.

    `setup` comes first: it opens the data. A method that judges pairs has a `judge`, and one that
    answers questions has `examine`. `MethodConfig.evaluated_on` says which of them a run calls.
    """

    config: Any
    """The method's section of the recipe."""
    mixture: Mixture
    """The sources of the recipe, once `setup` has been called."""
    columns: ClassVar[Mapping[str, str]] = {
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
    """The logged figures that a console line shows, in this order, and their formats."""

    def __init__(self, recipe: Recipe, encoder: Encoder, console: Console) -> None:
        self.recipe = recipe
        self.config = recipe.method
        self.encoder = encoder
        self.console = console
        self.folder = Path(recipe.output.folder)

    def setup(self) -> None:
        """Open the data and build the records; all ranks call together.

        Raises:
            UserError: If the data cannot be used for this method.
        """
        self.mixture = self.open_mixture()
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Build what the method needs of `config` and `mixture`, such as its records."""

    def open_mixture(self) -> Mixture:
        """Open the recipe's sources, with a line for each that lost records and the reasons."""
        mixture = Mixture(self.recipe.data, self.encoder.image_tokens)
        for source in mixture.splits:
            if not source.left_out or rank() != 0:
                continue
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in source.left_out.items())
            num_left_out = sum(source.left_out.values())
            self.console.print(
                f"{source.config.label}: {num_left_out:,} of {len(source.source):,} records left "
                f"out: {reasons}",
                markup=False,
                highlight=False,
            )
        return mixture

    def packed(self) -> Packed:
        """Return how passes without gradients are packed.

        A budget of `auto` is the one of eval/run.py, so that the figures of both agree.
        """
        budget = self.recipe.optim.token_budget
        if budget == "auto":
            budget = TOKEN_BUDGET[device().type]
        return Packed(self.encoder, device(), budget, self.recipe.workers)

    def whole_weights(self, model: Any) -> AbstractContextManager[None]:
        """Return the context in which a (wrapped) model writes; all ranks call together."""
        return whole_weights(model)

    def judge(self, model: Any) -> Judge | None:
        """Return the judge that a model in training is, None if the method trains no judge.

        `model` may be wrapped by DeepSpeed, DDP or PEFT.
        """
        return None

    def examine(self, model: nn.Module, folder: Path) -> dict[str, float] | None:
        """Have a model answer the questions of the evaluation, and write its answers into `folder`.

        Return the figures, None if the method answers no questions. All ranks call together.
        `model` may be wrapped.
        """
        return None

    def held_out_loss(self, model: nn.Module, records: Sequence[Preference]) -> float | None:
        """Return the loss on the records of data.validation, None if the method has no such loss.

        All ranks call together. `model` may be wrapped, and must be in eval mode.
        """
        return None

    @abstractmethod
    def arguments(self) -> TrainingArguments:
        """Return the trainer's arguments; raises UserError if data, steps and ranks do not fit."""

    @abstractmethod
    def trainer(self, **trainer: Any) -> Trainer:
        """Return the trainer. `trainer` goes to FiniteTrainer, and from there to Hugging Face's."""


class SupervisedMethod(Method):
    """A method of the packed trainer: its loss is a function of packed records."""

    records: EncodedRecords
    encode: Encode
    objective: Objective
    costs: Costs | None = None
    """The expected costs of the records; None for lessons, which are all alike."""
    needs_rationale = False
    """Only records with a rationale have a loss."""
    prepare_step: Callable[[int], None] | None = None
    """Called in a loader's worker before it encodes a step."""

    @cached_property
    def steps(self) -> StepDataset:
        """The run's optimizer steps for this rank."""
        return StepDataset(
            self.records,
            self.encoder.pack,
            records_per_step=self.recipe.optim.records_per_step,
            steps=self.recipe.steps(len(self.records)),
            token_budget=self.token_budget(),
            rank=rank(),
            world_size=world_size(),
            costs=self.costs,
            prepare=self.prepare_step,
        )

    def token_budget(self) -> int:
        """Return the budget of one packed row of training at the start.

        `auto` rises from here as memory allows. So does every budget on a CUDA device under ZeRO-3,
        which cannot repeat a step that ran out of memory.
        """
        requested = self.recipe.optim.token_budget
        largest = ceiling(requested, self.folder)
        lowered_to = lowered(self.folder)
        if lowered_to and rank() == 0:
            file = self.folder / LOWERED
            self.console.print(
                f"token budget at most {lowered_to:,}: an earlier start ran out of memory ({file}; "
                "remove it to forget)"
            )
        cannot_repeat = stage(self.recipe.deepspeed) == 3 and device().type == "cuda"
        if requested == "auto" or cannot_repeat:
            return min(largest, FIRST_BUDGET)
        return largest

    @torch.no_grad()
    def held_out_loss(self, model: nn.Module, records: Sequence[Preference]) -> float:
        """Return the loss that training minimises, over the records that have one, in fp32."""
        packed = self.packed()
        indices = [
            index
            for index, record in enumerate(records)
            if not self.needs_rationale or record.rationale is not None
        ]

        def run(batch: PackedBatch, indices_of_row: Sequence[int]) -> list[dict[str, float]]:
            """Return the sums of a row for its first item, and nothing for the others."""
            row_records = [records[index] for index in indices_of_row]
            row = held_out_row(batch, row_records, packed.encoder).to(packed.device)
            loss, sums = self.objective.loss(model, row, torch.ones(2, device=packed.device))
            sums_of_row = {name: float(value) for name, value in sums.items()}
            sums_of_row["loss"] = float(loss)
            sums_of_row["records"] = float(row.records)
            nothing: list[dict[str, float]] = [{} for _ in range(row.records - 1)]
            return [sums_of_row, *nothing][: row.records]

        totals: defaultdict[str, float] = defaultdict(float)
        encode = partial(encode_held_out, self.encode, records)
        journal = Journal(HELD_OUT_LOSS, self.console)
        keys = [str(index) for index in indices]
        with journal.judging(keys, dict[str, float], len(indices)) as judging:
            for sums in run_packed(packed, indices, encode, run, judging=judging):
                for name, value in sums.items():
                    totals[name] += value
        return self.objective.mean_loss(totals)

    def arguments(self) -> TrainingArguments:
        """Return the arguments of a run over `steps`."""
        return training_arguments(self.recipe, len(self.steps))

    def trainer(self, **trainer: Any) -> Trainer:
        """Return the packed trainer."""
        return PackedTrainer(
            objective=self.objective, steps=self.steps, optim=self.recipe.optim, **trainer
        )


def encode_held_out(encode: Encode, records: Sequence[Preference], index: int) -> Group:
    """Return record `index` as the group that training would learn.

    Every second judgement has the winner first.
    """
    return encode(records[index], index % 2).group


def held_out_row(batch: PackedBatch, records: Sequence[Preference], encoder: Encoder) -> PackedRow:
    """Return a packed batch of held-out records as a row that an objective takes.

    No record is scored on a critique by the model, and every output of the batch has one place.
    """
    lengths: list[int] = []
    for record in records:
        lengths += response_tokens(encoder, record)
    counts = torch.tensor(batch.group_sizes)
    return PackedRow(
        batch,
        torch.tensor([record.margin or 0.0 for record in records]),
        torch.tensor(lengths),
        torch.zeros(len(records), dtype=torch.bool),
        torch.arange(int(counts.sum())),
        counts,
    )

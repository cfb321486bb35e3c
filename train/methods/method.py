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
from mmrm.models.packing.packed_batch import PackedBatch, unpack
from mmrm.models.packing.segments import SegmentTree
from mmrm.train.checkpoints.staging import Staging
from mmrm.train.methods.trainer_arguments import training_arguments
from mmrm.train.recipe.deepspeed_config import stage
from mmrm.train.recipe.recipe import Recipe
from mmrm.train.recipe.sections import HELD_OUT_LOSS
from mmrm.train.supervised.budget import FIRST_BUDGET, LOWERED, ceiling, lowered_budget
from mmrm.train.supervised.devices import device
from mmrm.train.supervised.objectives import Objective
from mmrm.train.supervised.packed_trainer import PackedTrainer
from mmrm.train.supervised.steps import (
    Costs,
    Encode,
    EncodedRecords,
    PackedRow,
    ResponseEncoder,
    StepDataset,
    TrainingExample,
    attributes_of_responses,
    label_responses,
    response_tokens,
)
from mmrm.train.supervised.whole_weights import whole_weights


class Method(ABC):
    """The training method of a run: its data, its loss, its evaluation and its trainer.

    Every rank creates it before the model is loaded, and calls `setup` first, which opens the data.
    `MethodConfig.evaluated_on` decides which evaluation a run calls: `judge` for a model that
    judges pairs, `examine` for a model that answers questions.
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

    @cached_property
    def staging(self) -> Staging | None:
        """The folder of this node into which checkpoints are written first; None for none."""
        staging = self.recipe.output.staging
        if staging is None:
            return None
        return Staging(self.folder, Path(staging).expanduser(), self.console)

    def setup(self) -> None:
        """Open the data and build the records; all ranks call together.

        Raises:
            UserError: If the data cannot be used for this method.
        """
        self.mixture = self.open_mixture()
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Build the attributes that depend on `config` and `mixture`, such as the records."""

    def open_mixture(self) -> Mixture:
        """Open the recipe's sources, and print how many records of each were left out, and why.

        With a curriculum, also print how many of the others have which difficulty, or none. With
        decisions about labels, also print how many were applied.
        """
        mixture = Mixture(self.recipe.data, self.encoder.image_tokens)
        if rank() != 0:
            return mixture
        for split in mixture.splits:
            if not split.left_out:
                continue
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in split.left_out.items())
            num_left_out = sum(split.left_out.values())
            self.console.print(
                f"{split.config.label}: {num_left_out:,} of {len(split.source):,} records left "
                f"out: {reasons}",
                markup=False,
                highlight=False,
            )
        for line in (*mixture.curriculum_lines, *mixture.decision_lines):
            self.console.print(line, markup=False, highlight=False)
        return mixture

    def packed(self) -> Packed:
        """Return the settings with which passes without gradients encode and pack their rows.

        A token budget of `auto` is the one of eval/run.py, so that the figures of both agree.
        """
        budget = self.recipe.optim.token_budget
        if budget == "auto":
            budget = TOKEN_BUDGET[device().type]
        return Packed(self.encoder, device(), budget, self.recipe.workers)

    def whole_weights(self, model: Any) -> AbstractContextManager[None]:
        """Return a context in which a model can generate texts; all ranks call together.

        Under ZeRO-3 it gathers the weights of the model. DeepSpeed, DDP or PEFT may have wrapped
        the model.
        """
        return whole_weights(model)

    def judge(self, model: Any) -> Judge | None:
        """Return a model in training as a judge; None if the method trains no judge.

        DeepSpeed, DDP or PEFT may have wrapped the model.
        """
        return None

    def examine(self, model: nn.Module, folder: Path) -> dict[str, float] | None:
        """Let a model answer the questions of the evaluation, and write its answers into `folder`.

        All ranks call together. DeepSpeed, DDP or PEFT may have wrapped the model.

        Returns:
            The figures of the answers; None if the method trains no model that answers questions.
        """
        return None

    def held_out_encoder(self) -> Encode:
        """Return the function that encodes a record of data.validation to see if it can be used.

        A record for which it raises RecordError is in no evaluation.
        """
        return ResponseEncoder(self.encoder, self.recipe.head.read)

    def held_out_loss(self, model: nn.Module, records: Sequence[Preference]) -> float | None:
        """Return the loss on the records of data.validation; None if the method has no such loss.

        All ranks call together. The model must be in eval mode. DeepSpeed, DDP or PEFT may have
        wrapped it.
        """
        return None

    @abstractmethod
    def arguments(self, *, other_ranks: bool = False) -> TrainingArguments:
        """Return the arguments of the trainer.

        Args:
            other_ranks: True if the run continues from a checkpoint of another number of ranks,
                whose states were converted.

        Raises:
            UserError: If the records are too few for a step, or the ranks cannot share it equally.
        """

    @abstractmethod
    def trainer(self, **trainer: Any) -> Trainer:
        """Return the trainer of the run.

        Args:
            trainer: Arguments of FiniteTrainer, which passes those it does not know to Hugging
                Face's Trainer.
        """


class SupervisedMethod(Method):
    """A method that learns from the records of the data, with the trainer of packed rows."""

    records: EncodedRecords
    encode: Encode
    objective: Objective
    costs: Costs | None = None
    """The expected costs of the records; None for generated lessons, which all cost the same."""
    attribute_names: Sequence[str] = ()
    """The attributes of a record that are learned."""
    needs_rationale = False
    """True if a record without a rationale has no loss."""
    prepare_step: Callable[[int], None] | None = None
    """Called with the number of a step, in the loader's worker that is about to encode it."""

    @cached_property
    def steps(self) -> StepDataset:
        """The run's optimizer steps for this rank.

        With `optim.sequence_parallel`, the ranks that compute rows together have the same steps.
        """
        ranks_of_row = self.recipe.optim.sequence_parallel
        return StepDataset(
            self.records,
            self.encoder.pack,
            records_per_step=self.recipe.optim.records_per_step,
            steps=self.recipe.steps(len(self.records)),
            token_budget=self.token_budget(),
            rank=rank() // ranks_of_row,
            world_size=world_size() // ranks_of_row,
            costs=self.costs,
            prepare=self.prepare_step,
        )

    def token_budget(self) -> int:
        """Return the largest cost of a packed row, in tokens, with which training begins.

        A budget of `auto` begins small and rises when memory has been measured. So does every
        budget on a CUDA device under ZeRO-3 or with `optim.sequence_parallel`, where a step that ran
        out of memory cannot be repeated.
        """
        requested = self.recipe.optim.token_budget
        largest = ceiling(requested, self.folder)
        lowered_to = lowered_budget(self.folder)
        if lowered_to and rank() == 0:
            file = self.folder / LOWERED
            self.console.print(
                f"token budget at most {lowered_to:,}: an earlier start ran out of memory ({file}; "
                "remove it to forget)"
            )
        is_exchanging = stage(self.recipe.deepspeed) == 3 or self.recipe.optim.sequence_parallel > 1
        cannot_repeat = is_exchanging and device().type == "cuda"
        if requested == "auto" or cannot_repeat:
            return min(largest, FIRST_BUDGET)
        return largest

    @torch.no_grad()
    def held_out_loss(self, model: nn.Module, records: Sequence[Preference]) -> float:
        """Return the mean of the loss that training minimises, over the records that have one.

        All ranks call together. The model must be in eval mode.
        """
        packed = self.packed()
        indices = [
            index
            for index, record in enumerate(records)
            if not self.needs_rationale or record.rationale is not None
        ]

        def run_row(batch: PackedBatch, indices_of_row: Sequence[int]) -> list[dict[str, float]]:
            """Return the sums of a row as the result of its first record, and {} for the others."""
            row_records = [records[index] for index in indices_of_row]
            row = held_out_row(batch, row_records, packed.encoder, self.attribute_names)
            row = row.to(packed.device)
            # A loss is divided by totals, which are 1 here: sums are divided at the end.
            loss, sums = self.objective.loss(model, row, torch.ones(2, device=packed.device))
            if not row.records:
                return []  # a filler
            sums_of_row = {name: float(value) for name, value in sums.items()}
            sums_of_row["loss"] = float(loss)
            sums_of_row["records"] = float(row.records)
            results: list[dict[str, float]] = [{} for _ in range(row.records)]
            results[0] = sums_of_row
            return results

        totals: defaultdict[str, float] = defaultdict(float)
        encode = partial(encode_held_out, self.encode, records)
        journal = Journal(HELD_OUT_LOSS, self.console)  # without a file: it only shows the progress
        keys = [str(index) for index in indices]
        with journal.judging(keys, dict[str, float], len(indices)) as judging:
            for sums in run_packed(packed, indices, encode, run_row, judging=judging):
                for name, value in sums.items():
                    totals[name] += value
        return self.objective.mean_loss(totals)

    def arguments(self, *, other_ranks: bool = False) -> TrainingArguments:
        """Return the arguments of the trainer for the number of `steps`."""
        return training_arguments(self.recipe, len(self.steps), other_ranks=other_ranks)

    def trainer(self, **trainer: Any) -> Trainer:
        """Return the trainer of packed rows; `trainer` are further arguments of FiniteTrainer."""
        return PackedTrainer(
            objective=self.objective, steps=self.steps, optim=self.recipe.optim, **trainer
        )


def encode_held_out(encode: Encode, records: Sequence[Preference], index: int) -> SegmentTree:
    """Return a record of data.validation as the tree that training would learn.

    A judge sees the winner first in every second record.
    """
    side = index % 2
    return encode(records[index], side).tree


def held_out_row(
    batch: PackedBatch,
    records: Sequence[Preference],
    encoder: Encoder,
    attribute_names: Sequence[str] = (),
) -> PackedRow:
    """Return a packed batch of held-out records as a row with the numbers that a loss needs.

    Held-out records are scored on the critiques from the data, and each is a tree of its own.

    Args:
        batch: The packed records.
        records: The records in their order in the batch.
        encoder: Counts the tokens of the responses.
        attribute_names: The attributes of the records that are learned.
    """
    examples: list[TrainingExample] = []
    for record, tree in zip(records, unpack(batch), strict=True):
        examples.append(
            TrainingExample(
                tree,
                margin=record.margin or 0.0,
                ranks=record.ranks,
                attributes=attributes_of_responses(record, attribute_names),
                response_tokens=response_tokens(encoder, record),
            )
        )
    return PackedRow(
        batch,
        response_labels=label_responses(examples),
        has_model_critiques=torch.zeros(len(records), dtype=torch.bool),
        output_counts=torch.tensor(batch.output_counts),
    )

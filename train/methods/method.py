"""One object a method: what a run asks of it. Its records and what they cost, its objective, its judge and its trainer.

And the arguments of Hugging Face's Trainer: what Trainer must not do by itself is switched off there. wandb writes to its server
where there is a login, else into the run folder, from which `wandb sync` sends it later.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console
from torch import nn
from transformers import Trainer, TrainingArguments

from mmrm.data.preparation.mixing import Mixture
from mmrm.eval.judges.checkpoint import TOKEN_BUDGET
from mmrm.eval.judges.judge import Judge
from mmrm.eval.judges.packed_inference import Packed
from mmrm.models.distributed import rank, world_size
from mmrm.models.encoder import Encoder
from mmrm.train.methods.trainer_arguments import training_arguments
from mmrm.train.recipe.deepspeed_config import stage
from mmrm.train.recipe.recipe import Recipe
from mmrm.train.supervised.budget import FIRST_BUDGET, LOWERED, ceiling, lowered
from mmrm.train.supervised.devices import device
from mmrm.train.supervised.objectives import Objective
from mmrm.train.supervised.packed_trainer import PackedTrainer
from mmrm.train.supervised.steps import Costs, Encode, EncodedRecords, StepDataset
from mmrm.train.supervised.whole_weights import whole_weights


class Method(ABC):
    """What a run asks of its method, on every rank; made before the model is loaded."""

    config: Any
    """The method's section of the recipe."""
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
    """What a console line shows, in this order, of all that is logged."""

    def __init__(self, recipe: Recipe, encoder: Encoder, console: Console) -> None:
        self.recipe, self.config, self.encoder, self.console = (
            recipe,
            recipe.method,
            encoder,
            console,
        )
        self.folder, self.mixture = Path(recipe.output.folder), self.open_mixture()
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Set what is this method's own, of `config` and `mixture`."""

    def open_mixture(self) -> Mixture:
        """Open the recipe's sources, with a line for each that lost records and the reasons."""
        mixture = Mixture(self.recipe.data, self.encoder.image_tokens)
        for part in mixture.parts:
            if part.left_out and rank() == 0:
                reasons = ", ".join(
                    f"{reason} {count:,}" for reason, count in part.left_out.items()
                )
                lost = f"{sum(part.left_out.values()):,} of {len(part.source):,}"
                message = f"{part.config.label}: {lost} records left out: {reasons}"
                self.console.print(message, markup=False, highlight=False)
        return mixture

    def packed(self) -> Packed:
        """Return how passes without gradients are packed; for `auto` as eval/run.py does it, so that figures agree."""
        asked = self.recipe.optim.token_budget
        budget = TOKEN_BUDGET[device().type] if asked == "auto" else asked
        return Packed(self.encoder, device(), budget, self.recipe.workers)

    def whole_weights(self, model: Any) -> AbstractContextManager[None]:
        """Return the context in which a (wrapped) model writes; all ranks call together."""
        return whole_weights(model)

    def examination(self) -> Callable[[nn.Module, Path], dict[str, float]] | None:
        """Return what measures a (wrapped) model that judges nothing, and writes what it found into a folder; None for none."""
        return None

    @abstractmethod
    def arguments(self) -> TrainingArguments:
        """Return the trainer's arguments; raises UserError where data, steps and ranks do not fit."""

    @abstractmethod
    def trainer(self, **trainer: Any) -> Trainer:
        """Return the trainer; `trainer` goes to FiniteTrainer, and from there to Hugging Face's."""


class JudgeMethod(Method):
    """A method that trains a judge, which benchmarks and held-out records measure."""

    @abstractmethod
    def judge(self, model: Any) -> Judge:
        """Return the judge that a model in training is; `model` may be wrapped by DeepSpeed, DDP or PEFT."""


class SupervisedMethod(JudgeMethod):
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
        """Return what one packed row of training may cost at the start.

        `auto` rises from here as memory allows. So does every budget on a CUDA device under ZeRO-3, which cannot repeat a step
        that ran out of memory.
        """
        asked = self.recipe.optim.token_budget
        most, left = ceiling(asked, self.folder), lowered(self.folder)
        if left and rank() == 0:
            file = self.folder / LOWERED
            self.console.print(
                f"token budget at most {left:,}: an earlier start ran out of memory ({file}; remove it to forget)"
            )
        begins_low = asked == "auto" or (
            stage(self.recipe.deepspeed) == 3 and device().type == "cuda"
        )
        return min(most, FIRST_BUDGET) if begins_low else most

    def arguments(self) -> TrainingArguments:
        """Return those of a run over `steps`."""
        return training_arguments(self.recipe, len(self.steps))

    def trainer(self, **trainer: Any) -> Trainer:
        """Return the packed trainer."""
        return PackedTrainer(
            objective=self.objective, steps=self.steps, optim=self.recipe.optim, **trainer
        )

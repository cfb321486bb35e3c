"""The optimizer and the checks of every step, which both trainers share.

AdamW has a learning rate for each part of the model: head, vision tower and language model. A run
ends on all ranks, before it saves, if a loss, a gradient norm or a weight is not finite.

This file also compiles, with torch.compile, the MLPs and norms of both towers. They are compiled in
place, so names and checkpoints stay as they are. Attention is not compiled, because its plan
changes with every row. Shapes are dynamic, and layers of one kind share a graph.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mmrm.data.errors import NonFiniteError
from mmrm.models.config import TESTED_TRANSFORMERS
from mmrm.models.distributed import gather, rank, sum_over_ranks
from mmrm.models.families.registry import FAMILIES, family_of
from mmrm.train.checkpoints.rotation import room_for_checkpoint, whole_checkpoints
from mmrm.train.checkpoints.sizes import first_checkpoint_bytes
from mmrm.train.checkpoints.staging import Staging
from mmrm.train.recipe.sections import OptimConfig
from mmrm.train.supervised.preemption import SAVE_AND_END

VECTORS = "_vectors"
"""Suffix of the names of parameter groups that hold norms and biases."""
MAX_NAMED = 3
"""Number of parameters that an error names."""
VISION = {name for family in FAMILIES.values() for name in family.vision_modules}
"""Names of the vision tower, and of a separate projector, in all families."""
Evaluate = Callable[[nn.Module, int], dict[str, float]]
"""Takes the model in its wrappers and the global step, and returns figures by name, such as
`benchmark/figure`. All ranks call it together."""


def part_of(name: str) -> str:
    """Return `head`, `vision` or `language` for the name of a parameter.

    The name may contain the prefixes of the wrappers of PEFT and DDP.
    """
    modules = name.split(".")
    if "head" in modules:
        return "head"
    if VISION & set(modules):
        return "vision"
    return "language"


def parameter_groups(
    named_parameters: Iterable[tuple[str, nn.Parameter]], config: OptimConfig
) -> list[dict[str, Any]]:
    """Return the optimizer's groups of trainable parameters, one per learning rate and decay.

    Vectors (norms, biases) are never decayed, as in Hugging Face's Trainer. The name of a group is
    the part of the model (`head`, `vision`, `language`), followed by VECTORS for vectors.

    Args:
        named_parameters: The parameters of the model with their names.
        config: The section `optim` of the recipe.
    """
    rates = {
        "head": config.head_learning_rate or config.learning_rate,
        "vision": config.vision_learning_rate or config.learning_rate,
        "language": config.learning_rate,
    }
    groups: dict[str, dict[str, Any]] = {}
    for name, parameter in named_parameters:
        if not parameter.requires_grad:
            continue
        part = part_of(name)
        if is_matrix(parameter):
            group_name = part
            decay = config.weight_decay
        else:
            group_name = part + VECTORS
            decay = 0.0
        if group_name not in groups:
            groups[group_name] = {
                "name": group_name,
                "params": [],
                "lr": rates[part],
                "weight_decay": decay,
            }
        groups[group_name]["params"].append(parameter)
    return list(groups.values())


def learning_rates(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Return the current learning rate of every trained part: `head`, `vision`, `language`."""
    return {group["name"].removesuffix(VECTORS): group["lr"] for group in optimizer.param_groups}


def is_matrix(parameter: nn.Parameter) -> bool:
    """Return True if a parameter has two or more dimensions."""
    # ZeRO-3 keeps the shape of a partitioned parameter in `ds_shape`.
    shape = parameter.ds_shape if hasattr(parameter, "ds_shape") else parameter.shape
    return len(shape) > 1


def make_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """Return fused AdamW over the trainable parameters of `model`."""
    groups = parameter_groups(model.named_parameters(), config)
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=True)


def token_wise_modules(backbone: Any) -> Iterator[nn.Module]:
    """Yield the MLPs and norms of a backbone: the modules that compute each token by itself.

    These are the modules of the language model, then those of the vision tower. Experts are left
    out: how many tokens each of them computes depends on the tokens, not on the shape of the row.
    """
    family = family_of(backbone.config.model_type)
    for layer in backbone.language_model.layers:
        for name, module in layer.named_children():
            is_attention = name in ("self_attn", "linear_attn")
            is_routed = family.experts is not None and name == family.experts.block
            if not is_attention and not is_routed:
                yield module
    yield backbone.language_model.norm
    path_of_blocks, module_names = family.blocks
    for block in backbone.get_submodule(path_of_blocks):
        for module_name in module_names:
            yield block.get_submodule(module_name)


def compile_layers(backbone: Any) -> None:
    """Let the MLPs and norms of a backbone be compiled when they are first used."""
    for module in token_wise_modules(backbone):
        module.compile(dynamic=True)


def restore_layers(backbone: Any) -> None:
    """Let the MLPs and norms of a backbone run without compilation again."""
    for module in token_wise_modules(backbone):
        module._compiled_call_impl = None


def compiled_graphs() -> int:
    """Return the number of graphs that torch.compile has compiled in this process.

    If it rises after the first steps, new shapes are compiled again and again.
    """
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


CHANGING = ("params", "lr")
"""Keys of a group of the optimizer that change during a run."""


def restore_groups(optimizer: Any, settings: Sequence[Mapping[str, Any]]) -> None:
    """Correct what DeepSpeed loads into an optimizer under ZeRO-3 from another number of ranks.

    DeepSpeed 0.19 gives all groups the settings of the first one, and lets all states share one
    tensor `step`, which AdamW then increments once for each state.

    Args:
        optimizer: The optimizer.
        settings: The settings of each group that do not change during a run.
    """
    for group, settings_of_group in zip(optimizer.param_groups, settings, strict=True):
        group.update(settings_of_group)
    for state in optimizer.state.values():
        if isinstance(state.get("step"), Tensor):
            state["step"] = state["step"].clone()


class FiniteTrainer(Trainer):  # type: ignore[misc]
    """The base of both trainers: optimizer, evaluation, and a check of every step's loss and norm.

    The check comes before the optimizer's update. DeepSpeed updates inside the backward pass, but
    the run still ends before the next checkpoint is saved.
    """

    control: TrainerControl

    def __init__(
        self,
        *,
        optim: OptimConfig,
        evaluate: Evaluate | None = None,
        staging: Staging | None = None,
        **trainer: Any,
    ) -> None:
        """Check the version of transformers, and create the trainer.

        Args:
            optim: The section `optim` of the recipe.
            evaluate: Evaluates the model whenever Trainer evaluates. None for a run without
                evaluations.
            staging: The folder of this node into which checkpoints are written first. None if they
                are written into the run folder.
            trainer: Further arguments of Hugging Face's Trainer.
        """
        if not hasattr(Trainer, "_get_grad_norm"):
            raise RuntimeError(
                f"transformers {transformers.__version__}: Trainer has no _get_grad_norm, in which "
                "a run checks that its gradients are finite. This project is tested with "
                f"transformers {TESTED_TRANSFORMERS}; install one of these versions."
            )
        self.passes: list[dict[str, Any]] = []
        """Forward passes of the current step. Each has the detached `loss`, the identities of its
        `records`, and further inputs that are saved if the step is not finite."""
        self.optim = optim
        self.evaluate_benchmarks = evaluate
        self.staging = staging
        self.speed_start: float | None = None
        """Start of the time over which speed is measured, without the time of evaluations. None
        before the first step."""
        self.group_settings: list[dict[str, Any]] = []
        """The settings of each group of the optimizer when it was created, such as its weight decay.
        The learning rate is not among them, because the schedule changes it."""
        self.optimizer: torch.optim.Optimizer | None
        # Trainer evaluates only if it has a data set; `evaluate` does not read it.
        super().__init__(eval_dataset=[0] if evaluate else None, **trainer)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Create AdamW with a group for each learning rate, or return it if it exists.

        Trainer and DeepSpeed call this.
        """
        if self.optimizer is None:
            self.optimizer = make_optimizer(model or self.model, self.optim)
            for group in self.optimizer.param_groups:
                settings = {key: value for key, value in group.items() if key not in CHANGING}
                self.group_settings.append(settings)
        return self.optimizer

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Evaluate the current model on the benchmarks, log the figures and return them.

        All ranks call together. The data set and the keys, which Trainer passes, are not used.
        After this call, Trainer compares the figures with those of the best checkpoint, and saves.
        """
        start = time.perf_counter()
        model = self.model_wrapped
        was_training = model.training
        model.eval()
        figures: dict[str, float] = {}
        if self.evaluate_benchmarks:
            with torch.no_grad():
                figures = self.evaluate_benchmarks(model, self.state.global_step)
        model.train(was_training)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in figures.items()}
        # Not `self.log`: trl's would also write its table of the last rollouts again.
        Trainer.log(self, dict(metrics))
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        if self.speed_start is not None:
            self.speed_start += (
                time.perf_counter() - start
            )  # leaves the evaluation out of the speed
        return metrics

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """Return the gradient norm of the step, and check that the step is finite on all ranks.

        If a rank received SIGUSR1, all ranks also save and end after this step. One exchange serves
        both purposes, so that a step waits only once.

        Raises:
            NonFiniteError: On all ranks, if the norm or the loss of one rank is not finite.
        """
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        passes = self.passes
        self.passes = []
        loss = torch.stack([one_pass["loss"].double() for one_pass in passes]).sum()
        own_norm = torch.as_tensor(norm, dtype=torch.float64, device=loss.device)
        is_signalled = torch.as_tensor(
            SAVE_AND_END.is_set(), dtype=torch.float64, device=loss.device
        )
        own_values = torch.stack([loss, own_norm, is_signalled])
        # A sum is not finite if a value of one rank is not.
        total_loss, total_norm, num_signalled = sum_over_ranks(own_values).tolist()
        # DeepSpeed's norm of gradients that are not finite may be negative.
        is_finite = isfinite(total_loss) and 0 <= total_norm < inf
        if not is_finite:
            self._end_non_finite_step(float(norm), float(loss), passes)
        if num_signalled:
            self.control.should_save = True
            self.control.should_training_stop = True
        return norm

    def _end_non_finite_step(self, norm: float, loss: float, passes: list[dict[str, Any]]) -> None:
        """Save the batches of the ranks whose loss is not finite, and raise NonFiniteError.

        If the loss of every rank is finite, the batches of all ranks are saved. All ranks call
        together.

        Args:
            norm: The gradient norm of this rank.
            loss: The loss of this rank.
            passes: The forward passes of this rank, as in `self.passes`.
        """
        step = self.state.global_step + 1
        folder = Path(self.args.output_dir)
        records: list[str] = []
        for one_pass in passes:
            records += one_pass["records"]
        loss_and_records = gather((loss, records))
        losses = [loss_of_rank for loss_of_rank, _ in loss_and_records]
        reported_ranks = [number for number, value in enumerate(losses) if not isfinite(value)]
        if not reported_ranks:
            reported_ranks = list(range(len(losses)))
        if rank() in reported_ranks:
            folder.mkdir(parents=True, exist_ok=True)
            torch.save(_plain(passes), folder / f"non-finite-step-{step}-rank-{rank()}.pt")

        lines = [f"Not finite at step {step}: gradient norm {norm:g}, and"]
        for number in reported_ranks:
            loss_of_rank, records_of_rank = loss_and_records[number]
            lines.append(
                f"  rank {number}: loss {loss_of_rank:g}, records {', '.join(records_of_rank)}"
            )
        lines.append(
            f"{advice(folder)} The batches are in {folder}/non-finite-step-{step}-rank-*.pt."
        )
        raise NonFiniteError("\n".join(lines))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load optimizer and schedule as Trainer does, and compute the next learning rate again.

        The checkpoint has the learning rate of the schedule with which it was saved. A resumed run
        may have more steps, and so a longer schedule with another rate at this step.

        Args:
            checkpoint: The checkpoint to resume from; None for a new run.
        """
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            restore_groups(self.optimizer, self.group_settings)
            # Repeat the last step of the schedule, which sets the rate.
            self.lr_scheduler.last_epoch -= 1
            self.lr_scheduler.step()

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Save a checkpoint as Trainer does, after a check that the disk has room for it.

        With a staging folder, Trainer writes into it through a link.
        """
        folder = Path(self.args.output_dir)
        saves_adapters = self.optim.lora is not None
        expected_bytes = first_checkpoint_bytes(model, only_adapters=saves_adapters)
        if self.staging is None:
            with room_for_checkpoint(expected_bytes, folder):
                super()._save_checkpoint(model, trial)
            return
        # The checkpoint before takes its room, and old ones are removed, before the room is looked at.
        self.staging.wait()
        node = self.staging.node
        share = node.num_ranks / self.args.world_size if self.is_deepspeed_enabled else 1.0
        bytes_of_node = first_checkpoint_bytes(
            model, only_adapters=saves_adapters, share_of_states=share
        )
        with room_for_checkpoint(expected_bytes, folder, self.staging.place):
            self.staging.begin(self.state.global_step, bytes_of_node)
            super()._save_checkpoint(model, trial)


def _plain(value: Any) -> Any:
    """Convert a value into a form that `torch.load` reads with weights_only=True.

    Dataclasses become dictionaries, and tuples become lists. Values of other types than numbers,
    strings, tensors and None become their `repr`.
    """
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(child) for name, child in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(child) for child in value]
    if value is None or isinstance(value, Tensor | str | int | float):
        return value
    return repr(value)


class FiniteWeights(TrainerCallback):  # type: ignore[misc]
    """Ends the run if a weight is not finite, before the weights are evaluated and saved."""

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Raise NonFiniteError after a step that ends with a save, if a weight is not finite."""
        if control.should_save:
            refuse_weights(kwargs["model"], state.global_step, Path(args.output_dir))


@torch.no_grad()
def refuse_weights(model: nn.Module, step: int, folder: Path) -> None:
    """Raise NonFiniteError on all ranks if one of them holds a weight that is not finite.

    Args:
        model: The model in training.
        step: The number of the optimizer step after which it is checked, for the message.
        folder: The run folder, whose last complete checkpoint the message names.
    """
    parameters: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        # ZeRO-3 keeps this rank's part of a parameter in `ds_tensor`.
        own_part = parameter.ds_tensor if hasattr(parameter, "ds_tensor") else parameter
        if own_part.is_floating_point() and own_part.numel():
            parameters[name] = own_part.detach()
    # The largest absolute value is NaN if one value is, and takes no further memory.
    largest = torch.stack(
        [
            torch.linalg.vector_norm(parameter, inf).float().to("cpu")
            for parameter in parameters.values()
        ]
    )
    own_names = [
        name
        for name, is_finite in zip(parameters, largest.isfinite().tolist(), strict=True)
        if not is_finite
    ]
    names: set[str] = set()
    for names_of_rank in gather(own_names):
        names.update(names_of_rank)
    if not names:
        return
    description = ", ".join(sorted(names)[:MAX_NAMED])
    if len(names) > MAX_NAMED:
        description += f" and {len(names) - MAX_NAMED:,} more"
    raise NonFiniteError(
        f"Not finite at step {step}: the weights {description}, after an update whose gradients "
        f"were finite. {advice(folder)}"
    )


def advice(folder: Path) -> str:
    """Return the end of a message: the last complete checkpoint of a run, and what to do next."""
    checkpoints = whole_checkpoints(folder)
    last = "There is no good checkpoint of this run yet."
    if checkpoints:
        last = f"The last good checkpoint is {checkpoints[-1]}."
    return (
        f"Nothing of this step was saved. {last} Look at the records, then continue with --resume, "
        "or start another run with a lower learning rate (in RL, or with method.pre_clip=true)."
    )

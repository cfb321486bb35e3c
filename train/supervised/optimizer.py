"""What both trainers do with a step: AdamW with a learning rate for each part, and nothing that is not finite.

A loss, gradient norm or weight that is not finite ends a run on all ranks before it is saved.

torch.compile where it pays: the MLPs and norms of both towers, in place, so that names and checkpoints stay as they are.
Attention stays as it is: its plan changes with every row. Shapes are dynamic, and layers of one kind share a graph.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mmrm.data.errors import NonFiniteError
from mmrm.models.distributed import gather, rank, sum_over_ranks
from mmrm.models.families.registry import FAMILIES, family_of
from mmrm.train.checkpoints.rotation import room_for_checkpoint, whole_checkpoints
from mmrm.train.recipe.sections import OptimConfig
from mmrm.train.supervised.preemption import SAVE_AND_END

VECTORS = "_vectors"
"""Ends the names of the groups of norms and biases."""
EXPECTED = "5.17 to 5.23"
SHOWN = 3
"""Parameters that an error names."""
VISION = {name for family in FAMILIES.values() for name in family.vision_modules}
"""What families call the vision tower, and a projector beside it."""
Evaluate = Callable[[nn.Module, int], dict[str, float]]
"""(wrapped model, global step) -> figures named `benchmark/figure`; called on all ranks together."""


def part_of(name: str) -> str:
    """Return `head`, `vision` or `language` for a parameter's name, with or without the wrappers of PEFT and DDP."""
    parts = name.split(".")
    return "head" if "head" in parts else "vision" if VISION & set(parts) else "language"


def parameter_groups(
    named: Iterable[tuple[str, nn.Parameter]], config: OptimConfig
) -> list[dict[str, Any]]:
    """Sort the trainable parameters into groups by learning rate and decay; a group is named after what is in it.

    Vectors (norms, biases) are never decayed, as in Hugging Face's Trainer.
    """
    rates = {
        "head": config.head_learning_rate or config.learning_rate,
        "vision": config.vision_learning_rate or config.learning_rate,
        "language": config.learning_rate,
    }
    groups: dict[str, dict[str, Any]] = {}
    for name, parameter in named:
        if not parameter.requires_grad:
            continue
        part = part_of(name)
        key, decay = (part, config.weight_decay) if is_matrix(parameter) else (part + VECTORS, 0.0)
        group = {"name": key, "params": [], "lr": rates[part], "weight_decay": decay}
        groups.setdefault(key, group)["params"].append(parameter)
    return list(groups.values())


def learning_rates(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Return the present learning rate of every part that is trained: `head`, `vision`, `language`."""
    return {group["name"].removesuffix(VECTORS): group["lr"] for group in optimizer.param_groups}


def is_matrix(parameter: nn.Parameter) -> bool:
    """Say whether `parameter` has two or more dimensions; ZeRO-3 keeps a partitioned parameter's shape in `ds_shape`."""
    shape = parameter.ds_shape if hasattr(parameter, "ds_shape") else parameter.shape
    return len(shape) > 1


def make_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """Return fused AdamW over the trainable parameters of `model`."""
    groups = parameter_groups(model.named_parameters(), config)
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=True)


def element_wise(backbone: Any) -> Iterator[nn.Module]:
    """Yield the MLPs and norms of a backbone's layers and blocks: what works on every token by itself."""
    for layer in backbone.language_model.layers:
        yield from (layer.mlp, layer.input_layernorm, layer.post_attention_layernorm)
    yield backbone.language_model.norm
    blocks, parts = family_of(backbone.config.model_type).blocks
    for block in backbone.get_submodule(blocks):
        yield from (block.get_submodule(part) for part in parts)


def compile_layers(backbone: Any) -> None:
    """Have the MLPs and norms of a backbone compiled at their first use."""
    for module in element_wise(backbone):
        module.compile(dynamic=True)


def restore_layers(backbone: Any) -> None:
    """Undo `compile_layers`."""
    for module in element_wise(backbone):
        module._compiled_call_impl = None


def compiled_graphs() -> int:
    """Return the graphs that were compiled so far: if it goes on rising after the first steps, shapes recompile."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


class FiniteTrainer(Trainer):  # type: ignore[misc]
    """What both trainers share: the optimizer, the evaluation, and a check of every step before the optimizer takes it.

    DeepSpeed takes the step inside the backward pass, but the run ends before the next save.
    """

    control: TrainerControl

    def __init__(
        self, *, optim: OptimConfig, evaluate: Evaluate | None = None, **trainer: Any
    ) -> None:
        if not hasattr(Trainer, "_get_grad_norm"):
            raise RuntimeError(
                f"transformers {transformers.__version__}: Trainer has no _get_grad_norm, which is where a run checks that its "
                f"gradients are finite. It is tested with transformers {EXPECTED}; install one of these."
            )
        self.passes: list[dict[str, Any]] = []
        """Of the step under way: what went in, the detached `loss`, and `records`, which names what it was computed on."""
        self.optim, self.evaluate_benchmarks = optim, evaluate
        self.since: float | None = None
        """Start of the time over which speed is measured, as if evaluations took none; None before the first step."""
        self.optimizer: torch.optim.Optimizer | None
        super().__init__(eval_dataset=[0] if evaluate else None, **trainer)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Return AdamW with a group for each learning rate; DeepSpeed takes it as its client optimizer."""
        if self.optimizer is None:
            self.optimizer = make_optimizer(model or self.model, self.optim)
        return self.optimizer

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Judge the benchmarks with the model as it stands, on all ranks together; Trainer then tracks the best and saves."""
        model, training, begin = (
            self.model_wrapped,
            self.model_wrapped.training,
            time.perf_counter(),
        )
        model.eval()
        with torch.no_grad():
            found = (
                self.evaluate_benchmarks(model, self.state.global_step)
                if self.evaluate_benchmarks
                else {}
            )
        model.train(training)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in found.items()}
        Trainer.log(
            self, dict(metrics)
        )  # trl's would write its table of the last rollouts once more, or an empty one
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        if self.since is not None:
            self.since += time.perf_counter() - begin
        return metrics

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """Return the gradient norm of the step; raise NonFiniteError on all ranks if it or the loss of one is not finite.

        One exchange and one synchronisation a step, which also tells all ranks that one was asked to save and end. DeepSpeed's
        norm of gradients that are not finite may be negative.
        """
        norm, passes = super()._get_grad_norm(model, grad_norm=grad_norm), self.passes
        self.passes = []
        loss = torch.stack([one["loss"].double() for one in passes]).sum()
        asked = float(SAVE_AND_END.is_set())
        here = torch.stack(
            [
                loss,
                *(
                    torch.as_tensor(x, dtype=torch.float64, device=loss.device)
                    for x in (norm, asked)
                ),
            ]
        )
        total, norms, asked = sum_over_ranks(here).tolist()
        if not (isfinite(total) and 0 <= norms < inf):
            step, folder = self.state.global_step + 1, Path(self.args.output_dir)
            ranks = gather((float(loss), [record for one in passes for record in one["records"]]))
            guilty = [
                number for number, (its, _) in enumerate(ranks) if not isfinite(its)
            ] or range(len(ranks))
            if rank() in guilty:
                folder.mkdir(parents=True, exist_ok=True)
                torch.save(_plain(passes), folder / f"non-finite-step-{step}-rank-{rank()}.pt")
            lines = [
                f"  rank {number}: loss {ranks[number][0]:g}, records {', '.join(ranks[number][1])}"
                for number in guilty
            ]
            message = "\n".join(
                [
                    f"Not finite at step {step}: gradient norm {float(norm):g}, and",
                    *lines,
                    advice(folder),
                ]
            )
            raise NonFiniteError(
                f"{message} The batches are in {folder}/non-finite-step-{step}-rank-*.pt."
            )
        if asked:
            self.control.should_save = self.control.should_training_stop = True
        return norm

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load as Trainer does, but for the learning rate of the next step: the schedule may have been made longer.

        The one in the checkpoint is that of the old schedule, which is 0 at its end.
        """
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self.lr_scheduler.last_epoch -= 1
            self.lr_scheduler.step()

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        with room_for_checkpoint(model, Path(self.args.output_dir)):
            super()._save_checkpoint(model, trial)


def _plain(value: Any) -> Any:
    """Return `value` with objects as dictionaries, so that torch.load reads it with weights_only=True; the rest as its words."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(child) for name, child in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(child) for child in value]
    return value if value is None or isinstance(value, Tensor | str | int | float) else repr(value)


class FiniteWeights(TrainerCallback):  # type: ignore[misc]
    """Checks the weights before they are evaluated and saved."""

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any
    ) -> None:
        """Check them after a step that ends with a save."""
        if control.should_save:
            refuse_weights(rest["model"], state.global_step, Path(args.output_dir))


@torch.no_grad()
def refuse_weights(model: nn.Module, step: int, folder: Path) -> None:
    """Raise NonFiniteError on all ranks if the part of a parameter that one of them holds is not finite."""
    held = {
        name: getattr(one, "ds_tensor", one) for name, one in model.named_parameters()
    }  # ZeRO-3's part of a parameter
    floating = {
        name: one.detach() for name, one in held.items() if one.is_floating_point() and one.numel()
    }
    # The largest absolute value is NaN if one value is, and takes no memory beside the parameter.
    largest = torch.stack(
        [torch.linalg.vector_norm(one, inf).float().to("cpu") for one in floating.values()]
    )
    found = gather(
        [name for name, fine in zip(floating, largest.isfinite().tolist(), strict=True) if not fine]
    )
    wrong = sorted({name for names in found for name in names})
    if wrong:
        more = f" and {len(wrong) - SHOWN:,} more" if len(wrong) > SHOWN else ""
        raise NonFiniteError(
            f"Not finite at step {step}: the weights {', '.join(wrong[:SHOWN])}{more}, after an update whose gradients were "
            f"finite. {advice(folder)}"
        )


def advice(folder: Path) -> str:
    """Return which checkpoint is left, and what to do."""
    whole = whole_checkpoints(folder)
    last = (
        f"The last good checkpoint is {whole[-1]}"
        if whole
        else "There is no good checkpoint of this run yet"
    )
    return (
        f"Nothing of this step was saved. {last}. Look at the records, then continue with --resume, or begin another run with a "
        "lower learning rate (in RL, or with method.pre_clip on)."
    )

"""What the ranks of the distributed tests do; `tests.train.ranks` calls these functions in processes of their own."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file
from torch.nn import functional
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from mmrm.data.encoded_video import Video, video_of
from mmrm.data.errors import UserError
from mmrm.data.preference import Preference, Response, text
from mmrm.data.synthetic.scenes import png
from mmrm.models.config import BackboneConfig
from mmrm.models.distributed import rank, world_size
from mmrm.models.encoder import Encoder
from mmrm.models.heads.score_head import ScoreHeadConfig
from mmrm.train.checkpoints import staging
from mmrm.train.checkpoints.rotation import KeepCheckpoints
from mmrm.train.checkpoints.universal import LATEST_UNIVERSAL
from mmrm.train.methods.language_model.method import LanguageModelling
from mmrm.train.methods.naive.config import NaiveConfig
from mmrm.train.methods.naive.objective import make_objective
from mmrm.train.methods.trainer_arguments import training_arguments
from mmrm.train.objectives.bradley_terry.objective import BradleyTerry
from mmrm.train.recipe.deepspeed_config import NONE, stage
from mmrm.train.recipe.parsing import parse_arguments, read_recipe
from mmrm.train.recipe.sections import Script
from mmrm.train.runs import build
from mmrm.train.runs.environment import run_environment, start
from mmrm.train.runs.model import make_model
from mmrm.train.supervised.optimizer import FiniteWeights, parameter_groups
from mmrm.train.supervised.packed_trainer import PackedTrainer
from mmrm.train.supervised.steps import (
    EncodedRecords,
    ResponseEncoder,
    StepDataset,
    TrainingExample,
)
from tests.models import tiny
from tests.models.exactness import assert_exact

RECIPE = """\
backbone: {{path: {folder}/base, dtype: float32, min_pixels: 784, max_pixels: 3136}}
data: {{sources: [{{type: shapes, level: demo, split: train, rows: 16}}]}}
method: {{type: naive}}
optim: {{learning_rate: 1.0e-3, records_per_step: 4, max_steps: 6, token_budget: 400, activation_checkpointing: false}}
evaluation: {{benchmarks: [{{name: vl_rewardbench, location: embedded, limit: 7}}], best_metric: vl_rewardbench/accuracy}}
output: {{folder: {folder}/run, save_every_steps: 2, log_every_steps: 1, keep_checkpoints: 1}}
workers: 0
"""
"""A run of six steps, an epoch and a half, on pictures of at most four tokens."""


def prepare(folder: Path, family: str = tiny.FAMILY) -> Path:
    """Write a backbone of the family whose reward head is not yet at rest, and a recipe for it; return the recipe's path."""
    from mmrm.models.backbone import load_scalar

    folder.mkdir(parents=True, exist_ok=True)
    tiny.checkpoint(folder / "backbone", family=family)
    model = load_scalar(
        BackboneConfig(path=str(folder / "backbone"), dtype="float32"), ScoreHeadConfig()
    )
    tiny.stir(model.head, 0.3)
    model.save_pretrained(folder / "base")
    tiny.encoder(family).save_pretrained(folder / "base")
    path = folder / "recipe.yaml"
    path.write_text(RECIPE.format(folder=folder), encoding="utf-8")
    return path


def recipe_run(arguments: Sequence[str], entry: Script = "rm") -> None:
    """Do what `python train/ENTRY.py ARGUMENTS` does."""
    start(arguments, entry, "")


def print_order(arguments: Sequence[str]) -> None:
    """Print the records of each step of the run that would start, without its training."""
    with run_environment(seed=0, deterministic=False, deepspeed=False):
        trainer, _, _ = build.assemble(parse_arguments(arguments, "rm", ""))
        steps = trainer.train_dataset
        print("ORDER " + json.dumps(steps.global_indices(range(len(steps)))))


def dying_run(
    arguments: Sequence[str], step: int, moment: Literal["step", "save", "mark", "copy"]
) -> None:
    """Start a run and kill this rank before optimizer step `step`, or while its checkpoint is saved.

    A save is cut off while Trainer saves, before the checkpoint is marked as complete, or while it is copied from
    the staging folder.
    """
    if moment == "copy":
        kill_in_copy(step)
        start(arguments, "rm", "")
        return
    owner: Any = {"step": PackedTrainer, "save": PackedTrainer, "mark": KeepCheckpoints}[moment]
    method = {"step": "training_step", "save": "_save_rng_state", "mark": "on_save"}[moment]
    original: Callable[..., Any] = getattr(owner, method)

    def deadly(self: Any, *arguments: Any, **keywords: Any) -> Any:
        state = self.state if moment != "mark" else arguments[1]
        if state.global_step == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, *arguments, **keywords)

    setattr(owner, method, deadly)
    start(arguments, "rm", "")


def kill_in_copy(step: int) -> None:
    """Let this process be killed when it has copied a file of the checkpoint of `step`."""
    original = staging.copy_file

    def deadly(source: Path, target: Path) -> Any:
        entry = original(source, target)
        if f"checkpoint-{step}" in source.parts:
            os.kill(os.getpid(), signal.SIGKILL)
        return entry

    staging.copy_file = deadly


def killed_conversion(arguments: Sequence[str]) -> None:
    """Start a run on another number of ranks, and kill it when all files of the conversion but the last one are written."""
    original = subprocess.run

    def deadly(command: Any, **keywords: Any) -> Any:
        original(command, **keywords)
        converted = Path(command[command.index("--output_folder") + 1])
        (converted.parent / LATEST_UNIVERSAL).unlink()
        os.kill(os.getpid(), signal.SIGKILL)

    subprocess.run = deadly  # type: ignore[assignment]
    start(arguments, "rm", "")


def signalled_run(arguments: Sequence[str], step: int, number: int, ranks: Sequence[int]) -> None:
    """Start a run in which these ranks get a signal while they compute a step."""
    original = PackedTrainer.training_step

    def signalled(self: Any, *given: Any, **keywords: Any) -> Any:
        if self.state.global_step == step - 1 and rank() in ranks:
            os.kill(os.getpid(), number)
        return original(self, *given, **keywords)

    PackedTrainer.training_step = signalled  # type: ignore[method-assign]
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # ignored in what a shell starts in the background
    start(arguments, "rm", "")


def spoilt_run(
    arguments: Sequence[str], entry: Script, kind: Literal["loss", "gradient", "weights"]
) -> None:
    """Start a run in which, on the last rank alone, the third step's loss, gradient or updated weights are not finite."""
    bad = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
    objective: Any = {"rm": BradleyTerry, "sft": LanguageModelling}[entry]
    learned, checked = objective.loss, FiniteWeights.on_step_end

    def loss(self: Any, model: Any, row: Any, totals: Any) -> Any:
        value, sums = learned(self, model, row, totals)
        if bad and self.step == 2:
            value = (
                value * float("nan") if kind == "loss" else value + (value * 0).sqrt()
            )  # whose derivative is infinity times 0
        return value, sums

    def on_step_end(self: Any, arguments: Any, state: Any, control: Any, **rest: Any) -> None:
        if bad and state.global_step == 3:
            parameter = next(rest["model"].parameters())
            getattr(parameter, "ds_tensor", parameter).data[0] = float("inf")
        checked(self, arguments, state, control, **rest)

    if kind == "weights":
        FiniteWeights.on_step_end = on_step_end  # type: ignore[assignment, method-assign]
    else:
        objective.loss = loss
    start(arguments, entry, "")


def published_run(arguments: Sequence[str], calls: Path, server: str) -> None:
    """Start a run without a login to wandb, whose server would be `server`, and with a hub that only notes what it is asked."""
    import huggingface_hub

    class Notes:
        def __getattr__(self, name: str) -> Callable[..., None]:
            def note(*positional: Any, **named: Any) -> None:
                with calls.open("a", encoding="utf-8") as file:
                    found = {
                        "call": name,
                        "args": [str(one) for one in positional],
                        **{k: str(v) for k, v in named.items()},
                    }
                    file.write(json.dumps(found) + "\n")

            return note

    huggingface_hub.HfApi = Notes  # type: ignore[misc, assignment]
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        os.environ.pop(name, None)
    os.environ.update(
        HOME=str(calls.parent), NETRC=str(calls.parent / "netrc"), WANDB_BASE_URL=server
    )
    start(arguments, "rm", "")


def refused_run(arguments: Sequence[str], ranks: Sequence[int]) -> None:
    """Start a run that cannot begin, as these ranks find, the first of all a second later than the others."""

    def assemble(_: Any) -> None:
        time.sleep(1.0 if rank() in ranks and rank() == 0 else 0.0 if rank() in ranks else 60.0)
        raise UserError("the data are elsewhere")

    build.assemble, build.PATIENCE = assemble, 4.0  # type: ignore[assignment]
    start(arguments, "rm", "")


def ended_run() -> None:
    """Leave a run's environment with a model under DDP, let go of the model, and print how many of gloo's threads are left."""
    with run_environment(seed=0, deterministic=False, deepspeed=False):
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
        model(torch.ones(1, 2)).sum().backward()
    before = len(_gloo_threads())
    del model
    gc.collect()
    print(f"threads of gloo: {before}, then {len(_gloo_threads())}")


def _gloo_threads() -> list[Path]:
    return [
        task
        for task in Path("/proc/self/task").iterdir()
        if (task / "comm").read_text() == "pt_gloo_runloop\n"
    ]


@dataclass(frozen=True)
class Written:
    """Records in the order in which they are written, one letter each.

    `t` has no picture, `i` one and `m` three; `l` is a long text, and `s` the shortest. The
    responses of `d` (drawn) are pictures, and `e` (edited) has pictures in prompt and responses. `v`
    has a video in its prompt, and `w` has one in a response.
    """

    kinds: str
    family: str = tiny.FAMILY

    def __len__(self) -> int:
        return len(self.kinds)

    def __getitem__(self, index: int) -> TrainingExample:
        encoder = tiny.encoder(self.family, max_pixels=784 * 4)
        kind = self.kinds[index]
        if kind in "de":
            return _with_drawn_responses(encoder, index, is_edit=kind == "e")
        if kind in "vw":
            return _with_video(encoder, index, is_in_prompt=kind == "v")
        words = {"l": "What is in the picture? " * 12, "s": "?"}.get(
            kind, "What is in the picture? " * (1 + index % 3)
        )
        question: Any = {"type": "text", "text": words}
        pictures = [
            tiny.picture(30 + 9 * index, 40, seed=index + n)
            for n in range({"i": 1, "m": 3}.get(kind, 0))
        ]
        prompt: Any = {
            "role": "user",
            "content": [{"type": "image"} for _ in pictures] + [question],
        }
        longer = (
            index + index // 4
        ) % 2  # at odd places of one step, at even ones of the next: for either rank in turn
        responses = (f"A red square, number {index}. " * (1 + 2 * longer), f"No picture {index}.")
        conversations = [
            encoder.render((prompt, text("assistant", response))) for response in responses
        ]
        return TrainingExample(encoder.encode(pictures, conversations, "end_of_turn"))

    def order(self, epoch: int) -> npt.NDArray[np.int64]:
        """Keep the order in which they are written."""
        return np.arange(len(self.kinds))


def _with_drawn_responses(encoder: Encoder, index: int, is_edit: bool) -> TrainingExample:
    """Return a record whose chosen response is a picture, and whose other one is text and picture.

    Args:
        encoder: The encoder.
        index: The index of the record, which decides the sizes of its pictures.
        is_edit: The prompt has a picture, too.
    """
    before, chosen, rejected = [
        png(tiny.picture(30 + 9 * index, 40 + 20 * place, seed=index + place)) for place in range(3)
    ]
    record = Preference(
        f"row {index}",
        (text("user", "Draw a red square.", int(is_edit)),),
        (Response((chosen,)), Response(("Here it is: ", rejected, " Good?"))),
        (before,) if is_edit else (),
    )
    return ResponseEncoder(encoder, "end_of_turn")(record)


def _with_video(encoder: Encoder, index: int, is_in_prompt: bool) -> TrainingExample:
    """Return a record with a video of four or six frames.

    Args:
        encoder: The encoder, whose family has tokens of videos.
        index: The index of the record, which decides size and length of the video.
        is_in_prompt: True for a video in the prompt, and False for one in the chosen response.
    """
    num_frames = 4 + 2 * (index % 2)
    frames = [
        tiny.picture(60 + 4 * index, 80, seed=10 * index + number) for number in range(num_frames)
    ]
    film = Video(video_of(frames, [number / 2 for number in range(num_frames)]))
    videos = (film,) if is_in_prompt else ()
    prompt = Response((*videos, f"What happens in number {index}?"))
    chosen = Response(("It moves.",) if is_in_prompt else ("Like this: ", film, " Good?"))
    record = Preference(
        f"row {index}",
        ({"role": "user", "content": prompt.parts},),
        (chosen, Response.of_text("Nothing.")),
        videos=videos,
    )
    return ResponseEncoder(encoder, "end_of_turn")(record)


class PlainTrainer(PackedTrainer):
    """The trainer with gradient descent, whose step is the (clipped) gradient itself."""

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Return plain gradient descent over the same groups."""
        if self.optimizer is None:
            groups = parameter_groups((model or self.model).named_parameters(), self.optim)
            self.optimizer = torch.optim.SGD(groups, lr=self.optim.learning_rate)
        return self.optimizer


Case = tuple[str, str, int]
"""Folder, DeepSpeed's name, token budget."""


def descend(recipe_path: Path, kinds: str, cases: Sequence[Case]) -> None:
    """Train on the records `kinds`, four a step, once for each case, and save."""
    descend_all([(recipe_path, cases)], kinds)


def descend_all(recipes: Sequence[tuple[Path, Sequence[Case]]], kinds: str) -> None:
    """Do what `descend` does for each of `recipes`, all with DeepSpeed or none of them, in one start of the ranks."""
    deepspeed = any(name != NONE for _, cases in recipes for _, name, _ in cases)
    with run_environment(seed=0, deterministic=False, deepspeed=deepspeed):
        for recipe_path, cases in recipes:
            descend_each(recipe_path, kinds, cases)


def descend_each(recipe_path: Path, kinds: str, cases: Sequence[Case]) -> None:
    """Do what `descend` does, inside the ranks' surroundings."""
    for folder, name, budget in cases:
        os.environ["ACCELERATE_USE_DEEPSPEED"] = str(name != NONE).lower()
        _descend(recipe_path, kinds, folder, name, budget)
        unset_hf_deepspeed_config()  # else the next model's weights are divided as those of the last one under ZeRO-3


def _descend(recipe_path: Path, kinds: str, folder: str, deepspeed: str, budget: int) -> None:
    descend_on(recipe_path, partial(Written, kinds), folder, deepspeed, budget)


def descend_together(recipes: Sequence[tuple[Path, Sequence[Case]]], kinds: str) -> None:
    """Do what `descend_all` does, with DeepSpeed, on ranks of which two at a time compute a row together."""
    with run_environment(seed=0, deterministic=False, deepspeed=True):
        for recipe_path, cases in recipes:
            for folder, name, budget in cases:
                os.environ["ACCELERATE_USE_DEEPSPEED"] = str(name != NONE).lower()
                records_of = partial(Written, kinds)
                descend_on(recipe_path, records_of, folder, name, budget, ranks_of_row=2)
                unset_hf_deepspeed_config()


def descend_on(
    recipe_path: Path,
    records_of: Callable[[str], EncodedRecords],
    folder: str,
    deepspeed: str,
    budget: int,
    ranks_of_row: int = 1,
) -> None:
    """Train by plain gradient descent on some records, four a step, and save.

    The arguments are those of `plain_trainer`.
    """
    trainer = plain_trainer(recipe_path, records_of, folder, deepspeed, budget, ranks_of_row)
    trainer.train()
    assert trainer.is_deepspeed_enabled == (deepspeed != NONE)
    trainer.save_model(folder)
    if rank() == 0:
        trainer.state.save_to_json(f"{folder}/trainer_state.json")


def look_into_divided_row(recipe_path: Path) -> None:
    """Compute a row with the other rank, and assert that this one computes its part of the tokens and images."""
    with run_environment(seed=0, deterministic=False, deepspeed=False):
        folder = str(recipe_path.parent / "looked-into")
        records_of = partial(Written, "iiii")
        trainer = plain_trainer(recipe_path, records_of, folder, NONE, 10**6, ranks_of_row=2)
        [row] = trainer.steps[0]["rows"]
        num_patches: list[int] = []
        num_tokens: list[int] = []
        backbone = trainer.model.model
        backbone.visual.register_forward_pre_hook(
            lambda module, args: num_patches.append(len(args[0]))
        )
        backbone.language_model.layers[0].register_forward_pre_hook(
            lambda module, args: num_tokens.append(args[0].shape[1])
        )
        totals = trainer._totals_over_ranks([row])
        trainer._loss_of_row(trainer.model, row, totals)
        assert num_tokens == [-(-row.batch.tokens // 2)]
        num_patches_of_ranks = torch.tensor([num_patches[0], 0][:: 1 if rank() == 0 else -1])
        torch.distributed.all_reduce(num_patches_of_ranks)
        assert num_patches_of_ranks.sum() == len(row.batch.pixel_values)
        assert num_patches_of_ranks.min() > 0
        # Both ranks count the records of the row, and the log counts them once.
        assert totals[0] == 2 * row.records
        trainer.speed_start = time.perf_counter() - 1
        trainer._sums["dropped/unusable"] = 3.0
        samples, _ = trainer.get_batch_samples(iter([trainer.steps[0]]), 1, torch.device("cpu"))
        assert [len(step["rows"]) for step in samples] == [1]
        assert trainer._sums["data_wait"] > 0
        trainer._sums["data_wait"] = 0.5  # seconds of each rank
        trainer._sums["records"] = 4.0
        figures = trainer._figures()
        assert figures["dropped/unusable"] == 3.0
        # Both are divided by the same seconds, so that their ratio does not depend on the time.
        ratio = figures["data_wait"] / figures["records_per_second"]
        assert abs(ratio - 0.5 / 4) < 1e-9


def plain_trainer(
    recipe_path: Path,
    records_of: Callable[[str], EncodedRecords],
    folder: str,
    deepspeed: str,
    budget: int,
    ranks_of_row: int,
) -> PlainTrainer:
    """Return a trainer that descends the gradient of some records, four a step.

    Args:
        recipe_path: The recipe, as `prepare` writes it.
        records_of: Takes the family of backbones and returns the records.
        folder: Where the model and the figures of its steps are saved.
        deepspeed: DeepSpeed's name.
        budget: Largest cost of a row in tokens.
        ranks_of_row: The number of ranks that compute a row together.
    """
    changes = [
        f"optim.sequence_parallel={ranks_of_row}",
        "optim.learning_rate=0.01",
        "evaluation.benchmarks=[]",
        "evaluation.best_metric=null",
        "optim.schedule=constant",
    ]
    changes += [
        "optim.warmup_ratio=0",
        "optim.max_grad_norm=0.4",
        f"deepspeed={deepspeed}",
        f"output.folder={folder}",
    ]
    if deepspeed != NONE:
        mode = "linear"
        if stage(deepspeed) == 3:
            mode = "full"
        elif functional.linear is not torch._C._nn.linear:
            # ZeRO-3 replaced it for the rest of the process, which `linear` refuses.
            mode = "attention"
        changes.append(f"optim.activation_checkpointing={mode}")
    recipe = read_recipe(recipe_path, changes)
    model: Any = make_model(recipe)
    family = model.config.model_type
    records = records_of(family)
    steps = -(-len(records) // 4)
    arguments = training_arguments(recipe, steps)
    return PlainTrainer(
        objective=make_objective(NaiveConfig(type="naive")),
        steps=StepDataset(
            records,
            tiny.encoder(family).pack,
            records_per_step=4,
            steps=steps,
            token_budget=budget,
            rank=rank() // ranks_of_row,
            world_size=world_size() // ranks_of_row,
        ),
        optim=recipe.optim,
        model=model,
        args=arguments,
        processing_class=tiny.encoder(family),
    )


def ended(folder: Path) -> Path:
    """Return the last checkpoint of a run of `RECIPE`."""
    return folder / "checkpoint-6"


def lines(folder: Path) -> list[dict[str, Any]]:
    """Return the log lines of the training steps."""
    state = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
    return [line for line in state["log_history"] if "loss" in line]


ROUNDED_STEPS = 1e-8
"""Largest difference of a figure under ZeRO-3, relative to the largest figure of its step. That of Qwen3.5, whose steps
are clipped to a seventieth, was 1.3e-9; every tensor differed by 3e-8 of its change."""


def assert_same_steps(
    found: list[dict[str, Any]], wanted: list[dict[str, Any]], names: Sequence[str], stage: str
) -> None:
    """Assert that two float64 runs logged the same figures `names` at every step.

    DeepSpeed's ZeRO-3 rounds the norm of the gradient to float32 on every processor. All gradients
    of a step that is clipped are scaled by it, so the figures of the next steps differ by up to
    `ROUNDED_STEPS`.
    """
    assert len(found) == len(wanted)
    for line, other in zip(found, wanted, strict=True):
        compared = list(names)
        if stage.startswith("zero3"):
            compared.remove("grad_norm")
            assert abs(line["grad_norm"] / other["grad_norm"] - 1) < 2**-23
            allowed = ROUNDED_STEPS * max(abs(other[name]) for name in compared)
            for name in compared:
                assert abs(line[name] - other[name]) <= allowed, name
            continue
        assert_exact(
            {name: line[name] for name in compared}, {name: other[name] for name in compared}
        )


def best_of(folder: Path) -> str:
    """Return the name of the first checkpoint that has the highest accuracy of all that were logged."""
    state = json.loads((ended(folder) / "trainer_state.json").read_text(encoding="utf-8"))
    found = {
        line["step"]: line.get("eval_vl_rewardbench/accuracy", -1.0)
        for line in state["log_history"]
        if line["step"]
    }
    return f"checkpoint-{max(found, key=lambda step: found[step])}"


def weights(folder: Path, name: str = "model.safetensors") -> dict[str, torch.Tensor]:
    """Return the tensors of a file in a checkpoint folder."""
    tensors: dict[str, torch.Tensor] = load_file(folder / name)
    return tensors


def difference(folder: Path, other: Path, name: str = "model.safetensors") -> float:
    """Return the largest difference between the tensors of two files, which must have the same names."""
    here, there = load_file(folder / name), load_file(other / name)
    assert here.keys() == there.keys()
    return max(float((here[key].double() - there[key].double()).abs().max()) for key in here)

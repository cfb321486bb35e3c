"""One step of each paradigm through the project's own entry, and the tests that need a GPU or vLLM."""

import math
import os
import re
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import torch
from accelerate.state import AcceleratorState

from mmrm.data.storage.files import read_json
from mmrm.models.families.backbone_shape import EMBEDDED
from mmrm.models.families.registry import FAMILIES
from mmrm.train.planning.memory import GIB
from mmrm.train.recipe.sections import Script
from mmrm.train.reinforce.stable_reinforce.method import StableReinforceMethod
from mmrm.train.runs.environment import start
from mmrm.train.studies.speed.workload import SHAPES
from tests.train.reinforce_worker import even_tokens
from tests.train.shipped import FOLDER
from tools.gpu_check.lines import Found, SkippedError

TESTS = Path(__file__).resolve().parents[2] / "tests"
FAMILY = FAMILIES["qwen2_5_vl"].parts()
SHORT = (
    "data.sources.0.rows=64",
    "data.validation=0",
    "optim.max_steps=1",
    "optim.epochs=null",
    "optim.records_per_step=4",
    "evaluation={benchmarks: [], best_metric: null}",
    "output.save_every_steps=1",
    "output.resume=never",
    "workers=0",
)
LARGE = ("backbone.dtype=bfloat16", "optim.lora={rank: 64}", "optim.activation_checkpointing=full")
ROLLOUTS = (
    "num_generations=4",
    "pairs_per_pass=4",
    "steps_per_rollout=1",
    "max_new_tokens=16",
    "temperature=2",
)
WHOLE: tuple[str, ...] = ()
"""What a whole training changes besides its length; tests make it shorter."""
PARADIGMS: dict[str, tuple[Script, str, tuple[str, ...]]] = {
    "naive": ("rm", "naive", ()),
    "critic": ("rm", "critic", ("method.critique_max_tokens=16",)),
    "judge by SFT": ("sft", "judge_sft", ()),
    "judge by StableReinforce": (
        "rl",
        "judge_rl",
        ("method.advantages.filter=null", *(f"method.{key}" for key in ROLLOUTS)),
    ),
}
"""Script, recipe of recipes/shapes/, and what makes it short."""


def small(paradigm: str, deepspeed: str = "none") -> Found:
    """Train the embedded backbone for a step."""
    return step(paradigm, "backbone.path=embedded", f"deepspeed={deepspeed}")


def large(paradigm: str) -> Found:
    """Train adapters on random weights of the 3B shape for a step."""
    backbone = random_backbone(Path(os.environ["GPU_CHECK_SCRATCH"], "3b"))
    return step(paradigm, f"backbone.path={backbone}", "deepspeed=none", *LARGE)


def adapters(shape: str, quantise: str, gib: str) -> Found:
    """Train adapters on random weights of a shape for a step, whose peak must not exceed `gib` GiB."""
    if quantise == "nf4" and find_spec("bitsandbytes") is None:
        raise SkippedError("bitsandbytes is not installed")
    backbone = random_backbone(Path(os.environ["GPU_CHECK_SCRATCH"], shape), shape)
    found = step(
        "naive",
        f"backbone.path={backbone}",
        "deepspeed=none",
        *LARGE,
        f"optim.lora.quantise={quantise}",
        "optim.token_budget=2048",
    )
    limit = float(gib)
    is_within = found.values["peak_gib"] <= limit
    return Found(found.right and is_within, f"{found.said} (limit {limit:g} GiB)", found.values)


def whole_training(steps: str, least: str, deepspeed: str = "zero2") -> Found:
    """Train the embedded world's reward model, and hold its accuracy on both benchmarks to `least` percent."""
    folder = Path(os.environ["GPU_CHECK_SCRATCH"], "whole")
    shutil.rmtree(folder, ignore_errors=True)
    arguments = [
        str(FOLDER / "shapes" / "naive.yaml"),
        f"output.folder={folder}",
        f"output.save_every_steps={steps}",
        "output.resume=never",
        "optim.epochs=null",
        f"optim.max_steps={steps}",
        f"deepspeed={deepspeed}",
        *WHOLE,
    ]
    began = time.monotonic()
    start(arguments, "rm", "")
    seconds = time.monotonic() - began
    AcceleratorState._reset_state(reset_partial_state=True)
    log = read_json(folder / f"checkpoint-{steps}" / "trainer_state.json")["log_history"]
    values: dict[str, float] = {"seconds": seconds}
    for line in log:
        for name in ("vl_rewardbench", "multimodal_rewardbench"):
            if f"eval_{name}/accuracy" in line:
                values[name] = 100 * line[f"eval_{name}/accuracy"]
    backend = "no process group"
    if torch.distributed.is_initialized():
        backend = torch.distributed.get_backend()
    said = ", ".join(f"{name} {value:.1f}" for name, value in values.items())
    right = min(values["vl_rewardbench"], values["multimodal_rewardbench"]) >= float(least)
    return Found(right, f"{steps} steps, {deepspeed}, {backend}: {said} (limit {least} %)", values)


def step(paradigm: str, *changes: str) -> Found:
    """Do what the paradigm's script does with its recipe, for a step; raises SystemExit where that ends with a message.

    Reinforcement learning is paid for even tokens: a random judge earns nothing, and learns nothing from it.
    """
    entry, recipe, own = PARADIGMS[paradigm]
    folder = Path(os.environ["GPU_CHECK_SCRATCH"], "run")
    shutil.rmtree(folder, ignore_errors=True)
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    arguments = [
        str(FOLDER / "shapes" / f"{recipe}.yaml"),
        f"output.folder={folder}",
        *SHORT,
        *own,
        *changes,
    ]
    with mock.patch.object(StableReinforceMethod, "reward", return_value=(even_tokens, None)):
        start(arguments, entry, "")
    AcceleratorState._reset_state(
        reset_partial_state=True
    )  # several steps share a process where there is no GPU
    log = read_json(folder / "checkpoint-1" / "trainer_state.json")["log_history"]
    line = next(one for one in log if "loss" in one)
    values = {name: float(line[name]) for name in ("loss", "grad_norm")} | {"peak_gib": 0.0}
    right = math.isfinite(values["loss"]) and 0 < values["grad_norm"] < math.inf
    said = f"loss {values['loss']:.4f}, gradient norm {values['grad_norm']:.3g}"
    if cuda:
        values["peak_gib"] = torch.cuda.max_memory_allocated() / GIB
        said += f", peak {values['peak_gib']:.1f} GiB"
    return Found(right, said, values)


def random_backbone(folder: Path, shape: str = "3b") -> Path:
    """Write random weights of a shape, and the embedded backbone's tokenizer and processor, unless they are there."""
    if not folder.exists():
        needed = 2 * SHAPES[shape].count().backbone / GIB + 3
        free = shutil.disk_usage(folder.parent).free / GIB
        if free < needed:
            raise SkippedError(
                f"needs {needed:.0f} GiB of disk for random weights, and {folder.parent} has {free:.1f}"
            )
        config = SHAPES[shape].config()
        embedded = FAMILY.config.from_pretrained(EMBEDDED)
        for name in (
            "image_token_id",
            "video_token_id",
            "vision_start_token_id",
            "vision_end_token_id",
        ):
            setattr(config, name, getattr(embedded, name))
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            setattr(config.text_config, name, getattr(embedded.text_config, name))
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            model = FAMILY.language_model.__bases__[-1]._from_config(config, dtype=torch.bfloat16)
        part = folder.with_name("unfinished")
        shutil.copytree(
            EMBEDDED,
            part,
            ignore=shutil.ignore_patterns("config.json", "*.safetensors"),
            dirs_exist_ok=True,
        )
        model.save_pretrained(part)
        part.rename(folder)
        del model
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return folder


def gpu_tests() -> Found:
    """Run the tests that are marked `gpu`: every kernel, row shape, head count and width, quantisation, token budget."""
    marked = [
        path
        for path in sorted(TESTS.rglob("test_*.py"))
        if re.search(r"mark\.gpu|\bDEVICES\b", path.read_text("utf-8"))
    ]
    return by_pytest("-m", "gpu", *map(str, marked))


def vllm_rollouts() -> Found:
    """Let a vLLM in this process write rollouts, and hold its log-probabilities to those of training."""
    if find_spec("vllm") is None:
        raise SkippedError("vLLM is not installed")
    return by_pytest(str(TESTS / "train" / "test_vllm.py"))


def by_pytest(*arguments: str) -> Found:
    """Run tests; what they print goes to the log."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=TESTS.parent, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout)
    counts = {
        what: float(number)
        for number, what in re.findall(r"(\d+) (passed|failed|skipped|error)", done.stdout)
    }
    failed = re.findall(r"^(?:FAILED|ERROR) \S*::(.*)$", done.stdout, re.MULTILINE)
    said = (
        ", ".join(f"{number:.0f} {what}" for what, number in counts.items())
        or f"pytest ended with status {done.returncode}"
    )
    return Found(
        done.returncode == 0 and "passed" in counts, "; ".join([said, *failed[:3]]), counts
    )

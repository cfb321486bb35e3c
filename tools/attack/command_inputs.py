"""The files and the base calls of the attack on command lines: one call that works for every command."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrm.models.backbone import load_critic, load_scalar
from mmrm.models.config import BackboneConfig, CritiqueConfig
from mmrm.models.heads.score_head import ScoreHeadConfig
from mmrm.train.checkpoints.integrity import mark_complete
from mmrm.train.recipe.sections import LoraConfig
from mmrm.train.runs.model import add_adapters
from tests.eval import run_folders
from tests.eval.make import png
from tests.models import tiny

Values = dict[str, list[str]]
"""The words of a command line, by the `dest` of the argument in the command's parser. A flag that is
given has an empty list."""

QUESTIONS = "{type: shapes, level: demo, split: train, rows: 2}"
TRAINING = """\
backbone: {path: embedded, dtype: float32}
data: {sources: [{type: shapes, level: demo, rows: 64}]}
optim: {learning_rate: 1.0e-4, records_per_step: 8, max_steps: 2}
output: {folder: runs/new, save_every_steps: 2}
"""
RECIPES = {
    "rm.yaml": TRAINING + "method: {type: naive}\n",
    "sft.yaml": TRAINING + "method: {type: language_model, target: judgement, template: turns}\n",
    "rl.yaml": TRAINING + "method: {type: stable_reinforce, template: turns}\n",
    "list.yaml": TRAINING
    + "method: {type: naive}\nvariants: {one: {}, two: {head.layers: 1}}\n"
    + "evaluation: {benchmarks: [{name: vl_rewardbench, location: embedded, limit: 4}]}\n",
    "planted.yaml": TRAINING
    + "method: {type: naive}\nvariants: {right: {}, wrong: {data.sources.0.flipped: 0.2}}\n"
    + "evaluation: {benchmarks: [{name: vl_rewardbench, location: embedded, limit: 4}]}\n",
    "rounds.yaml": TRAINING.replace(
        "rows: 64}", "rows: 64}, {type: project, name: on_policy, path: x}"
    )
    + "method: {type: naive}\n",
    "mine.yaml": TRAINING.replace(
        "{type: shapes, level: demo, rows: 64}", "{type: project, path: records/records.jsonl}"
    )
    + "method: {type: naive}\n",
}
"""Recipes by the names of their files."""
ENDPOINT = "{type: endpoint, url: 'http://127.0.0.1:9/v1', model: m, retries: 0, cache: answers}"
"""A judge behind a port at which nothing listens."""


@dataclass(frozen=True, slots=True)
class BaseCall:
    """A call of a command that works, or that ends with a message at the last possible place."""

    values: Values
    files: tuple[str, ...] = ()
    """The names of the files and folders that the call needs in its working directory."""


NEW_QUESTIONS = "{type: shapes, level: demo, split: benchmark, rows: 4, seed: 4, text_only: 0.0}"
POLICY_OPTIONS = {"policy": ["embedded"], "questions": [NEW_QUESTIONS], "launcher": ["false"]}
RESPONSES = {"scored": ["scored.jsonl"], "output": ["out.jsonl"]}
RATED_QUESTIONS = "{type: shapes_rated, level: demo, split: benchmark, rows: 4, seed: 4}"
DRAWN_QUESTIONS = "{type: shapes_drawn, level: demo, split: benchmark, rows: 4, seed: 4}"
MOTION_QUESTIONS = "{type: shapes_motion, level: demo, split: benchmark, rows: 4, seed: 4}"
RUN = ("run", "vl")
BASE_CALLS = {
    "rm": BaseCall({"recipe": ["rm.yaml"], "dry_run": []}, ("rm.yaml",)),
    "sft": BaseCall({"recipe": ["sft.yaml"], "dry_run": []}, ("sft.yaml",)),
    "rl": BaseCall({"recipe": ["rl.yaml"], "dry_run": []}, ("rl.yaml",)),
    "ablate": BaseCall({"list": ["list.yaml"], "launcher": ["false"]}, ("list.yaml",)),
    "on-policy": BaseCall(
        {"recipe": ["rounds.yaml"], "folder": ["out"], **POLICY_OPTIONS}, ("rounds.yaml",)
    ),
    "merge": BaseCall({"checkpoint": ["lora/checkpoint-1"], "folder": ["out"]}, ("run", "lora")),
    "export": BaseCall({"checkpoint": ["run/checkpoint-1"], "folder": ["out"]}, RUN),
    "eval": BaseCall({"judges": ["run/checkpoint-1"], "output": ["out"]}, RUN),
    "sweep": BaseCall({"judges": ["run"], "output": ["out"]}, RUN),
    "report": BaseCall({"folder": ["run"], "output": ["out.html"]}, RUN),
    "score": BaseCall(
        {"judge": ["run/checkpoint-1"], "input": ["in.jsonl"], "output": ["out.jsonl"]},
        ("run", "in.jsonl", "red.png"),
    ),
    "score-records": BaseCall(
        {"recipe": ["mine.yaml"], "judge": ["run/checkpoint-1"], "output": ["out.jsonl"]},
        ("mine.yaml", "records", "run"),
    ),
    "serve": BaseCall({"judge": ["run/checkpoint-1"], "port": ["0"]}, ("run",)),
    "sample": BaseCall(
        {
            "policy": ["run/base"],
            "output": ["out.jsonl"],
            "source": [QUESTIONS],
            "samples": ["2"],
            "max_new_tokens": ["3"],
        },
        ("run",),
    ),
    "select-responses best": BaseCall(RESPONSES, ("scored.jsonl", "red.png")),
    "select-responses pairs": BaseCall(RESPONSES, ("scored.jsonl", "red.png")),
    "select-responses rejection-sampling": BaseCall(RESPONSES, ("scored.jsonl", "red.png")),
    "select-responses ask": BaseCall(RESPONSES | {"pairs": ["1"]}, ("scored.jsonl", "red.png")),
    "select-pairs tries": BaseCall(
        {"recipe": ["mine.yaml"], "out": ["out.jsonl"], "annotated": ["annotated.jsonl"]},
        ("mine.yaml", "records"),
    ),
    "select-pairs pass-rate": BaseCall(
        {"recipe": ["mine.yaml"], "out": ["out.jsonl"], "judge": ["run/checkpoint-1"]},
        ("mine.yaml", "records", "run"),
    ),
    "data": BaseCall({"recipe_or_data": ["mine.yaml"], "plan": []}, ("mine.yaml", "records")),
    "browse": BaseCall({"recipe": ["mine.yaml"], "out": ["out.html"]}, ("mine.yaml", "records")),
    "clean": BaseCall({"recipe": ["rm.yaml"], "steps": ["2"], "launcher": ["false"]}, ("rm.yaml",)),
    "clean-planted": BaseCall(
        {"list": ["planted.yaml"], "steps": ["2"], "launcher": ["false"]}, ("planted.yaml",)
    ),
    "overlap": BaseCall(
        {"recipe": ["mine.yaml"], "output": ["out.txt"], "benchmarks": ["vl_rewardbench=vl"]},
        ("mine.yaml", "records", "vl"),
    ),
    "annotate": BaseCall(
        {"recipe": ["mine.yaml"], "judge": ["endpoint.yaml"], "out": ["out.jsonl"]},
        ("mine.yaml", "records", "endpoint.yaml"),
    ),
    "frames": BaseCall({"videos": ["videos"], "out": ["out"], "frames": ["2"]}, ("videos",)),
    "shapes": BaseCall({"write": ["out"], "rows": ["2"]}),
    "overoptimisation": BaseCall(
        {
            "runs": ["policy"],
            "questions": ["2"],
            "samples": ["2"],
            "output": ["out"],
        },
        ("policy", "run"),
    ),
    "critique-ablation": BaseCall(
        {"checkpoint": ["critic/checkpoint-1"], "rows": ["2"], "output": ["out.json"]},
        ("critic", "run"),
    ),
    "predictors": BaseCall({"list": ["list.yaml"], **POLICY_OPTIONS}, ("list.yaml",)),
    "compare-objectives": BaseCall(
        {"list": ["list.yaml"], "questions": [RATED_QUESTIONS], "launcher": ["false"]},
        ("list.yaml",),
    ),
    "picture-faults": BaseCall(
        {"list": ["list.yaml"], "questions": [DRAWN_QUESTIONS], "launcher": ["false"]},
        ("list.yaml",),
    ),
    "frame-order": BaseCall(
        {"list": ["list.yaml"], "questions": [MOTION_QUESTIONS], "launcher": ["false"]},
        ("list.yaml",),
    ),
    "which-source": BaseCall(
        {"recipe": ["rm.yaml"], "steps": ["2"], "launcher": ["false"]}, ("rm.yaml",)
    ),
    "compare-rankings": BaseCall(
        {"judges": ["a=in.jsonl"], "output": ["out"]}, ("in.jsonl", "red.png")
    ),
    "shortcuts": BaseCall(
        {"judge": ["run/checkpoint-1"], "recipe": ["mine.yaml"], "output": ["out.json"]},
        ("mine.yaml", "records", "run", "vl"),
    ),
    "answers": BaseCall({"checkpoint": ["run/base"], "items": ["2"]}, ("run",)),
    "stress": BaseCall({"recipe": ["rl.yaml"], "seeds": ["0"]}, ("rl.yaml",)),
    "throughput": BaseCall({"pairs": ["1"], "repeats": ["1"], "loader": []}),
}
"""The base call of every command, and of every subcommand of the two commands that have some."""

POLICY_RECIPE = {
    "backbone": {"path": "run/base", "dtype": "float32", "max_pixels": 12544},
    "method": {
        "type": "policy",
        "temperature": 1.0,
        "max_new_tokens": 5,
        "rewards": [
            {"type": "verifier", "weight": 1.0},
            {"type": "judge", "path": "run/checkpoint-1"},
        ],
    },
    "optim": {"token_budget": 400, "lora": None},
    "deepspeed": "none",
    "workers": 0,
    "evaluation": {
        "questions": [
            {"type": "shapes", "level": "demo", "split": "benchmark", "rows": 3, "text_only": 0.5}
        ],
        "benchmarks": [],
        "protocol": {},
        "baselines": True,
    },
}


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Run the block with `folder` as the working directory."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def write_inputs(folder: Path) -> None:
    """Write the files of all base calls into a new folder. All paths in them are relative to it."""
    folder.mkdir()
    with working_in(folder):
        for name, text in RECIPES.items():
            Path(name).write_text(text, encoding="utf-8")
        Path("endpoint.yaml").write_text(ENDPOINT, encoding="utf-8")
        Path("red.png").write_bytes(png("red", (40, 30)))
        _write_records()
        _write_checkpoints()
        _write_hostile_checkpoints()
        _write_video(Path("videos/one.mp4"))


def copy_inputs(inputs: Path, names: Sequence[str], folder: Path) -> None:
    """Copy some of the files that `write_inputs` has written into the folder of a case."""
    for name in names:
        source = inputs / name
        if source.is_dir():
            shutil.copytree(source, folder / name, symlinks=True)
        else:
            shutil.copy(source, folder / name)


def _write_records() -> None:
    """Write preference records, a benchmark, and records with responses that have scores or none."""
    Path("records").mkdir()
    run_folders.preferences(Path("records"), rows=3)
    Path("vl").mkdir()
    run_folders.vl_rewardbench(Path("vl"), rows=3)
    records: list[dict[str, Any]] = []
    for number in range(2):
        prompt = f"What is shown, {number}?"
        records.append({"prompt": prompt, "images": ["red.png"], "responses": ["Red.", "A circle"]})
    _write_lines(Path("in.jsonl"), records)
    _write_lines(Path("scored.jsonl"), [record | {"scores": [0.5, -1.0]} for record in records])


def _write_checkpoints() -> None:
    """Write the runs of a scalar model, of adapters, of a critic and of a policy, all tiny."""
    benchmarks = [{"name": "vl_rewardbench", "location": "vl"}]
    base = Path("run/base")
    run_folders.run_folder(Path("run"), (1,), run_folders.recipe(base, benchmarks))
    state = {
        "log_history": [
            {
                "step": 1,
                "loss": 0.5,
                "eval_vl_rewardbench/accuracy": 0.5,
                "eval_vl_rewardbench/ties": 0.1,
            }
        ]
    }
    Path("run/checkpoint-1/trainer_state.json").write_text(json.dumps(state), encoding="utf-8")
    mark_complete(Path("run/checkpoint-1"))

    adapter_recipe = run_folders.recipe(base, [], lora=True)
    config = BackboneConfig.model_validate(adapter_recipe["backbone"])
    adapters: Any = add_adapters(
        load_scalar(config, ScoreHeadConfig()),
        LoraConfig(rank=4, alpha=8),
        has_head=True,
        has_master_weights=False,
    )
    adapters.save_pretrained("lora/checkpoint-1")
    tiny.encoder().save_pretrained(Path("lora/checkpoint-1"))
    Path("lora/recipe.yaml").write_text(json.dumps(adapter_recipe), encoding="utf-8")
    Path("lora/provenance.json").write_text("[]", encoding="utf-8")

    critic = load_critic(
        BackboneConfig(path=str(base), dtype="float32"), critique=CritiqueConfig(max_new_tokens=3)
    )
    critic.save_pretrained("critic/checkpoint-1")
    tiny.encoder().save_pretrained(Path("critic/checkpoint-1"))
    tiny.call_float32(Path("critic/checkpoint-1"))

    checkpoint = tiny.checkpoint(Path("policy/checkpoint-2"), seed=1)
    (checkpoint / "complete").touch()
    Path("policy/recipe.yaml").write_text(json.dumps(POLICY_RECIPE), encoding="utf-8")


HOSTILE_JSON = {
    "list": "[7]",
    "cut": '{"model_type": "qwen',
    "bytes": "\xff\xfe",
    "deep": "[" * 100_000,
    "digits": "9" * 5000,
    "empty": "{}",
}
"""Contents of a checkpoint's settings, by a name."""
DAMAGED_FILES = {
    "config.json": "run",
    "preprocessor_config.json": "run",
    "tokenizer_config.json": "run",
    "adapter_config.json": "lora",
}
"""Files of settings that are damaged, with the run whose checkpoint has the file."""
ODD_VALUES: dict[str, Any] = {"null": None, "number": 7, "list": [[]], "object": {"a": 1}}
ODD_KEYS = ("architectures", "model_type", "dtype", "reference_scores")
"""Keys of config.json that this project reads."""


def _write_hostile_checkpoints() -> None:
    """Write copies of the checkpoints with one damaged file each, whose weights are links."""
    for name, text in HOSTILE_JSON.items():
        for file, run in DAMAGED_FILES.items():
            _copy_checkpoint(f"hostile/{name}-{file}", Path(run), file, text)
    config = json.loads(Path("run/checkpoint-1/config.json").read_text(encoding="utf-8"))
    for key in ODD_KEYS:
        for name, value in ODD_VALUES.items():
            text = json.dumps(config | {key: value})
            _copy_checkpoint(f"hostile/{key}-{name}", Path("run"), "config.json", text)


def _copy_checkpoint(name: str, run: Path, damaged_file: str, text: str) -> None:
    """Write a copy of a run with one checkpoint, in which one file of the checkpoint is damaged."""
    folder = Path(name, "checkpoint-1")
    folder.mkdir(parents=True)
    for file in run.glob("*.*"):
        shutil.copy(file, folder.parent)
    for file in (run / "checkpoint-1").iterdir():
        if file.suffix == ".safetensors":
            (folder / file.name).symlink_to(f"../../../{file}")
        elif file.is_file() and file.name != "complete":
            shutil.copy(file, folder)
    (folder / damaged_file).write_text(text, encoding="latin-1")


def hostile_checkpoints() -> list[str]:
    """Return the paths of all damaged checkpoints, in the order of their names."""
    names = [f"{name}-{file}" for name in HOSTILE_JSON for file in DAMAGED_FILES]
    names += [f"{key}-{value}" for key in ODD_KEYS for value in ODD_VALUES]
    return [f"hostile/{name}/checkpoint-1" for name in sorted(names)]


def _write_video(file: Path) -> None:
    """Write a video of three frames."""
    import av
    import numpy as np

    file.parent.mkdir()
    with av.open(str(file), "w") as container:
        stream = container.add_stream("mpeg4", rate=5)
        stream.width = 32
        stream.height = 32
        for shade in range(3):
            pixels = np.full((32, 32, 3), 80 * shade, np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def _write_lines(file: Path, rows: Sequence[object]) -> None:
    """Write a file of JSON lines."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

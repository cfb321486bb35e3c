"""A run folder as training and evaluation leave it, with made-up figures: written by the same writers, schema-true."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow  # type: ignore[import-untyped]
from PIL import Image, ImageDraw
from pyarrow import parquet

from mmrm.data.preparation.mixing import Mixture
from mmrm.data.storage.files import write_json
from mmrm.eval.benchmarks.benchmark import LoadedBenchmark
from mmrm.eval.benchmarks.registry import BENCHMARKS, BenchmarkConfig, load
from mmrm.eval.candidates import Example, Scores, Vote
from mmrm.eval.protocol import ProtocolConfig, presentations
from mmrm.eval.reporting.sweep_report import sweep_content
from mmrm.eval.results.predictions import write_predictions
from mmrm.eval.results.result_store import Standing, Store, summarise
from mmrm.eval.suite.suite import evaluate, write_result
from mmrm.train.recipe.parsing import parse_arguments
from mmrm.train.runs.provenance import write_provenance
from tests.train.minimal import MINIMAL, write

HOSTILE = (
    '</script><script>document.title = "taken over"</script>'
    '<img src="https://example.org/x.png" onerror="document.title=1">&amp;'
)
"""A response that tries to leave its place on the page."""
STEPS = (0, 100, 200)
GROUPS = ("colours", "counting", "reading", "where & <how>")
OWN, PAIRWISE = "preference_folder", "vl_rewardbench"


def make_run(folder: Path, rows: int = 60) -> Path:
    """Write a run of three checkpoints, the first of them rotated away, judged on two benchmarks; return its folder."""
    run = folder / "made-run"
    configs = [
        BenchmarkConfig(name=OWN, location=str(_records(folder / "records", rows))),
        BenchmarkConfig(name=PAIRWISE, location=str(_pairs(folder / "pairs", rows // 2))),
    ]
    benchmarks = json.dumps([config.model_dump() for config in configs])
    recipe = write(folder, MINIMAL)
    arguments = [
        str(recipe),
        f"output.folder={run}",
        f"evaluation.benchmarks={benchmarks}",
        f"evaluation.best_metric={OWN}/accuracy",
    ]
    launch = parse_arguments(arguments, "rm", "")
    write_provenance(launch, run, Mixture(launch.recipe.data))
    loaded = {config.name: load(config) for config in configs}
    for step in STEPS[1:]:
        checkpoint = run / f"checkpoint-{step}"
        judge(
            loaded[OWN],
            checkpoint / "eval",
            OWN,
            lambda example, step=step: scores(example, step / 200),  # type: ignore[misc]
        )
        judge(loaded[PAIRWISE], checkpoint / "eval", PAIRWISE, votes, ProtocolConfig(votes=3))
        (checkpoint / "trainer_state.json").write_text(
            json.dumps({"log_history": log(step)}), encoding="utf-8"
        )
    blind = run / "checkpoint-200" / "eval" / "ablations" / "none"
    judge(
        loaded[OWN], blind, OWN, lambda example: scores(example, 0.0), ProtocolConfig(images="none")
    )
    (run / "best").symlink_to("checkpoint-200")
    (run / "completions").mkdir()
    for step in range(0, 201, 20):
        rollout_table(run / "completions" / f"completions_{step:05d}.parquet", step)
    return run


def rollout_table(file: Path, step: int, prompts: int = 6, judgements: int = 8) -> None:
    """Write a table as trl does: a few judgements on each prompt, more of them right the later the step."""
    rows = []
    for place in range(prompts * judgements):
        prompt, number = divmod(place, judgements)
        right = number < (prompt + 1 if prompt < 5 else judgements) and number <= step / 20
        winner = prompt % 2 + 1
        answer = winner if right else 3 - winner
        text = (
            HOSTILE
            if place == 1
            else f"<think>Look {number % 5}. Response {answer} is better.</think><answer>{answer}</answer>"
        )
        rows.append(
            {
                "step": step,
                "prompt": [
                    {
                        "role": "user",
                        "content": f"Question {prompt}?\nResponse 1: {'a long word ' * 9}\nResponse 2: b",
                    }
                ],
                "completion": [{"role": "assistant", "content": text}],
                "judgement": 2.0 if right else 0.5,
                "consistency": 1.0,
                "format": 1.0,
                "record": f"record-{prompt}",
                "result": float(right),
                "winner": winner,
                "advantage": 1.5 if right else -0.5,
            }
        )
    parquet.write_table(pyarrow.Table.from_pylist(rows), file)


def judge(
    loaded: LoadedBenchmark,
    folder: Path,
    name: str,
    verdict: Callable[[Example], Scores],
    protocol: ProtocolConfig = ProtocolConfig(),  # noqa: B008 - frozen
) -> None:
    """Write the result and the predictions of made-up verdicts."""
    verdicts = [verdict(example) for example in loaded.examples]
    result = evaluate(loaded.examples, verdicts, BENCHMARKS[name], protocol, loaded.origin)
    write_predictions(loaded.examples, verdicts, BENCHMARKS[name], protocol, folder / name)
    write_result(result, folder / f"{name}.json")


def scores(example: Example, skill: float) -> Scores:
    """Return scores that are right more often the higher `skill` is, a few ties and one that is no number, and critiques."""
    dice = random.Random(example.key)
    margin = dice.gauss(0.4 + 1.6 * skill, 1.5)
    if dice.random() < 0.06:
        margin = 0.0
    pair = [1.0, 1.0]
    pair[example.better] += margin
    if dice.random() < 0.03:
        pair[0] = math.nan
    return Scores(
        (pair[0], pair[1]),
        texts=(f"It says {example.responses[0].text!r}.", "It <b>misses</b> the point."),
    )


def votes(example: Example) -> Scores:
    """Return votes of a judge that looks a little more at the position than at the content."""
    dice = random.Random(example.key)
    cast = []
    for shown in presentations(example, ProtocolConfig(votes=3)):
        first = shown[0]
        names = dice.choice(
            [example.better, example.better, first, None if dice.random() < 0.3 else first]
        )
        cast.append(
            Vote(
                shown,
                names,
                f"<think>Looking at the picture.</think>\nAnswer {1 if names == first else 2} is better.",
            )
        )
    return Scores(votes=tuple(cast))


def log(last: int) -> list[dict[str, float]]:
    """Return a Trainer's log_history up to a step: training lines, evaluation lines, one value that is not finite."""
    lines: list[dict[str, float]] = []
    for step in range(last + 1):
        if step in STEPS:
            lines.append(
                {
                    "step": step,
                    "epoch": step / 200,
                    f"eval_{OWN}/accuracy": 0.5 + step / 1000,
                    f"eval_{OWN}/ties": 0.1 - step / 2000,
                    f"eval_{OWN}/colours/accuracy": 0.5,
                }
            )
        wave = math.sin(step / 9) / (5 + step / 20)
        line = {
            "loss": 0.69 * math.exp(-step / 150) + wave / 3,
            "accuracy": min(1.0, 0.5 + step / 500 + wave / 4),
            "ties": 0.01,
        }
        line |= {
            "margin": step / 90 + wave,
            "grad_norm": 3 * math.exp(-step / 60) + 0.5 + wave,
            "records_per_second": 120 + 4 * wave,
        }
        line |= {
            f"learning_rate/{part}": 1e-5 * (1 - step / 200) for part in ("language", "vision")
        }
        line |= {
            "learning_rate/head": 1e-4 * (1 - step / 200),
            "learning_rate": 1e-5,
            "kl": step / 4000,
            "reward": 0.4 + step / 600,
        }
        line |= {
            "clip_ratio/high_mean": 0.02 + wave / 50,
            "completions/mean_length": 80 + step / 3,
            "something_new": float(step % 7),
        }
        lines.append(line | {"step": step, "epoch": step / 200})
    lines[3]["grad_norm"] = math.nan
    return lines


def _records(folder: Path, rows: int) -> Path:
    """Write preference records: pictures, several turns, texts without a picture, and responses full of markup."""
    (folder / "images").mkdir(parents=True)
    records = []
    for row in range(rows):
        picture(folder / "images" / f"{row}.png", row)
        images = (
            []
            if row % 9 == 8
            else [f"images/{row}.png"] + ([f"images/{row - 1}.png"] if row % 7 == 6 else [])
        )
        turns: object = f"How many circles are in picture number {row}?"
        if row % 5 == 4:
            turns = [
                {"role": "user", "content": "Is this a photograph?"},
                {"role": "assistant", "content": "No, a drawing."},
                {"role": "user", "content": f"Then what is it, number {row}?"},
            ]
        chosen = (
            f"There are {row % 4 + 1}."
            + " I count them one by one, from the left to the right." * (row % 6)
        )
        rejected = (
            HOSTILE
            if row == 3
            else f"There are {row % 4 + 2}." + "\nIt is quite a full picture." * (row % 5)
        )
        records.append(
            {
                "images": images,
                "prompt": turns,
                "chosen": chosen,
                "rejected": rejected,
                "category": GROUPS[row % 4],
            }
        )
    _lines(folder / "records.jsonl", records)
    return folder


def _pairs(folder: Path, rows: int) -> Path:
    """Write rows in R1-Reward's edition of VL-RewardBench, without pictures."""
    folder.mkdir(parents=True)
    names = ("RLAIF-V", "mathverse", "wildvision-battle")
    _lines(
        folder / "data.jsonl",
        [
            {
                "id": f"{names[row % 3]}_{row}",
                "prompt": f"What is shown? ({row})",
                "chosen": f"A cat, {row}." + " It sleeps." * (row % 3 - 1),
                "rejected": f"Dog {row}." + " It barks." * (row % 4),
                "image": "",
            }
            for row in range(rows)
        ],
    )
    return folder


def picture(file: Path, number: int, size: tuple[int, int] = (640, 400)) -> None:
    """Write a drawing of some circles."""
    drawing = Image.new("RGB", size, (232, 226, 214))
    brush = ImageDraw.Draw(drawing)
    for place in range(number % 4 + 1):
        brush.ellipse(
            (40 + 140 * place, 100, 160 + 140 * place, 220),
            fill=(40 + 50 * place, 110, 160 - 20 * place),
        )
    drawing.save(file)


def _lines(file: Path, records: Sequence[object]) -> None:
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def make_sweep(folder: Path, run: Path, broken: dict[str, str]) -> Path:
    """Write what a sweep over the checkpoints of a run leaves behind, with its own writers; return its folder."""
    store, entries = Store(folder / "results"), []
    for checkpoint in sorted(run.glob("checkpoint-*")):
        for name in (OWN, PAIRWISE):
            mark = f"{checkpoint.name}-{name}"
            begun = store.begin(mark)
            shutil.copytree(checkpoint / "eval" / name, begun / name)
            shutil.copy(checkpoint / "eval" / f"{name}.json", begun)
            store.finish(mark, {"judge": str(checkpoint)})
            entries.append(Standing(checkpoint, name, mark, store.result(mark, name)))
    write_json(
        folder / "sweep.json", sweep_content(summarise(entries, broken, store, "both orders"))
    )
    return folder

"""Draw the picture at the top of the README: a worst mistake of a run beside both benchmarks.

python -m tools.readme_picture runs/shapes/naive/best docs/demo.png docs/scene.png   # after `make demo`

The mistake is the worst one of its kind: the row with an image, and with short texts, whose wrong
answer was scored highest above the right one.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes
from PIL import Image

from mmrm.data.images import decode
from mmrm.data.preference import texts
from mmrm.eval.benchmarks.registry import BenchmarkConfig, load
from mmrm.eval.results.result import Result

BENCHMARKS = ("vl_rewardbench", "multimodal_rewardbench")
LONGEST_TEXT = 160
"""The longest question or answer, in characters, that the picture has room for."""
RIGHT_COLOUR = "#20704a"
WRONG_COLOUR = "#a8372f"
BAR_COLOUR = "#bccfdc"
INK = "#1f2428"
SOFT = "#57606a"


@dataclass(frozen=True)
class Mistake:
    """A row that was judged wrongly, with what the picture shows of it."""

    image: Image.Image
    question: str
    right_answer: str
    right_score: float
    wrong_answer: str
    wrong_score: float


def worst_mistake(checkpoint: Path) -> Mistake:
    """Return the worst mistake on VL-RewardBench that has one image and short texts."""
    benchmark = BENCHMARKS[0]
    predictions = checkpoint / "eval" / benchmark / "predictions.jsonl"
    lines = [json.loads(line) for line in predictions.read_text().splitlines()]
    mistakes = [line for line in lines if not line["correct"] and line["scores"]]
    mistakes.sort(key=lambda line: line["margin"])
    examples = load(BenchmarkConfig(name=benchmark, location="embedded")).examples
    example_by_key = {example.key: example for example in examples}
    for line in mistakes:
        example = example_by_key[line["key"]]
        question = "\n".join(texts(example.prompt))
        answers = [response.text for response in example.responses]
        longest = max(len(text) for text in (question, *answers))
        if len(example.images) != 1 or longest > LONGEST_TEXT:
            continue
        better = line["better"]
        return Mistake(
            image=decode(example.images[0], example.identity),
            question=question,
            right_answer=example.responses[better].text,
            right_score=line["scores"][better],
            wrong_answer=example.responses[1 - better].text,
            wrong_score=line["scores"][1 - better],
        )
    raise ValueError(f"{predictions} has no mistake with one image and short texts")


def draw_mistake(image_axes: Axes, text_axes: Axes, mistake: Mistake) -> None:
    """Draw the image of a mistake, and its question and answers with their scores."""
    side = 448
    scale = side / max(mistake.image.size)
    size = (round(mistake.image.width * scale), round(mistake.image.height * scale))
    image_axes.imshow(
        np.asarray(mistake.image.convert("RGB").resize(size, Image.Resampling.NEAREST))
    )
    image_axes.set_anchor("N")
    image_axes.set_axis_off()
    text_axes.set_axis_off()

    def write(y: float, text: str, width: int = 36, **style: Any) -> float:
        wrapped = textwrap.fill(text, width)
        text_axes.text(0, y, wrapped, va="top", transform=text_axes.transAxes, **style)
        return y - 0.075 * (wrapped.count("\n") + 1)

    y = write(1.0, "One of its worst mistakes", fontsize=13, fontweight="bold", color=INK)
    y = write(y - 0.04, mistake.question, fontsize=11, color=INK)
    heading = f"Right answer, score {mistake.right_score:+.2f}"
    y = write(y - 0.06, heading, fontsize=11, fontweight="bold", color=RIGHT_COLOUR)
    y = write(y, mistake.right_answer, fontsize=11, color=INK)
    heading = f"Wrong answer, score {mistake.wrong_score:+.2f}"
    y = write(y - 0.06, heading, fontsize=11, fontweight="bold", color=WRONG_COLOUR)
    write(y, mistake.wrong_answer, fontsize=11, color=INK)


def draw_benchmarks(axes: Axes, results: list[Result]) -> None:
    """Draw a bar with its interval for each benchmark and each of its categories."""
    labels: list[str] = []
    accuracies: list[float] = []
    intervals: list[tuple[float, float]] = []
    is_total: list[bool] = []
    for result in results:
        rows = {result.benchmark: result.micro, **result.groups}
        for name, accuracy in rows.items():
            assert accuracy.accuracy is not None, f"{name} was not evaluated"
            assert accuracy.low is not None, f"{name} has no interval"
            assert accuracy.high is not None, f"{name} has no interval"
            labels.append(name)
            accuracies.append(100 * accuracy.accuracy)
            intervals.append((100 * accuracy.low, 100 * accuracy.high))
            is_total.append(name == result.benchmark)
    positions = np.arange(len(labels))[::-1]
    axes.barh(positions, accuracies, color=BAR_COLOUR, height=0.6)
    for y, percent, (low, high), total in zip(
        positions, accuracies, intervals, is_total, strict=True
    ):
        axes.plot([low, high], [y, y], color="#1f5f8b", linewidth=1.6)
        weight = "bold" if total else "normal"
        axes.text(103, y, f"{percent:.1f}", va="center", fontsize=10, fontweight=weight, color=INK)
    axes.axvline(50, color=SOFT, linestyle=":", linewidth=1)
    axes.set_yticks(positions, labels, fontsize=10)
    for label, total in zip(axes.get_yticklabels(), is_total, strict=True):
        label.set_fontweight("bold" if total else "normal")
    axes.set_xlim(0, 115)
    axes.set_xticks([0, 50, 100])
    axes.tick_params(length=0, colors=SOFT)
    for side in ("top", "right", "bottom", "left"):
        axes.spines[side].set_visible(False)
    axes.set_title(
        "Accuracy in %, 95 % intervals; dotted: chance", fontsize=11, color=SOFT, loc="left"
    )


def draw(checkpoint: Path, out: Path) -> None:
    """Draw the picture of an evaluated checkpoint, and write it as a PNG."""
    results = []
    for name in BENCHMARKS:
        text = (checkpoint / "eval" / f"{name}.json").read_text()
        results.append(Result.model_validate_json(text))
    figure = pyplot.figure(figsize=(12, 4.4), facecolor="white")
    grid = figure.add_gridspec(1, 3, width_ratios=[1.0, 1.45, 1.7], wspace=0.12)
    image_axes = figure.add_subplot(grid[0])
    text_axes = figure.add_subplot(grid[1])
    draw_mistake(image_axes, text_axes, worst_mistake(checkpoint))
    bars = grid[2].subgridspec(1, 2, width_ratios=[0.42, 1.0])
    draw_benchmarks(figure.add_subplot(bars[1]), results)
    buffer = BytesIO()
    figure.savefig(
        buffer, dpi=110, bbox_inches="tight", pad_inches=0.2, metadata={"Software": None}
    )
    out.write_bytes(buffer.getvalue())


def main() -> None:
    """Draw the picture of the checkpoint that the command line names, and write its image alone."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path, help="A checkpoint that was evaluated.")
    parser.add_argument("out", type=Path, help="The PNG that is written.")
    parser.add_argument(
        "scene", type=Path, help="The PNG of the mistake's image, which the README scores."
    )
    options = parser.parse_args()
    draw(options.checkpoint, options.out)
    worst_mistake(options.checkpoint).image.save(options.scene)


if __name__ == "__main__":
    main()

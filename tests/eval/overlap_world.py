"""Benchmark rows and training sources whose contents occur nowhere else, for the tests of eval/overlap.py."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console

from mmrm.data.preference import text_pair
from mmrm.data.preparation.mixing import MixtureConfig
from mmrm.eval import overlap
from mmrm.eval.benchmarks.rows import user_turn
from mmrm.eval.candidates import Example
from mmrm.eval.contamination.overlap_report import Overlap


def photo(seed: int, size: tuple[int, int] = (160, 120)) -> Image.Image:
    """Return colours that change smoothly, with some grain: what a photograph is to a hash."""
    generator = np.random.default_rng(seed)
    coarse = Image.fromarray(generator.integers(0, 255, (9, 12, 3), np.uint8)).resize(
        size, Image.Resampling.BICUBIC
    )
    grain = generator.normal(0, 4, (size[1], size[0], 3))
    return Image.fromarray(np.clip(np.asarray(coarse) + grain, 0, 255).astype(np.uint8))


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def prose(seed: int, count: int) -> str:
    """Return a text of its own for each seed."""
    generator = random.Random(seed)
    return " ".join(
        "".join(generator.choices("aeioulnrst", k=generator.randint(2, 9))) for _ in range(count)
    )


def item(number: int, **changes: Any) -> Example:
    """Return a benchmark row with a picture, a question and responses that occur nowhere else."""
    content: dict[str, Any] = {
        "image": encoded(photo(number)),
        "question": prose(10 * number, 30),
        "responses": (prose(10 * number + 1, 40), prose(10 * number + 2, 40)),
    } | changes
    prompt = user_turn(content["question"], 1)
    return Example(
        str(number),
        (content["image"],),
        prompt,
        text_pair(*content["responses"]),
        f"bench:{number}",
        0,
        "all",
        "test",
        {},
    )


def project(folder: Path, name: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Write rows whose `image` is bytes as a source of this project's format; the others get texts of their own."""
    (folder / "images").mkdir(exist_ok=True)
    lines = []
    for number, row in enumerate(rows):
        own = 100_000 + 10 * (number + len(name) * 1000)
        line = {
            "prompt": prose(own, 30),
            "chosen": prose(own + 1, 40),
            "rejected": prose(own + 2, 40),
        } | row
        if "image" in line:
            (folder / "images" / f"{name}{number}").write_bytes(line.pop("image"))
            line["images"] = [f"images/{name}{number}"]
        lines.append(json.dumps(line))
    (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return {
        "type": "project",
        "name": name,
        "path": str(folder / f"{name}.jsonl"),
        "images": str(folder),
    }


def config(folder: Path, sources: Sequence[dict[str, Any]], **more: Any) -> MixtureConfig:
    return MixtureConfig.model_validate(
        {"sources": list(sources), "cache": str(folder / "cache"), "workers": 1, **more}
    )


def find(
    folder: Path, sources: Sequence[dict[str, Any]], examples: Sequence[Example], workers: int = 1
) -> Overlap:
    opened = [source.open(folder / "cache") for source in config(folder, sources).sources]
    return overlap.find_overlap(
        opened, examples, folder / "overlap.txt", workers, ["about"], Console(file=io.StringIO())
    )


def details(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "overlap.jsonl").read_text().splitlines()]

"""Examples and images for the tests of eval/."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image

from mmrm.data.preference import EncodedImage, text_pair
from mmrm.eval.benchmarks.rows import user_turn
from mmrm.eval.candidates import Example, Scores, Side, Vote


def png(colour: str = "red", size: tuple[int, int] = (8, 6)) -> bytes:
    """Return a PNG file of one colour; `size` is (width, height)."""
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "PNG")
    return buffer.getvalue()


def example(
    key: str,
    better: Side = 0,
    responses: tuple[str, str] = ("one", "two"),
    group: str = "group",
    images: tuple[EncodedImage, ...] = (),
    official_first: Side | None = None,
    question: str | None = None,
    **row: Any,
) -> Example:
    """Return an example that asks a `question`, or one of its own: rows of one prompt are one item."""
    prompt = user_turn(question or f"what? {key}", len(images))
    return Example(
        key,
        images,
        prompt,
        text_pair(*responses),
        f"test:{key}",
        better,
        group,
        "source",
        row,
        official_first,
    )


def votes(*named: Side | None, order: tuple[Side, ...] = (0, 1)) -> Scores:
    """Return a verdict whose votes name these responses; the orders of presentation repeat."""
    return Scores(
        votes=tuple(
            Vote((order[place % len(order)], 1 - order[place % len(order)]), name, f"says {name}")
            for place, name in enumerate(named)
        )
    )

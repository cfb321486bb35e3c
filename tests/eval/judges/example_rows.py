"""Rows of a benchmark with pictures, for tests of judges."""

from __future__ import annotations

import io
from typing import Any

from mmrm.data.preference import Message, text_pair
from mmrm.eval.candidates import Example
from tests.models import tiny


def png(width: int) -> bytes:
    """Return a picture of 60 pixels in height; its content depends on the width."""
    buffer = io.BytesIO()
    tiny.picture(width, 60, width).save(buffer, "PNG")
    return buffer.getvalue()


def example(number: int, images: int = 1) -> Example:
    """Return a row whose question has some pictures, and whose second response is the better one."""
    content: Any = [{"type": "image"}] * images
    content = [*content, {"type": "text", "text": f"What is in picture {number}?"}]
    prompt: Message = {"role": "user", "content": content}
    return Example(
        f"key-{number}",
        tuple(png(60 + 30 * number + index) for index in range(images)),
        (prompt,),
        text_pair("a red square", f"{number} blue circles"),
        f"row {number}",
        1,
        "group",
        "source",
        {},
    )

"""A page as one HTML file: templates beside the floor that fills them, one style, and no address but the page's own."""

import base64
import hashlib
import io
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

FOLDER = Path(__file__).parent
TINY = 128
"""Longest side in pixels of an image that is shown enlarged, which would show what a lossy format does to it."""


def render(template: Path, script: str = "", **values: Any) -> str:
    """Return the page of a template that extends base.html; of its style sheet and `script` nothing else may run.

    Texts are escaped. A style sheet of the template's name, if there is one, comes after style.css.
    """
    environment = Environment(
        loader=FileSystemLoader([template.parent, FOLDER]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["share"] = lambda value: "–" if value is None else f"{100 * value:.1f}"
    environment.filters["count"] = "{:,}".format
    sheets = [FOLDER / "style.css", *template.parent.glob(f"{template.stem}.css")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template(template.name).render(
        **values,
        style=Markup("".join(sheet.read_text(encoding="utf-8") for sheet in sheets)),
        script=Markup(script),
        script_source=f"'sha256-{digest}'" if script else "'none'",
    )


def thumbnail(image: Image.Image, longest: int) -> str:
    """Shrink an image until its longest side has at most so many pixels, and return it as a data URI."""
    image.thumbnail((longest, longest), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=80, method=2, lossless=max(image.size) <= TINY)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"

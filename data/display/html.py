"""Rendering of pages: each is one HTML file with its style and script, which loads nothing else."""

import base64
import hashlib
import io
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from mmrm.data.display.chart import share_bar, swatch
from mmrm.data.display.format import percent, with_minus_signs

FOLDER = Path(__file__).parent
TINY = 128
"""Longest side in pixels of an image that is shown enlarged. A lossy format would be visible."""


def render(template: Path, script: str = "", **values: Any) -> str:
    """Return the page of a template that extends base.html, with `values` for its variables.

    Texts are escaped, and no script but `script` may run. The page has style.css and, if there is
    one, the style sheet of the template's name.
    """
    environment = Environment(
        loader=FileSystemLoader([template.parent, FOLDER]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["share"] = percent
    environment.filters["count"] = "{:,}".format
    environment.filters["minus"] = with_minus_signs
    environment.globals["share_bar"] = share_bar
    environment.globals["swatch"] = swatch
    sheets = [FOLDER / "style.css", *template.parent.glob(f"{template.stem}.css")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template(template.name).render(
        **values,
        style=Markup("".join(sheet.read_text(encoding="utf-8") for sheet in sheets)),
        script=Markup(script),
        script_source=f"'sha256-{digest}'" if script else "'none'",
    )


def thumbnail(image: Image.Image, longest: int) -> str:
    """Return an image as a data URI, shrunk to at most `longest` pixels on either side."""
    image.thumbnail((longest, longest), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=80, method=2, lossless=max(image.size) <= TINY)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"

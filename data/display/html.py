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
    """Return an HTML page that needs no other file.

    Args:
        template: The path of a jinja template that extends base.html. A style sheet of the same
            name next to it is added to style.css.
        script: JavaScript for the page. No other script can run in it.
        **values: The variables of the template. Texts are escaped.
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
    style_sheets = [FOLDER / "style.css", *template.parent.glob(f"{template.stem}.css")]
    style = "".join(sheet.read_text(encoding="utf-8") for sheet in style_sheets)
    # The page's content security policy allows only a script with this digest.
    script_digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template(template.name).render(
        **values,
        style=Markup(style),
        script=Markup(script),
        script_source=f"'sha256-{script_digest}'" if script else "'none'",
    )


def thumbnail(image: Image.Image, longest: int) -> str:
    """Shrink an image in place to at most `longest` pixels on either side; return its data URI.

    The data URI has the image in the format WebP, without loss if it is small.
    """
    image.thumbnail((longest, longest), Image.Resampling.LANCZOS)
    return data_uri_of(image, lossless=max(image.size) <= TINY)


def data_uri_of(image: Image.Image, *, lossless: bool) -> str:
    """Return the data URI of an image in the format WebP."""
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=80, method=2, lossless=lossless)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"

"""Small files in the public schemas: images, parquet with image structs, JSON lines, zips."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from PIL import Image

from mmrm.data.errors import LeftOut
from mmrm.data.preference import Preference, validate
from mmrm.data.preparation.mixing import MixtureConfig
from mmrm.data.sources.shared.source import Source


def png(colour: str = "red", size: tuple[int, int] = (60, 40)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "PNG")
    return buffer.getvalue()


RED, BLUE = png("red"), png("blue", (32, 90))


def image_struct(data: bytes | None = RED, path: str | None = "0001.jpg") -> dict[str, Any]:
    """Return what `datasets` stores for an image."""
    return {"bytes": data, "path": path}


def write_jsonl(path: Path, rows: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_parquet(
    path: Path, rows: list[dict[str, Any]], schema: pa.Schema | None = None, group: int = 100
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path, row_group_size=group)
    return path


def write_images(folder: Path, **images: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in images.items():
        (folder / f"{name}.png").write_bytes(data)
    return folder


def open_source(cache: Path, **settings: Any) -> Source:
    """Open a source as a recipe would."""
    config = MixtureConfig.model_validate({"sources": [settings]})
    return config.sources[0].open(cache)


def source_of(tmp_path: Path, kind: str, **settings: Any) -> Source:
    """Open the source of a kind that lies in `set` of a test's folder."""
    return open_source(tmp_path / "cache", type=kind, path=str(tmp_path / "set"), **settings)


def left_out(source: Source, index: int) -> str:
    """Return why a row gives no record; it must be left out."""
    with pytest.raises(LeftOut) as caught:
        source.record(index)
    return caught.value.reason


def record(source: Source, index: int = 0) -> Preference:
    """Read one record and check it as the mixture does."""
    return validate(source.record(index))


def asked(preference: Preference) -> list[Any]:
    """Return the last turn's parts: texts as such, images as None."""
    return [
        part["text"] if part["type"] == "text" else None
        for part in preference.prompt[-1]["content"]
    ]

"""The images that rows name: inside the row, or as files under a declared folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from data.errors import ImageError
from data.images import from_data_uri, image_path
from data.preference import EncodedImage
from data.storage.rows import Row


def encoded(value: Any, root: Path, record: str) -> EncodedImage:
    """Return the image that `value` stands for: a path under `root`, a data URI, bytes, or {"bytes": …, "path": …}.

    Raises: ImageError for anything else, an empty struct, or a path that is not a file under `root`.
    """
    if isinstance(value, bytes) and value:
        return value
    if isinstance(value, str) and value:
        return from_data_uri(value, record) if value.startswith("data:") else image_path(root, value, record)
    if isinstance(value, dict) and (value.get("bytes") or value.get("path")):
        return encoded(value.get("bytes") or value["path"], root, record)
    raise ImageError(
        f"{record}: an image is {_kind(value)}; required is a path, a data URI, bytes, or a struct of bytes and path."
    )


def row_image(row: Row, column: str, record: str) -> EncodedImage:
    """Return the image in a column of image structs, which hold the bytes themselves.

    Raises: ImageError if the struct is missing or holds no bytes: the path in it is where the file lay on another machine.
    """
    value = row.get(column)
    if not isinstance(value, dict) or not value.get("bytes"):
        raise ImageError(f"{record}: {column!r} is {_kind(value)}; required is an image struct with its bytes.")
    return encoded(value["bytes"], Path(), record)


def all_encoded(values: Any, root: Path, record: str) -> tuple[EncodedImage, ...]:
    """Return the images of a row: a list, a single one, or none."""
    if values is None:
        return ()
    return tuple(encoded(value, root, record) for value in (values if isinstance(values, list) else [values]))


def _kind(value: Any) -> str:
    return f"an empty {type(value).__name__}" if not value else f"a {type(value).__name__}"

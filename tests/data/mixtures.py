"""Small mixtures of project files, for tests of what the mixture does with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmrm.data.preference import Preference
from mmrm.data.preparation.mixing import Mixture, MixtureConfig
from tests.data.sources.fixtures import write_jsonl


def row(prompt: str, /, **changes: Any) -> dict[str, Any]:
    return {"prompt": prompt, "chosen": f"good {prompt}", "rejected": f"bad {prompt}"} | changes


def mixture(folder: Path, sources: list[dict[str, Any]], **settings: Any) -> Mixture:
    settings = {"cache": str(folder / "cache"), "workers": 1} | settings
    return Mixture(MixtureConfig.model_validate({"sources": sources, **settings}))


def project(folder: Path, name: str, rows: list[Any], **settings: Any) -> dict[str, Any]:
    return {
        "type": "project",
        "name": name,
        "path": str(write_jsonl(folder / f"{name}.jsonl", rows)),
    } | settings


def everything(found: Mixture) -> Iterator[Preference]:
    return (found[index] for index in range(len(found)))

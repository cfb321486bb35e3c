"""Shards of small sources, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from mmrm.data.display.console import plain_console
from mmrm.data.preparation.scan import BadRecordConfig
from mmrm.data.preparation.sharding import make_shards
from mmrm.data.sources.registry import AnySource
from mmrm.data.sources.shared.source import SourceConfig
from mmrm.data.storage.shard_files import ShardManifest


def source_config(**keys: Any) -> SourceConfig:
    adapter: TypeAdapter[SourceConfig] = TypeAdapter(AnySource)
    return adapter.validate_python(keys)


def written_shards(
    folder: Path, config: SourceConfig, *, size: int = 10**9, seed: int = 0, workers: int = 1
) -> ShardManifest:
    """Write a source into shards of about `size` bytes below `folder`."""
    return make_shards(
        config,
        folder,
        shard_bytes=size,
        seed=seed,
        cache=folder.parent / "cache",
        workers=workers,
        policy=BadRecordConfig(limit=1.0),
        console=plain_console(stderr=True),
    )

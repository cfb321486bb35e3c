"""What may change when a run is continued, and what may not: weights must be what the recipe beside them says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from data.errors import UserError
from train.recipe.deepspeed_config import NONE
from train.recipe.recipe import Recipe

FREE = (
    "output",
    "evaluation",
    "workers",
    "data.cache",
    "data.workers",
    "optim.token_budget",
    "optim.activation_checkpointing",
    "optim.compile",
)
"""Keys that change neither what is learnt nor how its state is stored."""


def check_resume_matches(recipe: Recipe, checkpoint: Path, ranks: int) -> None:
    """Refuse to continue from `checkpoint` with other settings than those of its run, or other ranks where DeepSpeed shards.

    A checkpoint without a recipe in the folder above it is taken as it is.
    Raises: UserError listing every change.
    """
    folder = checkpoint.resolve().parent
    file = folder / "recipe.yaml"
    if not file.exists():
        return
    before, now = (dict(_leaves(tree)) for tree in (YAML(typ="safe", pure=True).load(file), recipe.resolved()))
    # A key that an older version did not write in a section of its own had its default.
    sections = {""} | {key[: match.start()] for key in before for match in re.finditer(r"\.", key)}
    missing = "(not there)"
    changes = [
        f"  {key}: {before.get(key, missing)} -> {now.get(key, missing)}"
        for key in sorted({*before, *now})
        if (key in before or key.rpartition(".")[0] not in sections)
        and before.get(key) != now.get(key)
        and not f"{key}.".startswith(tuple(f"{name}." for name in FREE))
    ]
    launches = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
    then = launches[-1]["hardware"]["world_size"]
    settings = checkpoint / "config.json"
    if recipe.head.read == "last_token" and settings.exists() and "assistant_turn" not in json.loads(settings.read_text()):
        changes.append("  head.read: last_token then meant the response's last own token, which is not offered any more")
    if recipe.deepspeed != NONE and then != ranks:
        changes.append(f"  ranks: {then} -> {ranks} (DeepSpeed stores the optimizer's states by rank)")
    if changes:
        raise UserError(
            f"{checkpoint} comes from a run with other settings, which it would continue half way:\n"
            + "\n".join(changes)
            + "\nGive the settings as they were, or start another run: output.folder=NEW and, to begin from these weights, "
            f"backbone.path={checkpoint}. Free to change: {', '.join(FREE)}."
        )


def _leaves(tree: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted key and the value, as JSON, of everything that is no mapping; a list counts as a value."""
    if not isinstance(tree, Mapping):
        yield path, json.dumps(tree)
        return
    for key, value in tree.items():
        yield from _leaves(value, f"{path}.{key}" if path else str(key))

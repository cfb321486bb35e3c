"""What is written beside a run so that it can be repeated: the resolved recipe, versions, commit, data, seeds and machine.

`recipe.yaml` starts the run again: `deepspeed train/rm.py RUN/recipe.yaml`. `provenance.json` holds one entry for every
launch, so that a run that was resumed with other code or on another machine says so. A resume is refused where they do not
match the recipe that it is asked for.
"""

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import distributions
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from mmrm.data.errors import UserError
from mmrm.data.preparation.mixing import Mixture
from mmrm.data.preparation.sampling import SetPlacement
from mmrm.data.storage.files import read_json, write_json, write_whole
from mmrm.train.recipe.deepspeed_config import NONE
from mmrm.train.recipe.methods import CriticConfig, NaiveConfig, RolloutConfig
from mmrm.train.recipe.parsing import Launch
from mmrm.train.recipe.recipe import Recipe

CLONE = Path(__file__).resolve().parents[2]
DataFingerprints = dict[str, dict[str, Any]]
"""Source to revision, fingerprint and rows."""

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
LENGTH = ("optim.epochs", "optim.max_steps")
"""Keys by which a run is given more steps (train/runs/extension.py)."""
UNREADABLE = "{}: recipe.yaml and provenance.json say how {} was trained, and cannot be read"
RESTORE = "The checkpoint itself is sound. Restore both files, or take both away to continue without a comparison."


def write_provenance(launch: Launch, folder: Path, mixture: Mixture) -> None:
    """Write `recipe.yaml` and `provenance.json` into the run folder, each whole or not at all; call it on one rank."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "provenance.json"
    earlier = read_json(file) if file.exists() else []
    versions = {found.metadata["Name"]: found.version for found in distributions()}
    entry = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": [sys.argv[0], *launch.arguments],
        "recipe_path": str(launch.recipe_path),
        "overrides": list(launch.overrides),
        "recipe": launch.recipe.resolved(),
        "seeds": {"run": launch.recipe.seed, "data": launch.recipe.data.seed},
        "data": data_fingerprints(mixture),
        "set_placement": mixture.set_placement,
        "commit": commit(CLONE),
        "python": platform.python_version(),
        "packages": dict(sorted(versions.items(), key=lambda found: found[0].lower())),
        "hardware": hardware(),
    }
    write_whole(folder / "recipe.yaml", recipe_yaml(launch.recipe))
    write_json(file, [*earlier, entry])


def recipe_yaml(recipe: Recipe) -> str:
    """Return the recipe with every default written out, as YAML that parses to the same recipe."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # typed as None, read as a flag
    text = StringIO()
    yaml.dump(recipe.resolved(), text)
    return text.getvalue()


def data_fingerprints(mixture: Mixture) -> DataFingerprints:
    """Return what identifies the data of every source."""
    return {
        part.source.name: {
            "revision": part.source.revision,
            "fingerprint": part.content,
            "rows": len(part.source),
        }
        for part in mixture.splits
    }


def commit(clone: Path) -> dict[str, Any]:
    """Return the git commit of `clone` and whether files differ from it; the commit is None outside a clone."""
    git = partial(subprocess.run, cwd=clone, capture_output=True, text=True, check=True)
    try:
        head, status = (
            git(["git", *words]).stdout
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain"))
        )
    except (OSError, subprocess.CalledProcessError) as error:
        return {"commit": None, "dirty": None, "reason": str(error)}
    return {"commit": head.strip(), "dirty": bool(status), "changed": status.strip().splitlines()}


def hardware() -> dict[str, Any]:
    """Return the machine as this process sees it; the devices are those of this node."""
    import torch

    devices = [
        torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())
    ]
    return {
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
        "devices": [
            {"name": device.name, "memory_bytes": device.total_memory} for device in devices
        ],
        "cuda": torch.version.cuda,
    }


def check_resume_matches(recipe: Recipe, checkpoint: Path, ranks: int) -> None:
    """Refuse to continue from `checkpoint` with other settings than those of its run, or other ranks where DeepSpeed shards.

    A checkpoint without a recipe in the folder above it is taken as it is.
    Raises: UserError listing every change.
    """
    folder = checkpoint.resolve().parent
    file = folder / "recipe.yaml"
    if not file.exists():
        return
    try:
        before = leaves(YAML(typ="safe", pure=True).load(file))
        launch = read_json(folder / "provenance.json")[-1]
        started, then = leaves(launch["recipe"]), int(launch["hardware"]["world_size"])
    except (OSError, ValueError, YAMLError, LookupError, TypeError, AttributeError) as error:
        raise UserError(
            f"{UNREADABLE.format(folder, checkpoint.name)} ({type(error).__name__}: {error}). {RESTORE}"
        ) from error
    if other := changed(started, before):
        raise UserError(
            f"{UNREADABLE.format(folder, checkpoint.name)}: recipe.yaml was cut off or changed since, for provenance.json has "
            f"another {', '.join(other[:3])}{f' and {len(other) - 3} more' if len(other) > 3 else ''}. {RESTORE}"
        )
    now = leaves(recipe.resolved())
    # A key that an older version did not write in a section of its own had its default.
    sections = {""} | {key[: match.start()] for key in before for match in re.finditer(r"\.", key)}
    missing = "(not there)"
    changes = [
        f"  {key}: {before.get(key, missing)} -> {now.get(key, missing)}"
        for key in changed(before, now)
        if key not in LENGTH
        if key in before or key.rpartition(".")[0] not in sections
    ]
    settings = checkpoint / "config.json"
    if (
        recipe.head.read == "last_token"
        and settings.exists()
        and "assistant_turn" not in read_json(settings)
    ):
        changes.append(
            "  head.read: last_token then meant the response's last own token, which is not offered any more"
        )
    rollouts = isinstance(recipe.method, RolloutConfig)
    if (recipe.deepspeed != NONE or rollouts) and then != ranks:
        what = (
            "the rollout buffer is"
            if recipe.deepspeed == NONE
            else "DeepSpeed's optimizer states are"
        )
        changes.append(f"  ranks: {then} -> {ranks} ({what} stored by rank)")
    if changes:
        raise UserError(
            f"{checkpoint} comes from a run with other settings, which it would continue half way:\n"
            + "\n".join(changes)
            + "\nGive the settings as they were, or start another run: output.folder=NEW and, to begin from these weights, "
            f"backbone.path={checkpoint}. Free to change: {', '.join(FREE)}; and {' or '.join(LENGTH)}, for more steps."
        )


def check_data_matches(data: DataFingerprints, checkpoint: Path) -> None:
    """Refuse to continue from `checkpoint` where a source holds other records than then: what is left would not be what comes.

    Files may have moved or been copied; what counts is their records.
    Raises: UserError naming the sources.
    """
    file = checkpoint.resolve().parent / "provenance.json"
    before = read_json(file)[-1]["data"] if file.exists() else data
    other = [
        f"  {name}: {found['rows']:,} rows with the fingerprint {found['fingerprint'][:16]}, then {then['rows']:,} with "
        f"{then['fingerprint'][:16]}"
        for name, found in data.items()
        if (then := before.get(name, found))["fingerprint"] != found["fingerprint"]
    ]
    if other:
        raise UserError(
            f"{checkpoint} was trained on other data, and the records that are left to it cannot be told:\n"
            + "\n".join(other)
            + "\nPut the data back as they were, or start another run from these weights: output.folder=NEW "
            f"backbone.path={checkpoint}."
        )


def set_placement_of_run(checkpoint: Path) -> SetPlacement:
    """Return where the run of `checkpoint` puts pairs of one prompt in the order of an epoch.

    Runs from before `set_placement` was recorded put them at the position of the first pair. A
    checkpoint without a record of its run above it is taken for one of a new run.
    """
    file = checkpoint.resolve().parent / "provenance.json"
    if not file.exists():
        return "random_member"
    placement: SetPlacement = read_json(file)[-1].get("set_placement", "first_member")
    return placement


def order_note(recipe: Recipe, mixture: Mixture) -> str:
    """Return a note on the order of a resumed run; an empty text if new runs have the same order."""
    method = recipe.method
    has_sets = isinstance(method, NaiveConfig | CriticConfig) and method.pairs_together > 1
    if mixture.set_placement == "random_member" or not has_sets or not mixture.has_shared_prompts:
        return ""
    return (
        "This run was started with an earlier version, in which pairs of one prompt take the "
        "position of the first of them and come early in an epoch. It continues in that order. "
        "A new run spreads them evenly over the epoch."
    )


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the keys under which two recipes differ, without those that are free."""
    differ = (key for key in sorted({*before, *now}) if before.get(key) != now.get(key))
    return [key for key in differ if not f"{key}.".startswith(tuple(f"{name}." for name in FREE))]


def leaves(tree: Mapping[str, Any], path: str = "") -> dict[str, str]:
    """Return the values of nested mappings, as JSON, by their dotted keys; a list counts as a value."""
    found: dict[str, str] = {}
    for key, value in tree.items():
        found |= (
            leaves(value, f"{path}{key}.")
            if isinstance(value, Mapping)
            else {path + key: json.dumps(value)}
        )
    return found

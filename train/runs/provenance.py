"""The record of a run next to its checkpoints, so that it can be repeated.

It holds the resolved recipe, versions, commit, data, seeds and machine. `recipe.yaml` starts the run
again: `deepspeed train/rm.py RUN/recipe.yaml`. `provenance.json` has one entry for every launch, so
that it shows a run that was resumed with other code or on another machine. A resume is refused if
the recipe or the data do not match this record.
"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import distributions, version
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

import mmrm
from mmrm.data.errors import UserError
from mmrm.data.package import clone
from mmrm.data.preparation.mixing import Mixture
from mmrm.data.preparation.sampling import SetPlacement
from mmrm.data.storage.files import read_json, write_json, write_whole
from mmrm.train.recipe.parsing import Launch
from mmrm.train.recipe.recipe import Recipe

DataFingerprints = dict[str, dict[str, Any]]
"""The revision, fingerprint and number of rows of each source, by its name."""

COMPUTING_LIBRARIES = ("torch", "transformers", "trl", "peft", "deepspeed", "accelerate")
"""The libraries whose versions a model card states."""

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
RESTORE = (
    "The checkpoint itself is sound. Restore both files, or take both away to continue without a "
    "comparison."
)


def write_provenance(launch: Launch, folder: Path, mixture: Mixture) -> None:
    """Write `recipe.yaml` and `provenance.json` into the run folder; call it on one rank.

    Each file is written whole or not at all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "provenance.json"
    earlier = read_json(file) if file.exists() else []
    version_by_package = {package.metadata["Name"]: package.version for package in distributions()}
    by_name = sorted(version_by_package.items(), key=lambda item: item[0].lower())
    entry = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": [sys.argv[0], *launch.arguments],
        "recipe_path": str(launch.recipe_path),
        "overrides": list(launch.overrides),
        "recipe": launch.recipe.resolved(),
        "seeds": {"run": launch.recipe.seed, "data": launch.recipe.data.seed},
        "data": data_fingerprints(mixture),
        "licences": data_licences(mixture),
        "set_placement": mixture.set_placement,
        "version": mmrm.__version__,
        "commit": commit(clone()),
        "python": platform.python_version(),
        "packages": dict(by_name),
        "hardware": hardware(),
    }
    write_whole(folder / "recipe.yaml", recipe_yaml(launch.recipe))
    write_json(file, [*earlier, entry])


def recipe_yaml(recipe: Recipe) -> str:
    """Return the recipe with every default written out, as YAML that parses to the same recipe."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    # ruamel declares this flag as None.
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    text = StringIO()
    yaml.dump(recipe.resolved(), text)
    return text.getvalue()


def data_fingerprints(mixture: Mixture) -> DataFingerprints:
    """Return a fingerprint of the data of every source."""
    return {
        part.source.name: {
            "revision": part.source.revision,
            "fingerprint": part.content,
            "rows": len(part.source),
        }
        for part in mixture.splits
    }


def data_licences(mixture: Mixture) -> dict[str, str]:
    """Return the licence of every source, as the data card states it, by the source's name."""
    return {part.source.name: part.source.licence for part in mixture.splits}


def versions() -> dict[str, str]:
    """Return the versions of this project, of Python and of the libraries that compute, by name."""
    version_by_name = {"mmrm": mmrm.__version__}
    commit_of_clone = commit(clone())["commit"]
    if commit_of_clone is not None:
        version_by_name["commit"] = commit_of_clone
    version_by_name["Python"] = platform.python_version()
    for library in COMPUTING_LIBRARIES:
        version_by_name[library] = version(library)
    return version_by_name


def commit(clone: Path | None) -> dict[str, Any]:
    """Return the git commit of `clone`, and which files differ from it.

    The commit is None outside a clone, and if mmrm was installed as a wheel (`clone` is None). A
    wheel may lie inside another project's repository, whose commit says nothing about this code.
    """
    if clone is None:
        return {"commit": None, "dirty": None, "reason": "mmrm is installed as a wheel"}
    git = partial(subprocess.run, cwd=clone, capture_output=True, text=True, check=True)
    try:
        head = git(["git", "rev-parse", "HEAD"]).stdout
        status = git(["git", "status", "--porcelain"]).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        return {"commit": None, "dirty": None, "reason": str(error)}
    return {"commit": head.strip(), "dirty": bool(status), "changed": status.strip().splitlines()}


def hardware() -> dict[str, Any]:
    """Return the machine as this process sees it; the devices are those of this node."""
    import torch

    devices = []
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        devices.append({"name": device.name, "memory_bytes": device.total_memory})
    return {
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
        "devices": devices,
        "cuda": torch.version.cuda,
    }


def check_resume_matches(recipe: Recipe, checkpoint: Path, ranks: int) -> None:
    """Refuse to continue from `checkpoint` with other settings than those of its run.

    If a checkpoint has a state for every rank, another number of ranks is refused, too. A checkpoint
    without a recipe in the folder above it is not compared with anything.

    Raises:
        UserError: With every change.
    """
    folder = checkpoint.resolve().parent
    file = folder / "recipe.yaml"
    if not file.exists():
        return
    try:
        values_before = leaves(YAML(typ="safe", pure=True).load(file))
        launch = read_json(folder / "provenance.json")[-1]
        values_of_launch = leaves(launch["recipe"])
        ranks_before = int(launch["hardware"]["world_size"])
    except (OSError, ValueError, YAMLError, LookupError, TypeError, AttributeError) as error:
        raise UserError(
            f"{UNREADABLE.format(folder, checkpoint.name)} ({type(error).__name__}: {error}). "
            f"{RESTORE}"
        ) from error
    different = changed(values_of_launch, values_before)
    if different:
        names = ", ".join(different[:3])
        if len(different) > 3:
            names += f" and {len(different) - 3} more"
        raise UserError(
            f"{UNREADABLE.format(folder, checkpoint.name)}: recipe.yaml was cut off or changed "
            f"since, for provenance.json has another {names}. {RESTORE}"
        )

    changes = [
        *changed_values(values_before, recipe),
        *changed_meanings(recipe, checkpoint),
        *changed_ranks(recipe, ranks_before, ranks),
    ]
    if changes:
        raise UserError(
            f"{checkpoint} comes from a run with other settings, which it would continue half way:\n"
            + "\n".join(changes)
            + "\nGive the settings as they were, or start another run: output.folder=NEW and, to "
            f"begin from these weights, backbone.path={checkpoint}. Free to change: "
            f"{', '.join(FREE)}; and {' or '.join(LENGTH)}, for more steps."
        )


def changed_values(before: Mapping[str, str], recipe: Recipe) -> Iterator[str]:
    """Yield a line for every key whose value has changed.

    Args:
        before: The values of the run, as `leaves` returns them.
        recipe: The recipe with which the run is to be continued.
    """
    now = leaves(recipe.resolved())
    # A key that an older version did not have in a section had its default.
    sections_before = {""}
    for key in before:
        parts = key.split(".")
        sections_before.update(".".join(parts[:end]) for end in range(1, len(parts)))
    missing = "(not there)"
    for key in changed(before, now):
        section = key.rpartition(".")[0]
        is_new_key = key not in before and section in sections_before
        had_same_value = is_new_key and not _differs_from_default(recipe, key)
        if key not in LENGTH and not had_same_value:
            yield f"  {key}: {before.get(key, missing)} -> {now.get(key, missing)}"


def _differs_from_default(recipe: Recipe, key: str) -> bool:
    """Return True if a recipe sets a dotted key to another value than its default."""
    *sections, name = key.split(".")
    section: Any = recipe
    for section_name in sections:
        section = getattr(section, section_name)
    default = type(section).model_fields[name].get_default(call_default_factory=True)
    return name in section.model_fields_set and getattr(section, name) != default


def changed_meanings(recipe: Recipe, checkpoint: Path) -> Iterator[str]:
    """Yield a line for every value that meant something else when the checkpoint was saved."""
    config = checkpoint / "config.json"
    if recipe.head.read != "last_token" or not config.exists():
        return
    if "assistant_turn" not in read_json(config):
        yield (
            "  head.read: last_token then meant the response's last own token, which is not offered "
            "any more"
        )


def changed_ranks(recipe: Recipe, before: int, now: int) -> Iterator[str]:
    """Yield a line if the number of ranks has changed and the checkpoint cannot be loaded with it."""
    if before != now and recipe.method.state_is_per_rank:
        yield f"  ranks: {before} -> {now} (the rollout buffer is stored by rank)"


def check_data_matches(data: DataFingerprints, checkpoint: Path) -> None:
    """Refuse to continue from `checkpoint` if a source holds other records than then.

    The order of the remaining records would be another one. Files may have been moved or copied:
    only their records count.

    Raises:
        UserError: With the names of the sources.
    """
    file = checkpoint.resolve().parent / "provenance.json"
    if not file.exists():
        return
    before = read_json(file)[-1]["data"]
    changes = []
    for name, source in data.items():
        source_before = before.get(name, source)
        if source_before["fingerprint"] != source["fingerprint"]:
            changes.append(
                f"  {name}: {source['rows']:,} rows with the fingerprint "
                f"{source['fingerprint'][:16]}, then {source_before['rows']:,} with "
                f"{source_before['fingerprint'][:16]}"
            )
    if changes:
        raise UserError(
            f"{checkpoint} was trained on other data, and the records that are left to it cannot be "
            "told:\n"
            + "\n".join(changes)
            + "\nPut the data back as they were, or start another run from these weights: "
            f"output.folder=NEW backbone.path={checkpoint}."
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
    """Return a note if a resumed run keeps an order that new runs do not have, else an empty text.

    The orders differ only in where pairs of one prompt come in an epoch. New runs put them at the
    position of a random one of them (`random_member`), earlier versions at that of the first.
    """
    has_order_of_new_runs = mixture.set_placement == "random_member"
    brings_pairs_together = recipe.method.brings_pairs_together and mixture.has_shared_prompts
    if has_order_of_new_runs or not brings_pairs_together:
        return ""
    return (
        "This run was started with an earlier version, in which pairs of one prompt take the "
        "position of the first of them and come early in an epoch. It continues in that order. "
        "A new run spreads them evenly over the epoch."
    )


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the keys in which two recipes differ, without keys that a resume may change."""
    free_sections = tuple(f"{name}." for name in FREE)
    differing = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
    return [key for key in differing if not f"{key}.".startswith(free_sections)]


def leaves(tree: Mapping[str, Any], path: str = "") -> dict[str, str]:
    """Return the values of a nested mapping as JSON texts, by their dotted keys.

    A list is one value and is not flattened. Example: `{"a": {"b": [1, 2]}}` becomes
    `{"a.b": "[1, 2]"}`.

    Args:
        tree: The mapping.
        path: A text in front of every key: empty, or dotted keys that end in a dot.
    """
    values: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            values |= leaves(value, f"{path}{key}.")
        else:
            values[path + key] = json.dumps(value)
    return values

"""What a run reads and writes on this machine, looked at before torch is imported; the hub is not asked.

A path that is not there: an absolute one is refused. A relative one may still come, from an earlier run or a download: the dry
run lists it, and only a start refuses it. What is there must be what a run can use, in a dry run too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from mmrm.data.errors import CheckpointError, UserError
from mmrm.data.preparation.filters import read_fingerprints
from mmrm.data.sources.shared.source import SourceConfig
from mmrm.data.storage.manifest import verify_settings
from mmrm.eval.benchmarks.benchmark import BUILT_IN
from mmrm.eval.benchmarks.registry import BENCHMARKS
from mmrm.models.config import HUB_ID, BackboneConfig, checkpoint_at
from mmrm.models.families.backbone_shape import shape_of
from mmrm.models.families.registry import BACKBONES
from mmrm.train.recipe.methods import (
    CheckpointJudge,
    JudgeTerm,
    PolicyConfig,
    StableReinforceConfig,
)
from mmrm.train.recipe.recipe import Recipe

NEEDED = {
    "weights": ("*.safetensors", "*.bin"),
    "a tokenizer": ("tokenizer.json", "vocab.json"),
    "a preprocessor": ("preprocessor_config.json", "processor_config.json"),
}
"""What a backbone's folder holds beside config.json, by the names of the files, one of which is enough."""


def paths(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield the key and the value of every path that a run reads."""
    yield from models(recipe)
    for key, source in sources(recipe):
        for name, path in source.input_paths().items():
            yield f"{key}.{name}", path
    for number, benchmark in enumerate(recipe.evaluation.benchmarks):
        if benchmark.location not in BUILT_IN:
            yield f"evaluation.benchmarks.{number}.location", benchmark.location
        if benchmark.image_root is not None:
            yield f"evaluation.benchmarks.{number}.image_root", benchmark.image_root
    for number, term in enumerate(
        recipe.method.rewards if isinstance(recipe.method, PolicyConfig) else []
    ):
        if isinstance(term, JudgeTerm) and (
            there("", term.path) or not HUB_ID.fullmatch(term.path)
        ):
            yield f"method.rewards.{number}.path", term.path
    if recipe.data.filters.leave_out is not None:
        yield "data.filters.leave_out", recipe.data.filters.leave_out


def sources(recipe: Recipe) -> Iterator[tuple[str, SourceConfig]]:
    """Yield the key and the section of every source."""
    for index, source in enumerate(recipe.data.sources):
        yield f"data.sources.{index}", source
    for index, source in enumerate(recipe.evaluation.questions):
        yield f"evaluation.questions.{index}", source


def models(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield the key and the folder of every model that is loaded and is no hub id."""
    found, method = {"backbone.path": recipe.backbone.path}, recipe.method
    if isinstance(method, StableReinforceConfig) and isinstance(
        method.rewards.consistency, CheckpointJudge
    ):
        found["method.rewards.consistency.path"] = method.rewards.consistency.path
    for key, path in found.items():
        if path != "embedded" and (there(key, path) or not HUB_ID.fullmatch(path)):
            yield key, path


def absent(recipe: Recipe) -> list[tuple[str, str]]:
    """Return the key and the value of every path that is not there."""
    return [(key, path) for key, path in paths(recipe) if not there(key, path)]


def there(key: str, path: str) -> bool:
    """Say whether there is a file or folder at `path`, or, for images, an archive in parts."""
    try:
        place = Path(path).expanduser()
        return place.exists() or (
            key.endswith(".images") and any(place.parent.glob(f"{place.name}*"))
        )
    except (OSError, RuntimeError):  # too long a name, nobody's home folder
        return False


def refusal(look: Callable[[], object]) -> str:
    """Return why a look failed, empty where it did not."""
    try:
        look()
    except (
        UserError,
        OSError,
        RuntimeError,
    ) as error:  # no access, too long a name, a loop of links, nobody's home folder
        return str(error)
    return ""


def input_rules(recipe: Recipe, *, start: bool) -> Iterator[tuple[str, ...]]:
    """Yield a message and its key for everything with which the run cannot start, now (`start`) or ever."""
    if recipe.output.tensorboard and find_spec("tensorboard") is None:
        yield (
            "the package tensorboard is not installed; pip install -e .[tensorboard], or remove this key",
            "output.tensorboard",
        )
    lost = dict(absent(recipe))
    for key, path in lost.items():
        if start or path.startswith(("/", "~")):
            yield (
                f"there is nothing at {path} (looked from {Path.cwd()}); correct the path, or put there what it names",
                key,
            )
        elif message := refusal(Path(path).exists):  # too long a name, which nothing will ever have
            yield message, key
    looks: list[tuple[str, Callable[[], object]]] = [
        (key, partial(look_at_model, path)) for key, path in models(recipe)
    ]
    looks.append(("backbone.max_pixels", partial(look_at_limits, recipe.backbone)))
    looks += [(key, source.look) for key, source in sources(recipe)]
    for number, benchmark in enumerate(recipe.evaluation.benchmarks):
        looks.append(
            (f"evaluation.benchmarks.{number}", partial(BENCHMARKS[benchmark.name].look, benchmark))
        )
    looks.append(
        ("data.filters.leave_out", partial(read_fingerprints, recipe.data.filters.leave_out))
    )
    looks.append(("output.resume", partial(look_at_checkpoint, recipe.output.resume)))
    looks.append(("output.folder", partial(look_at_output, recipe.output.folder)))
    looks.append(("data.cache", partial(look_at_output, recipe.data.cache or ".")))
    for key, look in looks:
        if not any(f"{other}.".startswith(f"{key}.") for other in lost) and (
            message := refusal(look)
        ):
            yield message, key


def look_at_model(path: str) -> None:
    """Raise UserError unless the folder `path` holds a model of a known family, as far as its names and config.json tell."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; required is {BACKBONES}")
    checkpoint_at(path)
    verify_settings(folder)
    shape_of(path)
    for what, names in NEEDED.items():
        if not any(found.is_file() for name in names for found in folder.glob(name)):
            raise UserError(
                f"{folder} holds no file {' or '.join(names)}, so that it lacks {what}; required is {BACKBONES}"
            )


def look_at_limits(backbone: BackboneConfig) -> None:
    """Raise UserError for limits of an image's pixels that the backbone, where it is at hand, cannot keep."""
    try:
        shape = shape_of(backbone.path)
    except CheckpointError:
        return  # `look_at_model` says it
    if shape is not None:
        shape.image_tokens(backbone)


def look_at_checkpoint(resume: str) -> None:
    """Raise UserError for a path from which no run can continue."""
    if resume not in ("never", "auto") and not (Path(resume) / "complete").is_file():
        raise UserError(
            f"{resume} is not a whole checkpoint (it has no file `complete`, which is written last); give a checkpoint-N folder "
            "of a finished save, or `auto`"
        )


def look_at_output(path: str) -> None:
    """Raise UserError unless a run can write into the folder `path`, which it makes where there is none."""
    place = Path(path).expanduser()
    place.exists()  # an OSError for a name that is too long
    nearest = next(folder for folder in (place, *place.parents) if os.path.lexists(folder))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        state = "cannot be written to" if nearest.is_dir() else "is no folder"
        raise UserError(
            f"{place} cannot be made or written to: {nearest} {state}; name another folder"
        )

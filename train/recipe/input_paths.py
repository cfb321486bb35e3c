"""The files and folders that a run reads and writes, looked at before torch is imported.

The hub is not asked. An absolute path that does not exist is refused. A relative one may still be
made, by an earlier run or a download: the dry run lists it, and only a start refuses it. A path
that exists must hold something that the run can use, in a dry run too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from mmrm.data.errors import CheckpointError, UserError
from mmrm.data.frame_sampling import FRAMES_OF_PATCH
from mmrm.data.images import PatchTokens
from mmrm.data.preparation.decisions import read_decisions
from mmrm.data.preparation.filters import read_fingerprints
from mmrm.data.sources.shared.source import SourceConfig
from mmrm.data.storage.manifest import verify_settings
from mmrm.eval.benchmarks.benchmark import BUILT_IN
from mmrm.eval.benchmarks.registry import BENCHMARKS
from mmrm.models.config import HUB_ID, BackboneConfig, checkpoint_at
from mmrm.models.families.backbone_shape import shape_of
from mmrm.models.families.hub_names import refusal_of_name
from mmrm.models.families.registry import BACKBONES, family_of_shape
from mmrm.train.recipe.recipe import Recipe
from mmrm.train.recipe.sections import Broken

NEEDED = {
    "weights": ("*.safetensors", "*.bin"),
    "a tokenizer": ("tokenizer.json", "vocab.json"),
    "a preprocessor": ("preprocessor_config.json", "processor_config.json"),
}
"""The parts of a backbone's folder next to config.json, each with patterns, one of which matches."""


def paths(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield the key and the value of every path that a run reads."""
    yield from models(recipe)
    for key, source in sources(recipe):
        for name, path in source.input_paths().items():
            yield f"{key}.{name}", path
    for index, benchmark in enumerate(recipe.evaluation.benchmarks):
        if benchmark.location not in BUILT_IN:
            yield f"evaluation.benchmarks.{index}.location", benchmark.location
        if benchmark.image_root is not None:
            yield f"evaluation.benchmarks.{index}.image_root", benchmark.image_root
    for key, path in recipe.method.judge_paths():
        if exists("", path) or not HUB_ID.fullmatch(path):
            yield key, path
    if recipe.data.filters.leave_out is not None:
        yield "data.filters.leave_out", recipe.data.filters.leave_out
    for index, path in enumerate(recipe.data.decisions):
        yield f"data.decisions.{index}", path


def sources(recipe: Recipe) -> Iterator[tuple[str, SourceConfig]]:
    """Yield the key and the section of every source."""
    for index, source in enumerate(recipe.data.sources):
        yield f"data.sources.{index}", source
    for index, source in enumerate(recipe.evaluation.questions):
        yield f"evaluation.questions.{index}", source


def models(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield the key and the folder of every model that is loaded from this machine."""
    for key, path in model_names(recipe):
        if path != "embedded" and (exists(key, path) or not HUB_ID.fullmatch(path)):
            yield key, path


def model_names(recipe: Recipe) -> list[tuple[str, str]]:
    """Return the key and the value of every key that names a model: a folder or a hub id."""
    return [("backbone.path", recipe.backbone.path), *recipe.method.model_paths()]


def absent(recipe: Recipe) -> list[tuple[str, str]]:
    """Return the key and the value of every path that does not exist."""
    return [(key, path) for key, path in paths(recipe) if not exists(key, path)]


def exists(key: str, path: str) -> bool:
    """Return True if there is a file or folder at `path`, or, for images, an archive in parts."""
    try:
        place = Path(path).expanduser()
        if place.exists():
            return True
        return key.endswith(".images") and any(place.parent.glob(f"{place.name}*"))
    except (OSError, RuntimeError):
        # The name is too long, or it is in the home folder of a user that does not exist.
        return False


def refusal(look: Callable[[], object]) -> str:
    """Call `look` and return the message of its error; an empty text if it raises none."""
    try:
        look()
    except (UserError, OSError, RuntimeError) as error:
        # OSError and RuntimeError: no access, too long a name, a loop of links, a home folder of
        # a user that does not exist.
        return str(error)
    return ""


def input_rules(recipe: Recipe, *, start: bool) -> Iterator[Broken]:
    """Yield a broken rule for every file or folder with which the run cannot start.

    Relative paths that do not exist are refused only with `start`, when the run starts now.
    """
    if recipe.output.tensorboard and find_spec("tensorboard") is None:
        message = (
            "the package tensorboard is not installed; pip install -e .[tensorboard], or remove "
            "this key"
        )
        yield Broken(message, ("output.tensorboard",))

    absent_paths = dict(absent(recipe))
    refused_names: set[str] = set()
    for key, name in model_names(recipe):
        reason = refusal_of_name(name)
        if reason and not exists(key, name):
            yield Broken(reason, (key,))
            refused_names.add(key)
    for key, path in absent_paths.items():
        if key in refused_names:
            continue
        if start or path.startswith(("/", "~")):
            message = (
                f"there is nothing at {path} (looked from {Path.cwd()}); correct the path, or put "
                "there what it names"
            )
            yield Broken(message, (key,))
            continue
        # A name that is too long will never exist, whatever runs before this recipe.
        message = refusal(Path(path).exists)
        if message:
            yield Broken(message, (key,))

    for key, look in _looks(recipe):
        if any(f"{other}.".startswith(f"{key}.") for other in absent_paths):
            continue
        message = refusal(look)
        if message:
            yield Broken(message, (key,))


def _looks(recipe: Recipe) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield each key that names a file or folder, and a function that raises if it is unusable."""
    for key, path in models(recipe):
        yield key, partial(look_at_model, path)
    yield "backbone.max_pixels", partial(look_at_limits, recipe.backbone)
    if recipe.optim.lora is not None and recipe.optim.lora.experts:
        yield "optim.lora.experts", partial(look_at_experts, recipe.backbone.path)
    if recipe.optim.router_aux_loss_coef:
        yield "optim.router_aux_loss_coef", partial(look_at_experts, recipe.backbone.path)
    yield "backbone.videos.max_pixels", partial(look_at_video_limits, recipe.backbone)
    for key, source in sources(recipe):
        yield key, source.check_local_files
    for index, benchmark in enumerate(recipe.evaluation.benchmarks):
        look = partial(BENCHMARKS[benchmark.name].check_location, benchmark)
        yield f"evaluation.benchmarks.{index}", look
    yield "data.filters.leave_out", partial(read_fingerprints, recipe.data.filters.leave_out)
    for index, path in enumerate(recipe.data.decisions):
        yield f"data.decisions.{index}", partial(read_decisions, [path])
    yield "output.resume", partial(look_at_checkpoint, recipe.output.resume)
    yield "output.folder", partial(look_at_output, recipe.output.folder)
    if recipe.output.staging is not None:
        yield "output.staging", partial(look_at_output, recipe.output.staging)
    yield "data.cache", partial(look_at_output, recipe.data.cache or ".")


def look_at_model(path: str) -> None:
    """Check a folder by the names of its files and its config.json.

    Raises:
        UserError: If it does not hold a model of a known family.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; required is {BACKBONES}")
    checkpoint_at(path)
    verify_settings(folder)
    shape_of(path)
    for what, patterns in NEEDED.items():
        files = chain.from_iterable(folder.glob(pattern) for pattern in patterns)
        if not any(file.is_file() for file in files):
            raise UserError(
                f"{folder} holds no file {' or '.join(patterns)}, so that it lacks {what}; required "
                f"is {BACKBONES}"
            )


def look_at_limits(backbone: BackboneConfig) -> None:
    """Check the limits of an image's pixels, if the backbone's config.json is at hand.

    Raises:
        UserError: If the backbone cannot keep them.
    """
    try:
        shape = shape_of(backbone.path)
    except CheckpointError:
        return  # `look_at_model` reports it
    if shape is not None:
        shape.image_tokens(backbone)


def look_at_experts(path: str) -> None:
    """Check that a backbone has experts, if its config.json is at hand.

    Raises:
        UserError: If it has none.
    """
    try:
        shape = shape_of(path)
    except CheckpointError:
        return  # `look_at_model` reports it
    if shape is not None and not shape.count().experts:
        raise UserError(f"{path} has no experts; remove this key, or take a backbone with experts")


def look_at_video_limits(backbone: BackboneConfig) -> None:
    """Check the limit of a video's pixels, if the backbone's config.json is at hand.

    A backbone without video tokens passes: it refuses records with videos, and a recipe does not
    say which sources have some.

    Raises:
        UserError: If a video of the most frames cannot keep it.
    """
    try:
        shape = shape_of(backbone.path)
    except CheckpointError:
        return  # `look_at_model` reports it
    videos = backbone.videos
    if shape is None or videos.form != "video" or family_of_shape(shape).videos is None:
        return
    image_tokens = shape.image_tokens(backbone)
    assert isinstance(image_tokens, PatchTokens), "no family has videos of tiles"
    num_patches = -(-videos.most_frames // FRAMES_OF_PATCH)
    pixels_per_token = image_tokens.side**2
    fewest_pixels = num_patches * pixels_per_token
    if videos.max_pixels < fewest_pixels:
        key = "max_frames" if videos.num_frames is None else "num_frames"
        most_frames = FRAMES_OF_PATCH * (videos.max_pixels // pixels_per_token)
        raise UserError(
            f"{videos.max_pixels:,} pixels are too few for a video of {videos.most_frames:,} "
            f"frames: every {FRAMES_OF_PATCH} frames have at least one token, which is "
            f"{pixels_per_token:,} pixels. Set it to {fewest_pixels:,} or more, or "
            f"backbone.videos.{key} to {most_frames:,} or fewer."
        )


def look_at_checkpoint(resume: str) -> None:
    """Check the value of `output.resume`.

    Raises:
        UserError: If it is a path from which no run can continue.
    """
    if resume in ("never", "auto") or (Path(resume) / "complete").is_file():
        return
    raise UserError(
        f"{resume} is not a whole checkpoint (it has no file `complete`, which is written last); "
        "give a checkpoint-N folder of a finished save, or `auto`"
    )


def look_at_output(path: str) -> None:
    """Check a folder that a run writes into, and makes if it does not exist.

    Raises:
        UserError: If the run cannot write there.
    """
    folder = Path(path).expanduser()
    folder.exists()  # raises OSError for a name that is too long
    nearest = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if not nearest.is_dir():
        problem = "is no folder"
    elif not os.access(nearest, os.W_OK | os.X_OK):
        problem = "cannot be written to"
    else:
        return
    raise UserError(
        f"{folder} cannot be made or written to: {nearest} {problem}; name another folder"
    )

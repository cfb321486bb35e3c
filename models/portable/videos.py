"""Videos as images of several frames: sampled, scaled, and divided into temporal patches.

Two successive frames of a video form a temporal patch, which the vision tower takes like an image.
(An image is two equal frames.) The image processor without torchvision turns each frame into the
patches of two equal frames, and a temporal patch has the first half of one frame's numbers and the
second half of the next frame's. A model is therefore given a video as an image with several frames,
or, with timestamps, as an image for each temporal patch.

This file is saved with every checkpoint that has a reward head, so it imports torch and Pillow
alone, and the files that are saved with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, floor, sqrt
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from PIL import Image as PillowImage
from torch import Tensor

# Relative, because these files are saved too.
from .conversations import ConversationError, VideoFile
from .frame_sampling import (
    FRAMES_OF_PATCH,
    NoDecoderError,
    SampledVideo,
    VideoError,
    frame_size,
    sampled_frames,
)
from .images import PatchGrids, images_of

if TYPE_CHECKING:
    from PIL.Image import Image

SETTINGS = "video_settings"
"""The key of config.json with `backbone.videos` of the recipe, and with the limits on the pixels of
an image, `min_image_pixels` and `max_image_pixels`."""


class PatchesOfVideo(NamedTuple):
    """A video as the model takes it."""

    patches: Tensor
    """(temporal patches, patches of a frame, numbers) float32."""
    rows: int
    """Rows of patches of a frame."""
    columns: int
    """Columns of patches of a frame."""
    times: tuple[float, ...]
    """Seconds from the beginning of the video, for each sampled frame."""
    interval: float
    """Seconds between sampled frames."""


def settings_of(config: Any) -> Any:
    """Return the settings for videos of a checkpoint, with the keys of `SETTINGS` as attributes.

    Args:
        config: The model's configuration.

    Raises:
        ConversationError: The checkpoint was saved without such settings.
    """
    settings: Mapping[str, Any] | None = vars(config).get(SETTINGS)
    if settings is None:
        raise ConversationError(
            f"a video was given, and the config.json of this checkpoint has no {SETTINGS!r}, which "
            "say how frames are sampled: give frames as images"
        )
    return SimpleNamespace(**settings)


def sample(video: VideoFile, settings: Any) -> SampledVideo:
    """Return the frames of a video that the settings choose.

    Raises: ConversationError if the video cannot be read, or PyAV is not installed.
    """
    try:
        return sampled_frames(video, settings)
    except (VideoError, NoDecoderError) as error:
        raise ConversationError(f"a video cannot be read: {error}") from error


def frames_as_images(video: VideoFile, settings: Any) -> list[Image]:
    """Return the sampled frames of a video as images, whose pixels are limited together.

    Raises: ConversationError as `sample` does.
    """
    frames = sample(video, settings).frames
    width, height = frames[0].size
    new_height, new_width = frame_size(
        height, width, len(frames), settings, settings.max_image_pixels
    )
    size = (new_width, new_height)
    return [frame.resize(size, PillowImage.Resampling.BICUBIC) for frame in frames]


def patches_of_video(
    video: VideoFile, config: Any, image_processor: Any, settings: Any
) -> PatchesOfVideo:
    """Return a video as the model takes it.

    Args:
        video: The video.
        config: The model's configuration.
        image_processor: Makes the patches.
        settings: The settings for videos; see `settings_of`.

    Raises:
        ConversationError: The model takes images only, the video cannot be read, or its budget of
            pixels is less than a token for each temporal patch.
    """
    rules = images_of(config.model_type)
    if not issubclass(rules, PatchGrids) or not rules.takes_videos:
        raise ConversationError(
            f"a video was given, and a model of the type {config.model_type!r} takes images only: "
            "give frames as images"
        )
    sampled = sample(video, settings)
    width, height = sampled.frames[0].size
    num_patches = ceil(len(sampled.frames) / FRAMES_OF_PATCH)
    token_side = config.vision_config.patch_size * rules.merge_size(config)
    most_pixels = min(settings.max_image_pixels, settings.max_pixels // num_patches)
    if most_pixels < token_side**2:
        raise ConversationError(
            f"a video of {num_patches} temporal patches has fewer pixels than a token for each: "
            "give a shorter video"
        )
    fewest_pixels = min(settings.min_image_pixels, most_pixels)
    new_height, new_width = size_in_tokens(height, width, fewest_pixels, most_pixels, token_side)
    patches, rows, columns = temporal_patches(
        sampled.frames, new_height, new_width, image_processor, config.vision_config.in_channels
    )
    return PatchesOfVideo(patches, rows, columns, sampled.times, sampled.interval)


def size_in_tokens(
    height: int, width: int, fewest_pixels: int, most_pixels: int, side: int
) -> tuple[int, int]:
    """Return the height and width to which Qwen's processor scales an image, multiples of `side`.

    Args:
        height: Height in pixels.
        width: Width in pixels.
        fewest_pixels: The smallest area.
        most_pixels: The largest area.
        side: Side in pixels of the square of an image that becomes one token.
    """
    new_height = round(height / side) * side
    new_width = round(width / side) * side
    if new_height * new_width > most_pixels:
        factor = sqrt(height * width / most_pixels)
        new_height = max(1, floor(height / factor / side)) * side
        new_width = max(1, floor(width / factor / side)) * side
    elif new_height * new_width < fewest_pixels:
        factor = sqrt(fewest_pixels / (height * width))
        new_height = ceil(height * factor / side) * side
        new_width = ceil(width * factor / side) * side
    return new_height, new_width


def temporal_patches(
    frames: Iterable[Image], height: int, width: int, image_processor: Any, num_channels: int
) -> tuple[Tensor, int, int]:
    """Return the patches of frames, and the rows and columns of patches of a frame.

    Args:
        frames: The sampled frames. If their number is odd, the last one is used twice.
        height: Height to which they are scaled.
        width: Width to which they are scaled.
        image_processor: Makes the patches of an image, which are those of two equal frames.
        num_channels: Number of colours, `in_channels` of the vision tower.

    Returns:
        Patches (temporal patches, patches of a frame, numbers) float32, rows and columns.
    """
    halves: list[Tensor] = []
    rows = 0
    columns = 0
    for number, frame in enumerate(frames):
        scaled = frame.resize((width, height), PillowImage.Resampling.BICUBIC)
        output = image_processor(images=[scaled], do_resize=False, return_tensors="pt")
        patches = output["pixel_values"]
        _, rows, columns = output["image_grid_thw"][0].tolist()
        # (patches, channels, frames, numbers of a channel and frame)
        by_frame = patches.view(len(patches), num_channels, FRAMES_OF_PATCH, -1)
        halves.append(by_frame[:, :, number % FRAMES_OF_PATCH])
    if len(halves) % FRAMES_OF_PATCH:
        halves.append(halves[-1])
    found: list[Tensor] = []
    for first, second in zip(halves[::FRAMES_OF_PATCH], halves[1::FRAMES_OF_PATCH], strict=True):
        found.append(torch.stack([first, second], dim=2).flatten(1))
    return torch.stack(found), rows, columns


def timestamps(times: Sequence[float]) -> tuple[str, ...]:
    """Return the text before each temporal patch: the mean time of its two frames.

    Args:
        times: Seconds from the beginning of the video, for each sampled frame.
    """
    labels = []
    for start in range(0, len(times), FRAMES_OF_PATCH):
        times_of_patch = times[start : start + FRAMES_OF_PATCH]
        mean_time = (times_of_patch[0] + times_of_patch[-1]) / 2
        labels.append(f"<{mean_time:.1f} seconds>")
    return tuple(labels)

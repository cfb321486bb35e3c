"""Videos as the images of a packed row: sampled, scaled, and divided into temporal patches.

A recipe may also show each frame as an image of its own (`FrameCache`).

Two successive frames of a video form a temporal patch, which the vision tower takes like an image.
(An image is two equal frames.) The image processor without torchvision turns each frame into the
patches of two equal frames, and a temporal patch has the first half of one frame's numbers and the
second half of the next frame's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image as PillowImage
from torch import Tensor

from mmrm.data.encoded_video import (
    FRAMES_OF_PATCH,
    SampledVideo,
    Video,
    frames_as_images,
    sample_frames,
)
from mmrm.data.errors import RecordError
from mmrm.data.images import resized
from mmrm.models.cancellation import stop_if_abandoned
from mmrm.models.config import BackboneConfig
from mmrm.models.families.family import VideoLayout
from mmrm.models.packing.segments import ProcessedImage
from mmrm.models.packing.vision import VisionTokens

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, slots=True)
class ProcessedVideo:
    """A video as the images that stand in a conversation."""

    images: tuple[ProcessedImage, ...]
    """One image with all temporal patches, or, with timestamps, one for each of them."""
    labels: tuple[str, ...]
    """The text before each image, such as `<0.3 seconds>`; empty without timestamps."""


class FrameCache:
    """Turns videos into images of their frames, and keeps those of the last call."""

    def __init__(self, limits: BackboneConfig) -> None:
        """Create a cache for the recipe's `backbone` section, which says how frames are sampled."""
        self.limits = limits
        self._last: dict[Video, list[bytes]] = {}

    def of_encoded(self, videos: Sequence[Video], record: str) -> dict[Video, list[bytes]]:
        """Return the sampled frames of encoded videos as image files.

        Args:
            videos: The videos.
            record: Identity of the record, for messages.

        Raises:
            RecordError: A video cannot be decoded.
        """
        # Read only once, because another thread may replace the attribute in between.
        last = self._last
        frames: dict[Video, list[bytes]] = {}
        for video in videos:
            if video in frames:
                continue
            stop_if_abandoned()
            if video in last:
                frames[video] = last[video]
            else:
                frames[video] = frames_as_images(
                    video, self.limits.videos, self.limits.max_pixels, record
                )
        if frames:
            self._last = frames
        return frames


class VideoCache:
    """Processes videos, and keeps those of the last call, as `PatchCache` does with images."""

    def __init__(
        self,
        image_processor: Any,
        vision: VisionTokens,
        vision_config: Any,
        limits: BackboneConfig,
        layout: VideoLayout,
    ) -> None:
        """Create a cache for the videos of one backbone.

        Args:
            image_processor: The backbone's image processor, which makes patches.
            vision: The properties of the images of the backbone's family.
            vision_config: The backbone's `vision_config` in transformers.
            limits: The recipe's `backbone` section. No frame is larger than an image may be.
            layout: The way in which the family is shown a video.
        """
        self.image_processor = image_processor
        self.vision = vision
        self.vision_config = vision_config
        self.limits = limits
        self.layout = layout
        self._last: dict[Video, ProcessedVideo] = {}

    def of_encoded(self, videos: Sequence[Video], record: str) -> dict[Video, ProcessedVideo]:
        """Return encoded videos, processed.

        Args:
            videos: The videos.
            record: Identity of the record, for messages.

        Raises:
            RecordError: A video cannot be decoded, or its frames cannot be scaled to its budget.
        """
        # Read only once, because another thread may replace the attribute in between.
        last = self._last
        processed: dict[Video, ProcessedVideo] = {}
        for video in videos:
            if video in processed:
                continue
            stop_if_abandoned()
            if video in last:
                processed[video] = last[video]
            else:
                processed[video] = self._process(video, record)
        if processed:
            self._last = processed
        return processed

    def _process(self, video: Video, record: str) -> ProcessedVideo:
        """Decode and process a video; see `of_encoded`."""
        sampled = sample_frames(video, self.limits.videos, record)
        num_patches = -(-len(sampled.frames) // FRAMES_OF_PATCH)
        width, height = sampled.frames[0].size
        size = self.frame_size(height, width, num_patches, record)
        pixel_values, (rows, columns) = self._temporal_patches(sampled.frames, size)
        digest = _digest(sampled, size)
        tokens_per_patch = rows * columns // self.vision.merge_size**2
        if self.layout.has_timestamps:
            images = []
            for index in range(num_patches):
                image = ProcessedImage(
                    content=f"{digest} {index}",
                    grid=(1, rows, columns),
                    num_tokens=tokens_per_patch,
                    pixel_values=pixel_values[index],
                )
                images.append(image)
            return ProcessedVideo(tuple(images), _timestamps(sampled.times))
        whole = ProcessedImage(
            content=digest,
            grid=(num_patches, rows, columns),
            num_tokens=num_patches * tokens_per_patch,
            temporal_step=self._temporal_step(sampled.interval),
            pixel_values=pixel_values.flatten(0, 1),
        )
        return ProcessedVideo((whole,), ("",))

    def frame_size(self, height: int, width: int, num_patches: int, record: str) -> tuple[int, int]:
        """Return the height and width to which the frames of a video are scaled.

        Sides are whole tokens. A frame has at most the pixels of an image, and at most an equal
        part of the video's budget.

        Args:
            height: Height of a frame in pixels.
            width: Width of a frame in pixels.
            num_patches: Number of temporal patches of the video.
            record: Identity of the record, for messages.

        Raises:
            RecordError: The budget is less than a token for each temporal patch.
        """
        max_pixels = self.limits.videos.max_pixels
        token_side = self.vision_config.patch_size * self.vision.merge_size
        most_pixels = min(self.limits.max_pixels, max_pixels // num_patches)
        if most_pixels < token_side**2:
            raise RecordError(
                f"{record}: a video of {num_patches} temporal patches may have {max_pixels:,} "
                f"pixels, but {num_patches * token_side**2:,} are required, because every temporal "
                "patch has at least one token. Raise backbone.videos.max_pixels, or sample fewer "
                "frames."
            )
        fewest_pixels = min(self.limits.min_pixels, most_pixels)
        sizes = np.array([[height, width]], dtype=np.uint32)
        new_height, new_width = resized(sizes, fewest_pixels, most_pixels, token_side)[0].tolist()
        return new_height, new_width

    def _temporal_patches(
        self, frames: Sequence[Image], size: tuple[int, int]
    ) -> tuple[Tensor, tuple[int, int]]:
        """Return the patches of frames, and the rows and columns of patches of a frame.

        Args:
            frames: The sampled frames. If their number is odd, the last one is used twice.
            size: Height and width to which they are scaled.

        Returns:
            Patches (temporal patches, patches of a frame, numbers) float32.
        """
        height, width = size
        channels = self.vision_config.in_channels
        halves = []
        grid = (0, 0, 0)
        for number, frame in enumerate(frames):
            stop_if_abandoned()
            scaled = frame.resize((width, height), PillowImage.Resampling.BICUBIC)
            output = self.image_processor(images=[scaled], do_resize=False, return_tensors="pt")
            patches, (grid,) = self.vision.read(output, self.vision)
            # (patches, channels, frames, numbers of a channel and frame)
            by_frame = patches.view(len(patches), channels, FRAMES_OF_PATCH, -1)
            halves.append(by_frame[:, :, number % FRAMES_OF_PATCH])
        if len(frames) % FRAMES_OF_PATCH:
            halves.append(halves[-1])
        temporal_patches = []
        for first, second in zip(
            halves[::FRAMES_OF_PATCH], halves[1::FRAMES_OF_PATCH], strict=True
        ):
            temporal_patches.append(torch.stack([first, second], dim=2).flatten(1))
        _, rows, columns = grid
        return torch.stack(temporal_patches), (rows, columns)

    def _temporal_step(self, interval: float) -> float:
        """Return the positions between temporal patches of frames `interval` seconds apart."""
        if self.layout.positions_per_second is None:
            return 1.0
        return self.layout.positions_per_second(self.vision_config) * FRAMES_OF_PATCH * interval


def _timestamps(times: Sequence[float]) -> tuple[str, ...]:
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


def _digest(sampled: SampledVideo, size: tuple[int, int]) -> str:
    """Return a digest of the frames of a video and of the size to which they are scaled."""
    digest = hashlib.sha256(f"video {len(sampled.frames)} {size}".encode())
    for frame in sampled.frames:
        digest.update(f"{frame.mode} {frame.size}".encode())
        digest.update(frame.tobytes())
    return digest.hexdigest()

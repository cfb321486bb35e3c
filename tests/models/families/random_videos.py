"""Random arrangements of videos, images and texts, computed packed and by the stock model.

    python -m tests.models.families.random_videos 200          # every family with tokens of videos
    python -m tests.models.families.random_videos 200 qwen2_vl

The command compares 200 arrangements of each family in float64 and prints the largest differences.
An arrangement holds one to three prompts, each with one to three responses. Prompts and responses
have videos and images among their texts. The stock model computes each conversation by itself.
"""

from __future__ import annotations

import io
import math
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from mmrm.data.encoded_video import Video, VideoConfig
from mmrm.data.preference import Part, Response
from mmrm.data.synthetic.scenes import png
from mmrm.models.encoder import Conversation
from mmrm.models.portable.reward import ScalarReward
from tests.models import stock, tiny
from tests.models.exactness import float64
from tests.models.families.arrangements import WORDS, packed, reward_model

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5")
WITH_TIMESTAMPS = ("qwen3_vl", "qwen3_vl_moe", "qwen3_5")
RATE = 10
"""Frames a second of the videos."""
IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"


def clip(num_frames: int, width: int, height: int, seed: int = 0) -> bytes:
    """Return an MP4 of frames of noise."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=RATE)
        stream.width = width
        stream.height = height
        stream.pix_fmt = "yuv420p"
        for number in range(num_frames):
            picture = tiny.picture(width, height, seed=100 * seed + number)
            container.mux(stream.encode(av.VideoFrame.from_image(picture)))
        container.mux(stream.encode())
    return buffer.getvalue()


def random_content(draw: random.Random, family: str, most: int) -> list[str | bytes | Video]:
    """Return texts with up to two images and up to `most` videos among them."""
    side = 2 * tiny.config(family).vision_config.patch_size
    content: list[Any] = draw.choices(WORDS, k=draw.randint(1, 3))
    for _ in range(draw.randint(0, 2)):
        picture = png(
            tiny.picture(draw.randint(30, 120), draw.randint(30, 120), draw.randint(0, 9))
        )
        content.insert(draw.randint(0, len(content)), picture)
    for _ in range(draw.randint(0, most)):
        # Whole tokens and no enlargement: `test_frames_are_scaled_to_the_budget` is about sizes.
        columns, rows = draw.choice([(2, 2), (3, 2), (2, 4)])
        video = Video(clip(draw.randint(1, 23), columns * side, rows * side, draw.randint(0, 3)))
        content.insert(draw.randint(0, len(content)), video)
    return content


def random_sampling(draw: random.Random) -> VideoConfig:
    """Return a choice of frames, by rate or by count."""
    if draw.random() < 0.5:
        return VideoConfig(frames_per_second=draw.choice([1.0, 2.0, 5.0]))
    return VideoConfig(num_frames=draw.choice([1, 2, 5]))


def arrangement(draw: random.Random, family: str) -> list[list[Conversation]]:
    """Return one to three prompts, each as conversations with its responses."""
    prompts = []
    for _ in range(draw.randint(1, 3)):
        prompt = Response(tuple(random_content(draw, family, most=2)))
        parts: list[Part] = prompt.parts
        conversations = []
        for _ in range(draw.randint(1, 3)):
            response = Response(tuple(random_content(draw, family, most=1)))
            conversations.append(
                Conversation.answered(
                    [{"role": "user", "content": parts}],
                    prompt.images,
                    response,
                    videos=prompt.videos,
                )
            )
        prompts.append(conversations)
    return prompts


class ReferenceVideo:
    """A video as the stock processors give it to the stock model, computed without our code."""

    def __init__(self, video: Video, sampling: VideoConfig, family: str) -> None:
        """Decode the video and compute patches, grid, times and the step of positions."""
        assert isinstance(video.content, bytes)
        with av.open(io.BytesIO(video.content)) as container:
            frames = [(frame.time, frame.to_image()) for frame in container.decode(video=0)]
        if sampling.num_frames is None:
            interval = 1 / sampling.frames_per_second
            numbers = list(range(0, len(frames), round(RATE * interval)))
        else:
            count = min(sampling.num_frames, len(frames))
            numbers = [int(number) for number in np.linspace(0, len(frames) - 1, count)]
            interval = (frames[numbers[-1]][0] - frames[0][0]) / max(1, count - 1)
        if len(numbers) % 2:
            numbers.append(numbers[-1])
        times = [frames[number][0] for number in numbers]
        self.times = [(one + two) / 2 for one, two in zip(times[::2], times[1::2], strict=True)]
        vision = tiny.config(family).vision_config
        self.step = 1.0
        if family == "qwen2_5_vl":
            self.step = vision.tokens_per_second * 2 * interval
        processor = tiny.image_processor(family=family)
        patches = []
        for one, two in zip(numbers[::2], numbers[1::2], strict=True):
            halves = []
            for half, number in enumerate((one, two)):
                made = processor(images=[frames[number][1]], do_resize=False, return_tensors="pt")
                by_frame = made["pixel_values"].reshape(-1, 3, 2, vision.patch_size**2)
                halves.append(by_frame[:, :, half])
            patches.append(torch.stack(halves, 2).flatten(1))
        _, rows, columns = made["image_grid_thw"][0].tolist()
        self.patches = torch.cat(patches)
        self.grid = (len(patches), rows, columns)


def stock_inputs(
    conversation: Conversation, family: str, sampling: VideoConfig
) -> dict[str, Tensor]:
    """Return the arguments of the stock model for one conversation, as its processors make them."""
    encoder = tiny.encoder(family)
    tokenizer = tiny.tokenizer(family)
    processor = tiny.image_processor(family=family)
    text = "".join(span.text for span in encoder.render(conversation.messages))
    seen: list[tuple[str, tuple[int, int, int], float]] = []
    image_grids: list[tuple[int, int, int]] = []
    video_grids: list[tuple[int, int, int]] = []
    pixels: list[Tensor] = []
    video_pixels: list[Tensor] = []
    images = iter(conversation.images)
    videos = iter(conversation.videos)
    written = ""
    while IMAGE in text or VIDEO in text:
        is_image = VIDEO not in text or -1 < text.find(IMAGE) < text.find(VIDEO)
        before, text = text.split(IMAGE if is_image else VIDEO, 1)
        written += before
        if is_image:
            image = next(images)
            assert isinstance(image, bytes)
            made = processor(
                images=[Image.open(io.BytesIO(image)).convert("RGB")], return_tensors="pt"
            )
            grid = tuple(made["image_grid_thw"][0].tolist())
            pixels.append(made["pixel_values"])
            image_grids.append(grid)
            seen.append(("<|image_pad|>", grid, 1.0))
            pads = "<|image_pad|>" * (math.prod(grid) // 4)
            written += f"<|vision_start|>{pads}<|vision_end|>"
            continue
        video = ReferenceVideo(next(videos), sampling, family)
        video_pixels.append(video.patches)
        video_grids.append(video.grid)
        seen.append(("<|video_pad|>", video.grid, video.step))
        frames, rows, columns = video.grid
        pads = "<|video_pad|>" * (rows * columns // 4)
        if family in WITH_TIMESTAMPS:
            for time in video.times:
                written += f"<{time:.1f} seconds><|vision_start|>{pads}<|vision_end|>"
        else:
            written += f"<|vision_start|>{pads * frames}<|vision_end|>"
    ids = tokenizer(written + text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    inputs: dict[str, Tensor] = {"input_ids": ids}
    if pixels:
        inputs["pixel_values"] = torch.cat(pixels)
        inputs["image_grid_thw"] = torch.tensor(image_grids)
    if video_pixels:
        inputs["pixel_values_videos"] = torch.cat(video_pixels)
        inputs["video_grid_thw"] = torch.tensor(video_grids)
    image_id, video_id = tokenizer.convert_tokens_to_ids(["<|image_pad|>", "<|video_pad|>"])
    inputs["mm_token_type_ids"] = (ids == image_id).int() + 2 * (ids == video_id).int()
    if family not in WITH_TIMESTAMPS:
        inputs["position_ids"] = reference_positions(ids[0].tolist(), (image_id, video_id), seen)
    return inputs


def reference_positions(ids: list[int], pads: tuple[int, int], seen: list[Any]) -> Tensor:
    """Return positions (3, 1, T) by the rule: behind an image or a video, the largest plus one."""
    positions: list[tuple[int, int, int]] = []
    following = 0
    remaining = iter(seen)
    index = 0
    while index < len(ids):
        if ids[index] not in pads:
            positions.append((following,) * 3)
            following += 1
            index += 1
            continue
        _, (frames, rows, columns), step = next(remaining)
        own = []
        for frame in range(frames):
            for row in range(rows // 2):
                for column in range(columns // 2):
                    own.append((following + int(frame * step), following + row, following + column))
        positions += own
        index += len(own)
        following = max(map(max, own)) + 1
    return torch.tensor(positions).T[:, None]


def largest_differences(model: ScalarReward, seed: int) -> tuple[float, float]:
    """Return the largest difference of a score and of a gradient, each relative to the largest one."""
    draw = random.Random(seed)
    family = model.config.model_type
    sampling = random_sampling(draw)
    prompts = arrangement(draw, family)
    backbone = stock.backbone(model.model)
    hidden = []
    for conversations in prompts:
        for conversation in conversations:
            output = backbone(**stock_inputs(conversation, family, sampling), use_cache=False)
            hidden.append(output.last_hidden_state[0, -1])
    first, bias, second = model.head.parameters()
    wanted = F.linear(F.silu(F.linear(torch.stack(hidden), first, bias)), second)[:, 0]
    weights = torch.linspace(-1, 2, len(wanted))
    torch.autograd.backward((wanted * weights).sum())
    model.zero_grad()
    scores = packed(model, prompts, draw, videos=sampling)
    torch.autograd.backward((scores * weights).sum())
    score = float((scores - wanted).detach().abs().max() / wanted.detach().abs().max())
    wanted_gradients = stock.gradients(backbone)
    gradients = stock.gradients(model.model)
    scale = max(float(one.abs().max()) for one in wanted_gradients.values())
    differences = [
        float((gradients[name] - one).abs().max()) / scale for name, one in wanted_gradients.items()
    ]
    return score, max(differences)


def main(count: int, families: Sequence[str]) -> None:
    """Compare `count` random arrangements of families, and print the largest differences."""
    for family in families:
        with float64(), tempfile.TemporaryDirectory() as folder:
            model = reward_model(Path(folder), family)
            differences = [largest_differences(model, seed) for seed in range(count)]
        scores, gradients = zip(*differences, strict=True)
        print(
            f"{family}: {count} arrangements, largest relative difference of a score "
            f"{max(scores):.1e}, of a gradient {max(gradients):.1e}",
            flush=True,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:] or FAMILIES)

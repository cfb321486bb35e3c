"""Videos in packed rows: random arrangements against the stock model, which is given one conversation at a time."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from mmrm.data.encoded_video import Video, VideoConfig, frames_as_images, video_size
from mmrm.data.errors import RecordError
from mmrm.data.preference import Part, Response
from mmrm.data.synthetic.scenes import png
from mmrm.models.config import BackboneConfig
from mmrm.models.encoder import Conversation, Encoder
from mmrm.models.portable.reward import ScalarReward
from tests.models import stock, tiny
from tests.models.exactness import float64
from tests.models.families.arrangements import WORDS, packed, reward_model

av = pytest.importorskip("av")
FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5")
FAMILIES_OF_IMAGES = ("internvl", "video_llama_3")
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
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
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
    """Return what the stock model is given for one conversation, with video tokens."""
    encoder = tiny.encoder(family)
    tokenizer = tiny.tokenizer(family)
    processor = tiny.image_processor(family=family)
    text = "".join(span.text for span in encoder.render(conversation.messages))
    seen: list[tuple[str, tuple[int, int, int], float]] = []
    image_grids, video_grids, pixels, video_pixels = [], [], [], []
    images, videos = iter(conversation.images), iter(conversation.videos)
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


@pytest.fixture
def exact() -> Iterator[None]:
    with float64():
        yield


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_with_videos_are_the_stock_model_s(family: str, tmp_path: Path, exact: None) -> None:
    model = reward_model(tmp_path, family)
    for seed in range(6):
        score, gradient = largest_differences(model, seed)
        assert score < 1e-12, seed
        assert gradient < 1e-12, seed


def video_conversation(video: Video) -> Conversation:
    """Return a question about one video with an answer."""
    prompt = Response(("what is in it?", video))
    return Conversation.answered(
        [{"role": "user", "content": prompt.parts}], (), Response.of_text("a"), videos=[video]
    )


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl"])
def test_positions_are_those_of_transformers_while_frames_take_fewer_than_a_side(
    family: str, tmp_path: Path
) -> None:
    model = stock.backbone(reward_model(tmp_path, family).model)
    conversation = video_conversation(Video(clip(3, 56, 168)))
    sampling = VideoConfig(frames_per_second=5.0)
    inputs = stock_inputs(conversation, family, sampling)
    settings = {"second_per_grid_ts": torch.tensor([0.4])} if family == "qwen2_5_vl" else {}
    wanted, _ = model.get_rope_index(
        inputs["input_ids"],
        inputs["mm_token_type_ids"],
        video_grid_thw=inputs["video_grid_thw"],
        **settings,
    )
    encoder = tiny.encoder(family, videos=sampling)
    tree = encoder.encode_conversations([conversation], "end_of_turn", "a record")
    found = encoder.pack([tree]).position_ids
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("family", ["internvl", "video_llama_3", "glm4v"])
def test_families_without_videos_refuse_them_by_name(family: str) -> None:
    titles = {"internvl": "InternVL", "video_llama_3": "VideoLLaMA3", "glm4v": r"GLM-4\.1V"}
    title = titles[family]
    conversation = video_conversation(Video(clip(3, 56, 56)))
    with pytest.raises(RecordError, match=f"a record: .*{title} has no tokens of videos here"):
        tiny.encoder(family).encode_conversations([conversation], "end_of_turn", "a record")


def test_frames_are_scaled_to_the_budget() -> None:
    # 8 temporal patches of 12 tokens each fit, as 4 x 3 tokens of 28 pixels
    videos = tiny.encoder(videos=VideoConfig(max_pixels=8 * 12 * 784)).videos
    assert videos is not None
    assert videos.frame_size(300, 400, 8, "a record") == (84, 112)
    videos = tiny.encoder(videos=VideoConfig(max_pixels=8 * 784 - 1)).videos
    assert videos is not None
    with pytest.raises(RecordError, match="a video of 8 temporal patches may have 6,271 pixels"):
        videos.frame_size(300, 400, 8, "a record")


@pytest.mark.parametrize("form", ["video", "frames"])
@pytest.mark.parametrize("num_frames", [1, 2, 7, 30])
def test_tokens_of_a_video_are_counted_from_its_size(form: Any, num_frames: int) -> None:
    content = clip(num_frames, 200, 120)
    for config in (
        VideoConfig(form=form),
        VideoConfig(form=form, num_frames=5),
        VideoConfig(form=form, frames_per_second=8.0, max_frames=6),
        VideoConfig(form=form, max_pixels=30_000),
    ):
        processor = tiny.image_processor(3000, 20_000, "qwen3_vl")
        settings = BackboneConfig(
            path="tiny", dtype="float32", min_pixels=3000, max_pixels=20_000, videos=config
        )
        encoder = Encoder(tiny.tokenizer("qwen3_vl"), processor, settings, tiny.config("qwen3_vl"))
        conversation = video_conversation(Video(content))
        tree = encoder.encode_conversations([conversation], "end_of_turn", "a record")
        size = np.array([video_size(Video(content), "a record")], np.float64)
        num_tokens = sum(segment.ids.count(encoder.vision.image) for segment in tree.segments)
        assert encoder.image_tokens.of_videos(size).tolist() == [num_tokens]


@pytest.mark.parametrize("family", FAMILIES_OF_IMAGES)
def test_frames_are_images_in_the_place_of_a_video(family: str) -> None:
    config = VideoConfig(form="frames", num_frames=3)
    video = Video(clip(9, 60, 90))
    encoder = tiny.encoder(family, videos=config)
    found = encoder.encode_conversations([video_conversation(video)], "end_of_turn", "a record")
    frames = frames_as_images(video, config, encoder.config.max_pixels, "a record")
    prompt = Response(("what is in it?", *frames))
    turn = {"role": "user", "content": prompt.parts}
    conversation = Conversation.answered([turn], frames, Response.of_text("a"))  # type: ignore[list-item]
    wanted = encoder.encode_conversations([conversation], "end_of_turn", "a record")
    assert [segment.ids for segment in found.segments] == [one.ids for one in wanted.segments]
    assert [one.content for one in found.images] == [one.content for one in wanted.images]
    assert len(found.images) == 3


@pytest.mark.parametrize("form", ["video", "frames"])
def test_each_record_gets_its_own_video(form: Any) -> None:
    """The videos of the last record are kept, and not taken for others."""
    videos = [Video(clip(3, 56, 56, seed=number)) for number in range(2)]
    encoder = tiny.encoder(videos=VideoConfig(form=form))
    contents = []
    for video in (videos[0], videos[1], videos[1], videos[0]):
        tree = encoder.encode_conversations([video_conversation(video)], "end_of_turn", "a record")
        contents.append([image.content for image in tree.images])
    first, second, second_again, first_again = contents
    assert first == first_again
    assert second == second_again
    assert first != second


def test_a_video_in_a_response_carries_no_loss() -> None:
    video = Video(clip(20, 64, 64))
    encoder = tiny.encoder("qwen3_vl")
    response = Response(("a red", video, "square"))
    turn = Response.of_text("what?").turn["content"]
    with_video = Conversation.answered([{"role": "user", "content": turn}], (), response)
    loss = Conversation(with_video.messages, (), loss=True, videos=[video])
    tree = encoder.encode_conversations([loss], None, "a record")
    [conversation] = tree.conversations()
    [labels] = [conversation.labels]
    text = encoder.tokenizer.decode([conversation.ids[index] for index in labels])
    assert text == "a redsquare<|im_end|>"


def test_places_and_videos_have_to_be_equally_many() -> None:
    video = Video(clip(3, 56, 56))
    conversation = video_conversation(video)
    without = Conversation(conversation.messages)
    with pytest.raises(RecordError, match="0 videos but 1 places for a video"):
        tiny.encoder().encode_conversations([without], "end_of_turn", "a record")

"""Videos in packed rows: random arrangements against the stock model, which is given one conversation at a time.

`python -m tests.models.families.random_videos 200` compares more arrangements.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmrm.data.encoded_video import Video, VideoConfig, frames_as_images, video_size
from mmrm.data.errors import RecordError
from mmrm.data.preference import Response
from mmrm.models.config import BackboneConfig
from mmrm.models.encoder import Conversation, Encoder
from mmrm.models.families.registry import FAMILIES as ALL_FAMILIES
from tests.models import stock, tiny
from tests.models.exactness import float64
from tests.models.families.arrangements import reward_model

pytest.importorskip("av")

from tests.models.families.random_videos import (
    FAMILIES,
    clip,
    largest_differences,
    stock_inputs,
)

FAMILIES_OF_IMAGES = ("internvl", "video_llama_3", "cosmos3_edge")


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


@pytest.mark.parametrize("family", ["internvl", "video_llama_3", "glm4v", "cosmos3_edge"])
def test_families_without_videos_refuse_them_by_name(family: str) -> None:
    title = re.escape(ALL_FAMILIES[family].title)
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

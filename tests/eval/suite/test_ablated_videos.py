"""Ablations of rows with images and videos, in prompts and in responses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mmrm.data.encoded_video import Video, video_size
from mmrm.data.errors import UserError
from mmrm.data.preference import Message, Response
from mmrm.eval.candidates import Example
from mmrm.eval.protocol import journal_key
from mmrm.eval.results.result import items_of
from mmrm.eval.suite.image_ablation import with_ablated_images
from tests.data.sources.fixtures import png
from tests.data.test_frames import video

pytest.importorskip("av")


def rows_with_videos(folder: Path) -> list[Example]:
    """Return three rows: a video in the prompt, one in each response, and neither."""
    clips: list[Video] = []
    for number in range(4):
        clips.append(Video(video(folder / f"{number}.mp4", 3 + number).read_bytes()))
    asked: Message = {
        "role": "user",
        "content": [{"type": "image"}, {"type": "video"}, {"type": "text", "text": "What?"}],
    }
    plain: Message = {"role": "user", "content": [{"type": "text", "text": "Film a cat."}]}
    texts = (Response.of_text("a"), Response.of_text("b"))
    films = (Response((clips[1],)), Response(("Here:", clips[2])))
    red = png("red")
    blue = png("blue")
    return [
        Example("k0", (red,), (asked,), texts, "0", 0, "", "", {}, videos=(clips[0],)),
        Example("k1", (blue,), (asked,), texts, "1", 0, "", "", {}, videos=(clips[3],)),
        Example("k2", (), (plain,), films, "2", 0, "", "", {}),
        Example("k3", (), (plain,), texts, "3", 0, "", "", {}),
    ]


def test_without_images_there_are_no_videos_either(tmp_path: Path) -> None:
    for row in with_ablated_images(rows_with_videos(tmp_path), "none"):
        assert row.all_images == ()
        assert row.all_videos == ()
        assert {part["type"] for part in row.prompt[0]["content"]} == {"text"}


def test_grey_videos_have_the_sizes_and_lengths(tmp_path: Path) -> None:
    rows = rows_with_videos(tmp_path)
    grey = with_ablated_images(rows, "grey")
    for row, original in zip(grey, rows, strict=True):
        assert len(row.all_videos) == len(original.all_videos)
        assert set(row.all_videos).isdisjoint(original.all_videos)
        for one, other in zip(row.all_videos, original.all_videos, strict=True):
            assert video_size(one, "a row") == pytest.approx(video_size(other, "a row"))


def test_shuffled_rows_have_images_and_videos_of_other_rows(tmp_path: Path) -> None:
    rows = rows_with_videos(tmp_path)
    shuffled = with_ablated_images(rows, "shuffled", seed=1)
    assert [row.images for row in shuffled[:2]] == [rows[1].images, rows[0].images]
    assert [row.videos for row in shuffled[:2]] == [rows[1].videos, rows[0].videos]
    of_responses = shuffled[2].all_videos
    assert len(of_responses) == 2
    assert set(of_responses).isdisjoint(rows[2].all_videos)
    assert [response.text for response in shuffled[2].responses] == ["", "Here:"]
    assert shuffled[3] == rows[3]


def test_a_single_video_cannot_be_shuffled(tmp_path: Path) -> None:
    rows = rows_with_videos(tmp_path)[:1]
    with pytest.raises(UserError, match="or all rows with videos the same video"):
        with_ablated_images(rows, "shuffled")


def test_keys_and_items_tell_videos_apart(tmp_path: Path) -> None:
    first, second, films, _ = rows_with_videos(tmp_path)
    other_video = replace(first, videos=second.videos)
    assert journal_key(other_video) != journal_key(first)
    assert journal_key(replace(first)) == journal_key(first)
    # Rows with one video are one item, whatever is asked about it.
    asked: Message = {"role": "user", "content": [{"type": "text", "text": "Film a dog."}]}
    same_film = Example("k4", (), (asked,), films.responses, "4", 0, "", "", {})
    items = items_of([first, second, films, same_film])
    assert items[2] == items[3]
    assert len(set(items.tolist())) == 3

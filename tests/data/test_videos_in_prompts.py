"""Videos in the conversations that judges are shown."""

from __future__ import annotations

import pytest

from mmrm.data.encoded_video import Video
from mmrm.data.point_prompt import PointPrompt
from mmrm.data.preference import Response, media_parts, num_image_parts, num_video_parts
from mmrm.data.prompts import TEMPLATES, JudgeTemplate, judge_conversation

PROMPT = Response(("Look:", b"an image", "and", Video(b"a video"), "What happens?"))
"""A question with an image and a video, as a response would hold them."""


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_judge_is_shown_the_videos_of_the_prompt_and_of_the_responses(
    template: JudgeTemplate,
) -> None:
    prompt = ({"role": "user", "content": PROMPT.parts},)
    first = Response(("It runs", Video(b"one")))
    second = Response((Video(b"two"), b"an image"))
    asked = judge_conversation(template, prompt, first, second)  # type: ignore[arg-type]
    assert num_image_parts(asked) == 2
    assert num_video_parts(asked) == 3
    kinds = [part["type"] for part in media_parts(asked)]
    assert kinds == ["image", "video", "video", "video", "image"]


def test_a_judge_of_single_responses_is_shown_videos() -> None:
    prompt = ({"role": "user", "content": PROMPT.parts},)
    response = Response(("It runs", Video(b"one")))
    asked = PointPrompt().ask(prompt, response)  # type: ignore[arg-type]
    kinds = [part["type"] for part in media_parts(asked)]
    assert kinds == ["image", "video", "video"]

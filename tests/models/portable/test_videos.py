"""Videos in padded batches: the scores are those of packed rows, here and in a process without this repository."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch

from mmrm.data.encoded_video import Video, VideoConfig
from mmrm.data.images import resized
from mmrm.data.preference import Response
from mmrm.data.synthetic.scenes import png
from mmrm.models.backbone import load_scalar, set_joint_responses
from mmrm.models.config import BackboneConfig, Read
from mmrm.models.encoder import Conversation
from mmrm.models.heads.score_head import ScoreHeadConfig
from mmrm.models.portable.conversations import ConversationError
from mmrm.models.portable.videos import size_in_tokens
from tests.models import exactness, tiny
from tests.models.elsewhere import run_elsewhere
from tests.models.exactness import assert_exact
from tests.models.portable.test_images_in_responses import SCRIPT

pytest.importorskip("av")

from tests.models.families.random_videos import FAMILIES, clip
from tests.models.test_video_patches import FAMILIES_OF_IMAGES

PIXELS = {"min_pixels": 3136, "max_pixels": 12_544}
SAMPLINGS: dict[str, VideoConfig] = {
    "by rate": VideoConfig(frames_per_second=5.0, max_pixels=40_000),
    "by count": VideoConfig(num_frames=5, max_pixels=20_000),
    "frames": VideoConfig(form="frames", num_frames=3, max_pixels=20_000),
}
LONG = clip(23, 96, 64, seed=1)
SHORT = clip(2, 64, 96, seed=2)
PICTURE = tiny.picture(60, 80)
PROMPT: list[Any] = [
    {"type": "text", "text": "Look: "},
    {"type": "video", "video": LONG},
    {"type": "image", "image": PICTURE},
    {"type": "video", "video": SHORT},
    {"type": "text", "text": "What happens?"},
]
RESPONSES: list[Any] = [
    "A cat runs.",
    [{"type": "text", "text": "It is: "}, {"type": "video", "video": LONG}],
    [
        {"type": "video", "video": SHORT},
        {"type": "image", "image": PICTURE},
        {"type": "text", "text": "and more"},
    ],
]


def response_of(parts: Any) -> Response:
    """Return parts as a caller writes them as a response for the encoder."""
    if isinstance(parts, str):
        return Response.of_text(parts)
    content: list[Any] = []
    for part in parts:
        if part["type"] == "text":
            content.append(part["text"])
        elif part["type"] == "video":
            content.append(Video(part["video"]))
        else:
            content.append(png(part["image"]))
    return Response(tuple(content))


def conversations() -> list[Conversation]:
    """Return the prompt with each response, for the encoder."""
    prompt = response_of(PROMPT)
    turn: Any = {"role": "user", "content": prompt.parts}
    return [
        Conversation.answered([turn], prompt.images, response_of(response), videos=prompt.videos)
        for response in RESPONSES
    ]


def model_of(folder: Path, family: str, sampling: VideoConfig, read: Read = "end_of_turn") -> Any:
    """Return a scalar reward model of random weights, from a checkpoint in `folder`."""
    tiny.checkpoint(folder, family=family)
    config = BackboneConfig(path=str(folder), dtype="float32", videos=sampling, **PIXELS)  # type: ignore[arg-type]
    model: Any = load_scalar(config, ScoreHeadConfig(read=read))
    tiny.stir(model.head, 0.5)
    return model.eval()


def processor_of(family: str) -> Any:
    """Return the tokenizer and the image processor of a family."""
    return SimpleNamespace(
        tokenizer=tiny.tokenizer(family),
        image_processor=tiny.encoder(family, **PIXELS).image_processor,
    )


def packed(model: Any, sampling: VideoConfig, read: Read = "end_of_turn") -> torch.Tensor:
    """Return the scores of the conversations in one packed row."""
    encoder = tiny.encoder(model.config.model_type, videos=sampling, **PIXELS)
    tree = encoder.encode_conversations(conversations(), read, "test")
    with torch.no_grad():
        scores: torch.Tensor = model(**encoder.pack([tree]).score_inputs())
    return scores


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_packed_rows(tmp_path: Path, family: str, sampling: str) -> None:
    model = model_of(tmp_path, family, SAMPLINGS[sampling])
    wanted = packed(model, SAMPLINGS[sampling])
    assert float(wanted.max() - wanted.min()) > 1e-3
    turn = {"role": "user", "content": PROMPT}
    processor = processor_of(family)
    assert_exact(model.score(processor, [turn], RESPONSES, batch_size=2), wanted)
    emptied = [{"type": part["type"]} if part["type"] == "video" else part for part in PROMPT]
    turn = {"role": "user", "content": emptied}
    found = model.score(processor, [turn], RESPONSES, videos=[LONG, SHORT])
    assert_exact(found, wanted)


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("read", get_args(Read))
def test_a_head_may_read_anywhere(tmp_path: Path, read: Read) -> None:
    sampling = SAMPLINGS["by count"]
    model = model_of(tmp_path, "qwen2_5_vl", sampling, read)
    found = model.score(
        processor_of("qwen2_5_vl"), [{"role": "user", "content": PROMPT}], RESPONSES
    )
    assert_exact(found, packed(model, sampling, read))


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("family", FAMILIES)
def test_joint_scores_are_those_of_packed_rows(tmp_path: Path, family: str) -> None:
    sampling = SAMPLINGS["by rate"]
    model = model_of(tmp_path, family, sampling)
    set_joint_responses(model, 2)
    encoder = tiny.encoder(family, videos=sampling, **PIXELS)
    prompt = response_of(PROMPT)
    turn: Any = {"role": "user", "content": prompt.parts}
    wanted = torch.zeros(2)
    for order in ((0, 1), (1, 0)):
        shown = [response_of(RESPONSES[index]) for index in order]
        conversation = Conversation.answered([turn], prompt.images, *shown, videos=prompt.videos)
        tree = encoder.encode_joint(conversation, 2, "end_of_turn", "test")
        with torch.no_grad():
            wanted[list(order)] += model(**encoder.pack([tree]).score_inputs()) / 2
    turn = {"role": "user", "content": PROMPT}
    assert_exact(model.score(processor_of(family), [turn], RESPONSES[:2]), wanted)


@pytest.mark.parametrize("family", FAMILIES_OF_IMAGES)
def test_families_of_images_take_frames_alone(tmp_path: Path, family: str) -> None:
    sampling = VideoConfig(form="frames", num_frames=2)
    tiny.checkpoint(tmp_path, family=family)
    config = BackboneConfig(path=str(tmp_path), dtype="float32", videos=sampling)
    model: Any = load_scalar(config, ScoreHeadConfig()).eval()
    tiny.stir(model.head, 0.5)
    processor = SimpleNamespace(
        tokenizer=tiny.tokenizer(family), image_processor=tiny.image_processor(family=family)
    )
    assert len(model.score(processor, "What?", RESPONSES[:2], videos=[SHORT])) == 2
    model.config.video_settings["form"] = "video"
    with pytest.raises(ConversationError, match=f"{family}.* takes images only"):
        model.score(processor, "What?", ["a"], videos=[SHORT])
    del model.config.video_settings
    with pytest.raises(ConversationError, match="has no 'video_settings'"):
        model.score(processor, "What?", ["a"], videos=[SHORT])


@pytest.mark.parametrize(
    ("settings", "video", "message"),
    [
        ({}, b"no video", "a video cannot be read"),
        ({}, Path("absent.mp4"), "absent.mp4 is no regular file"),
        ({"max_pixels": 784}, LONG, "fewer pixels than a token for each"),
    ],
)
def test_a_video_that_cannot_be_shown_is_refused(
    tmp_path: Path, settings: dict[str, int], video: bytes | Path, message: str
) -> None:
    model = model_of(tmp_path, "qwen2_5_vl", SAMPLINGS["by rate"])
    model.config.video_settings |= settings
    with pytest.raises(ConversationError, match=message):
        model.score(processor_of("qwen2_5_vl"), "What?", ["a"], videos=[video])


def test_sizes_are_those_of_the_encoder() -> None:
    draw = np.random.default_rng(0)
    for height, width in draw.integers(1, 3000, (2000, 2)).tolist():
        fewest, most = sorted(draw.integers(28**2, 2_000_000, 2).tolist())
        sizes = np.array([[height, width]], np.uint32)
        wanted = tuple(resized(sizes, fewest, most, 28)[0].tolist())
        assert size_in_tokens(height, width, fewest, most, 28) == wanted


@pytest.mark.slow
@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("family", FAMILIES)
def test_remote_code_samples_and_scores_them_elsewhere(tmp_path: Path, family: str) -> None:
    sampling = SAMPLINGS["by rate"]
    model = model_of(tmp_path / "start", family, sampling)
    model.save_pretrained(tmp_path / "saved")
    tiny.encoder(family, videos=sampling, **PIXELS).save_pretrained(tmp_path / "saved")
    with (tmp_path / "given.pickle").open("wb") as file:
        pickle.dump(([{"role": "user", "content": PROMPT}], RESPONSES), file)
    arguments = [str(tmp_path / name) for name in ("saved", "given.pickle", "scores.pt")]
    arguments.append(str(Path(exactness.__file__).parent))
    run_elsewhere(SCRIPT, arguments, tmp_path)
    assert_exact(torch.load(tmp_path / "scores.pt"), packed(model, sampling))

"""Captions in place of images: what the text states, and what stays as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mmrm.data.preference import Preference, texts
from mmrm.data.synthetic.source import ShapesConfig
from mmrm.data.synthetic.world import ShapesGenerator

SETTINGS = {"type": "shapes", "level": "demo", "rows": 60}


def records(**keys: Any) -> list[Preference]:
    source = ShapesConfig.model_validate({**SETTINGS, **keys}).open(Path())
    return [source.record(index) for index in range(len(source))]


@pytest.mark.parametrize("level", ["demo", "medium", "hard"])
def test_a_caption_names_everything_in_the_image_and_replaces_it(level: str) -> None:
    keys: dict[str, Any] = {"level": level, "text_only": 0.0}
    generator = ShapesGenerator(level, 0, "train", 0.0)
    for index, (shown, told) in enumerate(
        zip(records(**keys), records(**keys, captions=True), strict=True)
    ):
        scene = generator.item(index).scene
        assert scene is not None
        assert len(shown.images) == 1
        assert told.images == ()
        (prompt,) = texts(told.prompt)
        (question,) = texts(shown.prompt)
        assert len(told.prompt[0]["content"]) == 1  # no place of an image is left
        assert prompt.startswith("the image shows ")
        assert prompt.endswith(f". {question}")
        description = prompt.removesuffix(f". {question}")
        assert description.count(",") == len(scene.things) - 1 or level == "hard"
        for thing in scene.things:
            assert thing.what in description
            assert thing.colour in description
            assert thing.size in description
        assert told.responses == shown.responses
        assert (told.rationale, told.truth) == (shown.rationale, shown.truth)


def test_captions_change_no_text_only_pair_and_combine_with_flips() -> None:
    texts_alone = records(text_only=1.0)
    assert records(text_only=1.0, captions=True) == texts_alone
    told = records(text_only=0.0, captions=True)
    flipped = records(text_only=0.0, captions=True, flipped=1.0)
    for record, opposite in zip(told, flipped, strict=True):
        assert opposite.prompt == record.prompt
        assert (opposite.chosen, opposite.rejected) == (record.rejected, record.chosen)


def test_a_source_without_captions_is_that_of_earlier_versions(tmp_path: Path) -> None:
    config = ShapesConfig.model_validate(SETTINGS)
    same = ShapesConfig.model_validate(SETTINGS | {"captions": False})
    other = ShapesConfig.model_validate(SETTINGS | {"captions": True})
    assert "captions" not in config.settings
    assert same.open(tmp_path).fingerprint() == config.open(tmp_path).fingerprint()
    assert other.open(tmp_path).fingerprint() != config.open(tmp_path).fingerprint()

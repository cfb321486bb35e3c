"""The source `shapes_motion`: its keys, what it refuses, its records, and a clone without PyAV."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from mmrm.data.errors import UserError
from mmrm.data.preference import Truth, validate
from mmrm.data.sources.registry import AnySource
from mmrm.data.synthetic.film_questions import FILM_QUESTION_TYPES
from mmrm.data.synthetic.motion_source import MotionConfig


def config(**keys: Any) -> MotionConfig:
    """Return the source as a recipe with these keys has it."""
    adapter: TypeAdapter[Any] = TypeAdapter(AnySource)
    values = {"type": "shapes_motion", "level": "demo", "rows": 30, **keys}
    source = adapter.validate_python(values)
    assert isinstance(source, MotionConfig)
    return source


def test_a_record_shows_a_video_after_its_question(tmp_path: Path) -> None:
    pytest.importorskip("av")
    source = config().open(tmp_path)
    records = [source.record(index) for index in range(len(source))]
    assert len(records) == 30
    for record in records:
        validate(record)
        [question] = record.prompt
        assert [part["type"] for part in question["content"]] == ["text", "video"]
        assert len(record.videos) == 1
        assert record.images == ()
        assert record.category in FILM_QUESTION_TYPES
        assert record.truth is not None
        assert record.chosen.text in record.truth.answers
        assert record.rejected.text not in record.truth.answers
        assert isinstance(record.truth, Truth)


def test_playing_a_film_in_another_way_changes_its_video_alone(tmp_path: Path) -> None:
    pytest.importorskip("av")
    forwards = config().open(tmp_path)
    shuffled = config(played="shuffled").open(tmp_path)
    for index in range(len(forwards)):
        record = forwards.record(index)
        other = shuffled.record(index)
        assert other.prompt == record.prompt
        assert other.responses == record.responses
        assert other.videos != record.videos
    assert forwards.fingerprint() != shuffled.fingerprint()


def test_the_fingerprint_changes_with_the_seed(tmp_path: Path) -> None:
    pytest.importorskip("av")
    first = config(seed=0).open(tmp_path)
    second = config(seed=1).open(tmp_path)
    assert first.revision == second.revision
    assert first.fingerprint() != second.fingerprint()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"level": "easy"}, "'easy' is not in the generated data set"),
        ({"split": "test"}, "'test' is not in the generated data set"),
        ({"kinds": ["counting"]}, "'counting' is not in the generated data set"),
        ({"kinds": []}, "at least 1 item"),
        ({"frames": 3}, "greater than or equal to 4"),
        ({"frames": 17}, "less than or equal to 16"),
        ({"played": "slowly"}, "Input should be"),
    ],
)
def test_settings_that_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        config(**keys)


def test_without_pyav_the_source_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(UserError, match=r"pip install -e \.\[video\]"):
        config().open(tmp_path)

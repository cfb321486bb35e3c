"""Wrong preferences of the generated data: how many, which, and what stays as it was."""

from __future__ import annotations

from pathlib import Path

from mmrm.data.preference import Preference
from mmrm.data.synthetic.source import ShapesConfig


def records(tmp_path: Path, **keys: float) -> list[Preference]:
    settings = {"type": "shapes", "level": "demo", "rows": 300, "text_only": 1.0, **keys}
    source = ShapesConfig.model_validate(settings).open(tmp_path)
    return [source.record(index) for index in range(300)]


def test_a_share_of_the_pairs_is_flipped_and_the_others_stay(tmp_path: Path) -> None:
    right = records(tmp_path)
    some = records(tmp_path, flipped=0.3)
    flipped = [index for index in range(300) if some[index] != right[index]]
    assert 0.2 < len(flipped) / 300 < 0.4
    assert records(tmp_path, flipped=0.3) == some
    one = right[flipped[0]]
    other = some[flipped[0]]
    assert (other.chosen, other.rejected) == (one.rejected, one.chosen)
    assert (other.chosen_critique, other.rejected_critique) == (
        one.rejected_critique,
        one.chosen_critique,
    )
    assert other.rationale is None
    assert other.truth == one.truth
    # More flips flip the same pairs and others.
    most = records(tmp_path, flipped=0.6)
    assert all(most[index] == some[index] for index in flipped)


def test_a_source_without_flips_is_that_of_earlier_versions(tmp_path: Path) -> None:
    settings = {"type": "shapes", "level": "demo", "rows": 3}
    config = ShapesConfig.model_validate(settings)
    assert "flipped" not in config.model_dump()
    assert "flipped" not in config.settings
    same = ShapesConfig.model_validate(settings | {"flipped": 0.0})
    other = ShapesConfig.model_validate(settings | {"flipped": 0.5})
    assert same.open(tmp_path).fingerprint() == config.open(tmp_path).fingerprint()
    assert other.open(tmp_path).fingerprint() != config.open(tmp_path).fingerprint()

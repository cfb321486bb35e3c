"""Which response a judge is shown first."""

import pytest
from pydantic import ValidationError

from mmrm.eval.protocol import ProtocolConfig, presentations
from tests.eval.make import example


def test_by_default_each_row_is_shown_once_in_each_order() -> None:
    assert presentations(example("a"), ProtocolConfig()) == ((0, 1), (1, 0))
    assert presentations(example("a"), ProtocolConfig(votes=2)) == ((0, 1), (1, 0)) * 2


def test_winner_first_follows_the_label_and_says_so() -> None:
    protocol = ProtocolConfig(order="winner_first", votes=3)
    assert presentations(example("a", better=1), protocol) == ((1, 0),) * 3
    assert "WINNER SHOWN FIRST" in protocol.label


def test_the_official_order_is_the_benchmarks_or_drawn_by_content_seed_and_round() -> None:
    protocol = ProtocolConfig(order="official", votes=64)
    assert set(presentations(example("a", official_first=1), protocol)) == {(1, 0)}
    drawn = presentations(example("a"), protocol)
    assert drawn == presentations(example("a", better=1), protocol)
    assert 20 < drawn.count((1, 0)) < 44
    assert drawn != presentations(example("b"), protocol)
    assert drawn != presentations(example("a"), ProtocolConfig(order="official", votes=64, seed=1))
    assert drawn[:3] == presentations(example("a"), ProtocolConfig(order="official", votes=3))


def test_draws_are_the_same_in_every_process_and_version() -> None:
    drawn = presentations(example("a"), ProtocolConfig(order="official", votes=12))
    assert [first for first, _ in drawn] == [0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 0]


@pytest.mark.parametrize(
    "wrong", [{"order": "first"}, {"votes": 0}, {"images": "blank"}, {"tie": "half"}]
)
def test_an_unknown_protocol_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ProtocolConfig(**wrong)  # type: ignore[arg-type]

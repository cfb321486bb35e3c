"""Editions of the benchmarks: the embedded world may be absent."""

import pytest

from mmrm.data.errors import UserError
from mmrm.eval.benchmarks.benchmark import BUILT_IN
from mmrm.eval.benchmarks.editions import EDITIONS, EMBEDDED, edition_folder


def test_the_locations_are_built_in() -> None:
    assert set(EMBEDDED) <= set(BUILT_IN)


def test_an_edition_of_an_absent_world_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EDITIONS, "embedded", "mmrm.data.no_such_world.files:edition")
    with pytest.raises(UserError, match=r"vl_rewardbench.*'embedded-hard'.*data/synthetic.*`hub`"):
        edition_folder("vl_rewardbench", "embedded-hard")

"""A fixed share of each attack; `python tests/attack/run.py` is the whole of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attack import records
from tests.attack.outcomes import Tally
from tests.attack.samples import SAMPLES


@pytest.mark.parametrize("kind", sorted(SAMPLES))
def test_what_is_mutated_was_valid(kind: str, tmp_path: Path) -> None:
    tally = Tally("records")
    found = [records.Case(f"{kind}/{number}", row) for number, row in enumerate(SAMPLES[kind].rows)]
    records.Attack(tally, kind, tmp_path, records.encoder()).run(found)
    assert dict(tally.counts) == {"worked": len(found)}, tally.report("")

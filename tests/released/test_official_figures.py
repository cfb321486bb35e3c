"""Our figures against the benchmarks' own scorers, on all predictions of their repositories."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.official_figures import SCORERS
from tools.official_scorers.scorer import OfficialScorer

FOLDER = Path(".cache/official")
"""The folder of `make official`, in the root of the repository."""


@pytest.mark.parametrize("scorer", SCORERS, ids=lambda scorer: scorer.benchmark)
def test_our_figures_are_the_official_ones(scorer: OfficialScorer, tmp_path: Path) -> None:
    checkout = FOLDER / scorer.folder
    if not checkout.exists():
        pytest.skip(f"{checkout} does not exist: run `make official`, which downloads it")
    comparisons = list(scorer.compare(checkout, tmp_path))
    assert len(comparisons) > 12
    assert [comparison for comparison in comparisons if not comparison.is_equal] == []

"""What a person reads of a result."""

from __future__ import annotations

from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.results.summary_table import results_table
from mmrm.eval.suite.suite import evaluate
from tests.eval.suite.test_suite import EXAMPLES, ORIGIN, PLAIN, SCORES


def test_ties_are_wrong_in_the_headline_and_half_in_a_column_of_their_own() -> None:
    result = evaluate(EXAMPLES, SCORES, PLAIN, ProtocolConfig(), ORIGIN)
    table = results_table({"plain": result}, title="by hand", baselines=False)
    cells = table.records()[0]
    assert cells["accuracy [95 %]"].startswith("50.0 [")
    assert (cells["n"], cells["ties"], cells["half"], cells["unparsable"]) == (
        "4",
        "1",
        "62.5",
        "0",
    )
    assert "half a point for a tie" in table.notes[0]

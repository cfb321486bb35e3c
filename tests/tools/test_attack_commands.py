"""A fixed share of the attack on command lines; `python tools/attack/run.py --only commands` has more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.attack import commands
from tools.attack.command_inputs import BASE_CALLS
from tools.attack.commands import Case, Ending
from tools.attack.outcomes import Tally

COUNT = 900
"""Number of command lines: about two minutes on two idle cores."""
ENDS_WITH_A_MESSAGE = {
    "ablate",
    "annotate",
    "clean",
    "clean-planted",
    "compare-rankings",
    "on-policy",
    "picture-faults",
    "predictors",
    "select-pairs tries",
    "stress",
    "which-source",
}
"""Base calls that cannot succeed without training, a model's answers, an annotated file, a mixture of
two sources or a list whose recipes have a head of attributes."""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_command_line_ends_with_a_traceback(tmp_path: Path) -> None:
    """Every base call works, or ends with a message; so do all mutations, at the same seed."""
    endings: dict[str, Ending | None] = {}

    def remember(case: Case, ending: Ending | None) -> None:
        endings[case.name] = ending

    tally = Tally("commands")
    commands.attack(tally, tmp_path, COUNT, seed=0, report=remember)
    command = f"python tools/attack/run.py --only commands --seed 0 --count {COUNT}"
    assert tally.clean, tally.report(command)
    assert tally.counts["worked"] > COUNT // 10
    for call in BASE_CALLS:
        ending = endings[f"{call} 0"]
        assert ending is not None
        assert (ending.status == 0) == (call not in ENDS_WITH_A_MESSAGE), (call, ending.errors)


def test_every_command_has_a_base_call_of_arguments_that_it_has() -> None:
    parsers = commands.parsers()
    assert parsers.keys() == BASE_CALLS.keys()
    for call, parser in parsers.items():
        names = {action.dest for action in commands.arguments_of(parser)}
        assert BASE_CALLS[call].values.keys() <= names, call


@pytest.mark.slow
def test_a_case_is_the_same_for_the_same_seed() -> None:
    parser = commands.parser_of("serve")
    base = BASE_CALLS["serve"]
    words = [commands.case_of("serve", parser, base, 7, seed).words for seed in (1, 1, 2)]
    assert words[0] == words[1] != words[2]

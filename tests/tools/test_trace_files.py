"""The lists of `tools/trace_files.py` hold the files that they should."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from mmrm.data.errors import UserError
from mmrm.data.storage.row_files import JsonLines
from mmrm.eval.suite.suite import evaluate
from mmrm.train.supervised.objectives import Objective
from tools.trace_files import PACKAGE, trace_run, tracing


def file_of(what: object) -> str:
    """Return the file in which a class or function is defined, such as data/errors.py."""
    path = inspect.getsourcefile(what)  # type: ignore[arg-type]
    assert path is not None
    return str(Path(path).relative_to(PACKAGE))


@pytest.mark.slow
def test_the_lists_hold_what_reads_a_record_and_what_computes_its_loss(tmp_path: Path) -> None:
    to_the_loss, to_the_figure = trace_run(tmp_path)
    assert file_of(JsonLines) in to_the_loss
    assert file_of(Objective) in to_the_loss
    assert file_of(evaluate) in to_the_figure
    assert file_of(Objective) not in to_the_figure


def test_a_file_is_listed_when_it_is_entered_and_not_again_within_it() -> None:
    files: list[str] = []
    with tracing(files):
        str(UserError("a"))
        str(UserError("b"))
    assert files == [file_of(UserError)]

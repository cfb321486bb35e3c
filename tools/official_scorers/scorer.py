"""What a comparison of our figures with an official scorer's consists of.

Each module of this folder compares one benchmark: it runs functions of the benchmark's repository,
which is not part of this project, and our own rules on the same predictions files.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrm.data.errors import PredictionsError
from mmrm.eval.benchmarks.benchmark import Location
from mmrm.eval.benchmarks.registry import BENCHMARKS
from mmrm.eval.results.official_scores import score_predictions_file


@dataclass(frozen=True, slots=True)
class Comparison:
    """Our figure and the official scorer's for one predictions file."""

    predictions: str
    """The predictions in words, such as the judge and the task."""
    figure: str
    """The name of the figure."""
    ours: float | None
    """Our figure; None if our rules refuse the file."""
    official: float | None
    """The scorer's figure; None if the scorer ends with an error."""

    @property
    def is_equal(self) -> bool:
        """True if both figures are equal to the last digit, or neither can be computed."""
        return self.ours == self.official


@dataclass(frozen=True, slots=True)
class OfficialScorer:
    """A benchmark's official scorer, and the function that compares our figures with its own."""

    benchmark: str
    """The name of the benchmark in the registry."""
    repository: str
    """OWNER/NAME on GitHub."""
    commit: str
    paths: Sequence[str]
    """The files and folders of the repository that are needed."""
    compare: Callable[[Path, Path], Iterator[Comparison]]
    """Yields the comparisons. Its arguments are the folder of the repository, and an empty folder
    for files that it generates."""

    @property
    def folder(self) -> str:
        """The name of the repository's folder among the downloaded ones."""
        return self.repository.partition("/")[2]


def official_functions(
    file: Path, names: Iterable[str], definitions: dict[str, Any]
) -> dict[str, Any]:
    """Return functions and classes of an official file, without running the rest of the file.

    The rest may import packages that are not installed here.

    Args:
        file: The file of source code.
        names: The names of the functions and classes.
        definitions: The modules and names that the functions use.
    """
    wanted = set(names)
    tree = ast.parse(file.read_text(encoding="utf-8"))
    body: list[ast.stmt] = []
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef) and statement.name in wanted:
            body.append(statement)
            wanted.remove(statement.name)
    assert not wanted, f"{file} has no {', '.join(sorted(wanted))}"
    code = compile(ast.Module(body, type_ignores=[]), str(file), "exec")
    namespace = dict(definitions)
    exec(code, namespace)
    return namespace


def our_figure(
    benchmark: str,
    predictions: Path,
    figure: str = "micro",
    rules: str | None = None,
    where: Location | None = None,
) -> float | None:
    """Return our figure of a predictions file; None if our rules refuse the file.

    Args:
        benchmark: The name of the benchmark.
        predictions: The file.
        figure: The name of the figure among those of the rules.
        rules: The name of the rules; None takes those of the file's format.
        where: The location of the benchmark's rows; None if the file has the labels itself.
    """
    try:
        figures, _ = score_predictions_file(
            predictions, BENCHMARKS[benchmark], rules, votes=None, where=where
        )
    except PredictionsError:
        return None
    value: float | None = figures[figure]
    return value

"""Print how dense the code is, for information; there is no limit to keep.

    python tools/density.py                      # data, models, eval and train
    python tools/density.py train tests tools    # other folders
    python tools/density.py --longest 30         # more of the longest functions

A code line is a line that is not blank and holds more than a comment or a docstring. Tokens are
Python's own, without comments, docstrings, line ends and indentation; an f-string is one token up to
Python 3.11 and several from 3.12 on. Constructs are counted for each thousand code lines.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from rich.console import Console
from rich.table import Table

CLONE = Path(__file__).resolve().parents[1]
FOLDERS = ("data", "models", "eval", "train")
NO_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass
class Density:
    """Counts of lines, tokens and constructs in some code."""

    files: int = 0
    code_lines: int = 0
    tokens: int = 0
    comprehensions: int = 0
    conditional_expressions: int = 0
    multiple_assignments: int = 0
    """Statements such as `a, b = 1, []`, which assign several values that do not belong together."""

    def add(self, other: Density) -> None:
        """Add the counts of other code to these."""
        for field in fields(self):
            total = getattr(self, field.name) + getattr(other, field.name)
            setattr(self, field.name, total)


@dataclass(frozen=True)
class Function:
    """A function or method of the code, and its length."""

    place: str
    name: str
    num_lines: int
    """Lines from `def` to the end, with the docstring, comments and blank lines."""


def main() -> None:
    """Read the command line, count, and print two tables."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("folders", nargs="*", default=FOLDERS, help="folders of the clone")
    parser.add_argument("--longest", type=int, default=10, help="how many functions are listed")
    options = parser.parse_args()

    density_by_folder: dict[str, Density] = {}
    functions: list[Function] = []
    for folder in options.folders:
        density_by_folder[folder] = Density()
        for path in sorted((CLONE / folder).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            density_by_folder[folder].add(density(source))
            functions.extend(functions_of(source, str(path.relative_to(CLONE))))

    console = Console()
    console.print(density_table(density_by_folder))
    console.print(longest_table(functions, options.longest))


def density(source: str) -> Density:
    """Count what one file holds."""
    tree = ast.parse(source)
    docstrings = docstring_lines(tree)
    num_tokens = 0
    code_lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        first_line, _ = token.start
        last_line, _ = token.end
        is_docstring = token.type == tokenize.STRING and first_line in docstrings
        if token.type in NO_CODE or is_docstring:
            continue
        num_tokens += 1
        code_lines.update(range(first_line, last_line + 1))

    nodes = list(ast.walk(tree))
    return Density(
        files=1,
        code_lines=len(code_lines),
        tokens=num_tokens,
        comprehensions=sum(isinstance(node, COMPREHENSIONS) for node in nodes),
        conditional_expressions=sum(isinstance(node, ast.IfExp) for node in nodes),
        multiple_assignments=sum(is_multiple_assignment(node) for node in nodes),
    )


def docstring_lines(tree: ast.Module) -> set[int]:
    """Return the lines of docstrings, those below attributes and constants included."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            continue
        if isinstance(node.value.value, str):
            last_line = node.end_lineno or node.lineno
            lines.update(range(node.lineno, last_line + 1))
    return lines


def is_multiple_assignment(node: ast.AST) -> bool:
    """Return True if a statement assigns several values to several names, and is not a swap."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    target = node.targets[0]
    if not isinstance(target, ast.Tuple | ast.List):
        return False
    assigned = sorted(ast.unparse(element) for element in target.elts)
    values = sorted(ast.unparse(element) for element in node.value.elts)
    return assigned != values


def functions_of(source: str, path: str) -> Iterator[Function]:
    """Yield the functions and methods of a file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            last_line = node.end_lineno or node.lineno
            yield Function(f"{path}:{node.lineno}", node.name, last_line - node.lineno + 1)


def density_table(density_by_folder: dict[str, Density]) -> Table:
    """Return a table with a row for each folder, and a last one for all of them."""
    table = Table(title="Constructs are counted for each thousand code lines")
    table.add_column("folder")
    for title in (
        "files",
        "code\nlines",
        "tokens",
        "tokens\na line",
        "compre-\nhensions",
        "conditional\nexpressions",
        "multiple\nassignments",
    ):
        table.add_column(title, justify="right")
    total = Density()
    for folder, counted in density_by_folder.items():
        total.add(counted)
        table.add_row(*cells(folder, counted))
    table.add_section()
    table.add_row(*cells("in all", total))
    return table


def cells(name: str, counted: Density) -> list[str]:
    """Return a row of the table of densities."""
    num_lines = max(counted.code_lines, 1)  # a folder may be empty
    row = [name, f"{counted.files:,}", f"{counted.code_lines:,}", f"{counted.tokens:,}"]
    row.append(f"{counted.tokens / num_lines:.1f}")
    for count in (
        counted.comprehensions,
        counted.conditional_expressions,
        counted.multiple_assignments,
    ):
        row.append(f"{1000 * count / num_lines:.1f}")
    return row


def longest_table(functions: Iterable[Function], count: int) -> Table:
    """Return a table of the `count` longest functions, the longest first."""
    longest = sorted(functions, key=lambda function: function.num_lines, reverse=True)
    table = Table("place", "function", title="The longest functions")
    table.add_column("lines", justify="right")
    for function in longest[:count]:
        table.add_row(function.place, function.name, str(function.num_lines))
    return table


if __name__ == "__main__":
    main()

"""Digests of source code, by which derived files are stored.

If the code changes, the files are computed again.
"""

import ast
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import mmrm
from mmrm.data.storage.files import digest

PACKAGE = Path(mmrm.__file__).parent


@cache
def code_digest(
    *modules: str, floors: tuple[str, ...] = ("data", "models", "eval", "train")
) -> str:
    """Return a digest of the syntax trees of `modules` and of all modules that they import.

    Comments, docstrings and layout are left out, so that a cached evaluation of a 7B model stays
    valid after an edit of prose.

    Args:
        modules: Dotted names, such as `mmrm.data.preparation.scan`.
        floors: Packages of mmrm whose modules count; "eval" is `mmrm.eval`.
    """
    files = imported_modules(modules, floors)
    lines = [f"{name} {_tree(file)}" for name, file in sorted(files.items())]
    return digest("\n".join(lines))


def imported_modules(modules: Sequence[str], floors: Sequence[str]) -> dict[str, Path]:
    """Return the files of `modules` and of the modules that they import from `floors`, by name.

    Modules that are imported indirectly are among them.
    """
    files: dict[str, Path] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        _, *path = name.split(".")
        file = PACKAGE.joinpath(*path).with_suffix(".py")
        if name not in files and file.is_file():
            files[name] = file
            waiting += [other for other in _imports(name, file) if _floor(other) in floors]
    return files


def _imports(name: str, file: Path) -> list[str]:
    """Return the dotted names in the `from` imports of a module."""
    names = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom):
            continue
        module = str(node.module)
        if node.level:
            package = name.rpartition(".")[0]
            module = f"{package}.{node.module}"
        names.append(module)
        # A name that is imported from a package may be a module of it.
        names += [f"{module}.{alias.name}" for alias in node.names]
    return names


def _floor(module: str) -> str:
    """Return "eval" for `mmrm.eval.judges.loading`, and "" for a module of another package."""
    package, _, inside = module.partition(".")
    return inside.partition(".")[0] if package == "mmrm" else ""


def _tree(file: Path) -> str:
    """Return the syntax tree of a file without its docstrings, as text."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [statement for statement in node.body if not _is_docstring(statement)]
    return ast.dump(tree)


def _is_docstring(statement: ast.stmt) -> bool:
    """Return True for a statement that is a constant, such as a text below a definition."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)

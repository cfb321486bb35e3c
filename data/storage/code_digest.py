"""Digests of source code, which are a part of the names of computed files.

If the code that computes a file changes, its digest changes, and the file is computed again.
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
        floors: The packages of mmrm whose imported modules are included: "data", "models", "eval"
            and "train". Imports from other packages are ignored.
    """
    files = imported_modules(modules, floors)
    lines = [f"{name} {_tree(file)}" for name, file in sorted(files.items())]
    return digest("\n".join(lines))


def imported_modules(modules: Sequence[str], floors: Sequence[str]) -> dict[str, Path]:
    """Return the files of `modules` and of all modules of `floors` that they import, by name.

    The result includes modules that are imported indirectly.
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
    """Return the package of mmrm that a module is in, and "" for a module of another project.

    Example: `mmrm.eval.judges.loading` is in "eval".
    """
    package, _, inside = module.partition(".")
    return inside.partition(".")[0] if package == "mmrm" else ""


def _tree(file: Path) -> str:
    """Return the syntax tree of a Python file as text, without docstrings."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [statement for statement in node.body if not _is_docstring(statement)]
    return ast.dump(tree)


def _is_docstring(statement: ast.stmt) -> bool:
    """Return True for a statement that is only a constant: the docstring of a function or a field."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)

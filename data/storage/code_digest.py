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
    """Return a digest of the code of `modules` and of all modules that they import.

    Comments, docstrings and layout do not change the digest, so that a cached evaluation of a 7B
    model stays valid after an edit of prose.

    Args:
        modules: Dotted names, such as `mmrm.data.preparation.scan`.
        floors: The packages of mmrm whose imported modules are included: "data", "models", "eval"
            and "train". Imports from other packages are ignored.
    """
    files = imported_modules(modules, floors)
    lines = [f"{name} {_syntax_tree(file)}" for name, file in sorted(files.items())]
    return digest("\n".join(lines))


def imported_modules(modules: Sequence[str], floors: Sequence[str]) -> dict[str, Path]:
    """Return the files of `modules` and of the modules that they import, by dotted name.

    Modules that are imported indirectly are included.

    Args:
        modules: Dotted names, such as `mmrm.data.preparation.scan`.
        floors: The packages of mmrm ("data", "models", "eval", "train") whose imported modules are
            included.
    """
    files: dict[str, Path] = {}
    names_to_visit = list(modules)
    while names_to_visit:
        name = names_to_visit.pop()
        _, *path_in_package = name.split(".")
        file = PACKAGE.joinpath(*path_in_package).with_suffix(".py")
        # A name may also be that of a function or class in a module, which has no file.
        if name not in files and file.is_file():
            files[name] = file
            for imported_name in _imports(name, file):
                if _floor(imported_name) in floors:
                    names_to_visit.append(imported_name)
    return files


def _imports(name: str, file: Path) -> list[str]:
    """Return the dotted names in the `from` imports of the module `name`, whose code is in `file`.

    The names are those of modules, and of the functions and classes that are imported from them.
    """
    names = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom):
            continue
        module = str(node.module)
        if node.level:  # an import with a leading dot
            package = name.rpartition(".")[0]
            module = f"{package}.{node.module}"
        names.append(module)
        # A name that is imported from a package may be a module of it.
        names += [f"{module}.{alias.name}" for alias in node.names]
    return names


def _floor(module: str) -> str:
    """Return the package of mmrm that a module is in, or "" for a module of another project.

    Example: `mmrm.eval.judges.loading` is in "eval".
    """
    package, _, inside = module.partition(".")
    return inside.partition(".")[0] if package == "mmrm" else ""


def _syntax_tree(file: Path) -> str:
    """Return the syntax tree of a Python file as text, without its docstrings."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [statement for statement in node.body if not _is_docstring(statement)]
    return ast.dump(tree)


def _is_docstring(statement: ast.stmt) -> bool:
    """Return True for the docstring of a module, class, function or field: a constant alone."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)

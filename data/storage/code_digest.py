"""Which code made something: the digest under which what it made is stored, so that a change of the code makes it again."""

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
    """Return a digest of the syntax trees of `modules` and of all that they import from `floors`.

    A floor is a package of mmrm: "eval" stands for `mmrm.eval`.

    Comments, docstrings and layout do not count: a cached evaluation of a 7B model survives an edit of prose.
    """
    return digest(
        "\n".join(
            f"{name} {_tree(file)}"
            for name, file in sorted(imported_modules(modules, floors).items())
        )
    )


def imported_modules(modules: Sequence[str], floors: Sequence[str]) -> dict[str, Path]:
    """Return `modules` and, by name, what they import from `floors`, directly or not."""
    found: dict[str, Path] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        _, *path = name.split(".")
        file = PACKAGE.joinpath(*path).with_suffix(".py")
        if name not in found and file.is_file():
            found[name] = file
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom):
                    module = (
                        f"{name.rpartition('.')[0]}.{node.module}"
                        if node.level
                        else str(node.module)
                    )
                    # a name imported from a package may be a module of it
                    others = [module, *(f"{module}.{alias.name}" for alias in node.names)]
                    waiting += [other for other in others if _floor(other) in floors]
    return found


def _floor(module: str) -> str:
    """Return "eval" for `mmrm.eval.judges.loading`, and an empty text for a module of others."""
    package, _, inside = module.partition(".")
    return inside.partition(".")[0] if package == "mmrm" else ""


def _tree(file: Path) -> str:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [
                part
                for part in node.body
                if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
            ]
    return ast.dump(tree)

"""The house: floors and rooms import in one direction, public class names are unique."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

CLONE = Path(__file__).resolve().parents[1]
HOUSE = {
    "data": (
        "errors regular_files console video markers config preference limits scanning rationales "
        "prompts decoding images pages storage synthetic sources preparation mixture",
        "browse frames shapes",
    ),
    "models": (
        "config distributed cancellation packing portable families compatibility encoder generation sampling adapters backbone",
        "build_embedded",
    ),
    "eval": (
        "journal protocol score_forms verifiers adapters benchmarks results judges running candidates reporting contamination "
        "serving cli",
        "run serve sweep report overlap score select_responses sample annotate select_pairs answers critique_ablation "
        "overoptimisation",
    ),
    "train": (
        "recipe supervised reinforce runs ablation speed",
        "rm sft rl ablate on_policy predictors stress merge throughput describe",
    ),
}
"""Floor to its files and rooms, each importing only what stands before it, and its commands, which import no other command."""
FLOORS = tuple(HOUSE)
HEAVY = ("torch", "transformers", "datasets", "deepspeed", "accelerate", "trl", "peft")
OPTIONAL = (
    "bitsandbytes",
    "vllm",
    "wandb",
    "huggingface_hub",
    "pyarrow",
    "matplotlib",
    "PIL",
    "av",
    "uvicorn",
)
"""Packages that may be imported inside a function: not always installed, or slow and needed by few commands."""

SOURCES = {
    path: path.read_text(encoding="utf-8")
    for floor in FLOORS
    for path in sorted((CLONE / floor).rglob("*.py"))
}
TESTS = {
    path: path.read_text(encoding="utf-8")
    for folder in ("tests", "tools")
    for path in sorted((CLONE / folder).rglob("*.py"))
}


def module(path: Path) -> str:
    """Return the dotted name of a file."""
    return ".".join(path.relative_to(CLONE).with_suffix("").parts)


MODULES = {module(path): path for path in SOURCES}


def imported(name: str, tree: ast.AST) -> set[str]:
    """Return the dotted names that module `name` imports anywhere in `tree`, those inside functions included."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = f"{name.rpartition('.')[0]}.{node.module}" if node.level else str(node.module)
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return found


@cache
def edges() -> dict[str, set[str]]:
    """Return every module of the four floors with the modules of the project that it imports."""
    return {
        name: imported(name, ast.parse(SOURCES[path])) & MODULES.keys() - {name}
        for name, path in MODULES.items()
    }


def place(name: str) -> tuple[int, int]:
    """Return the floor and the place on it, left to right; all commands stand at the right end of their floor."""
    floor, part, *_ = [*name.split("."), "__init__"]
    rooms, commands = (names.split() for names in HOUSE[floor])
    if part == "__init__":
        return FLOORS.index(floor), -1
    return FLOORS.index(floor), len(rooms) if part in commands else rooms.index(part)


def forbidden(name: str, other: str) -> bool:
    """Say whether module `name` may not import `other`: what stands to its right, or another command."""
    same_room = name.split(".")[:2] == other.split(".")[:2]
    return not same_room and place(other) >= place(name)


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_run_to_the_left(name: str) -> None:
    assert not {other for other in edges()[name] if forbidden(name, other)}


def test_an_import_to_the_right_would_be_found() -> None:
    assert forbidden("data.mixture", "models.encoder")
    assert forbidden("eval.judges.critic", "eval.running.evaluation")
    assert forbidden("eval.run", "eval.sweep")
    assert not forbidden("train.rm", "train.runs.build")
    assert not forbidden("eval.judges.critic", "eval.judges.checkpoint")


@pytest.mark.parametrize("path", [*SOURCES, *TESTS], ids=lambda path: str(path.relative_to(CLONE)))
def test_imports_are_absolute_but_among_files_that_travel(path: Path) -> None:
    """Transformers copies what a modelling file imports by one dot along with a checkpoint, and nothing else."""
    tree = ast.parse((SOURCES | TESTS)[path])
    relative = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level]
    assert not relative or module(path).startswith("models.portable.")


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Return the nodes that lie on, or lead only to, a circle; empty for a graph without one."""
    left = {node: set(targets) for node, targets in graph.items()}
    while ready := [node for node, targets in left.items() if not targets & left.keys()]:
        for node in ready:
            del left[node]
    return sorted(left)


def test_no_circle_of_files() -> None:
    assert not circle(edges())
    assert circle({"a": {"b"}, "b": {"a"}, "c": {"a"}}) == ["a", "b", "c"]


def test_rooms_export_nothing_of_others() -> None:
    assert not [
        path for path, text in SOURCES.items() if path.name == "__init__.py" and text.strip()
    ]


def test_no_public_class_name_twice() -> None:
    names = Counter(
        node.name
        for path, text in SOURCES.items()
        for node in ast.parse(text).body
        if path.parent.name != "adapters"  # each is copied alone into another framework
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert not {name: count for name, count in names.items() if count > 1}


@cache
def needs_torch(name: str) -> bool:
    """Say whether importing module `name` imports one of HEAVY at once."""
    tree = ast.parse(SOURCES[MODULES[name]])
    tree.body = [node for node in tree.body if not isinstance(node, ast.FunctionDef | ast.ClassDef)]
    names = imported(name, tree)
    return any(other.partition(".")[0] in HEAVY for other in names) or any(
        map(needs_torch, names & MODULES.keys() - {name})
    )


def late_imports(name: str, text: str) -> set[str]:
    """Return what functions of a module import that neither delays torch nor an optional package."""
    late: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for other in imported(name, ast.Module(node.body, [])):
            if (other in MODULES and needs_torch(other)) or other.partition(".")[0] in (
                *HEAVY,
                *OPTIONAL,
            ):
                continue
            if other in MODULES or other.partition(".")[0] not in FLOORS:
                late.add(other)
    return late


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_stand_at_the_top(name: str) -> None:
    assert not late_imports(name, SOURCES[MODULES[name]])


def test_a_late_import_would_be_found() -> None:
    text = (
        "def f():\n    import json\n    import torch\n"
        "    from data.prompts import ask\n    from models.encoder import Encoder\n"
    )
    assert late_imports("eval.run", text) == {"json", "data.prompts"}


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if path.is_relative_to(CLONE / "data")], ids=module
)
def test_data_knows_no_torch(path: Path) -> None:
    assert not {
        name.partition(".")[0] for name in imported(module(path), ast.parse(SOURCES[path]))
    } & {"torch", "transformers"}


@pytest.mark.parametrize("floor", [*FLOORS, "tools"])
def test_no_module_hides_another(floor: str) -> None:
    """A script's own folder is searched before the standard library: `eval/random.py` would be everybody's `random`."""
    names = {
        path.stem
        for path in (CLONE / floor).glob("*")
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    taken = (set(sys.stdlib_module_names) | set(packages_distributions())) - {"__init__"}
    assert names & taken == set()


def modules_after(statement: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has loaded after `statement`."""
    code = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CLONE, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "train.recipe.recipe",
        "train.recipe.parsing",
        "train.recipe.dry_run",
        "data.mixture",
        "eval.benchmarks.table",
    ],
)
def test_recipes_are_read_without_torch(name: str) -> None:
    assert not modules_after(f"import {name}") & set(HEAVY)

"""The arrangement of the code: layers, circles, names, late imports, and constructs that are not used.

Every test lists its offenders. docs/contributing.md says why each rule is there.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

CLONE = Path(__file__).resolve().parents[1]

LAYERS = {
    "data": [
        *(
            "package",
            "errors",
            "arrays",
            "scanning",
            "markers",
            "regular_files",
            "config",
            "display",
            "share_intervals",
            "video",
            "frame_sampling",
            "encoded_video",
            "film_strip",
        ),
        *(
            "image_decoding",
            "preference",
            "text_shortcuts",
            "limits",
            "rubric",
            "rationales",
            "prompts",
            "point_prompt",
        ),
        *("images", "storage", "shown_records"),
        *("sources", "preparation", "synthetic"),
    ],
    "models": [
        *(
            "cancellation",
            "config",
            "activations",
            "distributed",
            "packing",
            "portable",
            "heads",
            "families",
        ),
        *(
            "compatibility",
            "image_patches",
            "patch_cache",
            "video_patches",
            "encoder",
            "generation",
            "packed_generation",
            "packed_alternatives",
            "lora",
            "backbone",
        ),
    ],
    "eval": [
        *("journal", "candidates", "protocol", "verdict_form", "verifiers", "adapters"),
        *("benchmarks", "results"),
        *("judges", "suite", "selection", "policies", "annotation", "contamination", "reporting"),
        *("serving", "cli", "studies"),
    ],
    "train": [
        *("recipe", "checkpoints", "supervised", "objectives", "methods", "embedded", "reinforce"),
        *("runs", "planning", "reference", "studies"),
    ],
}
"""The four floors in their order, and their rooms in theirs. A module imports only what is before it."""

COMMANDS = {
    "data": ["mixture", "browse", "frames", "shapes", "make_shards"],
    "models": ["build_embedded"],
    "eval": [
        *("run", "serve", "sweep", "report", "overlap", "score", "select_responses", "sample"),
        *("annotate", "select_pairs", "answers", "critique_ablation", "overoptimisation"),
        *("compare_rankings", "shortcuts", "score_records"),
    ],
    "train": [
        *("rm", "sft", "rl", "ablate", "on_policy", "predictors", "stress", "merge", "export"),
        *("throughput", "describe", "compare_objectives", "picture_faults", "frame_order"),
        *("which_source", "clean", "clean_planted"),
    ],
}
"""Commands may import every room of their floor and of those before it, and no other command."""

ROWS_OF_THE_CORE = {
    ("mmrm.train.recipe.registry", "mmrm.train.methods.naive.config"),
    ("mmrm.train.objectives.registry", "mmrm.train.objectives.bradley_terry.config"),
}
"""A registry imports the config of a plug-in of the core, also one that is in a later room.

The config imports nothing of the room that resolves it: see tests/test_wings.py.
"""

HEAVY = {"torch", "transformers", "datasets", "deepspeed", "accelerate", "trl", "peft"}
"""Packages that take seconds to import."""

OPTIONAL = {
    *("bitsandbytes", "vllm", "wandb", "huggingface_hub", "pyarrow", "matplotlib", "PIL", "av"),
    *("uvicorn", "fla"),
}
"""Packages that are not always installed, or that few commands need."""

ROLES = {"config", "method", "objective", "judge", "registry"}
"""File names that occur once in each plug-in folder."""

NAMED_TWICE = {
    "source": "the base of all sources, and the source of the embedded world in its own folder",
    **dict.fromkeys(
        (
            *("critique_ablation", "overoptimisation", "on_policy", "predictors", "stress"),
            *("compare_objectives", "picture_faults", "frame_order", "compare_rankings"),
            *("which_source", "shortcuts"),
        ),
        "a command and its study",
    ),
    "throughput": "a command and its study",
}
"""Further file names that occur more than once, each with the reason."""

NOT_YET_REWRITTEN: set[str] = set()
"""Rooms whose statements still use the forbidden constructs. This set may only shrink."""


def source_files() -> dict[str, Path]:
    """Return the files of the four floors by dotted name, such as `mmrm.data.errors`."""
    files = {}
    for floor in LAYERS:
        for path in sorted((CLONE / floor).rglob("*.py")):
            files[".".join(("mmrm", *path.relative_to(CLONE).with_suffix("").parts))] = path
    return files


MODULES = source_files()
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def imported_names(module: str, tree: ast.AST) -> set[str]:
    """Return the dotted names that `module` imports anywhere in `tree`, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = module.rpartition(".")[0]
            base = f"{package}.{node.module}" if node.level else str(node.module)
            names.add(base)
            names.update(f"{base}.{alias.name}" for alias in node.names)
    return names


@cache
def imports() -> dict[str, set[str]]:
    """Return the modules of this project that each module imports."""
    return {
        module: imported_names(module, tree) & MODULES.keys() - {module}
        for module, tree in TREES.items()
    }


def room_of(module: str) -> str:
    """Return "eval.judges" for `mmrm.eval.judges.loading`, "data.errors" for `mmrm.data.errors`."""
    return ".".join(module.split(".")[1:3])


def layer_of(module: str) -> tuple[int, int]:
    """Return the positions of a module's floor and of its room; commands come after all rooms.

    Raises:
        ValueError: If the room is not listed in LAYERS or COMMANDS.
    """
    parts = module.split(".")
    floor = parts[1]
    floor_index = list(LAYERS).index(floor)
    if parts[2:] == ["__init__"]:
        return floor_index, -1
    if parts[2] in COMMANDS[floor]:
        return floor_index, len(LAYERS[floor])
    return floor_index, LAYERS[floor].index(parts[2])


def is_forbidden(module: str, imported: str) -> bool:
    """Return True if `module` may not import `imported`: a later room, or another command."""
    if room_of(module) == room_of(imported) or (module, imported) in ROWS_OF_THE_CORE:
        return False
    return layer_of(imported) >= layer_of(module)


def nodes_on_circles(graph: dict[str, set[str]]) -> list[str]:
    """Return the nodes that are on a circle, or lead only to one."""
    remaining = {node: set(targets) for node, targets in graph.items()}
    while True:
        leaves = [node for node, targets in remaining.items() if not targets & remaining.keys()]
        if not leaves:
            return sorted(remaining)
        for node in leaves:
            del remaining[node]


# Layers and names


def test_imports_go_to_earlier_layers() -> None:
    offenders = [
        f"{module} imports {imported}"
        for module, targets in imports().items()
        for imported in sorted(targets)
        if is_forbidden(module, imported)
    ]
    assert offenders == []


def test_an_import_of_a_later_layer_is_found() -> None:
    assert is_forbidden("mmrm.data.preparation.mixing", "mmrm.models.encoder")
    assert is_forbidden("mmrm.eval.judges.loading", "mmrm.eval.suite.suite")
    assert is_forbidden("mmrm.eval.run", "mmrm.eval.sweep")
    assert not is_forbidden("mmrm.train.rm", "mmrm.train.runs.build")
    assert not is_forbidden("mmrm.eval.judges.loading", "mmrm.eval.judges.checkpoint")


def test_there_is_no_circle_of_files_or_rooms() -> None:
    rooms: dict[str, set[str]] = defaultdict(set)
    for module, targets in imports().items():
        for target in targets:
            if (module, target) not in ROWS_OF_THE_CORE:
                rooms[room_of(module)].add(room_of(target))
    for room, targets in rooms.items():
        targets.discard(room)
    assert nodes_on_circles(imports()) == []
    assert nodes_on_circles(rooms) == []
    assert nodes_on_circles({"a": {"b"}, "b": {"a"}, "c": {"a"}, "d": set()}) == ["a", "b", "c"]


def test_packages_export_nothing() -> None:
    offenders = [
        module for module in MODULES if module.endswith(".__init__") and TREES[module].body
    ]
    assert offenders == []


def test_a_file_name_has_one_meaning() -> None:
    """A name may occur in several plug-in folders for one role.

    The names of models/portable are in checkpoints, and are not looked at.
    """
    modules_by_name: dict[str, list[str]] = defaultdict(list)
    for module in MODULES:
        name = module.rpartition(".")[2]
        is_listed = name in ROLES or name in NAMED_TWICE or name == "__init__"
        if not is_listed and not module.startswith("mmrm.models.portable."):
            modules_by_name[name].append(module)
    assert {name: found for name, found in modules_by_name.items() if len(found) > 1} == {}


def test_a_public_type_name_has_one_meaning() -> None:
    modules_by_name: dict[str, list[str]] = defaultdict(list)
    for module, tree in TREES.items():
        if module.startswith("mmrm.eval.adapters."):
            continue  # each adapter is copied alone into another framework
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules_by_name[node.name].append(module)
    assert {name: found for name, found in modules_by_name.items() if len(found) > 1} == {}


@pytest.mark.parametrize("folder", [*LAYERS, "tools"])
def test_no_module_hides_a_library(folder: str) -> None:
    """Python searches a script's own folder first, so eval/random.py would hide `random`."""
    names = {path.stem for path in (CLONE / folder).glob("*.py")}
    names |= {path.parent.name for path in (CLONE / folder).glob("*/__init__.py")}
    libraries = set(sys.stdlib_module_names) | set(packages_distributions())
    assert (names & libraries) - {"__init__"} == set()


# Imports


def project_files() -> list[Path]:
    """Return every Python file of the repository, those of tests and tools too."""
    folders = [*LAYERS, "tests", "tools"]
    return [path for folder in folders for path in sorted((CLONE / folder).rglob("*.py"))]


def test_modules_are_imported_as_mmrm() -> None:
    """`data.errors.UserError` and `mmrm.data.errors.UserError` would be two classes."""
    offenders = []
    for path in project_files():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = imported_names("", tree)
        for name in sorted(names):
            if name.partition(".")[0] in LAYERS:
                offenders.append(f"{path.relative_to(CLONE)} imports {name}")
    assert offenders == []


def test_only_files_that_travel_use_relative_imports() -> None:
    """Transformers copies what a modelling file imports with one dot, and nothing else."""
    offenders = []
    for path in project_files():
        is_portable = path.is_relative_to(CLONE / "models" / "portable")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level and not is_portable:
                offenders.append(f"{path.relative_to(CLONE)}:{node.lineno}")
    assert offenders == []


@cache
def needs_torch(module: str) -> bool:
    """Return True if importing `module` imports one of HEAVY at once."""
    at_once = [
        node
        for node in TREES[module].body
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]
    names = imported_names(module, ast.Module(at_once, []))
    if any(name.partition(".")[0] in HEAVY for name in names):
        return True
    return any(needs_torch(name) for name in names & MODULES.keys() - {module})


def late_imports(module: str, tree: ast.AST) -> set[str]:
    """Return what functions of a module import, although this delays no slow or optional package."""
    late = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for name in imported_names(module, ast.Module(node.body, [])):
            if name.partition(".")[0] in HEAVY | OPTIONAL:
                continue
            if name in MODULES and needs_torch(name):
                continue
            if name in MODULES or not name.startswith("mmrm."):
                late.add(name)
    return late


def test_imports_are_at_the_top() -> None:
    offenders = [
        f"{module} imports {name} in a function"
        for module, tree in TREES.items()
        for name in sorted(late_imports(module, tree))
    ]
    assert offenders == []


def test_a_late_import_is_found() -> None:
    text = (
        "def f():\n    import json\n    import torch\n"
        "    from mmrm.data.prompts import judge_conversation\n    from mmrm.models.encoder import Encoder\n"
    )
    late = late_imports("mmrm.eval.run", ast.parse(text))
    assert late == {"json", "mmrm.data.prompts"}


def test_data_imports_no_torch() -> None:
    offenders = []
    for module, tree in TREES.items():
        if module.startswith("mmrm.data."):
            packages = {name.partition(".")[0] for name in imported_names(module, tree)}
            if packages & {"torch", "transformers"}:
                offenders.append(module)
    assert offenders == []


@pytest.mark.parametrize(
    "module",
    [
        "mmrm",
        "mmrm.train.recipe.parsing",
        "mmrm.train.planning.dry_run",
        "mmrm.data.preparation.mixing",
        "mmrm.eval.benchmarks.registry",
    ],
)
def test_recipes_are_read_without_torch(module: str) -> None:
    code = f"import {module}, sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CLONE, capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) & HEAVY == set()


# Constructs that STYLE.md forbids

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """Yield every statement, also those inside functions and classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            yield node


def expressions_of(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the expressions of one statement, without the statements in its body."""
    waiting: list[ast.AST] = [
        child for child in ast.iter_child_nodes(statement) if not isinstance(child, ast.stmt)
    ]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [
            child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)
        ]


def makes_list_of_lists(outer: ast.AST, inner: ast.AST) -> bool:
    """Return True for `[[f(x) for x in row] for row in rows]`, which is allowed."""
    return (
        isinstance(outer, ast.ListComp) and isinstance(inner, ast.ListComp) and outer.elt is inner
    )


def has_nested_comprehension(statement: ast.stmt) -> bool:
    """Return True if a comprehension is inside another one."""
    for outer in expressions_of(statement):
        if not isinstance(outer, COMPREHENSIONS):
            continue
        for inner in ast.walk(outer):
            is_nested = isinstance(inner, COMPREHENSIONS) and inner is not outer
            if is_nested and not makes_list_of_lists(outer, inner):
                return True
    return False


def has_two_conditional_expressions(statement: ast.stmt) -> bool:
    """Return True for two `x if y else z` in one statement."""
    return sum(isinstance(node, ast.IfExp) for node in expressions_of(statement)) > 1


def assigns_unrelated_values(statement: ast.stmt) -> bool:
    """Return True for `a, b = x, y`, but not for a swap or for unpacking one value."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Tuple):
        return False
    targets = statement.targets[0]
    if not isinstance(targets, ast.Tuple):
        return False
    target_texts = {ast.unparse(target) for target in targets.elts}
    value_texts = {ast.unparse(value) for value in statement.value.elts}
    is_swap = target_texts == value_texts
    return not is_swap


def has_walrus_in_comprehension(statement: ast.stmt) -> bool:
    """Return True for `:=` inside a comprehension."""
    for node in expressions_of(statement):
        if not isinstance(node, COMPREHENSIONS):
            continue
        if any(isinstance(child, ast.NamedExpr) for child in ast.walk(node)):
            return True
    return False


CONSTRUCTS = {
    "a comprehension inside a comprehension": has_nested_comprehension,
    "two conditional expressions in one statement": has_two_conditional_expressions,
    "one assignment of unrelated values to several names": assigns_unrelated_values,
    "`:=` inside a comprehension": has_walrus_in_comprehension,
}


def offending_statements(tree: ast.AST) -> list[tuple[int, str]]:
    """Return the line and the construct of every forbidden statement."""
    found = []
    for statement in statements(tree):
        for construct, is_used in CONSTRUCTS.items():
            if is_used(statement):
                found.append((statement.lineno, construct))
    return found


def test_forbidden_constructs_are_not_used() -> None:
    offenders = []
    for module, tree in TREES.items():
        if room_of(module) in NOT_YET_REWRITTEN:
            continue
        for line, construct in offending_statements(tree):
            offenders.append(f"{MODULES[module].relative_to(CLONE)}:{line}: {construct}")
    assert offenders == []


def test_rewritten_rooms_are_not_listed() -> None:
    """A room without a forbidden construct has to be taken off the list."""
    offending_rooms = {
        room_of(module) for module, tree in TREES.items() if offending_statements(tree)
    }
    assert NOT_YET_REWRITTEN - offending_rooms == set()


@pytest.mark.parametrize(
    ("text", "construct"),
    [
        ("x = [a for b in c if any(d for d in b)]", "a comprehension inside a comprehension"),
        ("x = [[a for a in b] for b in c]", ""),
        ("x = (a if b else c) + (d if e else f)", "two conditional expressions in one statement"),
        ("a, b = 1, []", "one assignment of unrelated values to several names"),
        ("a, b = b, a", ""),
        ("a, b = divmod(c, d)", ""),
        ("x = [a for b in c if (a := f(b))]", "`:=` inside a comprehension"),
        ("if (a := f(b)):\n    c = 1 if a else 2\n    d = 1 if b else 2", ""),
    ],
)
def test_constructs_are_found(text: str, construct: str) -> None:
    found = [name for _, name in offending_statements(ast.parse(text))]
    assert found == ([construct] if construct else [])


READ_SEGMENTS = {
    "models.encoder",
    "models.generation",
    "models.packed_generation",
    "models.packing",
    "train.supervised.steps",
    "train.supervised.budget",
    "train.reinforce",
    "train.studies.speed",
    "eval.serving.batcher",
}
"""The modules and rooms that may read how a tree of segments is laid out. Others take whole
conversations from `SegmentTree.conversations`."""


def reads_segments(tree: ast.AST) -> bool:
    """Return True if a module reads the segments of a `SegmentTree`."""
    return any(
        isinstance(node, ast.Attribute) and node.attr == "segments" for node in ast.walk(tree)
    )


def test_few_modules_read_how_a_tree_of_segments_is_laid_out() -> None:
    readers = {
        module.removeprefix("mmrm.") for module, tree in TREES.items() if reads_segments(tree)
    }
    assert "models.packing.segments" in readers
    outside = {name for name in readers if not READ_SEGMENTS & set(itself_and_rooms(name))}
    assert outside == set()


def itself_and_rooms(module: str) -> list[str]:
    """Return the name of a module and those of the rooms it is in: a.b.c, a.b, a."""
    parts = module.split(".")
    return [".".join(parts[:length]) for length in range(len(parts), 0, -1)]

"""Every room of the project has a test that `make test-fast` runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

CLONE = Path(__file__).resolve().parents[1]
FLOORS = ("data", "models", "eval", "train")
SLOW = "pytest.mark.slow"


def rooms() -> Iterator[Path]:
    """Yield the sub-packages of the floors, as paths from the clone's root."""
    for floor in FLOORS:
        for path in sorted((CLONE / floor).glob("*/__init__.py")):
            yield path.parent.relative_to(CLONE)


def fast_tests(source: str) -> list[str]:
    """Return the names of a file's test functions that are not marked slow.

    A test of which only some parameters are marked counts as fast.
    """
    tree = ast.parse(source)
    for statement in tree.body:
        is_mark = isinstance(statement, ast.Assign) and "pytestmark" in ast.unparse(
            statement.targets[0]
        )
        if is_mark and SLOW in ast.unparse(statement):
            return []
    names: list[str] = []
    for statement in tree.body:
        if not isinstance(statement, ast.FunctionDef) or not statement.name.startswith("test_"):
            continue
        decorators = [ast.unparse(decorator) for decorator in statement.decorator_list]
        if SLOW not in decorators:
            names.append(statement.name)
    return names


def imported_modules(source: str) -> set[str]:
    """Return the dotted names that a file imports; `from a.b import c` gives `a.b` and `a.b.c`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def imports_from(source: str, room: Path) -> bool:
    """Return whether a file imports a module of a room, under the project's import name or not."""
    dotted = ".".join(room.parts)
    return any(f".{dotted}." in f".{name}." for name in imported_modules(source))


def has_a_fast_test(room: Path) -> bool:
    """Return whether the tests of a room have one that is not slow.

    They are those in the folder of `tests/` that mirrors the room. A room without such a folder is
    tested by other files of its floor's tests, which import it.
    """
    mirrored = sorted((CLONE / "tests" / room).rglob("test_*.py"))
    if mirrored:
        sources = [path.read_text(encoding="utf-8") for path in mirrored]
    else:
        others = sorted((CLONE / "tests" / room.parent).rglob("test_*.py"))
        texts = [path.read_text(encoding="utf-8") for path in others]
        sources = [source for source in texts if imports_from(source, room)]
    return any(fast_tests(source) for source in sources)


def test_every_room_has_a_fast_test() -> None:
    without = [str(room) for room in rooms() if not has_a_fast_test(room)]
    assert without == []


def test_rooms_are_found() -> None:
    found = {str(room) for room in rooms()}
    assert len(found) > 20
    assert {room.partition("/")[0] for room in found} == set(FLOORS)


def test_a_file_whose_tests_are_all_slow_has_no_fast_test() -> None:
    marked_tests = "@pytest.mark.slow\ndef test_a(): ...\n"
    assert fast_tests(marked_tests) == []
    assert fast_tests("pytestmark = pytest.mark.slow\ndef test_a(): ...\n") == []
    assert fast_tests("pytestmark = [pytest.mark.slow]\ndef test_a(): ...\n") == []
    assert fast_tests(f"{marked_tests}def test_b(): ...\n") == ["test_b"]
    assert fast_tests("def helper(): ...\n") == []


def test_a_room_is_imported_by_any_of_its_modules() -> None:
    room = Path("train/speed")
    assert imports_from("from mmrm.train.speed.workload import SHAPES\n", room)
    assert imports_from("from mmrm.train.speed import workload\n", room)
    assert not imports_from("from mmrm.train.speedy import workload\n", room)

"""The counts of `tools/density.py` on code that was counted by hand."""

from __future__ import annotations

from tools.density import Density, density, functions_of

SOURCE = '''"""A docstring
of two lines."""

LIMIT = 3  # a comment
"""A docstring below a constant."""


def doubled(values):
    """Double each of some values."""
    # A comment alone.
    first, last = values[0], values[-1]
    first, last = last, first
    one, two = values
    return [2 * value if value else 0 for value in values]


class Held:
    async def wait(self):
        return """a text
of two lines"""
'''


def test_density_counts_code_without_docstrings_and_comments() -> None:
    counted = density(SOURCE)
    assert counted == Density(
        files=1,
        code_lines=10,
        tokens=61,
        comprehensions=1,
        conditional_expressions=1,
        multiple_assignments=1,
    )


def test_swaps_and_one_unpacked_value_are_no_multiple_assignments() -> None:
    assert density("a, b = b, a\n").multiple_assignments == 0
    assert density("a, b = f()\n").multiple_assignments == 0
    assert density("rows = [1, 2], [3, 4]\n").multiple_assignments == 0
    assert density("self.a, b = 0, []\n").multiple_assignments == 1


def test_functions_are_measured_from_def_to_their_end() -> None:
    doubled, wait = functions_of(SOURCE, "held.py")
    assert (doubled.place, doubled.name, doubled.num_lines) == ("held.py:8", "doubled", 7)
    assert (wait.place, wait.name, wait.num_lines) == ("held.py:18", "wait", 3)


def test_counts_of_files_add_up() -> None:
    total = Density()
    total.add(density(SOURCE))
    total.add(density(SOURCE))
    assert total.files == 2
    assert total.code_lines == 20
    assert total.comprehensions == 2

"""The families as parameters of a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mmrm.models.families.registry import FAMILIES
from tests.models import tiny

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet


def every_family() -> list[ParameterSet]:
    """Return a parameter for each family; all but one are slow, so that the fast tier tests one."""
    parameters: list[ParameterSet] = []
    for name in FAMILIES:
        marks = [] if name == tiny.FAMILY else [pytest.mark.slow]
        parameters.append(pytest.param(name, marks=marks, id=name))
    return parameters

"""Fixtures for the tests of every folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.models import exactness


@pytest.fixture
def float64() -> Iterator[None]:
    """Run a test in float64 throughout, also where the code under test names float32."""
    with exactness.float64():
        yield


@pytest.fixture(scope="module")
def module_in_float64() -> Iterator[None]:
    """Run all tests of a module in float64, and the fixtures they share, such as checkpoints."""
    with exactness.float64():
        yield

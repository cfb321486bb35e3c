"""Fixtures for the tests of every folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.models import exactness

# A busy machine takes longer for an example, and no test may fail for that.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


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

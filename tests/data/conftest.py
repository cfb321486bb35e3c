"""What several tests of the mixture start from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.data.mixtures import project, row
from tests.data.sources.fixtures import RED, write_images


@pytest.fixture
def two(tmp_path: Path) -> list[dict[str, Any]]:
    """Return 30 multimodal and 120 text-only records."""
    write_images(tmp_path, red=RED)
    seen = project(
        tmp_path, "seen", [row(f"seen {number}", images=["red.png"]) for number in range(30)]
    )
    return [seen, project(tmp_path, "told", [row(f"told {number}") for number in range(120)])]

"""The page of measurements says what the files say, and is the page of the files that are here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools.evidence import FOLDER, PAGE, page

ABOUT = {
    "date": "2026-11-28",
    "device": "A processor, 1 thread(s)",
    "clock": "processor time",
    "shape": "embedded",
    "pairs": "8",
    "dtype": "float32",
    "torch": "2.13.0",
    "transformers": "5.23.0",
    "python": "3.11.2",
    "commit": "0123abc",
}
SHARED: dict[str, Any] = {
    "what": "training",
    "variant": "packed, shared",
    "checkpointing": "linear",
    "pairs_per_second": 2.5,
    "mfu": 0.354,
    "mfu_with_copies": 0.61,
    "peak_gib": 1.25,
    "rows": 1,
    "times_stock": None,
    "times_unshared": None,
}
TOO_LARGE = SHARED | {"pairs_per_second": None, "mfu": None, "mfu_with_copies": None}
LINE = {"check": "trees", "result": "PASS", "said": "1.5 x | 2 x", "seconds": 12.4, "values": {}}


def write(folder: Path, name: str, content: dict[str, Any]) -> Path:
    file = folder / f"{name}.json"
    file.write_text(json.dumps(content))
    return file


def test_the_page_is_that_of_the_files() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(sorted(FOLDER.glob("*.json")))


def test_each_file_is_a_section_with_its_machine_and_its_figures(tmp_path: Path) -> None:
    speed = {"about": ABOUT, "multiply_adds_per_second": 5e11, "results": [SHARED, TOO_LARGE]}
    check = {"date": "2026-11-27", "lines": [LINE]}

    text = page([write(tmp_path, "speed", speed), write(tmp_path, "check", check)])

    assert "## speed: speed and memory\n\nA processor, 1 thread(s); shape embedded" in text
    assert "commit 0123abc. Matrix products: 1 TFLOP/s." in text
    assert "| training | packed, shared | linear | 1 | 2.50 | – | 35% | 61% | 1.2 |" in text
    assert "| training | packed, shared | linear | 1 | does not fit | – | – | – | 1.2 |" in text
    assert "## check: GPU check\n\n`make gpu-check`, 2026-11-27." in text
    assert "| trees | PASS | 1.5 x / 2 x | 12 |" in text


def test_a_file_of_another_command_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="neither `results` nor `lines`"):
        page([write(tmp_path, "loader", {"loader": {}})])

"""The notebook docs/first_run.ipynb: its code runs from top to bottom, without Jupyter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CLONE = Path(__file__).resolve().parents[1]
NOTEBOOK = CLONE / "docs" / "first_run.ipynb"


def cells() -> list[dict[str, Any]]:
    """Return the cells of the notebook."""
    found: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return found


def test_the_notebook_is_stored_without_outputs() -> None:
    for cell in cells():
        assert cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
    assert len({cell["id"] for cell in cells()}) == len(cells())
    assert NOTEBOOK.stat().st_size < 20_000


@pytest.mark.slow
def test_the_code_cells_lead_from_photos_to_a_scored_answer(tmp_path: Path) -> None:
    code = ["".join(cell["source"]) for cell in cells() if cell["cell_type"] == "code"]
    # One process runs all cells in order, as a notebook's kernel does.
    script = tmp_path / "notebook.py"
    script.write_text("\n\n".join(code), encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(CLONE), "MMRM_CACHE": str(tmp_path / "cache")}
    result = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    assert len(list((tmp_path / "photos").glob("*.png"))) == 240
    held_out = json.loads((tmp_path / "run/best/eval/held_out.json").read_text())
    assert held_out["micro"]["n"] == 40
    assert f"\n{held_out['micro']['accuracy']}\n" in result.stdout
    scored_answers = result.stdout.strip().splitlines()[-3:]
    assert scored_answers[-1].endswith("I do not know.")
    scores = [float(line.split()[0]) for line in scored_answers]
    assert len(set(scores)) == 3

"""The recipes that come with the project."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "recipes"
ALL = sorted(path for path in FOLDER.rglob("*.yaml") if path.parent.name != "judges")


def _has_variants(path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    bases = re.findall(r"^extends: (\S+)", text, flags=re.MULTILINE)
    return "\nvariants:" in text or any(_has_variants(path.parent / base) for base in bases)


LISTS = [path for path in ALL if _has_variants(path)]
"""Lists of runs, for train/ablate.py."""
RECIPES = [path for path in ALL if path not in LISTS]

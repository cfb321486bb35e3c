"""The recipes that come with the project."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "recipes"
ALL = sorted(path for path in FOLDER.rglob("*.yaml") if path.parent.name != "judges")
LISTS = [path for path in ALL if "\nvariants:" in path.read_text(encoding="utf-8")]
"""Lists of runs, for train/ablate.py."""
RECIPES = [path for path in ALL if path not in LISTS]

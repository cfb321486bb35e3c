"""Stands in for a launcher of rounds: `stub_rounds.py eval/sample.py …` leaves what that command leaves, and says so in `calls`.

A command whose name and output stand in `fail` fails. Scores are higher for right answers, but for one, until a round is learnt.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

TEXTS = ("it is red", "it is blue", "red", "it is green")
KNOWN = ("red", "it is red")
RIGHT = (True, False, True, False)


def main() -> None:
    """Do as the command does."""
    script, *arguments = sys.argv[1:]
    name = Path(script).stem
    recipe = Path(arguments[0])
    output = recipe.parent if name in ("rm", "rl") else Path(arguments[1] if name == "sample" else arguments[2])
    top = next(place for place in output.parents if (place / "settings.json").exists())
    told = f"{name} {output.relative_to(top)}"
    with (top / "calls").open("a") as calls:
        calls.write(f"{told} {'' if name in ('rm', 'rl') else ' '.join(arguments)}\n")
    failing = top / "fail"
    if failing.exists() and failing.read_text() == told:
        sys.exit("the disk is a teapot")
    if name == "sample":
        rows = [{"id": str(i), "prompt": f"Colour {i}?", "responses": TEXTS, "answer": KNOWN, "right": RIGHT} for i in range(3)]
        write(output, rows)
    elif name == "score":
        scores = [2.0, 0.0, 1.0 if "round-" in arguments[0] else -1.0, 0.5]
        rows = [json.loads(line) | {"scores": scores} for line in Path(arguments[1]).read_text().splitlines()]
        write(output, rows)
    else:
        there = output / "checkpoint-2"
        (there / "eval" / "vl_rewardbench").mkdir(parents=True, exist_ok=True)
        write(
            there / "eval" / "vl_rewardbench" / "predictions.jsonl", [{"key": str(i), "credit": float(i > 0)} for i in range(4)]
        )
        (there / "complete").touch()


def write(file: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write JSON lines."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()

"""Stands in for a launcher of rounds: `stub_rounds.py eval/sample.py …` leaves what that command leaves, and says so in `calls`.

A command whose name and output stand in `fail` fails. If there is a file `deviations`, scores come with deviations.
Scores are higher for right answers, but for one, until a round is learnt.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

TEXTS = ("it is red", "it is blue", "red", "it is green")
KNOWN = ("red", "it is red")
RIGHT = (True, False, True, False)


def main() -> None:
    """Do as the command does; `calls` and `fail` are beside the file `stub`."""
    script, *arguments = sys.argv[1:]
    name = Path(script).stem
    trains = name in ("rm", "sft", "rl")
    if trains:
        output = Path(arguments[0]).parent
    elif name == "run":
        output = Path(arguments[arguments.index("--output") + 1])
    else:
        output = Path(arguments[1] if name == "sample" else arguments[2])
    top = next(place for place in output.parents if (place / "stub").exists())
    told = f"{name} {output.relative_to(top)}"
    with (top / "calls").open("a") as calls:
        calls.write(f"{told} {'' if trains else ' '.join(arguments)}\n")
    failing = top / "fail"
    if failing.exists() and failing.read_text() == told:
        sys.exit("the disk is a teapot")
    if name == "sample":
        source = arguments[arguments.index("--source") + 1]
        write(output, asked_numbers(source) or asked_colours(source))
    elif name == "score":
        good = "round-" in arguments[0] or "good" in arguments[0]
        scores = [2.0, 0.0, 1.0 if good else -1.0, 0.5]
        rows: list[dict[str, object]] = []
        for line in Path(arguments[1]).read_text(encoding="utf-8").split("\n")[:-1]:
            row = json.loads(line)
            row["scores"] = scores[: len(row["responses"])]
            if arguments[0].endswith(".yaml"):  # a judge with soft verdicts, two of whose words tie
                row["score_hard"] = [1.0, 0.0, 0.5, 0.5]
            if (top / "deviations").exists():
                row["score_std"] = [0.1, 3.0, 0.1, 0.1]
            rows.append(row)
        write(output, rows)
    elif name == "run":
        assert 'verdicts="soft"' in arguments
        keys = json.loads((top / "keys.json").read_text())
        judged(output, keys, "good" in arguments[0], "soft")
    elif name == "rl":
        answers(output / "start" / "answers", 2)
        answers(output / "checkpoint-2" / "answers", 3 if "good" in output.parts else 1)
        (output / "checkpoint-2" / "complete").touch()
    else:
        there = output / "checkpoint-2" / "eval"
        if (top / "keys.json").exists():
            keys = json.loads((top / "keys.json").read_text())
            judged(there, keys, "good" in str(output), "hard" if "judge" in str(output) else "")
        else:
            (there / "vl_rewardbench").mkdir(parents=True, exist_ok=True)
            write(
                there / "vl_rewardbench" / "predictions.jsonl",
                [{"key": str(i), "credit": float(i > 0)} for i in range(4)],
            )
        (there.parent / "complete").touch()
        write(output / "log.jsonl", [{"step": 2, "train_runtime": 1.0}])


def asked_colours(source: str) -> list[dict[str, object]]:
    """Return three questions of a source that is not read: other ones for another source."""
    about = {"responses": TEXTS, "answer": KNOWN, "right": RIGHT, "verifier": "exact"}
    return [{"id": str(i), "prompt": f"Colour {i}\u2028of {source}?", **about} for i in range(3)]


def asked_numbers(source: str) -> list[dict[str, object]]:
    """Return the questions of a source of type questions, numbers in a file; none of another source."""
    file = re.search(r"path: ([^,}]+)", source)
    if file is None:
        return []
    found: list[dict[str, object]] = []
    for number, line in enumerate(Path(file[1]).read_text().splitlines()):
        row = json.loads(line)
        about = {"prompt": row["prompt"], "answer": [row["answer"]], "verifier": "numeric"}
        texts = [f"I count {row['answer']} things.", "none", row["answer"], "9000"]
        found.append({"id": str(number), **about, "responses": texts, "right": RIGHT})
    return found


def judged(place: Path, keys: Sequence[str], is_good: bool, verdicts: str) -> None:
    """Leave the predictions on ten rows: a good judge is right on nine, another on six; of hard verdicts the first is a tie."""
    rows: list[dict[str, object]] = []
    for i, key in enumerate(keys):
        is_right = i < (9 if is_good else 6)
        row: dict[str, object] = {"key": key, "better": 0, "votes": []}
        row |= {"margin": 1.0 if is_right else -1.0, "tie": False, "correct": is_right}
        if verdicts:
            named = 0 if is_right else 1
            second = 1 - named if i == 0 and verdicts == "hard" else named
            row["votes"] = [{"first": 0, "names": named}, {"first": 1, "names": second}]
        if verdicts == "hard":
            row |= {"margin": None, "tie": i == 0, "correct": is_right and i > 0}
        if verdicts == "soft":
            row |= {"margin": 0.6 if is_right else -0.6, "probabilities": [0.8, 0.2]}
        row["credit"] = float(bool(row["correct"]))
        rows.append(row)
    (place / "vl_rewardbench").mkdir(parents=True, exist_ok=True)
    write(place / "vl_rewardbench" / "predictions.jsonl", rows)
    (place / "vl_rewardbench.json").touch()


def answers(place: Path, right: int) -> None:
    """Leave a policy's answers to the first four questions of the embedded world, of which so many are right."""
    place.mkdir(parents=True, exist_ok=True)
    write(
        place / "shapes.jsonl",
        [
            {
                "id": f"shapes-demo-benchmark:{i}",
                "credits": {"greedy": float(i < right), "sampled": 0.5},
            }
            for i in range(4)
        ],
    )


def write(file: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write JSON lines as this project does: other line breaks than the usual one are not escaped."""
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    file.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()

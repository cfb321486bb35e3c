"""MM-RLHF-RewardBench (arXiv 2502.10391): 170 pairs of 46 items; Acc over pairs, Acc+ over items with every pair right.

Read: a local `mm_reward_bench.jsonl` (else train-*.parquet) with the images beside it (also the embedded edition), or the hub.
Its video items need folders of frames; of more than 32 frames 32 are taken, evenly spaced. Items whose frames are not
there are counted as unavailable. The benchmark publishes no prompt that shows both responses: its authors' critic scores
each alone, and the pairwise script of R1-Reward shows the winner first.

MM-RLHF-RewardBench's official figures, and the same with ties right, from predictions files.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data.errors import PredictionsError
from data.preference import EncodedImage
from eval.benchmarks.benchmark import (
    Benchmark,
    Known,
    LoadedBenchmark,
    Location,
    Record,
    ScoringRule,
    group_figures,
    in_drawn_order,
    macro,
    rewards,
)
from eval.benchmarks.rows import (
    Row,
    content_key,
    embedded_folder,
    encoded,
    find_files,
    limited,
    loaded,
    read_rows,
    require_texts,
    under,
    user_turn,
)
from eval.protocol import Example, Verdict

KEYWORDS = ("mcq", "long", "short", "safety", "video")
"""The categories, in the order in which the official scorer looks for them within a path."""


class JudgedPair(NamedTuple):
    """A line of a predictions file as the official scorer sees it."""

    image: str
    video: str
    right: bool


def official_score(records: Sequence[Record | None], ties_right: bool = False) -> dict[str, Any]:
    """Return what the official scorer computes (Kwai's cal_performance_mmreweard_bench.py at 7c8af1d; R1-Reward's equals it).

    A row's category is the first keyword that its path contains. An item is credited to the first keyword that any of
    its paths contains, but counts in the denominator of every keyword that they contain. Rows without a keyword count
    overall only.
    Raises: PredictionsError for a line that the script cannot read.
    """
    items: dict[Hashable, list[JudgedPair]] = {}
    for line, record in enumerate(records, start=1):
        identity, judged = _judged(record, line, ties_right)
        items.setdefault(identity, []).append(judged)
    stats = {word: {"accuracy": 0.0, "acc_plus": 0.0, "total": 0} for word in KEYWORDS}
    for rows in items.values():
        for row in rows:
            _add(stats, "total", _first_word(row.image or row.video))
            _add(stats, "accuracy", _first_word(row.image, row.video) if row.right else None)
        if all(row.right for row in rows):
            _add(stats, "acc_plus", _first_word(*(path for row in rows for path in (row.image, row.video))))
    for word, found in stats.items():
        if found["total"]:
            found["accuracy"] /= found["total"]
            found["acc_plus"] /= sum(any(word in row.image + row.video for row in rows) for rows in items.values())
    return {"category_stats": stats, "groups": len(items), "overall_stats": _overall(list(items.values()))}


def _first_word(*paths: str) -> str | None:
    return next((word for word in KEYWORDS if any(word in path for path in paths)), None)


def _add(stats: dict[str, dict[str, float]], name: str, word: str | None) -> None:
    if word is not None:
        stats[word][name] += 1


def _judged(record: Record | None, line: int, ties_right: bool) -> tuple[Hashable, JudgedPair]:
    found = record or {}
    try:
        better, other = found["rewards"][:2]
        image, video = found.get("image", ""), found.get("video", "")
        right = better >= other if ties_right else better > other
        _first_word(image, video)
    except (KeyError, TypeError, ValueError) as error:
        raise PredictionsError(
            f"line {line}: {type(error).__name__} {error}. Required are id, image or video (a path; leave the other one out, "
            "null stops the official script) and rewards (2 numbers, the winner's first)."
        ) from error
    return found.get("id", ""), JudgedPair(image, video, right)


def _overall(items: Sequence[Sequence[JudgedPair]]) -> dict[str, float]:
    rights = [row.right for rows in items for row in rows]
    whole = sum(all(row.right for row in rows) for rows in items)
    return {
        "accuracy": sum(rights) / len(rights) if rights else 0,
        "acc_plus": whole / len(items) if items else 0,
        "total": len(rights),
    }


def _published(records: Sequence[Record | None], ties_right: bool = False) -> dict[str, Any]:
    detail = official_score(records, ties_right)
    stats = {word: found for word, found in detail["category_stats"].items() if found["total"]}
    right = {word: round(found["accuracy"] * found["total"]) for word, found in stats.items()}
    return {
        "micro": detail["overall_stats"]["accuracy"],
        "macro": macro([found["accuracy"] for found in stats.values()]),
        "acc_plus": detail["overall_stats"]["acc_plus"],
        "groups": group_figures(right, {word: found["total"] for word, found in stats.items()}),
        "detail": detail,
    }


RULES = {
    "official": ScoringRule("Kwai's and R1-Reward's scorer: Acc and Acc+, ties wrong", "official", _published),
    "ties_right": ScoringRule(
        "the official scorer with ties right", "official", lambda records: _published(records, ties_right=True)
    ),
}


NAME = "mm_rlhf_rewardbench"
HUB = "yifanzhang114/MM-RLHF-RewardBench"
FILES = ("mm_reward_bench.jsonl", "data/train-*.parquet", "train-*.parquet")
KNOWN = (Known("the released edition", 170, {"mcq": 42, "long": 37, "short": 34, "safety": 32, "video": 25}),)
ITEMS = 46
"""Items of the released edition: rows that share an id."""
FRAMES = 32
FRAME_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")


def load(where: Location) -> LoadedBenchmark:
    """Return the rows; see the module's docstring for what is read.

    Raises: UserError or RecordError for files that are not there, not in a known schema, or without their images.
    """
    if where.location == "hub":
        from huggingface_hub import snapshot_download

        folder, place = snapshot_download(HUB, repo_type="dataset", revision=where.revision), f"{HUB}@{where.revision or 'main'}"
    elif where.location == "embedded":
        folder, place = embedded_folder(NAME), "embedded"
    else:
        folder = place = where.location
    files = find_files(folder, FILES, "MM-RLHF-RewardBench")
    root = Path(where.image_root).expanduser() if where.image_root else files[0].parent
    rows, unavailable = [row for file in files for row in read_rows(file)], dict[str, str]()
    found = loaded(NAME, list(_examples(rows, root, where.limit, unavailable)), where, place, KNOWN, unavailable)
    items = len({row["id"] for row in rows})
    if items == ITEMS or where.limit is not None or where.location == "embedded":
        return found
    notes = (*found.origin.notes, f"{items} items; {KNOWN[0].name} has {ITEMS}.")
    return replace(found, origin=replace(found.origin, notes=notes))


def _examples(rows: Sequence[Row], root: Path, limit: int | None, unavailable: dict[str, str]) -> Iterator[Example]:
    for number, row in limited(rows, limit):
        identity = f"{NAME}:{number} ({row.get('id')})"
        require_texts(row, ("id", "prompt", "chosen", "rejected"), identity)
        group = _group(row)
        if row.get("video"):
            images, reference = _frames(root, row["video"], identity), row["video"]
        else:
            images, reference = encoded(row.get("image"), root, identity)
        if row.get("video") and not images:
            unavailable[f"{identity}: no frames of {row['video']} under {root}"] = group
            continue
        prompt = user_turn(row["prompt"], len(images))
        responses, better = in_drawn_order(row["prompt"], row["chosen"], row["rejected"])
        yield Example(
            key=content_key(prompt, sorted(responses), [reference]),
            images=images,
            prompt=prompt,
            responses=responses,
            better=better,
            group=group,
            source="video" if row.get("video") else "image",
            identity=identity,
            row={
                name: value.get("path") if isinstance(value, dict) else value for name, value in row.items() if value is not None
            },
            official_first=better,
        )


def _group(row: Row) -> str:
    """Return the row's category: a folder of that name on its path, else the first keyword within it, else `other`.

    (The official scorer takes the first keyword within the path, so that an image root such as `/data/long/` makes every
    row `long`.)
    """
    if row.get("video"):
        return "video"
    image = row.get("image")
    path = str((image.get("path") if isinstance(image, dict) else image) or "")
    parts = Path(path).parts
    return next((word for word in KEYWORDS if word in parts), next((word for word in KEYWORDS if word in path), "other"))


def _frames(root: Path, reference: str, record: str) -> tuple[EncodedImage, ...]:
    """Return the frames of a video in the order of their names, at most 32; none if they are not there.

    The rows say video/<name>; the repository on the hub keeps the frames under images/<name>.
    """
    places = (under(root, path, record) for path in (reference, Path(reference).name))
    folder = next((place for place in places if place.is_dir()), None)
    if folder is None:
        return ()
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() in FRAME_SUFFIXES)
    if len(found) <= FRAMES:
        return tuple(found)
    return tuple(found[place] for place in np.linspace(0, len(found) - 1, FRAMES, dtype=int))


def reward_records(examples: Sequence[Example], verdicts: Sequence[Verdict]) -> list[Record]:
    """Return the predictions in the official format: the row and its rewards, the winner's first."""
    return [{**example.row, "rewards": rewards(example, verdict)} for example, verdict in zip(examples, verdicts, strict=True)]


MM_RLHF_REWARDBENCH = Benchmark(
    name=NAME,
    load=load,
    formats={"official": reward_records},
    rules=RULES,
    known=KNOWN,
    item=lambda example: str(example.row["id"]),
    official_note="The only released pairwise script for this benchmark shows the winner first: official order does too.",
)

"""MM-RLHF-RewardBench (arXiv 2502.10391): 170 pairs of 46 items; Acc over pairs, Acc+ over items with every pair right.

Read: a local `mm_reward_bench.jsonl` (else train-*.parquet) with the images beside it (also the embedded edition), or the hub.
Its video items need folders of frames, as the hub's repository has them, or as `python data/frames.py VIDEOS OUT --frames 32`
cuts them; of more than `frames` (32) as many are taken, evenly spaced. Items whose frames are not there are counted as
unavailable. The benchmark publishes no prompt that shows both responses: its authors' critic scores
each alone, and the pairwise script of R1-Reward shows the winner first.
"""

import json
from collections import Counter
from collections.abc import Hashable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mmrm.data.preference import EncodedImage
from mmrm.data.storage.row_files import Row
from mmrm.data.video import is_video_name
from mmrm.eval.benchmarks.benchmark import (
    Benchmark,
    FileFormat,
    Known,
    LoadedBenchmark,
    Location,
    Record,
    Records,
    RowName,
    ScoringRule,
    group_figures,
    in_drawn_order,
    macro,
    reward_records,
)
from mmrm.eval.benchmarks.prediction_records import own_format, parse_rewards, row_name, shown, text
from mmrm.eval.benchmarks.rows import (
    Published,
    content_key,
    encoded,
    require_texts,
    under,
    user_turn,
)
from mmrm.eval.candidates import Example

NAME = "mm_rlhf_rewardbench"
HUB = "yifanzhang114/MM-RLHF-RewardBench"
FILES = ("mm_reward_bench.jsonl", "data/train-*.parquet", "train-*.parquet")
COUNTS = {"mcq": 42, "long": 37, "short": 34, "safety": 32, "video": 25}
KNOWN = (Known("the released edition", 170, COUNTS, 46, "mm_rlhf_rewardbench.txt"),)
KEYWORDS = ("mcq", "long", "short", "safety", "video")
"""The categories, in the order in which the official scorer looks for them within a path."""
FRAMES = 32
FRAME_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")


def load(where: Location) -> LoadedBenchmark:
    """Return the rows as `Published.load` does, and say where videos are shown as other than the official 32 frames."""
    found = _published(where).load(where)
    shown = [len(example.images) for example in found.examples if example.source == "video"]
    if not shown or min(shown) == max(shown) == FRAMES:
        return found
    note = f"Videos are shown as {min(shown)} to {max(shown)} frames; the official script takes {FRAMES}."
    return replace(found, origin=replace(found.origin, notes=(*found.origin.notes, note)))


def _published(where: Location) -> Published:
    convert = partial(_example, where.frames or FRAMES)
    return Published(NAME, "MM-RLHF-RewardBench", HUB, FILES, None, KNOWN, convert, videos=True)


def _example(frames: int, row: Row, root: Path, identity: str) -> Example:
    require_texts(row, ("id", "prompt", "chosen", "rejected"), identity)
    columns = {
        name: value.get("path") if isinstance(value, dict) else value
        for name, value in row.items()
        if value is not None
    }
    video = row.get("video")
    images, reference = (
        (_frames(root, video, identity, frames), video)
        if video
        else encoded(row.get("image"), root, identity)
    )
    prompt = user_turn(row["prompt"], len(images))
    responses, better = in_drawn_order(row["prompt"], row["chosen"], row["rejected"])
    return Example(
        key=content_key(prompt, sorted(responses), [reference]),
        images=images,
        prompt=prompt,
        responses=responses,
        better=better,
        group="video" if video else _group(str(columns.get("image") or "")),
        source="video" if video else "image",
        identity=identity,
        row=columns,
        official_first=better,
        unavailable=f"no frames of {video} under {root}: cut them by data/frames.py"
        if video and not images
        else "",
    )


def _group(path: str) -> str:
    """Return the category: a folder of that name on the path, else the first keyword within it, else `other`.

    (The official scorer takes the first keyword within the path, so that an image root such as `/data/long/` makes every
    row `long`.)
    """
    parts = Path(path).parts
    return next((word for word in KEYWORDS if word in parts), _keyword(path) or "other")


def _frames(root: Path, reference: str, record: str, count: int) -> tuple[EncodedImage, ...]:
    """Return the frames of a video in the order of their names, at most `count`; none if they are not there.

    The rows say video/<name>; the repository on the hub keeps the frames under images/<name>. The frames of a file <name>.mp4
    are those in the folder <name>.
    """
    path = Path(reference).with_suffix("") if is_video_name(reference) else Path(reference)
    places = (under(root, str(place), record) for place in (path, path.name))
    folder = next((place for place in places if place.is_dir()), None)
    if folder is None:
        return ()
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() in FRAME_SUFFIXES)
    return tuple(
        found[place] for place in np.linspace(0, len(found) - 1, min(count, len(found)), dtype=int)
    )


def official_score(records: Records, ties_right: bool = False) -> dict[str, Any]:
    """Return the figures of the official scorer (Kwai's cal_performance_mmreweard_bench.py at 7c8af1d; R1-Reward's equals it).

    A row's category is the first keyword that its path contains. An item is credited to the first keyword that any of
    its paths contains, but counts in the denominator of every keyword that they contain. Rows without a keyword count
    overall only, and a keyword without rows keeps its counts undivided. All rows without an id are one item, as the
    script's `item.get("id", "")` makes them. `detail` holds what the script computes.
    Raises: PredictionsError for a line that the script cannot read.
    """
    columns = "image or video (a path; leave the other one out, null stops the official script)"
    items: dict[Hashable, list[tuple[str, str, bool]]] = {}
    for (identity, image, video), hit in parse_rewards(records, _paths, columns, ties_right):
        items.setdefault(identity, []).append((image, video, hit))
    rows = [row for item in items.values() for row in item]
    whole = [item for item in items.values() if all(hit for _, _, hit in item)]
    total = Counter(_keyword(image or video) for image, video, _ in rows)
    right = Counter(_keyword(image, video) or "" for image, video, hit in rows if hit)
    credited = Counter(
        _keyword(*(path for image, video, _ in item for path in (image, video))) for item in whole
    )
    inside = {
        word: sum(any(word in image + video for image, video, _ in item) for item in items.values())
        for word in KEYWORDS
    }
    stats = {
        word: {
            "accuracy": right[word] / (total[word] or 1),
            "acc_plus": credited[word] / (inside[word] if total[word] else 1),
            "total": total[word],
        }
        for word in KEYWORDS
    }
    overall = {
        "accuracy": sum(hit for _, _, hit in rows) / len(rows) if rows else 0,
        "acc_plus": len(whole) / len(items) if items else 0,
        "total": len(rows),
    }
    there = {word: n for word in KEYWORDS if (n := total[word])}
    return {
        "micro": overall["accuracy"],
        "macro": macro([stats[word]["accuracy"] for word in there]),
        "acc_plus": overall["acc_plus"],
        "groups": {
            word: {**group, "acc_plus": stats[word]["acc_plus"], "items": inside[word]}
            for word, group in group_figures(right, there).items()
        },
        "detail": {"category_stats": stats, "groups": len(items), "overall_stats": overall},
    }


def _keyword(*paths: str) -> str | None:
    return next((word for word in KEYWORDS if any(word in path for path in paths)), None)


def _paths(record: Record) -> tuple[Hashable, str, str]:
    """Return the id, the path of the image and the path of the video; a path that is left out is empty."""
    image, video = (text({name: "", **record}, name) for name in ("image", "video"))
    identity = record.get("id", "")
    if isinstance(identity, list | dict):
        raise ValueError(f"id is {shown(identity)}; required is a text or a number")
    return identity, image, video


def _row_name(record: Record) -> RowName:
    """Return the row that a line is of; a line without an id, or with one that is no text, is of no known row."""
    identity = record.get("id", "")
    if isinstance(identity, str):
        return row_name({**record, "id": identity})
    return row_name({**record, "id": json.dumps(identity)})


def _path_group(record: Record) -> str:
    """Return the category under which the official script counts a line."""
    _, image, video = _paths(record)
    return _keyword(image or video) or "no category"


FILES_SCORED = {
    "predictions": own_format("official", "official"),
    "official": FileFormat(
        "id, image or video (a path) and rewards, [of the better response, of the other]",
        ("rewards",),
        "official",
        row=_row_name,
        group=_path_group,
    ),
}
RULES = {
    "official": ScoringRule(
        "Kwai's and R1-Reward's scorer: Acc and Acc+, ties wrong",
        "official",
        official_score,
        "it prints two decimals; macro, the mean of the categories, is added",
    ),
    "ties_right": ScoringRule(
        "the official scorer with ties right",
        "official",
        partial(official_score, ties_right=True),
        "a tie counts as right",
    ),
}
MM_RLHF_REWARDBENCH = Benchmark(
    name=NAME,
    load=load,
    look=lambda where: _published(where).look(where),
    read=lambda where: _published(where).read(where),
    files=FILES_SCORED,
    formats={"official": reward_records},
    rules=RULES,
    known=KNOWN,
    item=lambda example: str(example.row["id"]),
    official_note="The only released pairwise script for this benchmark shows the winner first: official order does too.",
)

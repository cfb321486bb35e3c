"""MM-RLHF-RewardBench (arXiv 2502.10391): 170 pairs of 46 items; Acc over pairs, Acc+ over items with every pair right.

Read: a local `mm_reward_bench.jsonl` (else train-*.parquet) with the images beside it (also the embedded edition), or the hub.
Its video items need folders of frames; of more than 32 frames 32 are taken, evenly spaced. Items whose frames are not
there are counted as unavailable. The benchmark publishes no prompt that shows both responses: its authors' critic scores
each alone, and the pairwise script of R1-Reward shows the winner first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from data.preference import EncodedImage
from eval.benchmarks.benchmark import Benchmark, Known, Loaded, Location, Record
from eval.benchmarks.mm_rlhf_rewardbench_rules import KEYWORDS, RULES
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
from eval.benchmarks.writers import in_drawn_order, rewards
from eval.protocol import Example, Verdict

NAME = "mm_rlhf_rewardbench"
HUB = "yifanzhang114/MM-RLHF-RewardBench"
FILES = ("mm_reward_bench.jsonl", "data/train-*.parquet", "train-*.parquet")
KNOWN = (Known("the released edition", 170, {"mcq": 42, "long": 37, "short": 34, "safety": 32, "video": 25}),)
ITEMS = 46
"""Items of the released edition: rows that share an id."""
FRAMES = 32
FRAME_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")


def load(where: Location) -> Loaded:
    """Return the rows; see the module's docstring for what is read.

    Raises: BenchmarkError or RecordError for files that are not there, not in a known schema, or without their images.
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

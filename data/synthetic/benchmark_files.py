"""Files of the embedded world: records in this project's own format, and editions in the benchmarks' official formats.

A folder is written under another name and renamed when it is whole. The same arguments give the same rows. The editions:

data/test-00000-of-00001.parquet      VL-RewardBench: the hub's columns, images inside
all_data.json + images/               Multimodal RewardBench; text-only safety rows have Image "": our extension
mm_reward_bench.jsonl + <section>/    MM-RLHF-RewardBench: several pairs an id, rows of an id together; no video
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any

from PIL import Image

from mmrm.data.storage.code_digest import code_digest
from mmrm.data.storage.files import write_json_lines
from mmrm.data.synthetic.rng import Rng, number
from mmrm.data.synthetic.scenes import png
from mmrm.data.synthetic.world import ShapesWorld, WorldItem

PAIRS = 3
"""Pairs an id in the MM-RLHF-RewardBench edition."""
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "editions"

_Stock = tuple[str, ...]
"""Rows of one origin: query source, category or section in the official file, form of the ids, and question types."""
_VL_STOCKS: tuple[_Stock, ...] = (
    ("WildVision", "wildvision-battle-{}", "description"),
    ("RLAIF-V", "RLAIF-V-{}", "attribute"),
    ("MathVerse", "mathverse_{}", "counting", "arithmetic"),
    ("WildVision", "wildvision-battle-{}", "description", "place"),
    ("RLHF-V", "RLHF-V-{}", "existence"),
    ("MathVerse", "mathverse_{}", "comparison", "spatial"),
    ("WildVision", "wildvision-battle-{}", "place"),
    ("POVID", "hallucination_pair-{}", "existence", "attribute"),
    ("MMMU-Pro", "mmmu_pro_{}", "counting", "comparison", "spatial", "arithmetic"),
)
_MULTIMODAL_STOCKS: tuple[_Stock, ...] = (
    ("correctness", "visitbench_{:04}", "existence", "attribute", "place"),
    ("preference", "nocaps_{:04}", "description"),
    ("knowledge", "mmmu-s_{:04}", "reading"),
    ("reasoning", "mathvista_{:04}", "counting", "comparison", "spatial", "arithmetic"),
    ("reasoning", "EMMA-Coding_{:04}", "code"),
    ("safety", "pairs_{:04}", "safety"),
    ("vqa", "MMBench_{:04}", "attribute", "place"),
)
_RLHF_STOCKS: tuple[_Stock, ...] = (
    ("mcq", "mcq_{:04}", "attribute", "place"),
    ("long", "long_{:04}", "description", "code"),
    ("short", "short_{:04}", "existence", "counting", "spatial"),
    ("safety", "safety_{:04}", "safety"),
)
_TEXT = {"dtype": "string", "_type": "Value"}
_HUB_FEATURES: dict[str, dict[str, Any]] = {
    "id": _TEXT,
    "query": _TEXT,
    "response": {"feature": _TEXT, "_type": "Sequence"},
    "image": {"_type": "Image"},
    "human_ranking": {"feature": {"dtype": "int64", "_type": "Value"}, "_type": "Sequence"},
    "models": {"feature": _TEXT, "_type": "Sequence"},
    **dict.fromkeys(("judge", "rationale", "query_source", "ground_truth"), _TEXT),
}
"""How the `datasets` library notes the columns in a parquet file; it is what makes `image` an image again."""


def _items(
    world: ShapesWorld, stocks: Sequence[_Stock], rows: int
) -> Iterator[tuple[int, str, str, WorldItem, Rng]]:
    """Yield number, group, form of the id, item and random draws of each row."""
    for index in range(rows):
        group, identity, *kinds = stocks[index % len(stocks)]
        yield index, group, identity, world.item(index, kinds), Rng(index, world.seed)


def write_vl_rewardbench(folder: Path, world: ShapesWorld, rows: int) -> None:
    """Write VL-RewardBench's parquet file; the order of the responses is random, `human_ranking` goes with it."""
    import pyarrow as arrow  # type: ignore[import-untyped]
    import pyarrow.parquet as parquet  # type: ignore[import-untyped]

    found = []
    for index, group, identity, item, rng in _items(world, _VL_STOCKS, rows):
        chosen_first = rng.coin()
        found.append(
            {
                "id": identity.format(index),
                "query": item.question,
                "response": [item.chosen, item.rejected]
                if chosen_first
                else [item.rejected, item.chosen],
                "image": {"bytes": png(*item.images()), "path": f"{index:04}.png"},
                "human_ranking": [0, 1] if chosen_first else [1, 0],
                "models": ["shapes", "shapes"],
                "judge": "shapes",
                "rationale": item.rationale(chosen_first),
                "query_source": group,
                "ground_truth": item.true.fact,
            }
        )
    features = {"huggingface": json.dumps({"info": {"features": _HUB_FEATURES}})}
    (folder / "data").mkdir()
    parquet.write_table(
        arrow.Table.from_pylist(found, metadata=features),
        folder / "data" / "test-00000-of-00001.parquet",
    )


def write_multimodal_rewardbench(folder: Path, world: ShapesWorld, rows: int) -> None:
    """Write Multimodal RewardBench's all_data.json and images."""
    found = []
    for index, group, identity, item, rng in _items(world, _MULTIMODAL_STOCKS, rows):
        chosen_first = rng.coin()
        found.append(
            {
                "Category": group,
                "ID": identity.format(index // len(_MULTIMODAL_STOCKS)),
                "Text": item.question,
                "Image": "".join(
                    _save(
                        folder, f"images/{identity.partition('_')[0]}/{index:04}.png", item.images()
                    )
                ),
                "Output1": item.chosen if chosen_first else item.rejected,
                "Output2": item.rejected if chosen_first else item.chosen,
                "Better": "Output1" if chosen_first else "Output2",
            }
        )
    (folder / "all_data.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


def write_mm_rlhf_rewardbench(folder: Path, world: ShapesWorld, rows: int) -> None:
    """Write MM-RLHF-RewardBench's mm_reward_bench.jsonl and images; `rows` is rounded up to whole ids.

    The pairs of an id differ in how the two answers are put. A request (safety) is shown with an image that has no part in it.
    """
    found = []
    for index, group, identity, item, rng in _items(world, _RLHF_STOCKS, -(-rows // PAIRS)):
        images = item.images() or world.item(index, ("place",)).images()
        image = "".join(_save(folder, f"{group}/{index:04}.png", images))
        for chosen, rejected in rng.sample(
            list(product(item.true.phrasings, item.false.phrasings)), PAIRS
        ):
            found.append(
                {
                    "id": identity.format(index),
                    "image": image,
                    "prompt": item.question,
                    "chosen": chosen,
                    "rejected": rejected,
                    "chosen_reason": item.critique(True),
                    "rejected_reason": item.critique(False),
                }
            )
    write_json_lines(folder / "mm_reward_bench.jsonl", found)


def write_records(folder: Path, world: ShapesWorld, rows: int) -> None:
    """Write the first `rows` items in this project's own format: records.jsonl and images/ in one new folder.

    Raises: FileExistsError if `folder` is there already.
    """
    kept = (
        "prompt",
        "chosen",
        "rejected",
        "chosen_critique",
        "rejected_critique",
        "rationale",
        "source",
        "category",
    )
    with _whole(folder) as new:
        found = []
        for index in range(rows):
            item = world.item(index)
            record, names = item.preference(), _save(new, f"images/{index:06}.png", item.images())
            found.append({"images": names} | {name: getattr(record, name) for name in kept})
        write_json_lines(new / "records.jsonl", found)


def _save(folder: Path, name: str, images: Sequence[Image.Image]) -> list[str]:
    """Write an item's image, if it has one, as `name` below `folder`; return the names written."""
    for image in images:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png(image))
    return [name] * len(images)


EDITIONS = {
    "vl_rewardbench": (write_vl_rewardbench, 540),
    "multimodal_rewardbench": (write_multimodal_rewardbench, 560),
    "mm_rlhf_rewardbench": (write_mm_rlhf_rewardbench, 360),
}
"""What writes an edition, and its number of rows."""


def edition(name: str, level: str) -> Path:
    """Return the folder of the edition `name` (a key of EDITIONS); it is written into the clone's cache when first asked for."""
    folder = CACHE / f"{level}-{code_digest('mmrm.data.synthetic.benchmark_files')}"
    if not folder.is_dir():
        with suppress(FileExistsError):  # another process was first, with the same rows
            write_editions(folder, level, 0)
    return folder / name


def write_editions(folder: Path, level: str, seed: int) -> None:
    """Write all editions into one new folder.

    Raises: FileExistsError if `folder` is there already.
    """
    with _whole(folder) as new:
        for name, (write, rows) in EDITIONS.items():
            (new / name).mkdir()
            write(new / name, ShapesWorld(level, seed + number(name), "benchmark"), rows)


def write_all(folder: Path, level: str, seed: int, rows: int) -> None:
    """Write `rows` training records, a tenth as many for validation, and all editions.

    Raises: FileExistsError if `folder` is there already.
    """
    with _whole(folder) as new:
        write_records(new / "train", ShapesWorld(level, seed, "train"), rows)
        write_records(
            new / "validation", ShapesWorld(level, seed, "validation"), max(1, rows // 10)
        )
        write_editions(new / "editions", level, seed)


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """Give a temporary folder that becomes `folder` at the end, or vanishes with an error."""
    there = FileExistsError(
        f"{folder} is there already, and nothing is written over: name another folder, or remove this one"
    )
    if folder.exists():
        raise there
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        new = Path(temporary) / folder.name
        new.mkdir()
        yield new
        if folder.exists():  # another process was faster
            raise there
        new.rename(folder)

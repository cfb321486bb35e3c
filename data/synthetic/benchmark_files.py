"""Files of the embedded world: records in this project's format, and editions of the benchmarks.

A folder is written under another name, and renamed when all its files are there. The same arguments
give the same rows. The editions have the benchmarks' official formats:

data/test-00000-of-00001.parquet
    VL-RewardBench: the hub's columns, with the images inside.
all_data.json + images/
    Multimodal RewardBench. Safety rows without an image have Image "", which is our extension.
mm_reward_bench.jsonl + <section>/
    MM-RLHF-RewardBench: several pairs an id, the rows of an id together, and no video.
"""

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Stock:
    """The rows of an edition that imitate one origin."""

    group: str
    """The query source, category or section in the official file."""
    id_form: str
    """The form of the ids, with a place for a number."""
    kinds: tuple[str, ...]
    """The question types of the rows."""


VL_STOCKS = (
    Stock("WildVision", "wildvision-battle-{}", ("description",)),
    Stock("RLAIF-V", "RLAIF-V-{}", ("attribute",)),
    Stock("MathVerse", "mathverse_{}", ("counting", "arithmetic")),
    Stock("WildVision", "wildvision-battle-{}", ("description", "place")),
    Stock("RLHF-V", "RLHF-V-{}", ("existence",)),
    Stock("MathVerse", "mathverse_{}", ("comparison", "spatial")),
    Stock("WildVision", "wildvision-battle-{}", ("place",)),
    Stock("POVID", "hallucination_pair-{}", ("existence", "attribute")),
    Stock("MMMU-Pro", "mmmu_pro_{}", ("counting", "comparison", "spatial", "arithmetic")),
)
MULTIMODAL_STOCKS = (
    Stock("correctness", "visitbench_{:04}", ("existence", "attribute", "place")),
    Stock("preference", "nocaps_{:04}", ("description",)),
    Stock("knowledge", "mmmu-s_{:04}", ("reading",)),
    Stock("reasoning", "mathvista_{:04}", ("counting", "comparison", "spatial", "arithmetic")),
    Stock("reasoning", "EMMA-Coding_{:04}", ("code",)),
    Stock("safety", "pairs_{:04}", ("safety",)),
    Stock("vqa", "MMBench_{:04}", ("attribute", "place")),
)
RLHF_STOCKS = (
    Stock("mcq", "mcq_{:04}", ("attribute", "place")),
    Stock("long", "long_{:04}", ("description", "code")),
    Stock("short", "short_{:04}", ("existence", "counting", "spatial")),
    Stock("safety", "safety_{:04}", ("safety",)),
)

TEXT_COLUMN = {"dtype": "string", "_type": "Value"}
HUB_FEATURES: dict[str, dict[str, Any]] = {
    "id": TEXT_COLUMN,
    "query": TEXT_COLUMN,
    "response": {"feature": TEXT_COLUMN, "_type": "Sequence"},
    "image": {"_type": "Image"},
    "human_ranking": {"feature": {"dtype": "int64", "_type": "Value"}, "_type": "Sequence"},
    "models": {"feature": TEXT_COLUMN, "_type": "Sequence"},
    **dict.fromkeys(("judge", "rationale", "query_source", "ground_truth"), TEXT_COLUMN),
}
"""The types of the columns of VL-RewardBench in the form that the `datasets` library writes into a
parquet file. They make `image` an image when it is read again."""

RECORD_KEYS = (
    *("prompt", "chosen", "rejected"),
    *("chosen_critique", "rejected_critique", "rationale", "source", "category"),
)
"""The keys of a record that `write_records` writes next to its images."""


@dataclass(frozen=True, slots=True)
class EditionRow:
    """The item that a row of an edition is made of."""

    index: int
    stock: Stock
    item: WorldItem
    rng: Rng
    """The row's own random numbers."""


def _edition_rows(
    world: ShapesWorld, stocks: Sequence[Stock], num_rows: int
) -> Iterator[EditionRow]:
    """Yield the rows of an edition, from each of the stocks in turn."""
    for index in range(num_rows):
        stock = stocks[index % len(stocks)]
        yield EditionRow(index, stock, world.item(index, stock.kinds), Rng(index, world.seed))


def write_vl_rewardbench(folder: Path, world: ShapesWorld, num_rows: int) -> None:
    """Write VL-RewardBench's parquet file.

    The order of the responses is random, and `human_ranking` follows it.
    """
    import pyarrow as arrow  # type: ignore[import-untyped]
    import pyarrow.parquet as parquet  # type: ignore[import-untyped]

    records = []
    for row in _edition_rows(world, VL_STOCKS, num_rows):
        item = row.item
        responses = [item.chosen, item.rejected]
        ranking = [0, 1]
        chosen_first = row.rng.coin()
        if not chosen_first:
            responses.reverse()
            ranking.reverse()
        records.append(
            {
                "id": row.stock.id_form.format(row.index),
                "query": item.question,
                "response": responses,
                "image": {"bytes": png(*item.images()), "path": f"{row.index:04}.png"},
                "human_ranking": ranking,
                "models": ["shapes", "shapes"],
                "judge": "shapes",
                "rationale": item.rationale(chosen_first),
                "query_source": row.stock.group,
                "ground_truth": item.true.fact,
            }
        )
    metadata = {"huggingface": json.dumps({"info": {"features": HUB_FEATURES}})}
    (folder / "data").mkdir()
    parquet.write_table(
        arrow.Table.from_pylist(records, metadata=metadata),
        folder / "data" / "test-00000-of-00001.parquet",
    )


def write_multimodal_rewardbench(folder: Path, world: ShapesWorld, num_rows: int) -> None:
    """Write Multimodal RewardBench's all_data.json and images."""
    records = []
    for row in _edition_rows(world, MULTIMODAL_STOCKS, num_rows):
        item = row.item
        first = item.rejected
        second = item.chosen
        better = "Output2"
        if row.rng.coin():
            first, second = second, first
            better = "Output1"
        data_set, _, _ = row.stock.id_form.partition("_")
        images = _save(folder, f"images/{data_set}/{row.index:04}.png", item.images())
        records.append(
            {
                "Category": row.stock.group,
                "ID": row.stock.id_form.format(row.index // len(MULTIMODAL_STOCKS)),
                "Text": item.question,
                "Image": images[0] if images else "",
                "Output1": first,
                "Output2": second,
                "Better": better,
            }
        )
    (folder / "all_data.json").write_text(json.dumps(records, indent=1), encoding="utf-8")


def write_mm_rlhf_rewardbench(folder: Path, world: ShapesWorld, num_rows: int) -> None:
    """Write MM-RLHF-RewardBench's mm_reward_bench.jsonl and images.

    `num_rows` is rounded up to whole ids. The pairs of an id differ in the wording of the two
    answers. A request (safety) has no image of its own, and is shown with an unrelated one.
    """
    records = []
    num_ids = -(-num_rows // PAIRS)
    for row in _edition_rows(world, RLHF_STOCKS, num_ids):
        item = row.item
        images = item.images() or world.item(row.index, ("place",)).images()
        (image,) = _save(folder, f"{row.stock.group}/{row.index:04}.png", images)
        wordings = list(product(item.true.phrasings, item.false.phrasings))
        for chosen, rejected in row.rng.sample(wordings, PAIRS):
            records.append(
                {
                    "id": row.stock.id_form.format(row.index),
                    "image": image,
                    "prompt": item.question,
                    "chosen": chosen,
                    "rejected": rejected,
                    "chosen_reason": item.critique(True),
                    "rejected_reason": item.critique(False),
                }
            )
    write_json_lines(folder / "mm_reward_bench.jsonl", records)


def write_records(folder: Path, world: ShapesWorld, num_rows: int) -> None:
    """Write the first items in this project's format: records.jsonl and images/ in a new folder.

    Raises:
        FileExistsError: If `folder` exists already.
    """
    with _new_folder(folder) as new:
        records = []
        for index in range(num_rows):
            item = world.item(index)
            preference = item.preference()
            record: dict[str, Any] = {"images": _save(new, f"images/{index:06}.png", item.images())}
            for key in RECORD_KEYS:
                record[key] = getattr(preference, key)
            records.append(record)
        write_json_lines(new / "records.jsonl", records)


def _save(folder: Path, name: str, images: Sequence[Image.Image]) -> list[str]:
    """Write an item's image, if it has one, as `name` below `folder`; return the names written."""
    for image in images:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(png(image))
    return [name] * len(images)


@dataclass(frozen=True, slots=True)
class EditionWriter:
    """The function that writes the edition of a benchmark, and the edition's number of rows."""

    write: Callable[[Path, ShapesWorld, int], None]
    num_rows: int


EDITIONS = {
    "vl_rewardbench": EditionWriter(write_vl_rewardbench, 540),
    "multimodal_rewardbench": EditionWriter(write_multimodal_rewardbench, 560),
    "mm_rlhf_rewardbench": EditionWriter(write_mm_rlhf_rewardbench, 360),
}


def edition(name: str, level: str) -> Path:
    """Return the folder of the edition `name`, a key of EDITIONS.

    All editions of a level are written into the clone's cache when the first one is needed.
    """
    folder = CACHE / f"{level}-{code_digest('mmrm.data.synthetic.benchmark_files')}"
    if not folder.is_dir():
        with suppress(FileExistsError):  # another process was first, with the same rows
            write_editions(folder, level, 0)
    return folder / name


def write_editions(folder: Path, level: str, seed: int) -> None:
    """Write all editions into one new folder.

    Raises:
        FileExistsError: If `folder` exists already.
    """
    with _new_folder(folder) as new:
        for name, writer in EDITIONS.items():
            (new / name).mkdir()
            world = ShapesWorld(level, seed + number(name), "benchmark")
            writer.write(new / name, world, writer.num_rows)


def write_all(folder: Path, level: str, seed: int, num_rows: int) -> None:
    """Write `num_rows` training records, a tenth of this number for validation, and all editions.

    Raises:
        FileExistsError: If `folder` exists already.
    """
    num_validation_rows = max(1, num_rows // 10)
    with _new_folder(folder) as new:
        write_records(new / "train", ShapesWorld(level, seed, "train"), num_rows)
        validation = ShapesWorld(level, seed, "validation")
        write_records(new / "validation", validation, num_validation_rows)
        write_editions(new / "editions", level, seed)


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Provide a temporary folder that becomes `folder` at the end, or is removed after an error."""
    exists_already = FileExistsError(
        f"{folder} is there already, and existing files are not overwritten. Choose another "
        "folder, or remove this one."
    )
    if folder.exists():
        raise exists_already
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        new = Path(temporary) / folder.name
        new.mkdir()
        yield new
        if folder.exists():  # another process was faster
            raise exists_already
        new.rename(folder)

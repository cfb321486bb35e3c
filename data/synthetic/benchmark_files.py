"""Files of the embedded world: records in this project's own format, and editions in the benchmarks' official formats.

A folder is written under another name and renamed when it is whole. The same arguments give the same rows. The editions:

data/test-00000-of-00001.parquet      VL-RewardBench: the hub's columns, images inside
all_data.json + images/               Multimodal RewardBench; text-only safety rows have Image "": our extension
mm_reward_bench.jsonl + <section>/    MM-RLHF-RewardBench: several pairs an id, rows of an id together; no video
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from data.preference import Preference
from data.storage.code import code_digest
from data.storage.files import digest
from data.synthetic.rng import Rng, number
from data.synthetic.scenes import png
from data.synthetic.world import Item, ShapesWorld

PAIRS = 3
"""Pairs an id in the MM-RLHF-RewardBench edition."""


class _Stock(NamedTuple):
    """Rows of one origin: how the official file names them, and which question types stand for them."""

    group: str
    """The query source, category or section in the official file."""
    identity: str
    kinds: tuple[str, ...]


_VL_STOCKS = (
    _Stock("WildVision", "wildvision-battle-{}", ("description",)),
    _Stock("RLAIF-V", "RLAIF-V-{}", ("attribute",)),
    _Stock("MathVerse", "mathverse_{}", ("counting", "arithmetic")),
    _Stock("WildVision", "wildvision-battle-{}", ("description", "place")),
    _Stock("RLHF-V", "RLHF-V-{}", ("existence",)),
    _Stock("MathVerse", "mathverse_{}", ("comparison", "spatial")),
    _Stock("WildVision", "wildvision-battle-{}", ("place",)),
    _Stock("POVID", "hallucination_pair-{}", ("existence", "attribute")),
    _Stock("MMMU-Pro", "mmmu_pro_{}", ("counting", "comparison", "spatial", "arithmetic")),
)
_MULTIMODAL_STOCKS = (
    _Stock("correctness", "visitbench_{:04}", ("existence", "attribute", "place")),
    _Stock("preference", "nocaps_{:04}", ("description",)),
    _Stock("knowledge", "mmmu-s_{:04}", ("reading",)),
    _Stock("reasoning", "mathvista_{:04}", ("counting", "comparison", "spatial", "arithmetic")),
    _Stock("reasoning", "EMMA-Coding_{:04}", ("code",)),
    _Stock("safety", "pairs_{:04}", ("safety",)),
    _Stock("vqa", "MMBench_{:04}", ("attribute", "place")),
)
_RLHF_STOCKS = (
    _Stock("mcq", "mcq_{:04}", ("attribute", "place")),
    _Stock("long", "long_{:04}", ("description", "code")),
    _Stock("short", "short_{:04}", ("existence", "counting", "spatial")),
    _Stock("safety", "safety_{:04}", ("safety",)),
)
_TEXT, _NUMBER = ({"dtype": dtype, "_type": "Value"} for dtype in ("string", "int64"))
_HUB_FEATURES: dict[str, dict[str, Any]] = {
    "id": _TEXT,
    "query": _TEXT,
    "response": {"feature": _TEXT, "_type": "Sequence"},
    "image": {"_type": "Image"},
    "human_ranking": {"feature": _NUMBER, "_type": "Sequence"},
    "models": {"feature": _TEXT, "_type": "Sequence"},
    **dict.fromkeys(("judge", "rationale", "query_source", "ground_truth"), _TEXT),
}
"""How the `datasets` library notes the columns in a parquet file; it is what makes `image` an image again."""


def write_vl_rewardbench(folder: Path, world: ShapesWorld, rows: int) -> None:
    """Write VL-RewardBench's parquet file; the order of the responses is random, `human_ranking` goes with it."""
    import pyarrow as arrow  # type: ignore[import-untyped]
    import pyarrow.parquet as parquet  # type: ignore[import-untyped]

    texts, numbers = arrow.list_(arrow.string()), arrow.list_(arrow.int64())
    image = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
    types = {"response": texts, "models": texts, "human_ranking": numbers, "image": image}
    schema = arrow.schema([(name, types.get(name, arrow.string())) for name in _HUB_FEATURES])
    schema = schema.with_metadata({"huggingface": json.dumps({"info": {"features": _HUB_FEATURES}})})
    table = arrow.Table.from_pylist([_vl_row(world, index) for index in range(rows)], schema=schema)
    (folder / "data").mkdir()
    parquet.write_table(table, folder / "data" / "test-00000-of-00001.parquet")


def _vl_row(world: ShapesWorld, index: int) -> dict[str, Any]:
    """Return row `index` in the hub's columns."""
    stock = _VL_STOCKS[index % len(_VL_STOCKS)]
    item = world.item(index, stock.kinds)
    chosen_first = Rng(index, world.seed).coin()
    return {
        "id": stock.identity.format(index),
        "query": item.question,
        "response": [item.chosen, item.rejected] if chosen_first else [item.rejected, item.chosen],
        "image": {"bytes": _png(item), "path": f"{index:04}.png"},
        "human_ranking": [0, 1] if chosen_first else [1, 0],
        "models": ["shapes", "shapes"],
        "judge": "shapes",
        "rationale": item.rationale(chosen_first),
        "query_source": stock.group,
        "ground_truth": item.true.fact,
    }


def write_multimodal_rewardbench(folder: Path, world: ShapesWorld, rows: int) -> None:
    """Write Multimodal RewardBench's all_data.json and images."""
    found = [_multimodal_row(folder, world, index) for index in range(rows)]
    (folder / "all_data.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


def _multimodal_row(folder: Path, world: ShapesWorld, index: int) -> dict[str, str]:
    """Return row `index`, its image written below `folder`."""
    stock = _MULTIMODAL_STOCKS[index % len(_MULTIMODAL_STOCKS)]
    item = world.item(index, stock.kinds)
    chosen_first = Rng(index, world.seed).coin()
    image = ""
    if item.scene is not None:
        image = f"images/{stock.identity.partition('_')[0]}/{index:04}.png"
        _save(folder / image, _png(item))
    return {
        "Category": stock.group,
        "ID": stock.identity.format(index // len(_MULTIMODAL_STOCKS)),
        "Text": item.question,
        "Image": image,
        "Output1": item.chosen if chosen_first else item.rejected,
        "Output2": item.rejected if chosen_first else item.chosen,
        "Better": "Output1" if chosen_first else "Output2",
    }


def write_mm_rlhf_rewardbench(folder: Path, world: ShapesWorld, rows: int) -> None:
    """Write MM-RLHF-RewardBench's mm_reward_bench.jsonl and images; `rows` is rounded up to whole ids."""
    ids = range(-(-rows // PAIRS))
    _json_lines(folder / "mm_reward_bench.jsonl", (row for index in ids for row in _rlhf_rows(folder, world, index)))


def _rlhf_rows(folder: Path, world: ShapesWorld, index: int) -> list[dict[str, str]]:
    """Return the pairs of one id, its image written below `folder`.

    The pairs differ in how the two answers are put. A request (safety) is shown with an image that has no part in it.
    """
    stock = _RLHF_STOCKS[index % len(_RLHF_STOCKS)]
    item = world.item(index, stock.kinds)
    image = f"{stock.group}/{index:04}.png"
    _save(folder / image, _png(item if item.scene is not None else world.item(index, ("place",))))
    wordings = list(product(item.true.phrasings, item.false.phrasings))
    return [
        {
            "id": stock.identity.format(index),
            "image": image,
            "prompt": item.question,
            "chosen": chosen,
            "rejected": rejected,
            "chosen_reason": item.critique(True),
            "rejected_reason": item.critique(False),
        }
        for chosen, rejected in Rng(index, world.seed).sample(wordings, PAIRS)
    ]


def _png(item: Item) -> bytes:
    picture = item.picture()
    assert picture is not None
    return png(picture)


def _save(path: Path, content: bytes) -> None:
    """Write a file, and the folder it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _json_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object a line."""
    with path.open("w", encoding="utf-8") as lines:
        lines.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


SIZES = {"vl_rewardbench": 540, "multimodal_rewardbench": 560, "mm_rlhf_rewardbench": 360}
"""Rows of each edition."""
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "editions"

_WRITERS: dict[str, Callable[[Path, ShapesWorld, int], None]] = {
    "vl_rewardbench": write_vl_rewardbench,
    "multimodal_rewardbench": write_multimodal_rewardbench,
    "mm_rlhf_rewardbench": write_mm_rlhf_rewardbench,
}


def edition(name: str, level: str = "demo") -> Path:
    """Return the folder of the edition `name` (a key of SIZES); it is written into the clone's cache when first asked for."""
    code = code_digest("data.synthetic.benchmark_files")
    folder = CACHE / f"{level}-{digest(f'{SIZES} {code}')}"
    if not folder.is_dir():
        with suppress(FileExistsError):  # another process was first, with the same rows
            write_editions(folder, level, 0, SIZES)
    return folder / name


def write_editions(folder: Path, level: str, seed: int, sizes: Mapping[str, int]) -> None:
    """Write the editions that `sizes` names, with that many rows each, into one new folder.

    Raises: ValueError if a name is unknown; FileExistsError if `folder` is there already.
    """
    unknown = sorted(sizes.keys() - _WRITERS.keys())
    if unknown:
        raise ValueError(f"there is no edition {', '.join(unknown)}; there are {', '.join(_WRITERS)}")
    with _whole(folder) as new:
        for name, rows in sizes.items():
            (new / name).mkdir()
            _WRITERS[name](new / name, ShapesWorld(level, seed + number(name), "benchmark"), rows)


def write_records(folder: Path, world: ShapesWorld, rows: int) -> None:
    """Write the first `rows` items in this project's own format: records.jsonl and images/ in one new folder.

    Raises: FileExistsError if `folder` is there already.
    """
    with _whole(folder) as new:
        _json_lines(new / "records.jsonl", (_record(new, world.preference(index), index) for index in range(rows)))


def write_all(folder: Path, level: str, seed: int, rows: int) -> None:
    """Write `rows` training records, a tenth as many for validation, and all editions.

    Raises: FileExistsError if `folder` is there already.
    """
    with _whole(folder) as new:
        write_records(new / "train", ShapesWorld(level, seed, "train"), rows)
        write_records(new / "validation", ShapesWorld(level, seed, "validation"), max(1, rows // 10))
        write_editions(new / "editions", level, seed, SIZES)


def _record(folder: Path, record: Preference, index: int) -> dict[str, Any]:
    """Return item `index` as a row of this project's own format, its image written beside it."""
    images = []
    for image in record.images:
        assert isinstance(image, bytes)
        images.append(f"images/{index:06}.png")
        _save(folder / images[-1], image)
    kept = ("prompt", "chosen", "rejected", "chosen_critique", "rejected_critique", "rationale", "source", "category")
    return {"images": images} | {name: getattr(record, name) for name in kept}


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """Give a temporary folder that becomes `folder` at the end, or vanishes with an error."""
    there = FileExistsError(f"{folder} is there already, and nothing is written over: name another folder, or remove this one")
    if folder.exists():
        raise there
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        yield new
        new.chmod(0o755)  # mkdtemp's folders are for their owner alone
        if folder.exists():  # another process was faster
            raise there
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)

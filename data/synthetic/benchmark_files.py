"""Files of generated data: records in this project's format, and editions of the benchmarks.

An edition of a benchmark is a file of generated rows in the benchmark's official format, so that
everything that reads the benchmark can be tested without its data. The same arguments give the same
rows. A folder is written under another name, and renamed when all its files are there. The formats:

data/test-00000-of-00001.parquet
    VL-RewardBench: the hub's columns, with the images inside.
all_data.json + images/
    Multimodal RewardBench. Safety rows without an image have Image "", which is our extension.
mm_reward_bench.jsonl + <section>/
    MM-RLHF-RewardBench: several pairs an id, the rows of an id together, and no video.
data/test-00000-of-00001.parquet, without images
    RewardBench 2: one right and three wrong responses, or several of each (reward_bench_edition.py).
"""

import json
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from PIL import Image

from mmrm.data.package import cache_folder
from mmrm.data.storage.code_digest import code_digest
from mmrm.data.storage.files import write_json_lines
from mmrm.data.synthetic.reward_bench_edition import write_reward_bench_2
from mmrm.data.synthetic.rng import Rng, stable_hash
from mmrm.data.synthetic.scenes import png
from mmrm.data.synthetic.world import GeneratedItem, ShapesGenerator

PAIRS = 3
"""Number of pairs with the same id in the MM-RLHF-RewardBench edition."""


@dataclass(frozen=True, slots=True)
class RowTemplate:
    """A kind of rows in a benchmark, and the types of generated questions that imitate them."""

    group: str
    """The query source, category or section in the official file."""
    id_form: str
    """The form of the ids, for `str.format` with the number of the row."""
    kinds: tuple[str, ...]
    """The types of the generated questions, keys of QUESTION_TYPES or TEXT_TYPES."""


VL_ROWS = (
    RowTemplate("WildVision", "wildvision-battle-{}", ("description",)),
    RowTemplate("RLAIF-V", "RLAIF-V-{}", ("attribute",)),
    RowTemplate("MathVerse", "mathverse_{}", ("counting", "arithmetic")),
    RowTemplate("WildVision", "wildvision-battle-{}", ("description", "place")),
    RowTemplate("RLHF-V", "RLHF-V-{}", ("existence",)),
    RowTemplate("MathVerse", "mathverse_{}", ("comparison", "spatial")),
    RowTemplate("WildVision", "wildvision-battle-{}", ("place",)),
    RowTemplate("POVID", "hallucination_pair-{}", ("existence", "attribute")),
    RowTemplate("MMMU-Pro", "mmmu_pro_{}", ("counting", "comparison", "spatial", "arithmetic")),
)
MULTIMODAL_ROWS = (
    RowTemplate("correctness", "visitbench_{:04}", ("existence", "attribute", "place")),
    RowTemplate("preference", "nocaps_{:04}", ("description",)),
    RowTemplate("knowledge", "mmmu-s_{:04}", ("reading",)),
    RowTemplate(
        "reasoning", "mathvista_{:04}", ("counting", "comparison", "spatial", "arithmetic")
    ),
    RowTemplate("reasoning", "EMMA-Coding_{:04}", ("code",)),
    RowTemplate("safety", "pairs_{:04}", ("safety",)),
    RowTemplate("vqa", "MMBench_{:04}", ("attribute", "place")),
)
RLHF_ROWS = (
    RowTemplate("mcq", "mcq_{:04}", ("attribute", "place")),
    RowTemplate("long", "long_{:04}", ("description", "code")),
    RowTemplate("short", "short_{:04}", ("existence", "counting", "spatial")),
    RowTemplate("safety", "safety_{:04}", ("safety",)),
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
    """A generated item that becomes a row of a benchmark's file, or several rows of one id."""

    index: int
    template: RowTemplate
    item: GeneratedItem
    rng: Rng
    """Draws what is random about the row, such as the order of its responses."""


def _edition_rows(
    generator: ShapesGenerator, templates: Sequence[RowTemplate], num_rows: int
) -> Iterator[EditionRow]:
    """Yield generated items for the rows of a benchmark's file, with each template in turn."""
    for index in range(num_rows):
        template = templates[index % len(templates)]
        item = generator.item(index, template.kinds)
        yield EditionRow(index, template, item, Rng(index, generator.seed))


def write_vl_rewardbench(folder: Path, generator: ShapesGenerator, num_rows: int) -> None:
    """Write a parquet file with generated rows in the format of VL-RewardBench.

    The order of the responses is random, and `human_ranking` follows it.

    Args:
        folder: The existing folder to write into.
        generator: Makes the questions and answers.
        num_rows: Number of rows.
    """
    import pyarrow as arrow  # type: ignore[import-untyped]
    import pyarrow.parquet as parquet  # type: ignore[import-untyped]

    records = []
    for row in _edition_rows(generator, VL_ROWS, num_rows):
        item = row.item
        responses = [item.chosen, item.rejected]
        ranking = [0, 1]
        chosen_first = row.rng.coin()
        if not chosen_first:
            responses.reverse()
            ranking.reverse()
        records.append(
            {
                "id": row.template.id_form.format(row.index),
                "query": item.question,
                "response": responses,
                "image": {"bytes": png(*item.images()), "path": f"{row.index:04}.png"},
                "human_ranking": ranking,
                "models": ["shapes", "shapes"],
                "judge": "shapes",
                "rationale": item.rationale(chosen_first),
                "query_source": row.template.group,
                "ground_truth": item.true.fact,
            }
        )
    metadata = {"huggingface": json.dumps({"info": {"features": HUB_FEATURES}})}
    (folder / "data").mkdir()
    parquet.write_table(
        arrow.Table.from_pylist(records, metadata=metadata),
        folder / "data" / "test-00000-of-00001.parquet",
    )


def write_multimodal_rewardbench(folder: Path, generator: ShapesGenerator, num_rows: int) -> None:
    """Write all_data.json and images with generated rows in Multimodal RewardBench's format.

    Args:
        folder: The existing folder to write into.
        generator: Makes the questions and answers.
        num_rows: Number of rows.
    """
    records = []
    for row in _edition_rows(generator, MULTIMODAL_ROWS, num_rows):
        item = row.item
        first = item.rejected
        second = item.chosen
        better = "Output2"
        if row.rng.coin():
            first, second = second, first
            better = "Output1"
        data_set, _, _ = row.template.id_form.partition("_")
        images = _save(folder, f"images/{data_set}/{row.index:04}.png", item.images())
        records.append(
            {
                "Category": row.template.group,
                "ID": row.template.id_form.format(row.index // len(MULTIMODAL_ROWS)),
                "Text": item.question,
                "Image": images[0] if images else "",
                "Output1": first,
                "Output2": second,
                "Better": better,
            }
        )
    (folder / "all_data.json").write_text(json.dumps(records, indent=1), encoding="utf-8")


def write_mm_rlhf_rewardbench(folder: Path, generator: ShapesGenerator, num_rows: int) -> None:
    """Write mm_reward_bench.jsonl and images with generated rows in MM-RLHF-RewardBench's format.

    Each id has PAIRS rows, which differ in the wording of the two answers. A request (safety) has
    no image of its own, and is shown with an unrelated one.

    Args:
        folder: The existing folder to write into.
        generator: Makes the questions and answers.
        num_rows: Number of rows, which is rounded up to a multiple of PAIRS.
    """
    records = []
    num_ids = math.ceil(num_rows / PAIRS)
    for row in _edition_rows(generator, RLHF_ROWS, num_ids):
        item = row.item
        images = item.images()
        if not images:
            images = generator.item(row.index, ("place",)).images()
        (image,) = _save(folder, f"{row.template.group}/{row.index:04}.png", images)
        wordings = list(product(item.true.phrasings, item.false.phrasings))
        for chosen, rejected in row.rng.sample(wordings, PAIRS):
            records.append(
                {
                    "id": row.template.id_form.format(row.index),
                    "image": image,
                    "prompt": item.question,
                    "chosen": chosen,
                    "rejected": rejected,
                    "chosen_reason": item.critique(chosen=True),
                    "rejected_reason": item.critique(chosen=False),
                }
            )
    write_json_lines(folder / "mm_reward_bench.jsonl", records)


def write_records(folder: Path, generator: ShapesGenerator, num_rows: int) -> None:
    """Write records.jsonl and images/ with generated items in this project's format.

    Args:
        folder: The folder to make.
        generator: Makes the questions and answers.
        num_rows: Number of items, from item 0.

    Raises:
        FileExistsError: If `folder` exists already.
    """
    with _new_folder(folder) as temporary_folder:
        records = []
        for index in range(num_rows):
            item = generator.item(index)
            preference = item.preference()
            images = _save(temporary_folder, f"images/{index:06}.png", item.images())
            record: dict[str, Any] = {"images": images}
            for key in RECORD_KEYS:
                record[key] = getattr(preference, key)
            record["chosen"] = preference.chosen.text
            record["rejected"] = preference.rejected.text
            records.append(record)
        write_json_lines(temporary_folder / "records.jsonl", records)


def _save(folder: Path, name: str, images: Sequence[Image.Image]) -> list[str]:
    """Write an item's image to the file `name` in `folder`, and return its name in a list.

    `images` is empty for an item without an image. Nothing is written then, and the result is
    empty, too.
    """
    for image in images:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(png(image))
    return [name] * len(images)


@dataclass(frozen=True, slots=True)
class EditionWriter:
    """A function that writes generated rows in a benchmark's format, and their number."""

    write: Callable[[Path, ShapesGenerator, int], None]
    """Writes so many rows with items of the generator into an existing folder."""
    num_rows: int


EDITIONS = {
    "vl_rewardbench": EditionWriter(write_vl_rewardbench, 540),
    "multimodal_rewardbench": EditionWriter(write_multimodal_rewardbench, 560),
    "mm_rlhf_rewardbench": EditionWriter(write_mm_rlhf_rewardbench, 360),
    "reward_bench_2": EditionWriter(write_reward_bench_2, 360),
}


def edition(name: str, level: str) -> Path:
    """Return the folder of a benchmark's edition: generated rows in the benchmark's format.

    All editions of a level are written into the cache folder when the first one is needed.

    Args:
        name: The benchmark, a key of EDITIONS.
        level: The level of difficulty, a key of LEVELS.
    """
    name_of_level = f"{level}-{code_digest('mmrm.data.synthetic.benchmark_files')}"
    folder = cache_folder() / "editions" / name_of_level
    if not folder.is_dir():
        with suppress(FileExistsError):  # another process was first, with the same rows
            write_editions(folder, level, 0)
    return folder / name


def write_editions(folder: Path, level: str, seed: int) -> None:
    """Write generated rows in the formats of all benchmarks into subfolders of a new folder.

    Args:
        folder: The folder to make.
        level: The level of difficulty, a key of LEVELS.
        seed: Seed of the items.

    Raises:
        FileExistsError: If `folder` exists already.
    """
    with _new_folder(folder) as temporary_folder:
        for name, writer in EDITIONS.items():
            edition_folder = temporary_folder / name
            edition_folder.mkdir()
            generator = ShapesGenerator(level, seed + stable_hash(name), "benchmark")
            writer.write(edition_folder, generator, writer.num_rows)


def write_all(folder: Path, level: str, seed: int, num_rows: int) -> None:
    """Write generated training records, validation records and benchmarks into a new folder.

    Its subfolders are train, validation and editions.

    Args:
        folder: The folder to make.
        level: The level of difficulty, a key of LEVELS.
        seed: Seed of the items.
        num_rows: Number of training records. A tenth of this number is written for validation.

    Raises:
        FileExistsError: If `folder` exists already.
    """
    num_validation_rows = max(1, num_rows // 10)
    with _new_folder(folder) as temporary_folder:
        training_data = ShapesGenerator(level, seed, "train")
        write_records(temporary_folder / "train", training_data, num_rows)
        validation_data = ShapesGenerator(level, seed, "validation")
        write_records(temporary_folder / "validation", validation_data, num_validation_rows)
        write_editions(temporary_folder / "editions", level, seed)


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Make an empty folder to write into, for a `with` statement.

    It has a temporary name, and is renamed to `folder` at the end. After an error it is removed.

    Raises:
        FileExistsError: If `folder` exists at the beginning or at the end.
    """
    exists_already = FileExistsError(
        f"{folder} is there already, and existing files are not overwritten. Choose another "
        "folder, or remove this one."
    )
    if folder.exists():
        raise exists_already
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as parent:
        new_folder = Path(parent) / folder.name
        new_folder.mkdir()
        yield new_folder
        if folder.exists():  # another process was faster
            raise exists_already
        new_folder.rename(folder)

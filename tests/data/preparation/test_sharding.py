"""Shards have the records of their source, and an order of few shards at one time is a fair one."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from pydantic import ValidationError

from mmrm.data.encoded_video import Video
from mmrm.data.errors import UserError
from mmrm.data.preference import Preference, texts
from mmrm.data.preparation import sharding
from mmrm.data.preparation.inspection import inspect
from mmrm.data.preparation.mixing import Mixture
from mmrm.data.preparation.sharding import PLAN, lines_about
from mmrm.data.sources.shared.source import SourceConfig
from mmrm.data.storage.shard_files import MANIFEST
from tests.data.mixtures import mixture, project, row
from tests.data.shards import source_config, written_shards
from tests.data.sources.fixtures import BLUE, RED, write_images


def everything(record: Preference) -> tuple[Any, ...]:
    """Return all that a record holds but its identity, with the bytes of its images."""

    def content(value: Any) -> Any:
        if isinstance(value, Path):
            return value.read_bytes()
        if isinstance(value, Video):
            return ("video", content(value.content))
        if isinstance(value, tuple | list):
            return [content(item) for item in value]
        return value

    values = []
    for field in fields(record):
        value = getattr(record, field.name)
        if field.name == "responses":
            value = [response.content for response in value]
        if field.name != "identity":
            values.append(content(value))
    return tuple(repr(value) for value in values)


@pytest.fixture
def rich(tmp_path: Path) -> dict[str, Any]:
    """Return a source with records of every kind, of which one cannot be used."""
    write_images(tmp_path, red=RED, blue=BLUE)
    parts = [{"type": "text", "text": "see "}, {"type": "image", "image": "blue.png"}]
    rows = [
        row("plain"),
        row("seen", images=["red.png"], margin=0.25, category="colour", source="me"),
        row("seen again", images=["red.png"], difficulty=3),
        row("two", images=["red.png", "blue.png"], chosen_critique="c", rejected_critique="d"),
        row("parts", images=["red.png"]) | {"chosen": parts},
        row("reasons", images=["red.png"], rationale="r", first_in_rationale="rejected"),
        {"prompt": "list", "responses": ["a", "b", "c"], "ranks": [1, 0, 1]},
        {
            "prompt": "rated",
            "responses": ["a", "b"],
            "ratings": {"x": [1, 2.5], "y": [None, 3]},
            "images": ["blue.png"],
        },
        {"prompt": "tied", "responses": ["a", "b"], "ranks": [1, 1]},
        row("lost", images=["lost.png"]),
    ]
    return project(tmp_path, "rich", rows, pairs="none", ties="keep")


def test_records_are_those_of_the_source(tmp_path: Path, rich: dict[str, Any]) -> None:
    manifest = written_shards(tmp_path / "shards", source_config(**rich), size=500)
    assert len(manifest.files) > 2
    shards = {"type": "shards", "path": str(tmp_path / "shards"), "pairs": "none", "ties": "keep"}
    shards["name"] = "rich"  # records without a source have that of the section
    limit = {"bad_records": {"limit": 1.0}}
    before = mixture(tmp_path, [rich], **limit)
    after = mixture(tmp_path, [shards], **limit)
    assert len(after) == len(before) == 9
    expected = {everything(before[index]) for index in range(9)}
    assert {everything(after[index]) for index in range(9)} == expected
    # Decisions and lists of records name a record by its content, so they hold for shards, too.
    assert set(before.decision_keys().tolist()) == set(after.decision_keys().tolist())
    assert manifest.made_of.left_out == {"bad_image": 1}
    lines = lines_about(manifest, tmp_path / "my, shards")
    assert lines[1] == "left out: 1 (bad_image)"
    assert lines[2].endswith('my, shards", pairs: none, ties: keep}')


def test_the_order_of_the_source_is_kept(tmp_path: Path) -> None:
    """It is a shortcut of the data card: here the first response is always the better one."""
    rows = [
        {"prompt": str(number), "responses": ["good", "bad"], "ranks": [0, 1]}
        for number in range(20)
    ]
    config = source_config(**project(tmp_path, "first", rows))
    written_shards(tmp_path / "shards", config)
    found = mixture(tmp_path, [{"type": "shards", "path": str(tmp_path / "shards")}])
    assert {found[index].positions for index in range(20)} == {(0, 1)}


def test_questions_are_refused(tmp_path: Path) -> None:
    config = source_config(type="questions", path=str(tmp_path))
    with pytest.raises(UserError, match="questions have no responses"):
        written_shards(tmp_path / "shards", config)


def test_lists_and_ties_are_those_of_the_section(tmp_path: Path, rich: dict[str, Any]) -> None:
    written_shards(tmp_path / "shards", source_config(**rich))
    found = mixture(tmp_path, [{"type": "shards", "path": str(tmp_path / "shards")}])
    assert found.splits[0].left_out == {"tie": 1}
    assert all(len(found[index].responses) == 2 for index in range(len(found)))


def numbered(folder: Path, number: int, **changes: Any) -> dict[str, Any]:
    """Return a source of numbered records of ten topics, one topic after the other."""
    rows = [row(f"{10 * index // number} of topic, {index}") for index in range(number)]
    return project(folder, "numbered", rows, **changes)


def test_records_of_an_image_or_a_prompt_are_in_one_shard(tmp_path: Path) -> None:
    write_images(tmp_path, **{f"image{number}": RED + bytes([number]) for number in range(20)})
    rows = []
    for index in range(200):
        images = {"images": [f"image{index % 20}.png"]} if index % 2 else {}
        rows.append(row(f"prompt {index % 40}", chosen=str(index), **images))
    config = source_config(**project(tmp_path, "shared", rows))
    written_shards(tmp_path / "shards", config, size=2000)
    found = mixture(tmp_path, [{"type": "shards", "path": str(tmp_path / "shards")}])
    ends = found.splits[0].block_ends
    assert len(ends) > 5
    shards_of_group: dict[Any, set[int]] = {}
    for index in range(len(found)):
        record = found[index]
        group = record.images[0] if record.images else texts(record.prompt)[0]
        shard = int(np.searchsorted(ends, index, side="right"))
        shards_of_group.setdefault(group, set()).add(shard)
    assert {len(shards) for shards in shards_of_group.values()} == {1}


def test_the_order_in_shards_is_random_and_of_the_seed(tmp_path: Path) -> None:
    config = source_config(**numbered(tmp_path, 300))
    orders = []
    for name, seed in (("first", 0), ("again", 0), ("other", 1)):
        written_shards(tmp_path / name, config, seed=seed)
        found = mixture(tmp_path, [{"type": "shards", "path": str(tmp_path / name)}])
        texts = [found[index].responses[0].text for index in range(300)]
        orders.append([int(text.split(", ")[1]) for text in texts])
    assert orders[0] == orders[1] != orders[2]
    # The mean step between neighbours of a random order of n numbers is n / 3.
    assert 80 < np.abs(np.diff(orders[0])).mean() < 120


def test_workers_write_the_same_shards(tmp_path: Path) -> None:
    config = source_config(**numbered(tmp_path, 300))
    alone = written_shards(tmp_path / "alone", config, size=3000)
    together = written_shards(tmp_path / "together", config, size=3000, workers=3)
    assert alone.files == together.files


def interrupt(
    monkeypatch: pytest.MonkeyPatch, folder: Path, config: SourceConfig, before_shard: int
) -> None:
    """Make shards of 3,000 bytes, and interrupt the command before it writes one of them."""
    write_shard = sharding._write_shard

    def interrupted(source: Any, order: Any, folder: Path, job: tuple[int, int, int]) -> Any:
        if job[0] == before_shard:
            raise KeyboardInterrupt
        return write_shard(source, order, folder, job)

    with monkeypatch.context() as patch:
        patch.setattr(sharding, "_write_shard", interrupted)
        with pytest.raises(KeyboardInterrupt):
            written_shards(folder, config, size=3000)


def test_an_interrupted_command_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = source_config(**numbered(tmp_path, 300))
    whole = written_shards(tmp_path / "whole", config, size=3000)
    folder = tmp_path / "shards"
    interrupt(monkeypatch, folder, config, before_shard=3)
    assert not (folder / MANIFEST).exists()
    written_at = [(folder / f"0000{number}.shard").stat().st_mtime_ns for number in range(3)]
    with pytest.raises(UserError, match="parts of other shards"):
        written_shards(folder, config, size=3000, seed=1)
    assert written_shards(folder, config, size=3000) == whole
    kept_at = [(folder / f"0000{number}.shard").stat().st_mtime_ns for number in range(3)]
    assert written_at == kept_at
    names = sorted(path.name for path in folder.iterdir())
    assert PLAN not in names
    assert names == sorted(path.name for path in (tmp_path / "whole").iterdir())
    with pytest.raises(UserError, match="has shards already"):
        written_shards(folder, config)


def test_parts_are_kept_only_if_the_records_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images are no part of a source's fingerprint, and other usable records are another order."""
    write_images(tmp_path, red=RED)
    rows = [row(str(number), images=["red.png"] if number % 2 else []) for number in range(200)]
    rows[7] = row("7", images=["lost.png"])
    config = source_config(**project(tmp_path, "some", rows))
    folder = tmp_path / "shards"
    interrupt(monkeypatch, folder, config, before_shard=2)
    write_images(tmp_path, lost=BLUE)
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(UserError, match="the source has changed since"):
        written_shards(folder, config, size=3000)


def test_other_files_and_a_file_are_refused(tmp_path: Path) -> None:
    config = source_config(**numbered(tmp_path, 30))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    with pytest.raises(UserError, match=r"has other files, such as notes\.txt"):
        written_shards(tmp_path / "full", config)
    with pytest.raises(UserError, match="is a file; required is a folder"):
        written_shards(tmp_path / "full" / "notes.txt", config)


def test_leftovers_of_a_killed_command_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = source_config(**numbered(tmp_path, 30))
    folder = tmp_path / "shards"

    def killed(source: Any, order: Any, folder: Path, job: tuple[int, int, int]) -> Any:
        (folder / "00000.shard.0f.tmp").touch()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sharding, "_write_shard", killed)
        with pytest.raises(KeyboardInterrupt):
            written_shards(folder, config)
    assert (folder / "00000.shard.0f.tmp").exists()
    written_shards(folder, config)
    assert sorted(path.name for path in folder.iterdir()) == ["00000.shard", "index.npy", MANIFEST]


def test_keys_of_recipes_are_refused(tmp_path: Path) -> None:
    for key, value in (("cap", 10), ("repeat", 2.0), ("weight", 3.0)):
        config = source_config(**numbered(tmp_path, 30), **{key: value})
        with pytest.raises(UserError, match=f"the key {key} chooses records for an epoch"):
            written_shards(tmp_path / "shards", config)


def test_a_record_that_became_unusable_is_named(tmp_path: Path) -> None:
    write_images(tmp_path, red=RED)
    rows = [row("seen", images=["red.png"]), row("told")]
    config = source_config(**project(tmp_path, "some", rows))
    written_shards(tmp_path / "first", config)
    (tmp_path / "red.png").unlink()
    with pytest.raises(UserError, match=r"red\.png.*could be used when the source was read first"):
        written_shards(tmp_path / "second", config)


def test_sizes_are_those_that_were_asked_for(tmp_path: Path) -> None:
    """Also if the records of an image are many, so that the image counts for all of them."""
    write_images(tmp_path, **{f"image{number}": RED + bytes(2000) for number in range(30)})
    rows = [row(str(number), images=[f"image{number % 30}.png"]) for number in range(900)]
    config = source_config(**project(tmp_path, "shared", rows))
    manifest = written_shards(tmp_path / "shards", config, size=20_000)
    sizes = [file.size for file in manifest.files[:-1]]
    assert all(10_000 < size < 40_000 for size in sizes)


def test_a_pool_without_a_drawn_record_is_passed_over(tmp_path: Path) -> None:
    sections: list[dict[str, Any]] = []
    for name, number, keys in (("many", 3000, {}), ("few", 30, {"cap": 1})):
        folder = tmp_path / name
        written_shards(folder / "shards", source_config(**numbered(folder, number)))
        sections.append({"type": "shards", "name": name, "path": str(folder / "shards"), **keys})
    found = mixture(tmp_path, sections, shards_together=2, records=100)
    assert len(found.order(0)) == 100


def test_a_source_without_a_usable_record_is_refused(tmp_path: Path) -> None:
    rows = [row(str(number), images=["lost.png"]) for number in range(3)]
    with pytest.raises(UserError, match="no usable record"):
        written_shards(tmp_path / "shards", source_config(**project(tmp_path, "lost", rows)))


def test_a_folder_of_shards_is_recognised(tmp_path: Path) -> None:
    written_shards(tmp_path / "shards", source_config(**numbered(tmp_path, 30)))
    lines = list(inspect(tmp_path / "shards", None, tmp_path / "cache", 1))
    assert lines[0].startswith("30 records, shards: 1, ")
    assert "{type: shards, path: " in lines[-1]


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    written_shards(tmp_path / "shards", source_config(**numbered(tmp_path, 30)))
    with pytest.raises(UserError, match="is a file; required is the folder"):
        mixture(tmp_path, [{"type": "shards", "path": str(tmp_path / "shards" / MANIFEST)}])


# The order of an epoch that draws from few shards at one time


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with 3,000 records of ten topics in about 30 shards, and 600 in a file."""
    folder = tmp_path_factory.mktemp("sharded")
    written_shards(folder / "shards", source_config(**numbered(folder, 3000)), size=10_000)
    project(folder, "told", [row(f"told {number}") for number in range(600)])
    return folder


def both(folder: Path, shards_together: int | None, **changes: Any) -> Mixture:
    shards = {"type": "shards", "path": str(folder / "shards")} | changes
    told = {"type": "project", "name": "told", "path": str(folder / "told.jsonl")}
    return mixture(folder, [shards, told], shards_together=shards_together)


def shards_of(found: Mixture, order: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
    """Return the shard of every record of an order that is in one."""
    rows = found.splits[0].rows
    rows_in_order = rows[order[order < len(rows)]]
    return np.asarray(np.searchsorted(found.splits[0].block_ends, rows_in_order, side="right"))


@pytest.mark.parametrize("shards_together", [1, 3, 1000])
def test_an_epoch_has_all_records(sharded: Path, shards_together: int) -> None:
    found = both(sharded, shards_together)
    orders = [found.order(epoch) for epoch in range(3)]
    for order in orders:
        assert sorted(order.tolist()) == list(range(3600))
    assert not np.array_equal(orders[0], orders[1])
    # A resumed run, and every rank, has the same order.
    assert np.array_equal(both(sharded, shards_together).order(2), orders[2])


def test_few_shards_are_read_at_one_time(sharded: Path) -> None:
    found = both(sharded, 3)
    num_shards = len(found.splits[0].block_ends)
    assert num_shards > 25
    for epoch in range(3):
        shards = shards_of(found, found.order(epoch))
        windows = [shards[start : start + 64] for start in range(0, len(shards), 64)]
        # A step at the border of two windows reads from both.
        assert max(len(set(window.tolist())) for window in windows) <= 6
        # Each shard is read in one part of the epoch.
        for shard in range(num_shards):
            places = np.flatnonzero(shards == shard)
            assert places[-1] - places[0] < 0.15 * len(shards)
    unrestricted = shards_of(found, both(sharded, None).order(0))
    assert len(set(unrestricted[:64].tolist())) > 20


def test_every_epoch_draws_shards_and_their_records_anew(sharded: Path) -> None:
    found = both(sharded, 3)
    first_shards = []
    orders_of_a_shard = []
    for epoch in range(4):
        order = found.order(epoch)
        shards = shards_of(found, order)
        # The first 150 records are of the first three shards, which have about 100 each.
        first_shards.append(frozenset(shards[:150].tolist()))
        # The records of these shards alternate.
        assert np.count_nonzero(np.diff(shards[:150])) > 70
        orders_of_a_shard.append(tuple(order[order < 3000][shards == 5].tolist()))
    assert len(set(first_shards)) > 1
    assert len(set(orders_of_a_shard)) == 4
    assert len({frozenset(order) for order in orders_of_a_shard}) == 1


def test_sources_are_mixed_evenly(sharded: Path) -> None:
    for shards_together in (1, 5):
        order = both(sharded, shards_together).order(0)
        shares = [(part >= 3000).mean() for part in np.array_split(order, 20)]
        # With a random order the standard deviation is 0.028, and here each source is spread evenly.
        assert np.abs(np.array(shares) - 1 / 6).max() < 0.03


def test_steps_are_as_diverse_as_in_a_random_order(sharded: Path) -> None:
    """The source has one topic after the other; shards have records of all topics."""

    def variance_of_topics(shards_together: int | None) -> float:
        """Return the variance over steps of the number of records of a topic, over five epochs."""
        found = both(sharded, shards_together)
        topics = np.array([int(found[index].responses[0].text.split()[1]) for index in range(3000)])
        counts = []
        for epoch in range(5):
            order = found.order(epoch)
            order = order[order < 3000]
            for step in range(len(order) // 64):
                of_step = topics[order[64 * step : 64 * step + 64]]
                counts.append(np.bincount(of_step, minlength=10))
        return float(np.var(counts))

    assert variance_of_topics(3) / variance_of_topics(None) == pytest.approx(1, abs=0.1)


def test_repeated_records_come_after_all_others(sharded: Path) -> None:
    found = both(sharded, 2, repeat=2.0)
    order = found.order(0)
    counts = Counter(order.tolist())
    assert {counts[index] for index in range(3000)} == {2}
    of_shards = order[order < 3000]
    assert len(set(of_shards[:3000].tolist())) == 3000


def test_an_order_by_difficulty_is_refused(sharded: Path) -> None:
    shards = {"type": "shards", "path": str(sharded / "shards")}
    with pytest.raises(ValidationError, match="remove one of the two"):
        mixture(sharded, [shards], shards_together=2, curriculum={"order": "easy_first"})


def test_recipes_without_the_key_keep_their_digest(sharded: Path) -> None:
    config = both(sharded, None).config
    assert "shards_together" not in json.loads(config.model_dump_json(exclude_defaults=True))
    assert config.digest != both(sharded, 2).config.digest

"""The mixture: what is drawn, held out and left out; that nothing is lost and nothing depends on ranks or workers."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from rich.console import Console

from mmrm.data.errors import RecordError, UserError
from mmrm.data.images import PatchTokens, decode
from mmrm.data.preference import Preference, text, text_responses
from mmrm.data.preparation.mixing import Mixture
from mmrm.data.preparation.row_index import index_rows, pair_key
from mmrm.data.storage.code_digest import imported_modules
from tests.data.mixtures import everything, mixture, project, row
from tests.data.sources.fixtures import RED, png, write_images, write_parquet

ROOT = Path(__file__).resolve().parents[3]


def test_every_record_is_there_once_and_an_epoch_is_a_permutation(
    two: list[dict[str, Any]], tmp_path: Path
) -> None:
    found = mixture(tmp_path, two)
    assert len(found) == found.epoch_size == 150
    assert len({record.identity for record in everything(found)}) == 150
    assert Counter(record.source for record in everything(found)) == {"seen": 30, "told": 120}
    for epoch in range(3):
        assert sorted(found.order(epoch)) == list(range(150))
    with pytest.raises(IndexError):
        found[150]
    with pytest.raises(IndexError):
        found[-1]


def test_the_order_depends_on_seed_and_epoch_alone(
    two: list[dict[str, Any]], tmp_path: Path
) -> None:
    one, other = (
        mixture(tmp_path, two, seed=3),
        mixture(tmp_path, two, seed=3, workers=2, cache=str(tmp_path / "elsewhere")),
    )
    assert (
        one.order(5).tolist()
        == other.order(5).tolist()
        == pickle.loads(pickle.dumps(one)).order(5).tolist()
    )
    assert one.order(5).tolist() != one.order(6).tolist()
    assert one.order(5).tolist() != mixture(tmp_path, two, seed=4).order(5).tolist()
    assert abs(np.corrcoef(one.order(5), np.arange(150))[0, 1]) < 0.25


def test_weights_temperature_and_ratio(two: list[dict[str, Any]], tmp_path: Path) -> None:
    def drawn(**settings: Any) -> dict[str, int]:
        found = mixture(tmp_path, two, **settings)
        assert len(found.order(0)) == found.epoch_size
        return dict(Counter(found[int(index)].source for index in found.order(0)))

    assert drawn(temperature=1e6) == {"seen": 75, "told": 75}
    assert drawn(text_per_multimodal=0.5) == {"seen": 100, "told": 50}
    assert drawn(records=50) == {"seen": 10, "told": 40}
    two[0]["repeat"], two[1]["cap"] = 2, 40
    assert drawn() == {"seen": 60, "told": 40}
    two[0]["weight"] = 2.0
    assert drawn() == {"seen": 75, "told": 25}


def test_a_part_drawn_is_drawn_again_each_epoch(two: list[dict[str, Any]], tmp_path: Path) -> None:
    found = mixture(tmp_path, two, records=50)
    seen = {int(index) for epoch in range(12) for index in found.order(epoch)}
    assert len(seen) > 140


def test_stages_follow_one_another(two: list[dict[str, Any]], tmp_path: Path) -> None:
    stages = [{"name": "see", "modality": "multimodal", "repeat": 2.0}, {"name": "all"}]
    found = mixture(tmp_path, two, stages=stages)
    order = [found[int(index)].source for index in found.order(0)]
    assert order[:60] == ["seen"] * 60
    assert Counter(order[60:]) == {"seen": 30, "told": 120}
    named = mixture(tmp_path, two, stages=[{"name": "text", "sources": ["told"]}])
    assert {found[int(index)].source for index in named.order(0)} == {"told"}
    assert found.card().sources[0].drawn == 90
    with pytest.raises(UserError, match="stage 'x': there is no record"):
        mixture(
            tmp_path, two, stages=[{"name": "x", "sources": ["told"], "modality": "multimodal"}]
        )


def test_a_stage_of_one_kind_ignores_the_ratio(two: list[dict[str, Any]], tmp_path: Path) -> None:
    stages = [{"name": "see", "modality": "multimodal"}, {"name": "all"}]
    found = mixture(tmp_path, two, stages=stages, text_per_multimodal=1.0)
    order = [found[int(index)].source for index in found.order(0)]
    assert (Counter(order[:30]), Counter(order[30:])) == ({"seen": 30}, {"seen": 75, "told": 75})


def test_the_content_of_a_source_changes_with_its_records(
    two: list[dict[str, Any]], tmp_path: Path
) -> None:
    def contents(sources: list[dict[str, Any]], **settings: Any) -> tuple[str, ...]:
        return tuple(
            source.content for source in mixture(tmp_path, sources, **settings).card().sources
        )

    one = contents(two)
    assert one == contents(two, workers=2, cache=str(tmp_path / "elsewhere"), seed=1)
    told = [row(f"told {number}") for number in range(119)]
    assert one != contents([two[0], project(tmp_path, "told", [*told, row("other")])])
    written = [
        row("told") | {"rationale": rationale} for rationale in ("Since it is.", "since it is.")
    ]
    assert len({contents([project(tmp_path, "one", [only])]) for only in written}) == 2


def test_validation_is_even_over_sources_and_apart_from_training(
    two: list[dict[str, Any]], tmp_path: Path
) -> None:
    found = mixture(tmp_path, two, validation=20)
    assert Counter(record.source for record in found.validation) == {"seen": 10, "told": 10}
    assert len(found) == 130
    assert not {record.identity for record in found.validation} & {
        record.identity for record in everything(found)
    }
    other = mixture(tmp_path, two, validation=20, seed=9)
    assert [record.identity for record in found.validation] != [
        record.identity for record in other.validation
    ]


def test_a_seed_of_its_own_holds_out_the_same_records_for_all_seeds(tmp_path: Path) -> None:
    """Runs that differ in their seed are then measured on the same records."""
    sources = [project(tmp_path, "one", [row(f"question {number}") for number in range(80)])]

    def held_out(**settings: Any) -> list[str]:
        found = mixture(tmp_path, sources, validation=20, **settings)
        return [found.validation[index].identity for index in range(20)]

    assert held_out(seed=1, validation_seed=5) == held_out(seed=2, validation_seed=5)
    assert held_out(seed=1) != held_out(seed=2)
    assert held_out(seed=5) == held_out(seed=1, validation_seed=5)
    one = mixture(tmp_path, sources, validation=20, seed=1, validation_seed=5)
    two = mixture(tmp_path, sources, validation=20, seed=2, validation_seed=5)
    assert list(one.order(0)) != list(two.order(0))


def test_no_training_record_shares_a_prompt_with_validation(tmp_path: Path) -> None:
    rows = [row(f"q {number % 10}", chosen=f"answer {number}") for number in range(100)]
    sources = [
        project(tmp_path, "one", rows),
        project(tmp_path, "two", [row(f"Q  {number}") for number in range(10)]),
    ]
    found = mixture(tmp_path, sources, validation=6)
    held = {str(record.prompt).lower().replace("  ", " ") for record in found.validation}
    kept = {str(record.prompt).lower().replace("  ", " ") for record in everything(found)}
    assert not held & kept
    assert found.card().sources[0].left_out["prompt_held_out"] >= 25
    adds_up(found)


def adds_up(found: Mixture) -> None:
    for source in found.card().sources:
        assert source.rows == sum(source.left_out.values()) + source.held_out + source.kept


def test_filters_count_what_they_leave_out(tmp_path: Path) -> None:
    write_images(tmp_path, big=png("red", (1400, 1400)))
    rows = [
        row("good"),
        row("same", chosen="x  y", rejected="x y"),
        row("void", chosen="  "),
        row("left", rejected="see <image> here"),
        row("asks", prompt="<image>\nwhat?", images=[]),
        row("model", chosen="As an AI language model, I see nothing."),
        row("blind", rejected="I cannot view images."),
        row("polite", chosen="I can't help with that."),
        row("long", chosen="word " * 200),
        row("short", rejected="word " * 200),
        row("seen", images=["big.png"]),
    ]
    sources = [project(tmp_path, "one", rows)]
    everything_on = {"refusals": True, "length_gap": 3, "max_tokens": 1000}
    found = mixture(tmp_path, sources, filters=everything_on)
    assert found.card().sources[0].left_out == {
        "empty": 1,
        "identical": 1,
        "markers": 2,
        "refusal": 2,
        "length_gap": 1,
        "too_long": 1,
    }
    stray = [message for message in found.card().sources[0].messages if "<image>" in message]
    assert [message.split(" holds ")[0] for message in stray] == [
        "one:3: the rejected response",
        "one:4: the prompt",
    ]
    assert [record.identity for record in everything(found)] == ["one:0", "one:7", "one:9"]
    adds_up(found)
    assert len(mixture(tmp_path, sources, filters={"markers": False, "identical": False})) == 8
    assert (
        Mixture(found.config, PatchTokens(max_pixels=28 * 28 * 100))
        .card()
        .sources[0]
        .left_out.get("too_long")
        is None
    )


def test_the_card_counts_pairs_and_images_a_prompt(tmp_path: Path) -> None:
    (tmp_path / "red.png").write_bytes(png("red"))
    rows = [row("a", images=["red.png"], rejected=f"bad {number}") for number in range(3)] + [
        row("a"),
        row("b"),
    ]
    found = mixture(tmp_path, [project(tmp_path, "one", rows)])
    (card,) = found.card().sources
    assert (card.pairs_a_prompt, card.images_a_prompt) == (5 / 3, 1 / 3)
    console = Console(record=True, width=140)
    console.print(found.card().table())
    assert "1.67" in console.export_text()


def test_pairs_of_one_prompt_follow_one_another_within_their_stage(tmp_path: Path) -> None:
    (tmp_path / "red.png").write_bytes(png("red"))
    kinds = [["red.png"]] * 3 + [[]] * 2
    rows = [
        row(f"q{number}", images=kind, rejected=f"bad {i}")
        for number in range(9)
        for i, kind in enumerate(kinds)
    ]
    shapes = {"type": "shapes", "level": "demo", "rows": 30}
    found = mixture(tmp_path, [project(tmp_path, "one", rows), shapes])
    assert found.order(0, 1).tolist() == found.order(0).tolist()
    order = found.order(0, 8)
    assert sorted(order) == list(range(45 + 30))
    prompts = [
        (str(found[index].prompt), found[index].images) if index < 45 else index
        for index in order.tolist()
    ]
    assert (
        len(list(groupby(prompts))) == len(set(prompts)) == 9 * 2 + 30
    )  # no prompt of the files in two places
    assert [index for index in order if index >= 45] == [
        index for index in found.order(0) if index >= 45
    ]
    stages = [{"name": "first", "modality": "multimodal"}, {"name": "second", "modality": "text"}]
    staged = mixture(tmp_path, [project(tmp_path, "one", rows)], stages=stages)
    assert [bool(staged[index].images) for index in staged.order(0, 8).tolist()] == [True] * 27 + [
        False
    ] * 18


def prompts_of(name: str, pairs: int, pairs_a_prompt: int, **fields: Any) -> list[dict[str, Any]]:
    """Return rows of a project file in which `pairs_a_prompt` rows at a time share their prompt."""
    return [
        row(f"{name} {number // pairs_a_prompt}", rejected=f"bad {number}", **fields)
        for number in range(pairs)
    ]


def source_numbers(found: Mixture, order: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
    """Return for each entry of `order` the number of its source, (len(order),)."""
    return np.searchsorted(found.records.ends, order, side="right")


THREE_STAGES = [
    {"name": "one", "sources": ["fours", "singles"]},
    {"name": "two", "modality": "text", "repeat": 0.5},
    {"name": "three", "repeat": 1.7},
]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"records": 700},
        {"temperature": 3.0, "records": 2500},
        {"text_per_multimodal": 0.8},
        {"stages": THREE_STAGES},
        {"stages": THREE_STAGES[1:], "text_per_multimodal": 2.0, "validation": 60},
    ],
    ids=["all", "a part", "repeats", "ratio", "stages", "stages and ratio"],
)
def test_each_source_has_its_share_of_each_tenth_of_an_epoch(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    """The number of a source's records in a tenth of an epoch is hypergeometric if all are apart.

    Sets of four records make the variance at most four times as large. Bounds are five standard
    deviations of the mean over the epochs.
    """
    (tmp_path / "red.png").write_bytes(png("red"))
    fours = prompts_of("four", 480, 4, images=["red.png"]) + prompts_of("four", 240, 4)
    sources = [
        project(tmp_path, "fours", fours),
        project(tmp_path, "nines", prompts_of("nine", 270, 9)),
        project(tmp_path, "singles", prompts_of("one", 500, 1, images=["red.png"]), weight=1.5),
        {"type": "shapes", "level": "demo", "rows": 150},
    ]
    if "stages" in settings or "text_per_multimodal" in settings:
        del sources[3]  # it is not known which of its records have images
    found = mixture(tmp_path, sources, **settings)
    num_epochs, most = 150, 4
    size = found.epoch_size
    edges = [len(tenth) for tenth in np.array_split(np.arange(size), 10)]
    ends = np.cumsum(edges)
    expected = np.zeros((len(sources), 10))
    variance = np.zeros((len(sources), 10))
    start = 0
    for stage in found.stages:
        drawn = np.zeros(len(sources))
        for pool, count in stage:
            drawn[source_numbers(found, pool.indices[:1])[0]] += count
        length = int(drawn.sum())
        overlap = np.minimum(ends, start + length) - np.maximum(ends - edges, start)
        inside = np.maximum(overlap, 0)
        share = drawn[:, None] / length
        expected += share * inside
        without_replacement = (length - inside) / (length - 1)
        variance += most * share * (1 - share) * inside * without_replacement
        start += length
    totals = np.zeros((len(sources), 10))
    for epoch in range(num_epochs):
        numbers = source_numbers(found, found.order(epoch, most))
        for tenth, part in enumerate(np.array_split(numbers, 10)):
            totals[:, tenth] += np.bincount(part, minlength=len(sources))
    bounds = 5 * np.sqrt(variance / num_epochs)
    assert (np.abs(totals / num_epochs - expected) <= bounds + 1e-9).all()


def test_sources_meet_the_same_learning_rate(tmp_path: Path) -> None:
    """One cosine epoch over 1,600 pairs with four a prompt and 1,600 with prompts of their own."""
    sources = [
        project(tmp_path, "fours", prompts_of("four", 1600, 4)),
        project(tmp_path, "singles", prompts_of("one", 1600, 1)),
    ]
    found = mixture(tmp_path, sources)
    rates = (1 + np.cos(np.pi * np.arange(3200) / 3200)) / 2
    num_epochs, most = 20, 4
    sums = np.zeros(2)
    for epoch in range(num_epochs):
        numbers = source_numbers(found, found.order(epoch, most))
        sums += np.bincount(numbers, weights=rates) / 1600
    # The mean over half of the records, drawn without replacement in sets of four at most.
    variance = most * rates.var() / 1600 * (3200 - 1600) / (3200 - 1)
    bound = 5 * (variance / num_epochs) ** 0.5
    assert bound < 0.02
    assert np.abs(sums / num_epochs - rates.mean()).max() < bound


def test_sets_of_a_prompt_depend_on_seed_and_epoch_alone(tmp_path: Path) -> None:
    rows = prompts_of("nine", 90, 9)
    found = mixture(tmp_path, [project(tmp_path, "nines", rows)], seed=3)
    again = mixture(tmp_path, [project(tmp_path, "nines", rows)], seed=3, workers=2)
    order = found.order(5, 4).tolist()
    found.order(6, 4)
    assert found.order(5, 4).tolist() == order
    assert again.order(5, 4).tolist() == order
    assert pickle.loads(pickle.dumps(found)).order(5, 4).tolist() == order
    assert found.order(6, 4).tolist() != order
    other = mixture(tmp_path, [project(tmp_path, "nines", rows)], seed=4)
    assert other.order(5, 4).tolist() != order


def test_the_card_shows_an_epoch_by_tenths(tmp_path: Path) -> None:
    sources = [
        project(tmp_path, "first", prompts_of("four", 60, 4)),
        project(tmp_path, "second", prompts_of("one", 139, 1)),
        project(tmp_path, "rare", [row("rare")]),
    ]
    stages = [
        {"name": "one", "sources": ["first"]},
        {"name": "two", "sources": ["second", "rare"]},
    ]
    found = mixture(tmp_path, sources, stages=stages)
    card = found.card(4)
    tenths = np.array([source.drawn_by_tenth for source in card.sources])
    assert tenths.sum(axis=0).tolist() == [20] * 10
    assert tenths.sum(axis=1).tolist() == [60, 139, 1]
    assert tenths[0].tolist() == [20] * 3 + [0] * 7
    console = Console(record=True, width=80)
    console.print(card.tenths())
    lines = console.export_text().splitlines()
    (first,) = [line for line in lines if "first" in line and "%" in line]
    assert first.replace("│", " ").split() == ["first", *["100%"] * 3, *["-"] * 7]
    (rare,) = [line for line in lines if "rare" in line]
    assert rare.replace("│", " ").split().count("5%") == 1
    card.save(tmp_path / "card.json")
    saved = json.loads((tmp_path / "card.json").read_text(encoding="utf-8"))
    assert saved["sources"][0]["drawn_by_tenth"] == tenths[0].tolist()


def test_the_card_counts_tokens_and_longer_responses(tmp_path: Path) -> None:
    pairs = [("aaaa", "bb"), ("aaaa", "bb"), ("a", "bbbb"), ("aa", "bb")]
    rows = [row("question", chosen=chosen, rejected=rejected) for chosen, rejected in pairs]
    (card,) = mixture(tmp_path, [project(tmp_path, "one", rows)]).card().sources
    assert card.chosen_longer == (2 + 0.5) / 4  # two, and half of the tie
    assert card.text_tokens == sum(
        (len("question") + len(chosen + rejected)) // 4 for chosen, rejected in pairs
    )
    assert (card.multimodal, card.images, card.image_tokens) == (0, 0, 0)


def test_listed_fingerprints_are_left_out(two: list[dict[str, Any]], tmp_path: Path) -> None:
    found = mixture(tmp_path, two)
    listed = [found[3], found[77]]
    (tmp_path / "overlap.txt").write_text(
        "# of a benchmark\n"
        + "".join(f"{pair_key(record):016x}  # {record.identity}\n" for record in listed)
    )
    rest = mixture(tmp_path, two, filters={"leave_out": str(tmp_path / "overlap.txt")})
    assert {record.identity for record in everything(found)} - {
        record.identity for record in everything(rest)
    } == {record.identity for record in listed}
    assert [source.left_out for source in rest.card().sources] == [{"overlap": 1}, {"overlap": 1}]
    (tmp_path / "overlap.txt").write_text("zz\n")
    with pytest.raises(UserError, match=r"overlap\.txt, line 1: 'zz' is no fingerprint"):
        mixture(tmp_path, two, filters={"leave_out": str(tmp_path / "overlap.txt")})
    with pytest.raises(UserError, match="cannot be read"):
        mixture(tmp_path, two, filters={"leave_out": str(tmp_path / "gone.txt")})
    (tmp_path / "overlap.txt").write_text(
        f"# Records of r.yaml found by eval/overlap.py in\n{pair_key(listed[0]):016x}\n"
    )
    with pytest.raises(UserError, match="an earlier version wrote these fingerprints"):
        mixture(tmp_path, two, filters={"leave_out": str(tmp_path / "overlap.txt")})


def test_a_fingerprint_outlives_moving_and_preferring_otherwise(tmp_path: Path) -> None:
    write_images(tmp_path / "here", one=RED)
    record = Preference(
        "a",
        ({"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Q  x"}]},),
        text_responses("A b", "c"),
        (RED,),
    )
    moved = Preference(
        "b",
        ({"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "q X"}]},),
        text_responses("C", "a B"),
        (tmp_path / "here/one.png",),
    )
    assert pair_key(record) == pair_key(moved)
    assert pair_key(record) != pair_key(
        Preference("c", record.prompt, text_responses("A b", "d"), (RED,))
    )
    assert pair_key(record) != pair_key(
        Preference("d", record.prompt, text_responses("A b", "c"), (png("red", (9, 9)),))
    )


# Bad input


def test_one_rotten_row_is_skipped_counted_and_shown(tmp_path: Path) -> None:
    rows = [row(str(number)) for number in range(20_000)]
    rows[13_337] = {"prompt": "?", "chosen": "a", "rejected": None}
    found = mixture(tmp_path, [project(tmp_path, "one", rows)])
    (card,) = found.card().sources
    assert (len(found), card.left_out) == (19_999, {"bad_record": 1})
    assert "one:13337: 'rejected' is NoneType None" in card.messages[0]
    assert found[13_337].identity == "one:13338"
    adds_up(found)


def test_strict_stops_at_one_rotten_row_with_source_row_and_reason(tmp_path: Path) -> None:
    sources = [
        project(tmp_path, "one", [*(row(str(number)) for number in range(10)), {"prompt": "?"}])
    ]
    for workers in (1, 2):
        with pytest.raises(RecordError, match="one:10: there is no 'chosen'"):
            mixture(tmp_path, sources, bad_records={"policy": "strict"}, workers=workers)
    assert len(mixture(tmp_path, sources, bad_records={"limit": 0.1})) == 10
    with pytest.raises(UserError, match="policy: strict"):  # read before, under the other policy
        mixture(tmp_path, sources, bad_records={"policy": "strict"})


def test_more_bad_rows_than_the_limit_stop(tmp_path: Path) -> None:
    rows = [row(str(number)) if number % 20 else {"prompt": 1} for number in range(200)]
    with pytest.raises(
        UserError,
        match=r"one: 10 of 200 rows are bad so far, and the recipe allows 2 [\s\S]*one:0: ",
    ):
        mixture(tmp_path, [project(tmp_path, "one", rows)])


def test_a_corrupt_parquet_page_costs_its_row_group_only(tmp_path: Path) -> None:
    path = write_parquet(
        tmp_path / "d" / "a.parquet",
        [row(f"{number} " + "x" * 200) for number in range(1000)],
        group=100,
    )
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 2000] = bytes(2000)
    path.write_bytes(data)
    sources = [{"type": "project", "name": "one", "path": str(path)}]
    with pytest.raises(UserError, match=r"row group . of a.parquet is damaged"):
        mixture(tmp_path, sources)
    found = mixture(tmp_path, sources, bad_records={"limit": 0.5})
    bad = found.card().sources[0].left_out["bad_record"]
    assert bad in (100, 200)
    assert len(found) == 1000 - bad
    assert found[0].prompt[0]["content"][0]["text"].startswith("0 ")  # type: ignore[typeddict-item]
    assert found[len(found) - 1].identity == "one:999"
    with pytest.raises(RecordError, match=r"a\.parquet, row \d+: rows .* cannot be read"):
        mixture(tmp_path, sources, bad_records={"policy": "strict"}, cache=str(tmp_path / "fresh"))


def test_a_parquet_file_without_its_end_stops(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", [row("x")])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"a\.parquet: the file cannot be opened"):
        mixture(tmp_path, [{"type": "project", "path": str(path)}])


def test_a_truncated_header_is_found_in_preparation_a_truncated_body_in_use(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (90, 90, 3), np.uint8)
    from PIL import Image

    write_images(tmp_path, good=RED, head=RED[:20])
    Image.fromarray(noise).save(tmp_path / "whole.png")
    (tmp_path / "body.png").write_bytes((tmp_path / "whole.png").read_bytes()[:2000])
    names = ["good", "head", "body", "good"]
    rows = [row(str(number), images=[f"{name}.png"]) for number, name in enumerate(names)]
    found = mixture(tmp_path, [project(tmp_path, "one", rows)], bad_records={"limit": 0.5})
    assert found.card().sources[0].left_out == {"bad_image": 1}
    assert [record.identity for record in everything(found)] == ["one:0", "one:2", "one:3"]

    tried: list[str] = []

    def use(record: Preference) -> str:
        tried.append(record.identity)
        for image in record.images:
            decode(image, record.identity)
        return record.identity

    assert [found.load(index, use) for index in range(3)] == ["one:0", "one:3", "one:3"]
    assert [found.load(index, use) for index in range(3)] == ["one:0", "one:3", "one:3"], (
        "a second epoch, and no further loss"
    )
    assert found.skipped == {1}
    assert tried.count("one:2") == 1
    strict = mixture(
        tmp_path, [project(tmp_path, "one", [rows[2]])], bad_records={"policy": "strict"}
    )
    with pytest.raises(RecordError, match=r"one:0: .*truncated"):
        strict.load(0, use)


def test_margins_that_float32_does_not_hold_are_bad_records(tmp_path: Path) -> None:
    margins = [1.0, float("nan"), float("inf"), -1e39, 10**400, 3.4e38]
    rows = [row(f"question {number}", margin=margin) for number, margin in enumerate(margins)]
    found = mixture(tmp_path, [project(tmp_path, "one", rows)], bad_records={"limit": 0.7})
    assert found.card().sources[0].left_out == {"bad_record": 4}
    assert [record.margin for record in everything(found)] == [1.0, 3.4e38]


def test_too_many_bad_records_in_use_stop_the_run(
    two: list[dict[str, Any]], tmp_path: Path
) -> None:
    found = mixture(tmp_path, two)

    def refuse(record: Preference) -> None:
        raise RecordError(f"{record.identity}: no")

    with pytest.raises(
        UserError, match=r"2 records could not be used while training[\s\S]*seen:1: no"
    ):
        found.load(0, refuse)


def test_a_missing_folder_stops(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is neither a file nor a folder"):
        mixture(tmp_path, [{"type": "rlaif_v", "path": str(tmp_path / "nowhere")}])


# Configuration


def test_a_mixture_that_lost_everything_says_to_what(tmp_path: Path) -> None:
    rows = [row(f"<image> {number}") for number in range(3)]
    with pytest.raises(
        UserError, match=r"no record to draw .*Left out before: \{'one': \{'markers': 3\}\}"
    ):
        mixture(tmp_path, [project(tmp_path, "one", rows)])


# Records that begin with the same image


class Records:
    """A source of given records."""

    def __init__(self, *records: Preference) -> None:
        self.records = records

    def record(self, row: int) -> Preference:
        """Return a record."""
        return self.records[row]


def image_keys(*records: Preference) -> list[int]:
    """Return the field `image_key` of the records' entries in a row index."""
    source: Any = Records(*records)
    keys: list[int] = index_rows(source, range(len(records))).rows["image_key"].tolist()
    return keys


def test_records_begin_with_the_same_image(tmp_path: Path) -> None:
    """The content of the first image counts, and all that comes before it, to the letter."""
    red_image = png("red", (60, 40))
    write_images(tmp_path, red=red_image, copy=red_image, blue=png("blue", (560, 280)))
    rows = [row("one", images=["red.png"]), row("two", images=["copy.png"]), row("three")]
    rows += [row("one", images=["blue.png"]), row("four", images=["red.png", "blue.png"])]
    found = mixture(tmp_path, [project(tmp_path, "own", rows)])
    assert found.first_images.tolist() == [0, 0, 2, 3, 0]
    assert found.prompts.tolist() == [0, 1, 2, 3, 4]
    red, blue = found.image_tokens(np.array([(40, 60), (280, 560)])).tolist()
    assert red != blue
    assert found.first_image_tokens().tolist() == [red, red, 0, blue, red]

    image: Any = {"type": "image"}
    a, b, c, d, upper = [cast(Any, {"type": "text", "text": letter}) for letter in "abcdB"]
    records = [
        Preference("x", ({"role": "user", "content": content},), text_responses("A", "B"), (RED,))
        for content in ([image, a], [b, image], [image, c], [upper, image], [b, image, d])
    ]
    keys = image_keys(*records, replace(records[0], prompt=(text("user", "q"),), images=()))
    assert keys[0] == keys[2]
    assert keys[1] == keys[4]
    assert len(set(keys)) == 4
    assert keys[-1] == 0


def test_one_image_in_two_sources_is_one(tmp_path: Path) -> None:
    write_images(tmp_path, red=RED)
    sources = [
        project(
            tmp_path, name, [row(f"{name} {number}", images=["red.png"]) for number in range(3)]
        )
        for name in ("one", "two")
    ]
    shapes = {"type": "shapes", "level": "demo", "rows": 4}
    found = mixture(tmp_path, [*sources, shapes])
    assert found.first_images.tolist() == [0] * 6 + [6, 7, 8, 9]
    order = found.order(0, 1, 6).tolist()
    assert sorted(order) == list(range(10))
    first = min(order.index(index) for index in range(6))
    assert set(order[first : first + 6]) == set(range(6))


def test_without_images_together_the_order_is_that_of_prompts_alone(tmp_path: Path) -> None:
    write_images(tmp_path, red=RED)
    rows = [
        row(f"q {number // 3}", rejected=str(number), images=["red.png"]) for number in range(40)
    ]
    found = mixture(tmp_path, [project(tmp_path, "own", rows)])
    assert found.order(1, 4).tolist() == found.order(1, 4, 1).tolist()
    assert found.order(1).tolist() == found.order(1, 1, 1).tolist()
    assert found.order(1, 4, 8).tolist() != found.order(1, 4).tolist()


def test_the_digest_of_the_content_is_that_of_versions_without_a_key_of_images(
    tmp_path: Path,
) -> None:
    """Otherwise no run from before could be resumed: its data would be taken for other data."""
    rows = [{"prompt": f"q {n}", "chosen": f"a {n}", "rejected": "b"} for n in range(3)]
    (card,) = mixture(tmp_path, [project(tmp_path, "own", rows)]).card().sources
    assert card.content == "aaf4688bc6e808ac"  # as version de3baf9 computed it


def test_an_index_without_a_key_of_images_is_read_again(tmp_path: Path) -> None:
    """The name of an index depends on the code that wrote it, so an earlier one is not opened."""
    modules = imported_modules(["mmrm.data.preparation.scan"], ("data",))
    assert "mmrm.data.preparation.row_index" in modules


def test_the_card_says_what_is_left_to_compute(tmp_path: Path) -> None:
    write_images(tmp_path, red=RED, blue=png("blue", (560, 280)))
    question = "q" * 4 * 50
    response = "r" * 4 * 25
    texts = {"chosen": response, "rejected": response[:-4] + "okay"}
    rows = [
        row(f"{question[:-1]}{number // 4}", images=["blue.png"], **texts) for number in range(16)
    ]
    plain = [
        row(f"{number}{question[:-1]}", chosen=response, rejected=str(number))
        for number in range(7)
    ]
    shapes = {"type": "shapes", "level": "demo", "rows": 9}
    found = mixture(
        tmp_path, [project(tmp_path, "own", rows), project(tmp_path, "plain", plain), shapes]
    )
    (image_tokens,) = found.image_tokens(np.array([(280, 560)])).tolist()
    prompt = 50 + image_tokens
    total = 16 * (prompt + 50)

    card = found.card(4, 8)
    own, text_only, generated = [source.sharing for source in card.sources]
    # Four sets of four pairs, in two sets of an image; all chance neighbours count as well.
    saved = 12 * prompt + 2 * image_tokens
    assert own.as_trained.tokens == pytest.approx(1 - saved / total, abs=1.1 * prompt / total)
    assert own.as_trained.patches in (2 / 16, 1 / 16)
    assert own.at_most.tokens == pytest.approx(1 - (12 * prompt + 3 * image_tokens) / total)
    assert own.at_most.patches == pytest.approx(1 / 16)
    assert (text_only.as_trained.cells, text_only.at_most.cells) == (["100%", "-"], ["100%", "-"])
    assert generated == text_only

    by_prompt = found.card(4, 1).sources[0].sharing
    assert by_prompt.as_trained.tokens == pytest.approx(1 - 12 * prompt / total, abs=0.01)
    assert by_prompt.as_trained.patches == pytest.approx(4 / 16)
    assert by_prompt.at_most == own.at_most
    assert found.card().sources[0].sharing.as_trained.cells == ["100%", "100%"]

    console = Console(record=True, width=140)
    console.print(card.sharing())
    printed = console.export_text()
    assert "pairs_together 4 and images_together 8" in " ".join(printed.split())
    for cell in (*own.as_trained.cells, *own.at_most.cells):
        assert cell in printed
    saved_card = tmp_path / "card.json"
    card.save(saved_card)
    stored = json.loads(saved_card.read_text())
    assert stored["sources"][0]["sharing"]["at_most"]["patches"] == pytest.approx(1 / 16)
    assert stored["images_together"] == 8


def test_the_card_does_not_cut_off_the_reasons(tmp_path: Path) -> None:
    rows = [row("?", rejected=f"bad {number}") for number in range(40)]
    rows += [row(f"other {number}") for number in range(4000)]
    found = mixture(tmp_path, [project(tmp_path, "a_long_name", rows)], validation=2000)
    assert found.card().sources[0].left_out.keys() == {"prompt_held_out"}
    console = Console(record=True, width=120)
    console.print(found.card().table())
    assert "prompt_held_out " in console.export_text()

"""VL-RewardBench: files of every schema, prompt, predictions files and published rules."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmrm.data.errors import RecordError, UserError
from mmrm.data.preference import text_responses
from mmrm.eval.benchmarks.benchmark import Location
from mmrm.eval.benchmarks.vl_rewardbench import (
    VL_REWARDBENCH,
    ask,
    official_records,
    read,
    reward_records,
)
from mmrm.eval.benchmarks.vl_rewardbench_scoring import RULES, official_score
from mmrm.eval.candidates import Example, Scores, Vote
from tests.eval.make import png

load = VL_REWARDBENCH.load
ROWS = [
    ("RLAIF-V-1", [0, 1]),
    ("mathverse_2", [1, 0]),
    ("mathverse_2", [0, 1]),
    ("wildvision-battle-3", [1, 0]),
]


def hub_row(identity: str, ranking: list[int], image: Any) -> dict[str, Any]:
    """Return a row in the schema of the hub."""
    shown = {
        "query": f"<image>\nwhat is {identity}?",
        "response": [f"first {ranking}", "second"],
        "human_ranking": ranking,
    }
    rest = {
        "models": ["m", "n"],
        "judge": "human",
        "rationale": "",
        "query_source": "q",
        "ground_truth": "",
    }
    return {"id": identity, "image": image, **shown, **rest}


def hub_rows() -> list[dict[str, Any]]:
    """Return four rows, two of them with one id."""
    return [
        hub_row(identity, ranking, {"bytes": png(), "path": "a.png"}) for identity, ranking in ROWS
    ]


def write_parquet(rows: list[dict[str, Any]], path: Path) -> None:
    import pyarrow as arrow  # type: ignore[import-untyped]
    import pyarrow.parquet as parquet  # type: ignore[import-untyped]

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(arrow.Table.from_pylist(rows), path)


def in_parquet(folder: Path) -> Location:
    write_parquet(hub_rows(), folder / "data" / "test-00000-of-00001.parquet")
    return Location(location=str(folder))


def in_official_file(folder: Path) -> Location:
    (folder / "images").mkdir()
    (folder / "images" / "a.png").write_bytes(png())
    rows = [hub_row(identity, ranking, None) for identity, ranking in ROWS]
    for row in rows:
        row["image_path"] = "images/a.png"
        del row["image"]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Location(location=str(folder / "data.jsonl"))


def in_older_revision(folder: Path) -> Location:
    rows = [{**row, "meta": "{}", "human_error_analysis": ["x"]} for row in hub_rows()]
    write_parquet(rows, folder / "test-00000-of-00001.parquet")
    return Location(location=str(folder / "test-00000-of-00001.parquet"))


@pytest.mark.parametrize("write", [in_parquet, in_official_file, in_older_revision])
def test_local_files_of_every_schema(write: Callable[[Path], Location], tmp_path: Path) -> None:
    check_rows(load(write(tmp_path)).examples)


def test_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[Any] = []

    def load_dataset(name: str, split: str, revision: str | None) -> Any:
        asked.append((name, split, revision))
        return datasets.Dataset.from_list(hub_rows()).cast_column("image", datasets.Image())

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    found = load(Location(revision="cdb956c"))
    check_rows(found.examples)
    assert asked == [("MMInstruction/VL-RewardBench", "test", "cdb956c")]
    assert found.origin.location == "MMInstruction/VL-RewardBench@cdb956c"
    assert found.examples[0].images == (png(),)


def check_rows(examples: tuple[Example, ...]) -> None:
    assert [example.better for example in examples] == [0, 1, 0, 1]
    assert [example.group for example in examples] == [
        "hallucination",
        "reasoning",
        "reasoning",
        "general",
    ]
    assert [example.source for example in examples] == [
        "rlaif-v",
        "reasoning_tasks",
        "reasoning_tasks",
        "wildvision-battle",
    ]
    assert len({example.key for example in examples}) == 4
    assert examples[0].responses == text_responses("first [0, 1]", "second")
    content = [{"type": "image"}, {"type": "text", "text": "what is RLAIF-V-1?"}]
    assert examples[0].prompt == ({"role": "user", "content": content},)
    assert {len(example.images) for example in examples} == {1}
    assert examples[0].row["query"].startswith("<image>\n")


def test_r1_rewards_copy_gets_an_order_that_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "img").mkdir()
    (tmp_path / "img" / "a.png").write_bytes(png())
    rows = [
        {
            "id": f"mmmu_{row}",
            "prompt": f"q{row}",
            "chosen": "yes",
            "rejected": "no",
            "image": "vl/img/a.png",
        }
        for row in range(60)
    ]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "vl").symlink_to(tmp_path)
    found = load(Location(location=str(tmp_path)))
    assert {example.responses[example.better].text for example in found.examples} == {"yes"}
    assert 15 < sum(example.better for example in found.examples) < 45
    assert [example.better for example in load(Location(location=str(tmp_path))).examples] == [
        example.better for example in found.examples
    ]
    records = official_records(found.examples, [Scores((1.0, 0.0))] * 60)
    assert {record["response"][record["ranking"].index(0)] for record in records} == {"yes"}


def test_rows_of_equal_content_get_numbered_keys(tmp_path: Path) -> None:
    write_parquet([hub_rows()[0]] * 3, tmp_path / "test-0.parquet")
    keys = [example.key for example in load(Location(location=str(tmp_path))).examples]
    assert keys == [keys[0], f"{keys[0]}-2", f"{keys[0]}-3"]


def test_missing_and_broken_images_are_listed(tmp_path: Path) -> None:
    rows = [hub_row("RLHF-V-1", [0, 1], {"bytes": png()[:40], "path": None})]
    rows += [
        hub_row(f"RLHF-V-{row}", [0, 1], {"bytes": None, "path": f"{row}.png"})
        for row in range(2, 40)
    ]
    write_parquet(rows, tmp_path / "test-0.parquet")
    with pytest.raises(UserError) as caught:
        load(Location(location=str(tmp_path)))
    message = str(caught.value)
    assert "39 of 39 images are missing or broken" in message
    assert "vl_rewardbench:0 (RLHF-V-1): the image of 40 bytes is" in message
    assert f"vl_rewardbench:1 (RLHF-V-2): the image {tmp_path / '2.png'} is not there" in message
    assert "… and 37 more records with the same fault" in message


def test_rows_that_say_so_are_text_only(tmp_path: Path) -> None:
    write_parquet([{**row, "image": ""} for row in hub_rows()], tmp_path / "test-0.parquet")
    found = load(Location(location=str(tmp_path)))
    first = found.examples[0]
    assert (first.images, len(first.prompt[0]["content"])) == ((), 1)
    assert ask(first, 0)[0]["content"][1:] == []


@pytest.mark.parametrize(
    "image", [None, {"bytes": None, "path": None}, {"bytes": b"", "path": ""}, "no column"]
)
def test_rows_without_their_image_are_refused(image: Any, tmp_path: Path) -> None:
    rows = hub_rows()
    rows[2]["image"] = image
    if image == "no column":
        rows = [{name: value for name, value in row.items() if name != "image"} for row in rows]
    write_parquet(rows, tmp_path / "test-0.parquet")
    with pytest.raises(RecordError, match="the image is null or missing"):
        load(Location(location=str(tmp_path)))


def test_counts_that_differ_from_the_published_ones_are_noted(tmp_path: Path) -> None:
    notes = load(in_parquet(tmp_path)).origin.notes
    assert notes == ("4 rows; the edition since May 2025 has 1247.",)
    limited = load(Location(location=str(tmp_path), limit=2))
    assert len(limited.examples) == 2
    assert limited.origin.notes == ("Limited to 2 rows: not comparable with any published figure.",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"human_ranking": [1, 2]}, r"\[1, 2\] of 2"),
        ({"response": ["one"]}, "of 1 responses"),
        ({"query": None}, "text under query"),
    ],
)
def test_rows_that_cannot_be_used_are_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_parquet([{**hub_rows()[0], **change}], tmp_path / "test-0.parquet")
    with pytest.raises(RecordError, match=message):
        load(Location(location=str(tmp_path)))


def test_a_place_without_the_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds none of its files"):
        load(Location(location=str(tmp_path)))
    with pytest.raises(UserError, match="is not there"):
        load(Location(location=str(tmp_path / "nowhere")))
    (tmp_path / "data.jsonl").write_text('{"id": 1}\n{"id"')
    with pytest.raises(UserError, match=r"data.jsonl, row 1 \(byte 10\): no valid JSON"):
        load(Location(location=str(tmp_path)))


def test_the_official_prompt_is_text_then_image(tmp_path: Path) -> None:
    example = load(in_parquet(tmp_path)).examples[0]
    (turn,) = ask(example, 1)
    text, image = turn["content"]
    assert (turn["role"], image) == ("user", {"type": "image"})
    assert text["type"] == "text"
    assert text["text"].startswith(
        " You are a highly capable multimodal AI assistant tasked with evaluating answers"
    )
    assert (
        "\n\nQuestion: what is RLAIF-V-1?\n\nAnswer 1: second\n\nAnswer 2: first [0, 1]\n\nPlease evaluate"
        in text["text"]
    )
    assert (
        "For example: Overall Judgment: Answer X is better.\n\nYour response should be"
        in text["text"]
    )
    assert text["text"].endswith("visual and textual elements of the task.")


def test_an_answer_other_than_one_and_two_is_unreadable() -> None:
    sentences = [f"Overall Judgment: Answer {number} is better." for number in (1, 2, 3)]
    assert [read(sentence) for sentence in sentences] == [0, 1, None]


def test_votes_are_written_as_the_official_script_writes_them(tmp_path: Path) -> None:
    example = load(in_parquet(tmp_path)).examples[1]  # the second response is the better one
    said = Vote((1, 0), 1, "Overall Judgment: **Answer 1** is better.")
    other_form = Vote((0, 1), 1, "Therefore, Answer 1 is better? No. <answer>2</answer>")
    nothing = Vote((0, 1), None, "Therefore Answer 2 is better, or not. <answer></answer>")
    third = Vote((0, 1), None, "Overall Judgment: Answer 3 is better.")
    records = official_records([example], [Scores(votes=(said, other_form, nothing, third))])
    texts = [said.text, "Overall Judgment: Answer 2 is better.", "", third.text]
    assert [record["meta"]["filter_choice"] for record in records] == texts
    assert [record["meta"]["filter_number"] for record in records] == [1, 2, -1, 3]
    assert [record["meta"]["random_number"] for record in records] == [1, 0, 0, 0]
    assert [record["meta"]["flag_status"] for record in records] == [
        "agree",
        "agree",
        "doesntMatch",
        "agree",
    ]
    assert records[0]["ranking"] == [1, 0]
    assert [records[0][name] for name in ("id", "models", "query_source")] == [
        "mathverse_2",
        ["m", "n"],
        "q",
    ]
    assert official_score(records)["detail"]["k=9"]["votes_used"] == {
        "agree": 3,
        "reject": 0,
        "doesntMatch": 1,
    }
    assert reward_records([example], [Scores(votes=(said, other_form, nothing, third))])[0][
        "rewards"
    ] == [2, 2]


def test_scores_are_written_as_the_sentence_that_the_prompt_asks_for(tmp_path: Path) -> None:
    examples = load(in_parquet(tmp_path)).examples
    verdicts = [Scores(pair) for pair in ((2.5, 1.0), (0.0, 0.25), (0.0, 1.0), (3.0, 3.0))]
    figures = official_score(official_records(examples, verdicts))["detail"]["k=1"]
    assert figures["classes"] == {"agree": 2, "reject": 1, "doesntMatch": 1, "other": 0}
    records = reward_records(examples, verdicts)
    assert [record["rewards"] for record in records] == [
        [2.5, 1.0],
        [0.25, 0.0],
        [0.0, 1.0],
        [3.0, 3.0],
    ]
    assert records[1]["chosen"] == "second"
    assert reward_records(examples[:1], [Scores((float("nan"), 0.0))])[0]["rewards"] == [
        0,
        1,
    ]


def test_the_rules_differ_in_groups_and_ties() -> None:
    ids = ("RLAIF-V-1", "hallucination_pair-1", "mmmu_1", "wildvision-1")
    records = [
        {"id": name, "rewards": pair}
        for name, pair in zip(ids, ([1, 0], [0, 1], [1, 1], [2.0, 1.5]), strict=True)
    ]
    found = {
        name: rule.figures(name, records) for name, rule in RULES.items() if rule.reads == "rewards"
    }
    assert {name: one["micro"] for name, one in found.items()} == {
        "all_rows": 0.5,
        "r1_reward": 0.5,
        "r1_reward_ties_right": 0.75,
        "unified_reward": 0.5,
    }
    assert {
        name: [group["n"] for group in one["groups"].values()] for name, one in found.items()
    } == {
        "all_rows": [1, 2, 1],
        "r1_reward": [2, 1, 1],
        "r1_reward_ties_right": [2, 1, 1],
        "unified_reward": [2, 1, 1],
    }
    assert found["r1_reward"]["macro"] == pytest.approx((0 + 0 + 1) / 3)
    assert found["all_rows"]["macro"] == pytest.approx((0 + 0.5 + 1) / 3)
    assert found["r1_reward"]["rules"] == "r1_reward"
    assert "484/448/318" in found["r1_reward"]["about"]

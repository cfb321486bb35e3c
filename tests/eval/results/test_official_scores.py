"""Predictions files made elsewhere: recognised, checked, compared with the rows of their benchmark, and scored."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from mmrm.data.errors import PredictionsError
from mmrm.eval.benchmarks.benchmark import Location
from mmrm.eval.benchmarks.registry import BENCHMARKS
from mmrm.eval.candidates import Example, Scores
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.results.official_scores import IDS, score_predictions_file
from mmrm.eval.results.predictions import write_predictions
from mmrm.eval.results.summary_table import score_table
from tests.eval.benchmarks.test_multimodal_rewardbench import prediction
from tests.eval.benchmarks.test_vl_rewardbench_scoring import sample
from tests.eval.make import example, votes
from tests.eval.run_folders import mm_rlhf_rewardbench, vl_rewardbench

VL, MULTIMODAL, MM_RLHF = (
    BENCHMARKS[f"{name}_rewardbench"] for name in ("vl", "multimodal", "mm_rlhf")
)
PUBLISHED = (IDS / "vl_rewardbench.txt").read_text(encoding="utf-8").split()


def write(path: Path, records: list[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def rewarded(ids: list[str]) -> list[dict[str, Any]]:
    return [{"id": identity, "rewards": [1.0, 0.5]} for identity in ids]


def test_the_published_ids_are_those_of_the_known_editions() -> None:
    for benchmark in (VL, MULTIMODAL, MM_RLHF):
        edition = next(known for known in benchmark.known if known.ids)
        ids = (IDS / edition.ids).read_text(encoding="utf-8").split("\n")[:-1]
        assert len(ids) == edition.rows
        assert edition.items in (None, len(set(ids)))


def test_a_whole_file_is_whole_and_says_what_was_not_compared(tmp_path: Path) -> None:
    found, compared = score_predictions_file(
        write(tmp_path / "p.jsonl", rewarded(PUBLISHED)), VL, "r1_reward"
    )
    assert (compared.rows, compared.expected, compared.whole, found["whole"]) == (
        1250,
        1250,
        True,
        True,
    )
    assert compared.lines()[0].startswith(
        "1,250 of 1,250 rows; compared with the ids of the edition before May 2025. "
    )
    assert "--benchmark vl_rewardbench=hub" in compared.lines()[0]


def test_missing_duplicated_and_invented_rows_are_counted_and_named(tmp_path: Path) -> None:
    twice = next(identity for identity in PUBLISHED if PUBLISHED.count(identity) == 2)
    once = [identity for identity in PUBLISHED if PUBLISHED.count(identity) == 1]
    ids = [*PUBLISHED, once[0], "made-up-1", "made_up"]
    ids.remove(twice)
    ids.remove(once[1])
    _, compared = score_predictions_file(write(tmp_path / "p.jsonl", rewarded(ids)), VL, "all_rows")
    assert (compared.rows, sorted(compared.missing)) == (1251, sorted([twice, once[1]]))
    assert (compared.duplicated, compared.invented, compared.whole) == (
        (once[0],),
        ("made-up-1", "made_up"),
        False,
    )
    said = "\n".join(compared.lines())
    assert "2 missing: " in said
    assert f"1 duplicated: '{once[0]}'" in said
    assert "2 not in the benchmark: 'made-up-1', 'made_up'" in said


def test_the_edition_that_numbers_its_double_ids_is_recognised(tmp_path: Path) -> None:
    """Three rows fewer, and -1, -2 behind an id that was double; without a number they are three missing rows."""
    seen: dict[str, int] = {}
    numbered = []
    for identity in PUBLISHED[3:]:
        seen[identity] = seen.get(identity, 0) + 1
        numbered.append(
            f"{identity}-{seen[identity]}" if PUBLISHED.count(identity) == 2 else identity
        )
    _, compared = score_predictions_file(
        write(tmp_path / "p.jsonl", rewarded(numbered)), VL, "r1_reward"
    )
    assert (compared.rows, compared.expected, compared.whole) == (1247, 1247, True)
    assert "of which the edition since May 2025 lacks some" in compared.compared
    _, compared = score_predictions_file(
        write(tmp_path / "p.jsonl", rewarded(PUBLISHED[3:])), VL, "r1_reward"
    )
    assert (len(compared.missing), compared.expected) == (3, 1250)


def test_ids_of_which_only_a_digest_is_known_are_compared_too(tmp_path: Path) -> None:
    records = [
        prediction("[[A]]", identity="pairs_0001", name="safety"),
        prediction("[[A]]", identity="pairs_x", name="safety"),
    ]
    _, compared = score_predictions_file(write(tmp_path / "p.jsonl", records), MULTIMODAL)
    assert (compared.invented, len(compared.missing)) == (("pairs_x",), 4710)


def test_rows_at_hand_are_compared_with_their_responses_and_labels(tmp_path: Path) -> None:
    where = Location(location=str(vl_rewardbench(tmp_path / "vl", 6)))
    rows = [json.loads(line) for line in (tmp_path / "vl" / "data.jsonl").open(encoding="utf-8")]
    records = [{**row, "rewards": [1, 0]} for row in rows]
    _, compared = score_predictions_file(
        write(tmp_path / "p.jsonl", records), VL, "r1_reward", where=where
    )
    assert (compared.rows, compared.expected, compared.whole) == (6, 6, True)
    records[0] |= {"chosen": records[0]["rejected"], "rejected": records[0]["chosen"]}
    _, compared = score_predictions_file(
        write(tmp_path / "p.jsonl", [*records, records[1]]), VL, "r1_reward", where=where
    )
    assert (compared.missing, compared.duplicated, compared.invented) == (
        ("RLAIF-V-0",),
        ("mathverse-1",),
        ("RLAIF-V-0",),
    )
    assert (
        "1 rows have an id of the benchmark, but other responses, another label or another place"
        in compared.notes
    )
    without = [{"id": row["id"], "rewards": [1, 0]} for row in rows[1:]]
    _, compared = score_predictions_file(
        write(tmp_path / "p.jsonl", without), VL, "r1_reward", where=where
    )
    assert (
        compared.missing,
        compared.compared.endswith("the file does not hold the responses"),
    ) == (("RLAIF-V-0",), True)


def test_a_hub_that_cannot_be_read_is_said_and_the_ids_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    def unreachable(*ids: str, **settings: Any) -> None:
        raise ConnectionError("no network\nat all")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    _, compared = score_predictions_file(
        write(tmp_path / "p.jsonl", rewarded(PUBLISHED)), VL, "r1_reward", where=Location()
    )
    assert compared.whole
    assert (
        "THE HUB COULD NOT BE READ, so that nothing was compared with its rows: VL-RewardBench (MMInstruction/VL-RewardBench) "
        "cannot be fetched from the hub (ConnectionError: no network"
    ) in compared.lines()


def test_a_row_may_have_several_votes_but_not_more_than_the_others(tmp_path: Path) -> None:
    whole = [sample("mmmu-1"), sample("RLHF-V-1"), sample("svit-1")]
    _, compared = score_predictions_file(
        write(tmp_path / "p.jsonl", [*whole, *whole[1:], None]), VL
    )
    assert (compared.rows, compared.duplicated, compared.invented) == (
        3,
        (),
        ("mmmu-1", "RLHF-V-1", "svit-1"),
    )
    assert compared.notes == (
        "votes on a row: 2, on 1 rows fewer",
        "1 lines hold null and were skipped, as official does",
    )
    _, compared = score_predictions_file(write(tmp_path / "p.jsonl", [*whole, whole[0]]), VL)
    assert compared.duplicated == ("mmmu-1",)


VALUES: list[Any] = [
    "10",
    [1],
    [1, 0, 0],
    [True, False],
    [math.nan, 0],
    [math.inf, 0],
    ["1", "0"],
    [None, 0],
    None,
    {"0": 1, "1": 0},
]


@pytest.mark.parametrize("value", VALUES, ids=map(str, VALUES))
@pytest.mark.parametrize(
    "name", ["vl_rewardbench", "multimodal_rewardbench", "mm_rlhf_rewardbench", "preference_folder"]
)
def test_rewards_that_are_no_two_finite_numbers_are_refused(
    name: str, value: Any, tmp_path: Path
) -> None:
    row = {
        "id": "mmmu-1",
        "ID": "MMBench_0000",
        "Category": "vqa",
        "category": "x",
        "image": "mcq/1.png",
    }
    file = write(tmp_path / "p.jsonl", [{**row, "rewards": [2, 1]}, {**row, "rewards": value}])
    rules = {"vl_rewardbench": "r1_reward", "multimodal_rewardbench": "r1_reward"}.get(name)
    with pytest.raises(
        PredictionsError, match=r"line 2: ValueError rewards are .* 2 finite numbers"
    ):
        score_predictions_file(file, BENCHMARKS[name], rules)


@pytest.mark.parametrize(
    ("benchmark", "record", "message"),
    [
        (VL, sample(shown=2), "random_number is 2; required is one of 0, 1"),
        (VL, sample(shown=True), "random_number is True"),
        (VL, {**sample(), "response": ["one"]}, "ValueError"),
        (VL, {**sample(), "response": [1, 2]}, "TypeError"),
        (VL, {**sample(), "ranking": [1, 1]}, r"ranking is \[1, 1\]"),
        (VL, {**sample(), "id": 3}, "id is 3; required is a text"),
        (VL, {**sample(), "query": "\ud800"}, "UnicodeEncodeError"),
        (MULTIMODAL, prediction("[[A]]", label="C"), "Label is 'C'; required is one of A, B"),
        (MULTIMODAL, prediction("[[A]]", name=3), "Category is 3"),  # type: ignore[arg-type]
        (MULTIMODAL, {**prediction(""), "output": ["[[A]]"]}, "output is .*; required is a text"),
    ],
)
def test_other_values_are_checked_too(
    benchmark: Any, record: Any, message: str, tmp_path: Path
) -> None:
    good = sample() if benchmark is VL else prediction("[[A]]")
    with pytest.raises(PredictionsError, match=f"line 2: .*{message}"):
        score_predictions_file(write(tmp_path / "p.jsonl", [good, record]), benchmark)


@pytest.mark.parametrize("text", ["", "\n \n", "null\n", "null\nnull\n"])
@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_file_without_a_record_is_refused(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(text)
    with pytest.raises(PredictionsError, match=r"p.jsonl.*holds no record"):
        score_predictions_file(tmp_path / "p.jsonl", BENCHMARKS[name])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "p.jsonl:1: not JSON"),
        (b'{"id": "\xff"}', "p.jsonl:1: not JSON"),
        (b'{"id": ' + b"9" * 5000 + b"}", "p.jsonl:1: not JSON"),
        (b"[" * 100_000, "p.jsonl:1: not JSON"),
        (b"[1]", "p.jsonl:1: found a JSON list"),
        (
            b'{"what": 1}',
            "the columns 'what', by which it is in none of the formats that vl_rewardbench is scored from:\n  pred",
        ),
        (
            b'{"id": "a", "rewards": [1, 0]}',
            "read. They give different figures, so name the rules that you mean, for example --rules all",
        ),
    ],
)
def test_files_that_are_no_predictions_are_refused(
    line: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / "p.jsonl").write_bytes(line)
    with pytest.raises(PredictionsError) as refused:
        score_predictions_file(tmp_path / "p.jsonl", VL)
    assert message in str(refused.value)


def test_a_file_in_another_rules_format_is_recognised(tmp_path: Path) -> None:
    file = write(tmp_path / "p.jsonl", [sample()])
    with pytest.raises(
        PredictionsError,
        match=r"'r1_reward': the file is in the format official .*--rules official",
    ):
        score_predictions_file(file, VL, "r1_reward")
    with pytest.raises(
        PredictionsError, match="no rules 'mine'; there are official, all_rows, lmms_eval"
    ):
        score_predictions_file(file, VL, "mine")
    assert score_predictions_file(file, VL)[0]["rules"] == "official"


def test_k_can_be_chosen(tmp_path: Path) -> None:
    one, two = sample("mmmu-1"), sample("mmmu-1", "Overall Judgment: Answer 2 is better.")
    file = write(tmp_path / "p.jsonl", [one, two, two])
    of_three = score_predictions_file(file, VL)[0]
    assert (of_three["k"], of_three["micro"]) == (3, 0.0)
    of_one = score_predictions_file(file, VL, votes=1)[0]
    assert (of_one["k"], of_one["micro"]) == (1, of_three["detail"]["k=1"]["overall"])
    assert of_one["groups"]["reasoning"]["n"] == 1
    for rules, votes_, message in (
        (None, 2, "K is 2; cal.py computes K = 1, 3, 5, 7, 9"),
        ("r1_reward", 3, "have no choice of K"),
    ):
        records = [sample()] if rules is None else rewarded(["mmmu-1"])
        with pytest.raises(PredictionsError, match=message):
            score_predictions_file(write(tmp_path / "q.jsonl", records), VL, rules, votes_)


def vl_log(identity: str, answer: Any, score: Any, category: str) -> dict[str, Any]:
    """Return a line as lmms-eval 75571cf writes it."""
    return {
        "doc_id": 0,
        "target": "[0, 1]",
        "filtered_resps": answer,
        "token_counts": [None],
        "doc_hash": "ab",
        "vlreward_score": {"question_id": identity, "category": category, "score": score},
        "input": " You are a highly capable",
    }


def test_the_sample_log_of_lmms_eval_for_vl_rewardbench(tmp_path: Path) -> None:
    lines = [
        vl_log("RLAIF-V-1", ["Overall Judgment: Answer 1 is better."], 1.0, "hallucination"),
        vl_log("mathverse_1", [["I cannot say."]], 1.0, "reasoning"),
        vl_log("mathverse_2", "Therefore, Answer 2 is better", 0.0, "reasoning"),
    ]
    found, compared = score_predictions_file(write(tmp_path / "p.jsonl", lines), VL)
    assert (found["rules"], found["format"], found["micro"], found["macro"]) == (
        "lmms_eval",
        "lmms_eval",
        2 / 3,
        0.75,
    )
    assert found["detail"] == {"not_read_by_the_pattern": 1}
    assert compared.rows == 3
    for broken in (
        vl_log("a", "x", 0.5, "reasoning"),
        vl_log("a", "x", 1.0, "all"),
        vl_log("a", 3, 1.0, "reasoning"),
    ):
        with pytest.raises(PredictionsError, match="line 2: ValueError"):
            score_predictions_file(write(tmp_path / "p.jsonl", [lines[0], broken]), VL)


def test_the_sample_log_of_lmms_eval_for_multimodal_rewardbench(tmp_path: Path) -> None:
    def line(identity: str, answer: str, score: int, target: str = "Output1") -> dict[str, Any]:
        metric = {"question_id": identity, "category": "reasoning", "score": score}
        return {
            "doc_id": 1,
            "target": target,
            "filtered_resps": [answer],
            "multimodal_rewardbench_accuracy": metric,
        }

    lines = [
        line("mathvista_1", "[[A]]", 1),
        line("mathvista_2", "?", 0, "Output2"),
        line("EMMA_1-0", "?", 1),
    ]
    found, _ = score_predictions_file(write(tmp_path / "p.jsonl", lines), MULTIMODAL)
    assert (found["rules"], found["micro"], found["macro"]) == ("lmms_eval", 2 / 3, 0.75)
    assert (
        score_predictions_file(tmp_path / "p.jsonl", MULTIMODAL, "official")[0]["groups"][
            "reasoning/math"
        ]["n"]
        == 2
    )
    with pytest.raises(
        PredictionsError,
        match="line 2: ValueError the logged score is 0; the answer says B, and B is right",
    ):
        score_predictions_file(
            write(tmp_path / "p.jsonl", [lines[0], line("m", "[[B]]", 0, "Output2")]), MULTIMODAL
        )


# A line of MMRB2's script does not hold the label of its row; its own tests score such files.
@pytest.mark.parametrize(
    "name",
    [name for name, benchmark in BENCHMARKS.items() if not benchmark.ranked and name != "mmrb2"],
)
def test_our_own_predictions_score_as_what_they_were_written_from(
    name: str, tmp_path: Path
) -> None:
    benchmark = BENCHMARKS[name]
    row: dict[str, Any] = {
        "Category": "vqa",
        "category": "mcq",
        "image": "mcq/1.png",
        "query": "q",
        "Text": "q",
    }
    row |= dict.fromkeys(("models", "judge", "rationale", "query_source")) | {"Image": "1.png"}
    examples: list[Example] = []
    for number, identity in enumerate(("mmmu-1", "RLAIF-V-(2)", "svit-3", "svit-4", "svit-5")):
        made = example(
            identity, 1 if number % 2 else 0, group="mcq", id=identity, ID=identity, **row
        )
        examples.append(Example(**{**fields(made), "identity": f"{name}:{number} ({identity})"}))
    verdicts = [Scores(pair) for pair in ((1.0, 0.0), (0.5, 0.5), (math.nan, 1.0), (0.0, 1.0))]
    for last in (Scores((1.0, 0.0)), votes(0, None)):
        found = [*verdicts, last]
        protocol = ProtocolConfig()
        write_predictions(examples, found, benchmark, protocol, tmp_path / name)
        own, compared = score_predictions_file(tmp_path / name / "predictions.jsonl", benchmark)
        theirs = "rewards" if "rewards" in benchmark.formats else "official"
        other = score_predictions_file(
            tmp_path / name / f"{theirs}.jsonl", benchmark, own["rules"]
        )[0]
        assert own["micro"] == other["micro"]
        assert own["format"] == "predictions"
        assert (compared.rows, sum(group["n"] for group in own["groups"].values())) == (5, 5)
        if name == "vl_rewardbench":
            assert {group: found["n"] for group, found in own["groups"].items()} == {
                "general": 3,
                "hallucination": 1,
                "reasoning": 1,
            }


def mm_rlhf_paths() -> list[str]:
    """Return 170 image paths, as many of each category as the released edition has."""
    paths = []
    for category, size in MM_RLHF.known[0].groups.items():
        paths += [f"{category}/{number}.png" for number in range(size)]
    return paths


def mm_rlhf_rewards() -> list[dict[str, Any]]:
    """Return a whole predictions file of MM-RLHF-RewardBench."""
    ids = (IDS / "mm_rlhf_rewardbench.txt").read_text(encoding="utf-8").split("\n")[:-1]
    return [
        {"id": identity, "image": path, "rewards": [1, 0]}
        for identity, path in zip(ids, mm_rlhf_paths(), strict=True)
    ]


def multimodal_rewards() -> list[dict[str, Any]]:
    """Return a whole file of Multimodal RewardBench in R1-Reward's format, most rows right.

    The list of ids holds digests for some rows, so that the ids here stand for rows of any category;
    the sizes of the categories are those of the released edition.
    """
    categories: list[str] = []
    for category, size in MULTIMODAL.known[0].groups.items():
        categories += [category] * size
    return [
        {"ID": f"row-{number}", "Category": category, "rewards": [int(number % 3 > 0), 0.5]}
        for number, category in enumerate(categories)
    ]


def test_a_misspelt_category_is_named_and_the_file_is_not_whole(tmp_path: Path) -> None:
    records = mm_rlhf_rewards()
    assert score_predictions_file(write(tmp_path / "p.jsonl", records), MM_RLHF)[1].whole
    first_video = next(row for row in records if row["image"].startswith("video"))
    first_video["image"] = "vidoe/0.png"
    found, compared = score_predictions_file(write(tmp_path / "p.jsonl", records), MM_RLHF)
    assert not compared.whole
    assert not found["whole"]
    assert compared.miscounted == (
        "category 'video': 24 lines; the released edition has 25 rows of it",
        "category 'no category': 1 lines; the released edition has 0 rows of it",
    )
    assert set(compared.miscounted) <= set(compared.lines())


def test_one_category_of_all_rows_is_not_whole(tmp_path: Path) -> None:
    """The official scorer takes the first keyword in the path, so a folder called `long` hides all others."""
    records = [{**row, "image": f"/data/long/{row['image']}"} for row in mm_rlhf_rewards()]
    records = [
        {**row, "image": row["image"].replace("mcq", "m")} for row in records
    ]  # mcq is looked for before long
    found, compared = score_predictions_file(write(tmp_path / "p.jsonl", records), MM_RLHF)
    assert found["groups"].keys() == {"long"}
    assert "category 'long': 170 lines; the released edition has 37 rows of it" in compared.lines()
    assert not compared.whole


def test_categories_of_an_unfinished_file_are_named_only_if_too_large(tmp_path: Path) -> None:
    """A file with missing rows is short of their categories; that needs no further sentence."""
    records = mm_rlhf_rewards()[:100]
    _, compared = score_predictions_file(write(tmp_path / "p.jsonl", records), MM_RLHF)
    assert len(compared.missing) == 70
    assert compared.miscounted == ()
    records[99]["image"] = "mcq/99.png"
    _, compared = score_predictions_file(write(tmp_path / "p.jsonl", records), MM_RLHF)
    assert compared.miscounted == (
        "category 'mcq': 43 lines; the released edition has 42 rows of it",
    )


def test_the_category_of_each_row_is_compared_with_rows_at_hand(tmp_path: Path) -> None:
    """Two rows that change their categories leave the sizes as they were."""
    folder = vl_rewardbench(tmp_path / "vl", 6)
    rows = [json.loads(line) for line in (folder / "data.jsonl").open(encoding="utf-8")]
    groups = {"RLAIF": "hallucination", "mathverse": "reasoning"}
    lines = []
    for row in rows:
        prefix = row["id"].split("-")[0]
        lines.append(vl_log(row["id"], "Answer 1 is better", 1.0, groups.get(prefix, "general")))
    where = Location(location=str(folder))
    _, compared = score_predictions_file(write(tmp_path / "p.jsonl", lines), VL, where=where)
    assert compared.miscounted == ()
    first, second = lines[0]["vlreward_score"], lines[1]["vlreward_score"]
    assert first["category"] != second["category"]
    first["category"], second["category"] = second["category"], first["category"]
    _, compared = score_predictions_file(write(tmp_path / "p.jsonl", lines), VL, where=where)
    assert len(compared.miscounted) == 1
    assert compared.miscounted[0].startswith("2 in another category: 'RLAIF-V-0' is in ")
    assert not compared.whole


def test_sizes_of_categories_are_compared_for_multimodal_rewardbench(tmp_path: Path) -> None:
    """One misspelt category makes a column of its own and moves the mean of the columns."""
    records = multimodal_rewards()
    right, _ = score_predictions_file(write(tmp_path / "p.jsonl", records), MULTIMODAL, "r1_reward")
    records[1]["Category"] = "open_generation/corectness_task"
    wrong, compared = score_predictions_file(
        write(tmp_path / "p.jsonl", records), MULTIMODAL, "r1_reward"
    )
    assert abs(wrong["macro"] - right["macro"]) > 0.03
    name = (
        "category 'open_generation/corectness_task': 1 lines; the released edition has 0 rows of it"
    )
    assert name in compared.miscounted


def test_rows_without_an_id_are_read_as_the_released_script_reads_them(tmp_path: Path) -> None:
    """`item.get("id", "")` makes one item of them all; numbers are keys like texts."""
    records = [
        {"image": "mcq/1.png", "rewards": [1, 0]},
        {"image": "mcq/2.png", "rewards": [0, 1]},
        {"id": 7, "image": "mcq/3.png", "rewards": [1, 0]},
        {"id": "7", "image": "mcq/4.png", "rewards": [1, 0]},
    ]
    found, compared = score_predictions_file(write(tmp_path / "p.jsonl", records), MM_RLHF)
    assert (found["micro"], found["acc_plus"]) == (3 / 4, 2 / 3)
    assert found["detail"]["groups"] == 3
    assert compared.invented == ("", "", "7", "7")


def test_a_repeated_id_of_own_records_is_counted(tmp_path: Path) -> None:
    benchmark = BENCHMARKS["preference_folder"]
    records = [
        {"id": identity, "category": "x", "rewards": [1, 0]} for identity in ("a", "b", "a", "a")
    ]
    _, compared = score_predictions_file(write(tmp_path / "p.jsonl", records), benchmark)
    assert (compared.duplicated, compared.whole) == (("a", "a"), False)


def whole_lines() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Return a benchmark and a valid line for every file format that is scored."""
    own = {
        "key": "k",
        "content": "c",
        "identity": "vl_rewardbench:0 (mmmu-1)",
        "group": "mcq",
        "better": 0,
        "scores": [1.0, 0.0],
        "votes": [],
        "credit": 1.0,
    }
    judged = {**own, "scores": None, "votes": [{"text": "", "first": 0, "names": 0}]}
    metric = {"question_id": "mathvista_1", "category": "reasoning", "score": 1}
    return {
        "vl predictions": (VL, own),
        "vl predictions, votes": (VL, judged),
        "vl official": (VL, sample()),
        "vl official, wrapped": (VL, {"0": sample()}),
        "vl rewards": (VL, {"id": "mmmu-1", "rewards": [1, 0]}),
        "vl lmms_eval": (VL, vl_log("mathverse_1", "Answer 1 is better", 1.0, "reasoning")),
        "multimodal predictions": (MULTIMODAL, own),
        "multimodal official": (MULTIMODAL, prediction("[[A]]")),
        "multimodal rewards": (MULTIMODAL, {"ID": "x", "Category": "vqa", "rewards": [1, 0]}),
        "multimodal lmms_eval": (
            MULTIMODAL,
            {
                "target": "Output1",
                "filtered_resps": ["[[A]]"],
                "multimodal_rewardbench_accuracy": metric,
            },
        ),
        "mm_rlhf predictions": (MM_RLHF, own),
        "mm_rlhf official": (MM_RLHF, {"id": "x", "image": "mcq/1", "rewards": [1, 0]}),
        "preference predictions": (BENCHMARKS["preference_folder"], own),
        "preference rewards": (
            BENCHMARKS["preference_folder"],
            {"id": "x", "category": "y", "rewards": [1, 0]},
        ),
    }


@pytest.mark.parametrize("name", whole_lines())
def test_a_key_that_a_later_line_lacks_is_refused_or_not_needed(name: str, tmp_path: Path) -> None:
    """A line without a key, with null, or with a value of another type is named; it is never a traceback."""
    benchmark, line = whole_lines()[name]
    rules = {"vl rewards": "r1_reward", "multimodal rewards": "r1_reward"}.get(name)
    score_predictions_file(write(tmp_path / "p.jsonl", [line, line]), benchmark, rules)
    for key in line:
        shorter = {other: value for other, value in line.items() if other != key}
        for broken in (shorter, {**line, key: None}, {**line, key: 3}, {**line, key: {"a": 1}}):
            refused = ""
            try:
                score_predictions_file(
                    write(tmp_path / "p.jsonl", [line, broken]), benchmark, rules
                )
            except PredictionsError as error:
                refused = str(error)
            assert not refused or "line 2" in refused


def fields(one: Example) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__dataclass_fields__}


def test_a_line_that_stands_for_another_of_its_id_is_found_by_its_responses(tmp_path: Path) -> None:
    """Only where the file has them: several rows share an id."""
    ids = (IDS / "mm_rlhf_rewardbench.txt").read_text(encoding="utf-8").split("\n")[:-1]
    rows = [
        {"id": one, "image": image, "chosen": str(row), "rejected": "", "rewards": [1, 0]}
        for row, (one, image) in enumerate(zip(ids, mm_rlhf_paths(), strict=True))
    ]
    assert score_predictions_file(write(tmp_path / "p.jsonl", rows), MM_RLHF)[1].whole
    other = next(row for row, one in enumerate(ids) if row and one == ids[0])
    _, compared = score_predictions_file(
        write(tmp_path / "p.jsonl", [*rows[:other], rows[0], *rows[other + 1 :]]), MM_RLHF
    )
    assert (compared.rows, compared.missing, compared.duplicated) == (170, (ids[0],), (ids[0],))


def test_acc_plus_stands_beside_each_category(tmp_path: Path) -> None:
    rows = [
        json.loads(line)
        for line in (mm_rlhf_rewardbench(tmp_path) / "mm_reward_bench.jsonl").open(encoding="utf-8")
    ]
    records = [{**row, "rewards": [number, 2]} for number, row in enumerate(rows)]
    found, compared = score_predictions_file(
        write(tmp_path / "p.jsonl", records), MM_RLHF, where=Location(location=str(tmp_path))
    )
    assert compared.whole
    assert found["groups"]["mcq"] == {
        "n": 6,
        "right": 3,
        "accuracy": 0.5,
        "acc_plus": 1 / 3,
        "items": 3,
    }
    table = score_table("mm_rlhf_rewardbench", found)
    cells = next(record for record in table.records() if record[""] == "mcq")
    assert cells["Acc+"] == str(1 / 3)

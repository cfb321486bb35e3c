"""The page of a list of runs: variants with their seeds, policies against KL, and what goes with what a reward model is worth."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mmrm.eval import report
from mmrm.eval.reporting.comparison_page import benchmark, list_page
from mmrm.eval.reporting.overoptimisation_page import overoptimisation
from mmrm.eval.reporting.predictors_page import predictors_of
from tests.eval.made_policies import VARIANTS, make_list
from tests.eval.test_report import Elements


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_list(tmp_path_factory.mktemp("list") / "made-list")


@pytest.fixture(scope="module")
def text(folder: Path) -> str:
    return list_page(folder)


def stored(folder: Path, file: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / file).read_text())
    return found


def words_in(text: str) -> str:
    return " ".join(
        re.sub(r"<.*?>", " ", re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)).split()
    )


def test_every_section_is_there_and_the_menu_leads_to_it(text: str) -> None:
    found = Elements(text)
    sections = [attributes["id"] for attributes in found.all("section")]
    assert sections == ["variants", "overoptimisation", "predictors"]
    assert {f"#{section}" for section in sections} <= {link["href"] for link in found.all("a")}
    assert not found.all("script")
    assert not re.search(r"https?://", text)
    assert all(
        svg.get("aria-label") or svg.get("aria-hidden") == "true" for svg in found.all("svg")
    )
    assert all(header.get("scope") in ("row", "col") for header in found.all("th"))


def test_variants_stand_with_their_seeds_and_the_difference_from_the_first(
    folder: Path, text: str
) -> None:
    words, rows = words_in(text), stored(folder, "ablation.json")["results"]
    assert [row["variant"] for row in rows] == [*VARIANTS] * 2
    for row in rows:
        line = f"{100 * row['accuracy']:.1f} "
        if row["low"] is not None:
            line += f"{100 * row['low']:.1f} – {100 * row['high']:.1f} "
        if row["difference"] is not None:
            line += f"{100 * row['difference']:+.1f} "
            if row["difference_low"] is not None:
                ends = f"{100 * row['difference_low']:+.1f}, {100 * row['difference_high']:+.1f}"
                line += f"[{ends}] "
            line = (line + row["words"]).replace("-", "−")
        else:
            line += "–"
        seeds = " ".join(
            f"{100 * row[f'seed_{seed}']:.1f}" for seed in range(3) if f"seed_{seed}" in row
        )
        assert f"{line} {100 * row['spread']:.1f} {seeds} {row['changes'] or '–'}" in words
    assert {row["words"] for row in rows} == {"", "better", "too few seeds"}
    assert "hold at 95 % for all 4 comparisons together" in words
    assert (
        "Not in the tables, because they have not come to their end: reward-model, seed 2." in words
    )
    assert "&lt;b&gt;other&lt;/b&gt;" in text
    assert "<b>other</b>" not in text


def test_a_drawing_holds_all_of_its_benchmark(folder: Path) -> None:
    rows = stored(folder, "ablation.json")["results"][:3]
    found = benchmark("scenes", rows)
    places = [
        found["place"](value)
        for row in found["rows"]
        for value in (row["low"], row["accuracy"], row["high"], *row["each"])
        if value is not None
    ]
    assert all(0 <= place <= 100 for place in places)
    assert max(places) - min(places) > 80
    assert [len(row["each"]) for row in found["rows"]] == [
        sum(key.startswith("seed_") for key in row) for row in rows
    ]
    low, high = ((at, float(written) / 100) for at, written in found["ticks"])
    assert found["place"](low[1]) == pytest.approx(low[0], abs=0.1)
    assert found["place"](high[1]) == pytest.approx(high[0], abs=0.1)


def test_policies_stand_against_kl_beside_the_best_of_n_of_the_start(
    folder: Path, text: str
) -> None:
    figures = stored(folder, "overoptimisation/figures.json")
    words = words_in(text)
    for point in figures["points"][1:]:
        sampled = point["sampled"]
        figure = f"{100 * sampled['mean']:.1f} "
        if len(point["seeds"]) == 2:  # too few for an interval
            assert sampled["low"] is None
            figure += f"{100 * sampled['difference'][0]:+.1f} too few seeds"
        else:
            ends = ", ".join(f"{100 * value:+.1f}" for value in sampled["difference"][1:])
            figure += f"{100 * sampled['low']:.1f} – {100 * sampled['high']:.1f} "
            figure += f"{100 * sampled['difference'][0]:+.1f} [{ends}]"
        figure = figure.replace("-", "−")
        assert re.search(
            rf"{point['run']}, step {point['step']} {point['kl']['mean']:.2f} .*?{re.escape(figure)}",
            words,
        )
    sampled, greedy, score, several = overoptimisation(figures)["charts"]
    assert [name for _, name in sampled.legend] == ["shuffled", "reward-model", "start, best of n"]
    assert [name for _, name in greedy.legend] == ["shuffled", "reward-model"]
    assert (
        sum("reward-model, KL from the start, nats" in fact for fact in sampled.facts) == 3
    )  # the start, and both steps
    assert sum("start, best of n" in fact for fact in score.facts) == 4
    assert [name for _, name in several.legend] == ["best of n", "pass@n", "majority of n"]
    assert [
        line["n"]
        for line in overoptimisation(stored(folder, "overoptimisation/figures.json"))["curve"]
    ] == [1, 2, 4]


def test_figures_of_a_release_that_knew_no_seeds_are_read(folder: Path, tmp_path: Path) -> None:
    figures = stored(folder, "overoptimisation/figures.json")
    for point in figures["points"]:
        del point["seeds"]
    (tmp_path / "overoptimisation").mkdir()
    (tmp_path / "overoptimisation" / "figures.json").write_text(json.dumps(figures))
    (tmp_path / "ablation.json").write_text((folder / "ablation.json").read_text())
    found = Elements(list_page(tmp_path))
    assert [attributes["id"] for attributes in found.all("section")] == [
        "variants",
        "overoptimisation",
    ]


def test_reward_models_stand_with_gains_coefficients_and_a_dot_for_each(
    folder: Path, text: str
) -> None:
    found = stored(folder, "predictors/predictors.json")
    made = predictors_of(found)
    titles = [chart.title for charts in made["charts"].values() for chart in charts]
    against = ("AUC", "vl_rewardbench accuracy")
    assert titles == [
        f"{gain} by {figure}"
        for gain in ("best-of-N gain", "RL gain, greedy")
        for figure in against
    ]
    best, rl = (charts[0] for charts in made["charts"].values())
    assert [name for _, name in best.legend] == ["Naive-RM", "judge", "critic", "no gain"]
    assert (len(best.facts), len(rl.facts)) == (12, 6)
    assert "many, seed 1 (Naive-RM): AUC 55 %, +1.0 [−1.0, +3.0]" in best.facts
    words = words_in(text)
    assert "few, seed 0 Naive-RM 1,000 −5.0 [−7.0, −3.0] −5.0 [−10.0, +10.0]" in words
    assert "few, seed 1 Naive-RM 1,000 −3.0 [−5.0, −1.0] –" in words
    mean, low, high = found["correlations"]["best_of_gain"]["AUC"]["pearson"]
    assert f"AUC 12 {mean:+.2f} [{low:+.2f}, {high:+.2f}]" in words
    assert "Not in the tables: judge, seed 2." in words
    assert "AUC inside a question, 40 questions" in words


def test_what_the_variants_cost_stands_below_their_accuracy(folder: Path, text: str) -> None:
    assert "shuffled 25,600 110 0.0125 320 0.0070 0.0" in words_in(text)
    old = stored(folder, "ablation.json")
    old.pop("costs")  # a list that was made before costs were counted
    (folder / "ablation.json").write_text(json.dumps(old))
    assert "Cost" not in words_in(list_page(folder))


def test_a_list_in_which_nothing_has_come_to_its_end(tmp_path: Path) -> None:
    missing = [{"variant": "a", "seed": 0, "folder": "elsewhere"}]
    empty = {"list": "x.yaml", "reference": "a", "results": [], "missing": missing}
    (tmp_path / "ablation.json").write_text(json.dumps(empty))
    words = words_in(list_page(tmp_path))
    assert "No run of this list has come to its end." in words
    assert "their end: a, seed 0." in words


def test_the_command_writes_the_page_and_does_not_follow_a_list(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        "sys.argv", ["report.py", str(folder), "--output", str(tmp_path / "page.html")]
    )
    report.main()
    assert "made-list" in (tmp_path / "page.html").read_text()
    assert "page.html" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["report.py", str(folder), "--watch"])
    with pytest.raises(SystemExit, match=r"is a list of runs.*--watch follows a run"):
        report.main()

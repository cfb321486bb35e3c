"""The page of a list of runs: variants with their seeds, policies against KL, and what goes with what a reward model is worth."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from mmrm.eval import report
from mmrm.eval.reporting.comparison_page import list_page, variant_curve_charts, variants_chart
from mmrm.eval.reporting.overoptimisation_page import kl_charts
from mmrm.eval.reporting.predictors_page import GAINS, gain_charts
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
        assert f"{row['variant']} {row['changes'] or '–'}" in html.unescape(words)
        cells = [row["variant"], f"{100 * row['accuracy']:.1f}"]
        if row["low"] is not None:
            cells.append(f"[{100 * row['low']:.1f}, {100 * row['high']:.1f}]")
        cells.append(f"{100 * row['spread']:.1f}")
        cells += [f"{100 * row[f'seed_{seed}']:.1f}" for seed in range(3) if f"seed_{seed}" in row]
        if row["difference"] is not None:
            cells.append(f"{100 * row['difference']:+.1f}")
        if row["difference_low"] is not None:
            ends = f"{100 * row['difference_low']:+.1f}, {100 * row['difference_high']:+.1f}"
            cells.append(f"[{ends}]")
        line = " ".join(" ".join(cells).split()).replace(" -", " −").replace("[-", "[−")
        assert f"{line} {row['words']}".strip() in html.unescape(words)
    assert {row["words"] for row in rows} == {"", "better", "too few seeds"}
    assert "hold at 95 % for all 4 comparisons together" in words
    assert (
        "Not in the tables, because they have not come to their end: reward-model, seed 2." in words
    )
    assert "&lt;b&gt;other&lt;/b&gt;" in text
    assert "<b>other</b>" not in text


def test_a_chart_has_a_line_for_each_variant_that_holds_all_of_its_numbers(folder: Path) -> None:
    rows = stored(folder, "ablation.json")["results"][:3]
    chart = variants_chart("scenes", rows)
    reference, means, seeds = chart.series
    assert [text for _, text in chart.y.ticks] == [*VARIANTS]
    assert reference.line[0][0] == means.dots[0].x == rows[0]["accuracy"]
    assert [(dot.x, dot.low, dot.high) for dot in means.dots] == [
        (row["accuracy"], row["low"], row["high"]) for row in rows
    ]
    assert len(seeds.dots) == sum(row["seeds"] for row in rows) == 8
    for dot in (*means.dots, *seeds.dots):
        for value in (dot.x, dot.low, dot.high):
            assert value is None or chart.x.low < value < chart.x.high
    assert chart.y.low > chart.y.high  # the first variant is at the top


def test_policies_stand_against_kl_beside_the_best_of_n_of_the_start(
    folder: Path, text: str
) -> None:
    figures = stored(folder, "overoptimisation/figures.json")
    words = words_in(text)
    for point in figures["points"][1:]:
        cells = [point["run"], str(len(point["seeds"])), str(point["step"])]
        cells += [f"{point['kl']['mean']:.2f}", f"{point['score']['mean']:+.2f}"]
        assert " ".join(cells) in words
        change = point["sampled"]["difference"]
        sampled = f"{100 * change[0]:+.1f}"
        if len(point["seeds"]) == 2:  # too few for an interval
            assert point["sampled"]["low"] is None
        else:
            sampled += f" [{100 * change[1]:+.1f}, {100 * change[2]:+.1f}]"
        assert sampled.replace("-", "−") in words
    assert "reward-model, step 20: no difference from the start can be told" in words
    assert "best of 4 [95 %] pass@4 [95 %] majority of 4 [95 %]" in words
    assert re.search(r"start 0 \+\d\.\d\d \[.*?\] \d+\.\d \[", words)
    of_sampled, of_greedy, of_score, several = kl_charts(figures["points"], figures["best_of_n"])
    assert [name for _, name in of_sampled.legend] == [
        "shuffled",
        "reward-model",
        "start, best of n",
    ]
    assert [name for _, name in of_greedy.legend] == ["shuffled", "reward-model"]
    assert (
        sum("reward-model, KL from the start, nats" in fact for fact in of_sampled.facts) == 3
    )  # the start, and both steps
    assert sum("start, best of n" in fact for fact in of_score.facts) == 4
    assert [name for _, name in several.legend] == ["best of n", "pass@n", "majority of n"]
    assert "1 0.00 +0." in words
    assert "4 0.64 +1." in words
    assert "3 0.43" not in words  # only numbers that double, and the largest


def test_figures_of_a_release_that_knew_no_seeds_are_read(folder: Path, tmp_path: Path) -> None:
    figures = stored(folder, "overoptimisation/figures.json")
    for point in figures["points"]:
        del point["seeds"]
        del point["majority"]
        for name in ("greedy", "sampled"):
            del point[name]["low"]
            del point[name]["high"]
            point[name].pop("difference", None)
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
    gains = ("best_of_gain", "rl_greedy_gain")
    against = ("AUC", "vl_rewardbench accuracy")
    charts = {gain: gain_charts(found["models"], gain) for gain in gains}
    assert [chart.title for gain in gains for chart in charts[gain]] == [
        f"{GAINS[gain]} by {figure}" for gain in gains for figure in against
    ]
    best = charts["best_of_gain"][0]
    rl = charts["rl_greedy_gain"][0]
    assert [name for _, name in best.legend] == ["Naive-RM", "judge", "critic", "no gain"]
    assert (len(best.facts), len(rl.facts)) == (12, 6)
    assert "many, seed 1 (Naive-RM): AUC 55 %, +1.0 [−1.0, +3.0]" in best.facts
    words = words_in(text)
    assert "few 0 Naive-RM 1,000 40.0 60.0 0.0 −5.0 [−7.0, −3.0] −5.0 [−10.0, +10.0] –" in words
    assert "few 1 Naive-RM 1,000 45.0 70.0 1.0 −3.0 [−5.0, −1.0] – –" in words
    coefficients = found["correlations"]["best_of_gain"]["AUC"]
    texts = []
    for mean, low, high in (coefficients["spearman"], *coefficients["directions"]):
        texts.append(f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]")
    assert f"AUC 12 {' '.join(texts)}" in words
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


def write_log(file: Path, losses: list[float]) -> None:
    """Write the log of a run with a training loss and a held-out loss at each step."""
    file.parent.mkdir(parents=True)
    lines = []
    for step, loss in enumerate(losses, start=1):
        lines.append(json.dumps({"step": step, "loss": loss}))
        lines.append(json.dumps({"step": step, "eval_held_out/loss": 2 * loss}))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_the_curves_of_the_variants_are_laid_over_one_another(tmp_path: Path) -> None:
    write_log(tmp_path / "low" / "0" / "log.jsonl", [0.75, 0.5, 0.25])
    write_log(tmp_path / "low" / "1" / "log.jsonl", [0.25, 0.25])
    write_log(tmp_path / "high" / "0" / "log.jsonl", [0.5, float("nan"), 1.0])
    results = [
        {"variant": "low", "seed_0": 0.5, "seed_1": 0.5},
        {"variant": "high", "seed_0": 0.5},
        {"variant": "removed", "seed_0": 0.5},
    ]
    problems: list[str] = []
    loss, held_out_loss = variant_curve_charts(tmp_path, results, problems)
    assert (loss.title, held_out_loss.title) == ("Loss", "Loss on held-out records")
    # The mean over the seeds, at the steps that both logs have
    assert {series.name: series.line for series in loss.series} == {
        "low": ((1.0, 0.5), (2.0, 0.375)),
        "high": ((1.0, 0.5), (3.0, 1.0)),
    }
    assert held_out_loss.series[0].line == ((1.0, 1.0), (2.0, 0.75))
    assert problems == []


def test_held_out_accuracies_are_percent_with_half_a_point_for_a_tie(tmp_path: Path) -> None:
    file = tmp_path / "low" / "0" / "log.jsonl"
    file.parent.mkdir(parents=True)
    lines = []
    # An untrained head ties everywhere, and is at chance.
    for step, (accuracy, ties) in enumerate([(0.0, 1.0), (0.75, 0.0), (0.5, 0.25)]):
        figures = {"eval_held_out/accuracy": accuracy, "eval_held_out/ties": ties}
        lines.append(json.dumps({"step": step, **figures}))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    [chart] = variant_curve_charts(tmp_path, [{"variant": "low", "seed_0": 0.5}], [])
    assert chart.title == "Accuracy on held-out records, % (ties half)"
    assert chart.series[0].line == ((0.0, 50.0), (1.0, 75.0), (2.0, 62.5))


def test_a_broken_line_of_a_log_is_named(tmp_path: Path) -> None:
    file = tmp_path / "low" / "0" / "log.jsonl"
    write_log(file, [0.75, 0.5])
    file.write_text(file.read_text() + "{broken\n", encoding="utf-8")
    problems: list[str] = []
    variant_curve_charts(tmp_path, [{"variant": "low", "seed_0": 0.5}], problems)
    assert len(problems) == 1
    assert "line 5 is left out" in problems[0]

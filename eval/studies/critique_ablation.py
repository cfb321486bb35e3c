"""The worth of a critic's critiques: its accuracy without one, after its own, and after true ones.

All are measured on the embedded world, in which the true critique of a response is known.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from pydantic_core import to_jsonable_python

from mmrm.data.display.format import MISSING, percent
from mmrm.data.display.study_result import StudyResult
from mmrm.data.display.table import Column, Table
from mmrm.data.storage.files import write_json
from mmrm.data.synthetic.wording import CritiqueTruth, read_critique
from mmrm.data.synthetic.world import ShapesWorld, WorldItem
from mmrm.eval.benchmarks.preference_folder import PREFERENCE_FOLDER
from mmrm.eval.candidates import Example, Scores, candidates_from_record
from mmrm.eval.judges.checkpoint import Runtime, load_checkpoint
from mmrm.eval.judges.critic.config import CriticJudgeConfig
from mmrm.eval.judges.critic.judge import critic_judge
from mmrm.eval.judges.judge import cost_figures
from mmrm.eval.judges.loading import load_judge
from mmrm.eval.protocol import ProtocolConfig, with_presentations
from mmrm.eval.results.result import Accuracy, figure, outcomes
from mmrm.eval.results.summary_table import accuracy_text
from mmrm.models.backbone import load_critic

WRITTEN = {"readable": "readable", "verdict": "right verdict", "fact": "right fact", "both": "both"}
"""Counts of written critiques, and the heads of their columns."""
RESPONSES = ("of right responses", "of wrong responses")
"""The rows of critiques by the side of the response: the right one comes first."""


def run(options: argparse.Namespace, runtime: Runtime) -> StudyResult:
    """Judge the same rows in every way; all ranks call together.

    Args:
        options: The critic's `checkpoint`, the `scalar` judge or None, `rows`, `level` and `seed`
            of the world, and `samples` and `temperature` of the critiques.
        runtime: The device and the token budget.
    """
    figures = study_figures(options, runtime)
    return StudyResult(figures, (judges_table(figures), critiques_table(figures)))


def write(result: StudyResult, file: Path) -> None:
    """Write the figures to a JSON file."""
    write_json(file, to_jsonable_python(result.figures))


def study_figures(options: argparse.Namespace, runtime: Runtime) -> dict[str, Any]:
    """Return the figures of all judges; see `run`.

    `judges` contains accuracy, in which a tie is wrong, and cost (see `cost_figures`;
    seconds are wall-clock time over the rows, on all ranks together). `critiques` and `by_truth`
    are what `truth_of_critiques` returns.
    """
    world = ShapesWorld(options.level, options.seed, "benchmark")
    items = [world.item(index) for index in range(options.rows)]
    examples = [row_with_right_first(item) for item in items]
    config = CriticJudgeConfig(
        type="critic",
        checkpoint=str(options.checkpoint),
        samples=options.samples,
        temperature=options.temperature,
    )
    critic = load_checkpoint(options.checkpoint, runtime, load_critic)
    true_critiques = {item.identity: (item.critique(True), item.critique(False)) for item in items}
    judges = {
        "no critique": critic_judge(critic, config, "none"),
        "own critique": critic_judge(critic, config),
        "ground-truth critique": critic_judge(critic, config, true_critiques),
    }
    protocol = ProtocolConfig()
    scores_by_judge: dict[str, list[Scores]] = {}
    cost: dict[str, dict[str, float]] = {}
    for name, judge in judges.items():
        scores = judge.under(protocol, PREFERENCE_FOLDER).score_batch(examples)
        scores_by_judge[name] = scores
        cost[name] = cost_figures(scores)
    if options.scalar is not None:
        scalar = load_judge(options.scalar, runtime).judge.under(protocol, PREFERENCE_FOLDER)
        started = perf_counter()
        scores_by_judge["scalar"] = scalar.score_batch(with_presentations(examples, protocol))
        cost["scalar"] = {"seconds_per_judgement": (perf_counter() - started) / len(examples)}
    figures_of_judges = {}
    for name, scores in scores_by_judge.items():
        accuracy = figure(outcomes(examples, scores, protocol), "wrong")
        figures_of_judges[name] = {"accuracy": accuracy, "cost": cost[name]}
    critiques, by_truth = truth_of_critiques(items, examples, scores_by_judge["own critique"])
    return {
        "checkpoint": str(options.checkpoint),
        "world": f"{world.source}, split benchmark, seed {options.seed}",
        "rows": options.rows,
        "critic": config.model_dump(exclude={"checkpoint"}),
        "judges": figures_of_judges,
        "critiques": critiques,
        "by_truth": by_truth,
    }


def row_with_right_first(item: WorldItem) -> Example:
    """Return an item of the world as a row whose first response is the right one."""
    candidates = candidates_from_record(item.preference())
    right, wrong = candidates.responses
    return Example(
        key=candidates.key,
        images=candidates.images,
        prompt=candidates.prompt,
        responses=(right, wrong),
        better=0,
        group=item.preference().category,
        source=item.preference().source,
        identity=candidates.identity,
        row={},
    )


def truth_of_critiques(
    items: Sequence[WorldItem], examples: Sequence[Example], scores: Sequence[Scores]
) -> tuple[dict[str, Counter[str]], dict[str, Accuracy]]:
    """Return how true the written critiques are, and the accuracy by whether they are true.

    The first are counts of `checked`, for all critiques, for those of right and of wrong responses,
    and by category. The second distinguishes rows both of whose critiques are true from the others.
    """
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    are_both_true = []
    for item, row_scores in zip(items, scores, strict=True):
        assert row_scores.texts, "a critic with its own critiques writes one of each response"
        num_true = 0
        for side, critique in enumerate(row_scores.texts):
            result = checked(critique, item.critique_truth(side == 0))
            num_true += result["both"]
            for name in ("all", RESPONSES[side], item.category):
                counts[name].update(result)
        are_both_true.append(num_true == 2)
    found = outcomes(examples, scores, ProtocolConfig())
    is_true = np.array(are_both_true, dtype=bool)
    return counts, {
        "both critiques true": figure(found, "wrong", np.flatnonzero(is_true)),
        "a critique false": figure(found, "wrong", np.flatnonzero(~is_true)),
    }


def checked(critique: str, truth: CritiqueTruth) -> dict[str, int]:
    """Return 1 or 0 for each part of a critique that equals that of the correct one.

    A critique that cannot be read states nothing. `n` is 1.
    """
    statement = read_critique(critique)
    has_verdict = statement is not None and statement.right == truth.right
    has_fact = statement is not None and statement.fact == truth.fact
    return {
        "n": 1,
        "readable": int(statement is not None),
        "verdict": int(has_verdict),
        "fact": int(has_fact),
        "both": int(has_verdict and has_fact),
    }


def judges_table(figures: Mapping[str, Any]) -> Table:
    """Return accuracy and cost of each judge, and the accuracy by truth of the critiques."""
    heads = ("accuracy [95 %]", "ties", "s per judgement", "tokens/s", "cut off")
    columns = (Column("scored after"), *(Column(head, is_number=True) for head in heads))
    rows: list[tuple[str, ...]] = []
    for name, judge in figures["judges"].items():
        accuracy = judge["accuracy"]
        cost = judge["cost"]
        cells = [name, accuracy_text(accuracy), str(accuracy.ties)]
        cells.append(f"{cost['seconds_per_judgement']:.4f}")
        if "truncated" in cost:
            cells.append(f"{cost['generated_tokens_per_second']:.0f}")
            cells.append(f"{percent(cost['truncated'])} %")
        else:
            cells += [MISSING, MISSING]
        rows.append(tuple(cells))
    for name, accuracy in figures["by_truth"].items():
        words = f"  own, {name}: n = {accuracy.n}"
        rows.append((words, accuracy_text(accuracy), str(accuracy.ties)))
    return Table(figures["checkpoint"], columns, tuple(rows))


def critiques_table(figures: Mapping[str, Any]) -> Table:
    """Return how true the written critiques are, in percent."""
    heads = ("n", *WRITTEN.values())
    columns = (Column("written critiques"), *(Column(head, is_number=True) for head in heads))
    rows = []
    for name, counts in figures["critiques"].items():
        num_critiques = max(counts["n"], 1)
        shares = [f"{percent(counts[key] / num_critiques)} %" for key in WRITTEN]
        rows.append((name, str(counts["n"]), *shares))
    return Table(figures["world"], columns, tuple(rows))

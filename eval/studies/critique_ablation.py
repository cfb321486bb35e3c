"""The worth of a critic's critiques: its accuracy without them, after its own, and after true ones.

All are measured on the generated shapes data (`data/synthetic/`), in which the true critique of a
response is known.
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
from mmrm.data.synthetic.world import GeneratedItem, ShapesGenerator
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

COLUMN_HEADS = {
    "readable": "readable",
    "verdict": "right verdict",
    "fact": "right fact",
    "both": "both",
}
"""The head of the column of each count of `matching_parts`."""
RESPONSES = ("of right responses", "of wrong responses")
"""The names of the counts of critiques, by the index of the response. Response 0 is right."""


def run(options: argparse.Namespace, runtime: Runtime) -> StudyResult:
    """Measure a critic on generated pairs: without critiques, with its own, and with true ones.

    All ranks must call together, and get the figures with their tables.

    Args:
        options: The critic's `checkpoint`; `scalar`, a scalar reward model to compare with, or
            None; `rows`, `level` and `seed` of the generated shapes data; `samples` and
            `temperature` of the critiques.
        runtime: The device and the token budget.
    """
    figures = study_figures(options, runtime)
    return StudyResult(figures, (judges_table(figures), critiques_table(figures)))


def write(result: StudyResult, file: Path) -> None:
    """Write the study's figures to a JSON file."""
    write_json(file, to_jsonable_python(result.figures))


def study_figures(options: argparse.Namespace, runtime: Runtime) -> dict[str, Any]:
    """Return the study's figures as they are written to JSON. The arguments are those of `run`.

    `judges` holds the accuracy and the cost of each way to judge: without critiques, with the
    critic's own, with true ones, and by the scalar model. A tie is wrong. Seconds are wall-clock
    time over the rows, on all ranks together. `critiques` and `by_truth` are the two results of
    `truth_of_critiques`.
    """
    shapes_data = ShapesGenerator(options.level, options.seed, "benchmark")
    items = [shapes_data.item(index) for index in range(options.rows)]
    examples = [row_with_right_first(item) for item in items]
    config = CriticJudgeConfig(
        type="critic",
        checkpoint=str(options.checkpoint),
        samples=options.samples,
        temperature=options.temperature,
    )
    critic = load_checkpoint(options.checkpoint, runtime, load_critic)
    true_critiques: dict[str, tuple[str, str]] = {}
    for item in items:
        of_right_response = item.critique(chosen=True)
        of_wrong_response = item.critique(chosen=False)
        true_critiques[item.identity] = (of_right_response, of_wrong_response)
    judges = {
        "no critique": critic_judge(critic, config, "none"),
        "own critique": critic_judge(critic, config),
        "ground-truth critique": critic_judge(critic, config, true_critiques),
    }
    protocol = ProtocolConfig()
    scores_by_judge: dict[str, list[Scores]] = {}
    cost_by_judge: dict[str, dict[str, float]] = {}
    for name, judge in judges.items():
        scores = judge.under(protocol, PREFERENCE_FOLDER).score_batch(examples)
        scores_by_judge[name] = scores
        cost_by_judge[name] = cost_figures(scores)
    if options.scalar is not None:
        scalar = load_judge(options.scalar, runtime).judge.under(protocol, PREFERENCE_FOLDER)
        started = perf_counter()
        # A judge that compares may be given here too, and needs the orders of the responses.
        scores_by_judge["scalar"] = scalar.score_batch(with_presentations(examples, protocol))
        seconds = perf_counter() - started
        cost_by_judge["scalar"] = {"seconds_per_judgement": seconds / len(examples)}
    figures_by_judge = {}
    for name, scores in scores_by_judge.items():
        accuracy = figure(outcomes(examples, scores, protocol), ties="wrong")
        figures_by_judge[name] = {"accuracy": accuracy, "cost": cost_by_judge[name]}
    critiques, by_truth = truth_of_critiques(items, examples, scores_by_judge["own critique"])
    return {
        "checkpoint": str(options.checkpoint),
        "world": f"{shapes_data.source}, split benchmark, seed {options.seed}",
        "rows": options.rows,
        "critic": config.model_dump(exclude={"checkpoint"}),
        "judges": figures_by_judge,
        "critiques": critiques,
        "by_truth": by_truth,
    }


def row_with_right_first(item: GeneratedItem) -> Example:
    """Return a generated question as a benchmark row whose first response is the right one."""
    record = item.preference()
    candidates = candidates_from_record(record)  # its responses are chosen and rejected
    return Example(
        key=candidates.key,
        images=candidates.images,
        prompt=candidates.prompt,
        responses=(record.chosen, record.rejected),
        better=0,
        group=record.category,
        source=record.source,
        identity=candidates.identity,
        row={},
    )


def truth_of_critiques(
    items: Sequence[GeneratedItem], examples: Sequence[Example], scores: Sequence[Scores]
) -> tuple[dict[str, Counter[str]], dict[str, Accuracy]]:
    """Compare written critiques with the true ones, and return two results.

    The first result holds counts of critiques and of their true parts (see `matching_parts`). There
    are counts for all critiques, for those of right responses, for those of wrong responses, and
    for each category of question. The second result holds two accuracies: of the rows whose two
    critiques are true, and of the other rows.

    Args:
        items: The generated questions.
        examples: The same questions as benchmark rows.
        scores: The scores of a critic that wrote its critiques; their texts are the critiques.
    """
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    are_both_true = []
    for item, row_scores in zip(items, scores, strict=True):
        assert row_scores.texts, "a critic with its own critiques writes one of each response"
        num_true = 0
        for index, critique in enumerate(row_scores.texts):
            is_right_response = index == 0  # see `row_with_right_first`
            parts = matching_parts(critique, item.critique_truth(is_right_response))
            num_true += parts["both"]
            for name in ("all", RESPONSES[index], item.category):
                counts[name].update(parts)
        are_both_true.append(num_true == 2)
    row_outcomes = outcomes(examples, scores, ProtocolConfig())
    has_true_critiques = np.array(are_both_true, dtype=bool)
    rows_with_true_critiques = np.flatnonzero(has_true_critiques)
    other_rows = np.flatnonzero(~has_true_critiques)
    return counts, {
        "both critiques true": figure(row_outcomes, ties="wrong", rows=rows_with_true_critiques),
        "a critique false": figure(row_outcomes, ties="wrong", rows=other_rows),
    }


def matching_parts(critique: str, truth: CritiqueTruth) -> dict[str, int]:
    """Return, for each part of a critique, 1 if it is true, else 0.

    The parts are the `verdict` on the response and the `fact` about the image. Both are 0 if the
    critique is not `readable`. `n` is always 1, so that sums of these numbers also count critiques.
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
    """Return a table of the accuracy and cost of each way to judge.

    The last rows show the accuracy of the critic with its own critiques on two parts of the data:
    rows with true critiques, and the other rows. `figures` are those of `study_figures`.
    """
    heads = ("accuracy [95 %]", "ties", "s per judgement", "tokens/s", "cut off")
    columns = (Column("scored after"), *(Column(head, is_number=True) for head in heads))
    rows: list[tuple[str, ...]] = []
    for name, judge in figures["judges"].items():
        accuracy = judge["accuracy"]
        cost = judge["cost"]
        cells = [name, accuracy_text(accuracy), str(accuracy.ties)]
        cells.append(f"{cost['seconds_per_judgement']:.4f}")
        if "truncated" in cost:  # the judge wrote critiques
            cells.append(f"{cost['generated_tokens_per_second']:.0f}")
            cells.append(f"{percent(cost['truncated'])} %")
        else:
            cells += [MISSING, MISSING]
        rows.append(tuple(cells))
    for name, accuracy in figures["by_truth"].items():
        # Indented: these rows are parts of the row `own critique`.
        row_name = f"  own, {name}: n = {accuracy.n}"
        rows.append((row_name, accuracy_text(accuracy), str(accuracy.ties)))
    return Table(figures["checkpoint"], columns, tuple(rows))


def critiques_table(figures: Mapping[str, Any]) -> Table:
    """Return a table of the shares of written critiques that are readable and true, in percent.

    `figures` are those of `study_figures`.
    """
    heads = ("n", *COLUMN_HEADS.values())
    columns = (Column("written critiques"), *(Column(head, is_number=True) for head in heads))
    rows = []
    for name, counts in figures["critiques"].items():
        num_critiques = max(counts["n"], 1)
        shares = [f"{percent(counts[key] / num_critiques)} %" for key in COLUMN_HEADS]
        rows.append((name, str(counts["n"]), *shares))
    return Table(figures["world"], columns, tuple(rows))

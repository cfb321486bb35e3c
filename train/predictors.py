r"""What reward models are worth to a policy, and which of their figures predicts it.

python train/predictors.py recipes/ablations/shapes_reward_models.yaml --seeds 0 1 --policy embedded --max-new-tokens 48 \
    --questions '{type: shapes, level: demo, split: benchmark, rows: 1000, seed: 2, text_only: 0.0}' \
    --policy-recipe recipes/shapes/policy_short.yaml --pays naive-5 naive-20 naive-60 naive-200 naive-200-few naive-200-grey \
    critic-20 critic-60

LIST is one of train/ablate.py, which trains its reward models and evaluates them on the benchmarks. Each then scores the same
answers of the policy, sampled once (eval/sample.py, eval/score.py); a judge that compares, whose tournament takes N (N - 1)
judgements a question, those to the first --compared questions. What a model is worth is

    best-of-N gain   accuracy of its best of N answers minus that of a sampled one
    RL gain          of --pays, first seed: accuracy of the policy after --policy-recipe with this model in its reward (the first
                     term's path) minus the start's, on the recipe's first questions, greedy and sampled

and its figures are accuracy and calibration (ECE) on each benchmark, order consistency of a judge, and AUC: how often a right
answer has the higher score of a right and a wrong one to the same question. Accuracies count half a point for a tie, or for two
orders of a judge that disagree, so that guessing is 50 % for every kind of model. Pearson's and Spearman's coefficients are over
the means of at least six variants, with Fisher's 95 % intervals, and stand also without each variant in turn. AUC and best-of-N
gain come from the same answers, so AUC of one half of the questions predicts the gain on the other half.

Into predictors/ of the list's folder go samples and policies, predictors.json, .md and .png. A killed command is continued by the
same command.
"""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from data.console import plain_console
from data.errors import UserError
from data.storage.files import write_json, write_whole
from eval.protocol import Floats
from eval.reporting.charts import COLOURS, panels
from eval.reporting.lists import GAINS
from eval.results.best_of import best_of, in_group_auc
from eval.results.correlation import (
    LEAST_RECIPES,
    Correlation,
    correlation,
    correlation_of_halves,
)
from eval.results.intervals import Difference, paired_difference
from eval.results.result import read_result
from train.ablation.prediction import (
    coefficients,
    has_both_halves,
    means_of_halves,
    table_without_each,
)
from train.ablation.steps import CLONE, checkpoint_of, keep_settings, run_step, trained
from train.ablation.table import COLUMNS as VARIANT_COLUMNS
from train.ablation.table import (
    VariantLine,
    cells,
    comparisons_in,
    console_table,
    lines_by_figure,
    rows,
    statement,
)
from train.ablation.variants import (
    RECIPE,
    Ablation,
    Run,
    alone,
    end_runs_on_signals,
    read_ablation,
    state,
)
from train.recipe.parsing import parse_options, read_recipe

AUC, BEST, GAIN = "AUC inside a question", "best of N", "best of N minus a sampled one"
COEFFICIENT_COLUMNS = (
    "figure",
    "models",
    "Pearson [95 %]",
    "Spearman [95 %]",
    "Pearson without one variant",
)
COEFFICIENTS = """Coefficients are over the means of the variants, with Fisher's intervals. AUC of one half of the questions \
predicts the best-of-N gain on the other half. Accuracies count half a point for a tie or for two orders that disagree."""
PARADIGMS = {
    "naive": "Naive-RM",
    "critic": "critic",
    "language_model": "judge",
    "stable_reinforce": "judge",
}
"""A method's kind of reward model."""


@dataclass(frozen=True, slots=True)
class Model:
    """A reward model: its figures, single numbers, and its gains, means with their 95 % intervals over questions."""

    run: Run
    questions: int
    figures: dict[str, float]
    gains: dict[str, tuple[float, float | None, float | None]]
    by_question: dict[str, dict[str, float]] = field(default_factory=dict)
    """Figures of the answers to each question, by its place; AUC where some are right and some wrong."""

    @property
    def plain(self) -> dict[str, Any]:
        """The model as it is written."""
        about = {
            "variant": self.run.variant,
            "seed": self.run.seed,
            "paradigm": paradigm(self.run),
            "questions": self.questions,
        }
        return {**about, **self.figures, **self.gains}


def paradigm(run: Run) -> str:
    """Return the kind of a run's reward model."""
    return PARADIGMS[run.recipe.method.type]


def main(arguments: Sequence[str] | None = None) -> None:
    """Train and measure what is missing, write the tables; what a user can put right ends with a message and status 2."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "train/predictors.py", description=__doc__, formatter_class=form, allow_abbrev=False
    )
    parser.add_argument("list", type=Path, help="a list of reward models")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="lays a value over every variant"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], metavar="SEED")
    parser.add_argument(
        "--policy", required=True, help="what answers: a checkpoint, a hub id or `embedded`"
    )
    parser.add_argument(
        "--questions", required=True, help="a source of type questions or shapes, in YAML"
    )
    parser.add_argument("--samples", type=int, default=8, help="answers to each question")
    parser.add_argument("--max-new-tokens", type=int, default=1024)
    parser.add_argument(
        "--compared", type=int, default=250, help="questions for a judge that compares"
    )
    parser.add_argument(
        "--policy-recipe", type=Path, help="trains a policy by a model; it must evaluate questions"
    )
    parser.add_argument(
        "--pays",
        nargs="+",
        default=[],
        metavar="VARIANT",
        help="variants by which a policy is trained",
    )
    parser.add_argument(
        "--launcher",
        type=shlex.split,
        default=[sys.executable],
        metavar="COMMAND",
        help="starts each step",
    )
    options = parse_options(parser, arguments)
    if bool(options.pays) != bool(options.policy_recipe):
        parser.error("--pays and --policy-recipe go together")
    try:
        ablation = read_ablation(
            options.list, options.overrides, list(dict.fromkeys(options.seeds))
        )
        if unknown := set(options.pays) - ablation.changes.keys():
            raise UserError(
                f"--pays {' '.join(sorted(unknown))}: the variants of {options.list} are {', '.join(ablation.changes)}."
            )
        report(measured(ablation, options), ablation, ablation.folder / "predictors")
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


def measured(ablation: Ablation, options: argparse.Namespace) -> list[Model]:
    """Train the reward models, have them score the answers, train the policies; return those that came to their end."""
    folder = ablation.folder / "predictors"
    if any(state(run) != "complete" for run in ablation.runs):
        seeds = [str(seed) for seed in options.seeds]
        more = [
            str(options.list),
            *options.overrides,
            "--seeds",
            *seeds,
            "--launcher",
            shlex.join(options.launcher),
        ]
        subprocess.run(
            [sys.executable, str(CLONE / "train" / "ablate.py"), *more], check=False
        )  # it says itself what failed
    with alone(folder) as lock:
        keep_settings(
            folder / "settings.json",
            options,
            ("policy", "questions", "samples", "max_new_tokens", "policy_recipe"),
        )
        samples = folder / "samples.jsonl"
        asked = [
            "--source",
            options.questions,
            "--samples",
            str(options.samples),
            "--max-new-tokens",
            str(options.max_new_tokens),
        ]
        run_step(
            options.launcher, "eval/sample.py", [options.policy, str(samples), *asked], samples
        )
        fewer = folder / f"samples-{options.compared}.jsonl"
        write_whole(
            fewer,
            "".join(
                samples.read_text(encoding="utf-8").splitlines(keepends=True)[: options.compared]
            ),
        )
        models = []
        for run in [run for run in ablation.runs if state(run) == "complete"]:
            given = fewer if paradigm(run) == "judge" else samples
            scored = run.folder / f"scored-{given.name}"
            run_step(
                options.launcher,
                "eval/score.py",
                [str(checkpoint_of(run)), str(given), str(scored)],
                scored,
            )
            model = of_answers(run, scored)
            model.figures.update(of_benchmarks(run))
            if run.variant in options.pays and run.seed == ablation.runs[0].seed:
                model.gains.update(of_policy(run, folder / "policies" / run.variant, options, lock))
            models.append(model)
    return models


def of_answers(run: Run, file: Path) -> Model:
    """Return what a model makes of the policy's answers, which it scored into `file`."""
    with file.open(encoding="utf-8") as lines:
        rows = [(row["scores"], row["right"]) for row in map(json.loads, lines)]
    best: dict[str, float] = {}
    sampled: dict[str, float] = {}
    auc: dict[str, float] = {}
    for place, (scores, right) in enumerate(rows):
        best[str(place)] = best_of(scores, right, len(right))
        sampled[str(place)] = sum(right) / len(right)
        in_group = in_group_auc(scores, right)
        if in_group is not None:
            auc[str(place)] = in_group
    figures = {"AUC": float(np.mean(list(auc.values())))} if auc else {}
    gain = paired_difference(np.array(list(best.values())), np.array(list(sampled.values())))
    return Model(
        run,
        len(rows),
        figures,
        {"best_of_gain": (gain.mean, gain.low, gain.high)},
        {AUC: auc, BEST: best, GAIN: {name: best[name] - sampled[name] for name in best}},
    )


def of_benchmarks(run: Run) -> dict[str, float]:
    """Return accuracy, calibration and order consistency of a run's last checkpoint, as far as they apply to its paradigm."""
    found: dict[str, float | None] = {}
    for benchmark in run.recipe.evaluation.benchmarks:
        result = read_result(run.folder / "eval" / f"{benchmark.name}.json")
        order = result.votes.order if result.votes else None
        found[f"{benchmark.name} accuracy"] = result.micro.half
        found[f"{benchmark.name} ECE"] = result.calibration.ece if result.calibration else None
        found[f"{benchmark.name} order consistency"] = order.rate if order else None
    return {name: value for name, value in found.items() if value is not None}


def of_policy(
    run: Run, folder: Path, options: argparse.Namespace, lock: int
) -> dict[str, tuple[float, float | None, float | None]]:
    """Train a policy by a model, and return what it gained on the questions of its recipe, paired with its start."""
    over = [f"method.rewards.0.path={checkpoint_of(run)}", "evaluation.at_start=true"]
    trained(options.policy_recipe, over, folder, options.launcher, lock)
    name = read_recipe(folder / RECIPE).question_sets[0]
    credits_by_figure = []
    for place in (folder, folder / "start"):
        rows = [
            json.loads(line)
            for line in (place / "answers" / f"{name}.jsonl")
            .read_text(encoding="utf-8")
            .splitlines()
        ]
        credits_by_figure.append(
            {
                figure: np.array([row["credits"][figure] for row in rows])
                for figure in ("greedy", "sampled")
            }
        )
    after, start = credits_by_figure
    differences = {figure: paired_difference(after[figure], start[figure]) for figure in after}
    return {
        f"rl_{figure}_gain": (one.mean, one.low, one.high) for figure, one in differences.items()
    }


def correlations(models: Sequence[Model]) -> dict[str, dict[str, Correlation]]:
    """Return for every gain how each figure goes with it, over the models that have both, if they are of enough variants.

    If judges are among them, also without these, as `FIGURE, without judges`: a judge that compares is another kind of model.
    """
    found: dict[str, dict[str, Correlation]] = {gain: {} for gain in GAINS}
    for gain, by_figure in found.items():
        for figure in dict.fromkeys(name for model in models for name in model.figures):
            both = [model for model in models if figure in model.figures and gain in model.gains]
            scoring = [model for model in both if paradigm(model.run) != "judge"]
            groups = {figure: both}
            if len(scoring) < len(both):
                groups[f"{figure}, without judges"] = scoring
            for name, members in groups.items():
                together = correlation_of(members, figure, gain)
                if together is not None:
                    by_figure[name] = together
    return found


def correlation_of(models: Sequence[Model], figure: str, gain: str) -> Correlation | None:
    """Return how a figure goes with a gain; None for too few variants, or if one of the two does not vary.

    AUC and the best-of-N gain come from the same answers: AUC of one half of the questions predicts the gain on the other.
    """
    if figure == "AUC" and gain == "best_of_gain":
        questions = sorted({name for model in models for name in model.by_question.get(GAIN, {})})
        halved = [
            model
            for model in models
            if has_both_halves(model.by_question.get(AUC, {}), questions)
            and has_both_halves(model.by_question[GAIN], questions)
        ]
        aucs = means_of_halves([model.by_question[AUC] for model in halved], questions)
        gains = means_of_halves([model.by_question[GAIN] for model in halved], questions)
        return correlation_of_halves(aucs, gains, [model.run.variant for model in halved])
    x = np.array([model.figures[figure] for model in models])
    y = np.array([model.gains[gain][0] for model in models])
    return correlation(x, y, [model.run.variant for model in models])


def too_few(models: Sequence[Model]) -> list[str]:
    """Say which figures are known of too few variants for a coefficient."""
    figures = dict.fromkeys(name for model in models for name in model.figures)
    known = {
        figure: len({model.run.variant for model in models if figure in model.figures})
        for figure in figures
    }
    return [
        f"{figure}: known of {count} variants, a coefficient needs {LEAST_RECIPES}"
        for figure, count in known.items()
        if count < LEAST_RECIPES
    ]


def compared(models: Sequence[Model], reference: str) -> dict[str, list[VariantLine]]:
    """Return the variants by each figure of the answers, over their seeds and the questions that all models scored."""
    credits_by_figure: dict[str, dict[str, dict[int, Floats]]] = {}
    for figure in (AUC, BEST) if models else ():
        places = sorted(set.intersection(*(set(model.by_question[figure]) for model in models)))
        seeds: dict[str, dict[int, Floats]] = {}
        for model in models:
            credits = np.array([model.by_question[figure][place] for place in places])
            seeds.setdefault(model.run.variant, {})[model.run.seed] = credits
        if places:
            credits_by_figure[figure] = seeds
    return lines_by_figure(credits_by_figure, reference, {})


def report(models: Sequence[Model], ablation: Ablation, folder: Path) -> None:
    """Print the table of the coefficients and write everything."""
    together, variants = correlations(models), compared(models, ablation.reference)
    missing = [str(run) for run in ablation.runs if state(run) != "complete"]
    missing += too_few(models)
    write_json(
        folder / "predictors.json",
        {
            "models": [model.plain for model in models],
            "correlations": {
                gain: {name: asdict(one) for name, one in by.items()}
                for gain, by in together.items()
            },
            "variants": rows(ablation, variants),
            "statement": statement(ablation.reference, comparisons_in(variants)),
            "missing": missing,
        },
    )
    text = markdown(models, together, variants, ablation.reference, missing)
    (folder / "predictors.md").write_text(text, encoding="utf-8")
    if models:
        draw(models, folder / "predictors.png")
    console = plain_console(width=None if sys.stdout.isatty() else 120, highlight=False)
    for gain, by_figure in [one for one in together.items() if one[1]]:
        table = Table(*COEFFICIENT_COLUMNS, title=GAINS[gain])
        for name, one in by_figure.items():
            table.add_row(name, str(one.models), *coefficients(one))
        console.print(table)
    for name, found in variants.items():
        console.print(console_table(ablation.reference, name, found, comparisons_in(variants)))
    if missing:
        console.print(f"not in the tables: {'; '.join(missing)}", soft_wrap=True)
    console.print(
        f"written: {folder}/predictors.json, predictors.md and predictors.png", soft_wrap=True
    )


def markdown(
    models: Sequence[Model],
    together: Mapping[str, Mapping[str, Correlation]],
    variants: Mapping[str, Sequence[VariantLine]],
    reference: str,
    missing: Sequence[str],
) -> str:
    """Return tables of the models, of the coefficients for each gain and of the variants for each figure, and what is missing."""
    figures = list(dict.fromkeys(name for model in models for name in model.figures))
    heads = [
        "model",
        "seed",
        "paradigm",
        "questions",
        *figures,
        *(f"{name} [95 %]" for name in GAINS.values()),
    ]
    table = [heads, ["---", "--:", "---", *["--:"] * (len(heads) - 3)]]
    for model in models:
        own = [
            f"{100 * model.figures[name]:.1f}" if name in model.figures else "–" for name in figures
        ]
        gains = [
            Difference(*model.gains[gain]).points if gain in model.gains else "–" for gain in GAINS
        ]
        table.append(
            [
                model.run.variant,
                str(model.run.seed),
                paradigm(model.run),
                f"{model.questions:,}",
                *own,
                *gains,
            ]
        )
    parts = [
        "# What reward models are worth to a policy",
        "All in percent and percentage points.",
        as_table(table),
    ]
    for gain, by_figure in [one for one in together.items() if one[1]]:
        rows = [list(COEFFICIENT_COLUMNS), ["---", "--:", "--:", "--:", "---"]]
        rows += [[name, str(one.models), *coefficients(one)] for name, one in by_figure.items()]
        parts += [f"## {GAINS[gain]}", COEFFICIENTS, as_table(rows)]
        parts += ["Pearson without each variant in turn:", as_table(table_without_each(by_figure))]
    if variants:
        parts.append(statement(reference, comparisons_in(variants)))
    for name, found in variants.items():
        rows = [
            [head.format(reference=reference) for head in VARIANT_COLUMNS],
            ["---", *["--:"] * 4, "---"],
            *map(cells, found),
        ]
        parts += [f"## {name}, by variant ({found[0].n:,} questions)", as_table(rows)]
    if missing:
        parts += ["## Not in the tables", "\n".join(f"- {one}" for one in missing)]
    return "\n\n".join(parts) + "\n"


def as_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as a table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def draw(models: Sequence[Model], path: Path) -> None:
    """Draw every model's gains against its AUC and its accuracy on the benchmarks; a paradigm has its colour."""
    known = dict.fromkeys(name for model in models for name in model.figures)
    figures = [name for name in known if name == "AUC" or "acc" in name]
    gains = [gain for gain in GAINS if any(gain in model.gains for model in models)]
    with panels(
        path, [f"{GAINS[gain]} by {figure}" for gain in gains[:1] for figure in figures]
    ) as drawn:
        for axes, figure in zip(drawn, figures, strict=True):
            for kind, colour in zip(dict.fromkeys(PARADIGMS.values()), COLOURS, strict=False):
                own = [
                    model
                    for model in models
                    if paradigm(model.run) == kind and figure in model.figures
                ]
                if own:
                    gains_of_own = [model.gains["best_of_gain"] for model in own]
                    mean, low, high = 100 * np.array(gains_of_own, dtype=float).T
                    x = [100 * model.figures[figure] for model in own]
                    axes.errorbar(
                        x,
                        mean,
                        [mean - low, high - mean],
                        fmt="o",
                        color=colour,
                        alpha=0.8,
                        label=kind,
                    )
            axes.axhline(0, color="lightgrey", zorder=0)
            axes.set_xlabel(f"{figure}, %")
            axes.set_ylabel("points")


if __name__ == "__main__":
    end_runs_on_signals()
    main()

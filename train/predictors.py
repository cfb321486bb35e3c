r"""Measure the gain of reward models for a policy, and the figures that go with it.

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
same command; scores of answers that have changed since, or of a model that has, are computed again.

Questions are compared by content, text and images, with the records that the list's models are trained on, and those of
--policy-recipe with its own. Questions that are trained on are left out of all figures and counted; if a quarter are, the command
ends before any work is done.
"""

import argparse
import json
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from mmrm.data.arrays import Floats
from mmrm.data.display.console import plain_console
from mmrm.data.display.png import COLOURS, panels
from mmrm.data.errors import UserError
from mmrm.data.preparation.mixing import Mixture, MixtureConfig
from mmrm.data.storage.files import content_digest, digest, write_json, write_whole
from mmrm.eval.contamination.question_overlap import (
    Question,
    TrainingPrompts,
    questions_of_source,
    rows_of,
)
from mmrm.eval.policies.best_of import best_of, in_group_auc
from mmrm.eval.reporting.predictors_page import GAINS
from mmrm.eval.results.correlation import (
    LEAST_RECIPES,
    Correlation,
    correlation,
    correlation_of_halves,
)
from mmrm.eval.results.intervals import Difference, paired_difference
from mmrm.eval.results.predictions import item_codes
from mmrm.eval.results.result import read_result
from mmrm.train.recipe.parsing import parse_options, read_recipe
from mmrm.train.studies.ablation.cached_steps import (
    CLONE,
    checkpoint_of,
    keep_settings,
    model_digest,
    run_step,
    trained,
)
from mmrm.train.studies.ablation.comparison import COLUMNS as VARIANT_COLUMNS
from mmrm.train.studies.ablation.comparison import (
    VariantLine,
    cells,
    comparisons_in,
    console_table,
    lines_by_figure,
    rows,
    statement,
)
from mmrm.train.studies.ablation.variants import (
    RECIPE,
    Ablation,
    Run,
    alone,
    end_runs_on_signals,
    read_ablation,
    state,
)
from mmrm.train.studies.predictor_figures import (
    coefficients,
    has_both_halves,
    items_of_rows,
    means_of_halves,
    table_without_each,
)

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
PARADIGMS = ("Naive-RM", "critic", "judge")
"""Kinds of reward models in the order of their colours. Others follow in that of the models."""


@dataclass(frozen=True, slots=True)
class Model:
    """A reward model: its figures, single numbers, and its gains, means with their 95 % intervals over questions."""

    run: Run
    questions: int
    figures: dict[str, float]
    gains: dict[str, tuple[float, float | None, float | None]]
    by_question: dict[str, dict[str, float]] = field(default_factory=dict)
    """Figures of the answers to each question, by the content of question and answers (`contents`). AUC is there only if some
    answers are right and some wrong."""
    unjudged: int = 0
    """Questions whose answers have no scores."""

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
    return run.recipe.method.paradigm


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
    questions = questions_of_source(options.questions, "--questions")
    repeated_keys = known_questions(questions, ablation)
    repeated_policy_questions = known_policy_questions(options)
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
        made_from = {
            "policy": model_digest(options.policy),
            "questions": digest(repr([(question.key, question.rule) for question in questions])),
        }
        arguments = [options.policy, str(samples), *asked]
        run_step(options.launcher, "eval/sample.py", arguments, samples, made_from)
        fewer = folder / f"samples-{options.compared}.jsonl"
        with samples.open(encoding="utf-8") as lines:
            write_whole(fewer, "".join(islice(lines, options.compared)))
        models = []
        for run in [run for run in ablation.runs if state(run) == "complete"]:
            given = fewer if paradigm(run) == "judge" else samples
            scored = run.folder / f"scored-{given.name}"
            checkpoint = str(checkpoint_of(run))
            made_from = {"samples": content_digest(given), "judge": model_digest(checkpoint)}
            arguments = [checkpoint, str(given), str(scored)]
            run_step(options.launcher, "eval/score.py", arguments, scored, made_from)
            num_unjudged = num_rows(given) - num_rows(scored)
            model = replace(of_answers(run, scored, repeated_keys), unjudged=num_unjudged)
            model.figures.update(of_benchmarks(run))
            if run.variant in options.pays and run.seed == ablation.runs[0].seed:
                policy = folder / "policies" / run.variant
                model.gains.update(of_policy(run, policy, options, lock, repeated_policy_questions))
            models.append(model)
    return models


def num_rows(file: Path) -> int:
    """Return the number of rows of a file of JSON lines."""
    return sum(1 for _ in rows_of(file))


def known_questions(questions: Sequence[Question], ablation: Ablation) -> set[int]:
    """Return the keys of the questions that a reward model of the list was trained on, to leave them out for all.

    Raises: UserError, before anything is trained, if so many were trained on that they are refused.
    """
    trained_on = TrainingPrompts()
    for run in ablation.runs:
        trained_on.add_recipe(run.recipe.data, run.variant, fetch=state(run) != "complete")
        trained_on.add_model(run.recipe.backbone.path)
    remedy = "Name other questions, which no variant of the list trains on."
    repeated = trained_on.questions_to_leave_out(questions, "--questions", remedy)
    show_left_out("--questions", len(repeated), len(questions), trained_on.notes)
    return {questions[index].key for index in repeated}


def known_policy_questions(options: argparse.Namespace) -> set[str]:
    """Return the identities of the questions of --policy-recipe that its policies are trained on.

    Raises: UserError, before anything is trained, if so many are trained on that they are refused.
    """
    if options.policy_recipe is None:
        return set()
    recipe = read_recipe(options.policy_recipe)
    if not recipe.evaluation.questions:
        return set()  # the policy answers records that data.validation holds out
    section = {"sources": [recipe.evaluation.questions[0]], "cache": recipe.data.cache}
    mixture = Mixture(MixtureConfig.model_validate(section))
    records = [mixture[index] for index in range(len(mixture))]
    trained_on = TrainingPrompts()
    trained_on.add_recipe(recipe.data, str(options.policy_recipe), fetch=True)
    trained_on.add_model(recipe.backbone.path)
    name = f"{options.policy_recipe}, evaluation.questions"
    remedy = "Evaluate the policy on questions that data.sources does not hold."
    repeated = trained_on.questions_to_leave_out([*map(Question.of_record, records)], name, remedy)
    show_left_out(name, len(repeated), len(records), trained_on.notes)
    return {records[index].identity for index in repeated}


def show_left_out(name: str, num_repeated: int, num_questions: int, notes: Iterable[str]) -> None:
    """Print how many questions are left out because they are trained on, and what was not compared."""
    if num_repeated:
        print(
            f"{name}: {num_repeated:,} of {num_questions:,} questions are trained on and left out",
            file=sys.stderr,
        )
    for note in notes:
        print(f"not compared with {name}: {note}", file=sys.stderr)


def of_answers(run: Run, scored: Path, repeated_keys: Set[int] = frozenset()) -> Model:
    """Return the figures of a model by the policy's answers, which it scored into a file.

    Answers to the questions of `repeated_keys` count for none: a model of the list was trained on
    these questions.
    """
    rows = [row for row in rows_of(scored) if Question.of_row(row).key not in repeated_keys]
    names = contents(rows)
    best: dict[str, float] = {}
    sampled: dict[str, float] = {}
    auc: dict[str, float] = {}
    for name, row in zip(names, rows, strict=True):
        scores = row["scores"]
        right = row["right"]
        best[name] = best_of(scores, right, len(right))
        sampled[name] = sum(right) / len(right)
        in_group = in_group_auc(scores, right)
        if in_group is not None:
            auc[name] = in_group
    figures = {"AUC": float(np.mean(list(auc.values())))} if auc else {}
    gain = paired_difference(
        np.array(list(best.values())), np.array(list(sampled.values())), items_of_rows(rows)
    )
    return Model(
        run,
        len(rows),
        figures,
        {"best_of_gain": (gain.mean, gain.low, gain.high)},
        {AUC: auc, BEST: best, GAIN: {name: best[name] - sampled[name] for name in best}},
    )


def contents(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a name for each row that tells it from the others: a digest of its question and answers.

    A place in a file is no name: files of several models lack different rows, those that could not
    be judged. Rows of equal content are numbered.
    """
    names: list[str] = []
    times: Counter[str] = Counter()
    for row in rows:
        content = digest(json.dumps([Question.of_row(row).key, row["responses"]]))
        times[content] += 1
        names.append(f"{content}-{times[content]}")
    return names


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
    run: Run,
    folder: Path,
    options: argparse.Namespace,
    lock: int,
    repeated_questions: Set[str],
) -> dict[str, tuple[float, float | None, float | None]]:
    """Train a policy by a model, and return what it gained on the questions of its recipe, paired with its start.

    The questions with the identities `repeated_questions` are left out: it is trained on them.
    """
    checkpoint = checkpoint_of(run)
    over = [f"method.rewards.0.path={checkpoint}", "evaluation.at_start=true"]
    made_from = {"reward model": model_digest(str(checkpoint))}
    trained(options.policy_recipe, over, folder, options.launcher, lock, made_from)
    name = read_recipe(folder / RECIPE).question_sets[0]
    after, start = (
        credits_by_question(place / "answers" / f"{name}.jsonl")
        for place in (folder, folder / "start")
    )
    if after.keys() != start.keys():
        raise UserError(
            f"{folder}: the policy answered {len(after):,} questions and its start {len(start):,}, "
            f"{len(after.keys() & start.keys()):,} of them the same. A gain is paired by question. "
            "Remove that folder to train the policy again."
        )
    questions = [question for question in start if question[0] not in repeated_questions]
    item_by_question = items_by_question(folder / "start" / "answers" / f"{name}.jsonl")
    items = item_codes([item_by_question[question] for question in questions])
    gains = {}
    for figure in ("greedy", "sampled"):
        before = np.array([start[question][figure] for question in questions])
        now = np.array([after[question][figure] for question in questions])
        difference = paired_difference(now, before, items)
        gains[f"rl_{figure}_gain"] = (difference.mean, difference.low, difference.high)
    return gains


def credits_by_question(file: Path) -> dict[tuple[str, str], dict[str, float]]:
    """Return the credits of a policy's answers by identity and content of the question."""
    return {(row["id"], row.get("key", "")): row["credits"] for row in rows_of(file)}


def items_by_question(file: Path) -> dict[tuple[str, str], str]:
    """Return the item of each question, by its identity and content; questions of one item share an image."""
    return {
        (row["id"], row.get("key", "")): str(row.get("item", row["id"])) for row in rows_of(file)
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
    """Return the correlation of a figure with a gain; None for too few variants, or if one of the two does not vary.

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
        names = sorted(set.intersection(*(set(model.by_question[figure]) for model in models)))
        seeds: dict[str, dict[int, Floats]] = {}
        for model in models:
            credits = np.array([model.by_question[figure][name] for name in names])
            seeds.setdefault(model.run.variant, {})[model.run.seed] = credits
        if names:
            credits_by_figure[figure] = seeds
    return lines_by_figure(credits_by_figure, reference, {})


def report(models: Sequence[Model], ablation: Ablation, folder: Path) -> None:
    """Print the table of the coefficients and write everything."""
    together, variants = correlations(models), compared(models, ablation.reference)
    missing = [str(run) for run in ablation.runs if state(run) != "complete"]
    missing += [
        f"{model.run}: {model.unjudged:,} questions, whose answers have no scores"
        for model in models
        if model.unjudged
    ]
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
    kinds = dict.fromkeys([*PARADIGMS, *(paradigm(model.run) for model in models)])
    with panels(
        path, [f"{GAINS[gain]} by {figure}" for gain in gains[:1] for figure in figures]
    ) as drawn:
        for axes, figure in zip(drawn, figures, strict=True):
            for kind, colour in zip(kinds, COLOURS, strict=False):
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

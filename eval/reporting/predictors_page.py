"""The page of a list of runs: its variants side by side, and beside them what was found out about policies and reward models.

Read are the files that train/ablate.py, eval/overoptimisation.py and train/predictors.py leave in the list's folder.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

from mmrm.data.display.chart import Axis, Chart, percent
from mmrm.eval.reporting.number_format import signed
from mmrm.eval.reporting.run_charts import STYLES
from mmrm.eval.reporting.run_content import Row
from mmrm.eval.results.intervals import Difference

GAINS = {
    "best_of_gain": "best-of-N gain",
    "rl_greedy_gain": "RL gain, greedy",
    "rl_sampled_gain": "RL gain, sampled",
}
"""What a reward model is worth: where it is stored, and how it is called."""

ABOUT_A_MODEL = ("variant", "seed", "paradigm", "questions", *GAINS)
"""What is no figure of a reward model."""


def predictors_of(found: Row) -> dict[str, Any]:
    """Return the reward models with their figures and gains, the coefficients, and a chart of each gain against each accuracy."""
    models = [
        model
        | {
            "gains": {gain: Difference(*model[gain]) for gain in GAINS if gain in model},
            "name": f"{model['variant']}, seed {model['seed']}",
        }
        for model in found["models"]
    ]
    figures = list(
        dict.fromkeys(
            name for model in found["models"] for name in model if name not in ABOUT_A_MODEL
        )
    )
    gains = {gain: words for gain, words in GAINS.items() if any(gain in model for model in models)}
    against = [name for name in figures if name == "AUC" or name.endswith(" accuracy")]
    coefficients = {
        gain: {
            name: [
                one["models"],
                *(
                    f"{signed(mean)} [{signed(low)}, {signed(high)}]"
                    for mean, low, high in (one["pearson"], one["spearman"])
                ),
                [
                    f"{signed(pearson)} without {recipe}"
                    for recipe, (pearson, _) in one.get("without", {}).items()
                ],
            ]
            for name, one in found["correlations"][gain].items()
        }
        for gain in gains
    }
    return {
        "models": models,
        "figures": figures,
        "gains": gains,
        "coefficients": coefficients,
        "charts": {
            gain: [chart for name in against for chart in scatter(models, gain, name)]
            for gain in gains
        },
        "missing": found["missing"],
        "statement": found.get("statement"),
    }


def scatter(models: Sequence[Mapping[str, Any]], gain: str, figure: str) -> list[Chart]:
    """Return the chart of a gain against a figure, a kind of dot for each paradigm; none where no model has both."""
    both = [model for model in models if gain in model and figure in model]
    if not both:
        return []
    x = Axis.shares([model[figure] for model in both], figure)
    y = Axis.numbers([0.0, *(100 * value for model in both for value in model[gain])], "points")
    chart = Chart(f"{GAINS[gain]} by {figure}", x, y)
    for style, paradigm in zip(cycle(STYLES), dict.fromkeys(model["paradigm"] for model in models)):
        own = [model for model in both if model["paradigm"] == paradigm]
        for model in own:
            points = model["gains"][gain].points.replace("-", "−")
            fact = f"{model['name']} ({paradigm}): {figure} {percent(round(model[figure], 3))}, {points}"
            chart.dot(model[figure], [100 * value for value in model[gain]], style, fact)
        chart.legend += [(f"dot {style}", paradigm)] if own else []
    chart.level(0.0, "no gain")
    return [chart]

"""The costs of the runs of a list, in training and in evaluation, from the lines of their logs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from mmrm.eval.results.run_folder import LOG
from mmrm.train.studies.ablation.variants import Run


@dataclass(frozen=True, slots=True)
class Cost:
    """Wall-clock seconds and tokens of a run, without its evaluations during training.

    In training a pair counts as often as it is seen. Its tokens are those of the passes with
    gradients. With StableReinforce they are trl's, which count a prompt for each of its judgements.
    The seconds include everything, such as a critic's writing and a judge's rollouts.
    """

    pairs: float
    tokens_a_pair: float
    seconds_a_pair: float
    seconds: float
    use_seconds_a_pair: float
    """Seconds of the last evaluation, over the rows of all benchmarks.

    They include reading, judging and writing the results.
    """
    use_tokens_a_pair: float
    """Tokens that the judge wrote in the last evaluation; 0 for a reward model that only reads."""


def costs(runs: Sequence[Run]) -> dict[str, Cost]:
    """Return the mean cost of each variant's complete runs; policies have none."""
    costs_by_variant: dict[str, list[Cost]] = {}
    for run in runs:
        with (run.folder / LOG).open(encoding="utf-8") as text_lines:
            lines = [json.loads(line) for line in text_lines]
        cost_of_run = cost(lines, run.recipe.optim.records_per_step)
        if cost_of_run is not None:
            costs_by_variant.setdefault(run.variant, []).append(cost_of_run)
    means = {}
    for variant, own_costs in costs_by_variant.items():
        values = [astuple(own_cost) for own_cost in own_costs]
        means[variant] = Cost(*np.mean(values, axis=0).tolist())
    return means


def cost(lines: Sequence[Mapping[str, Any]], records_per_step: int) -> Cost | None:
    """Return the cost of a run from the lines of its log; None if nothing was judged."""
    last_step = 0
    seconds = 0.0
    tokens = 0.0
    evaluation = None
    for line in lines:
        num_steps = line["step"] - last_step
        if "records_per_second" in line:
            own_seconds = num_steps * records_per_step / line["records_per_second"]
            seconds += own_seconds
            tokens += own_seconds * line["tokens_per_second"]
        elif "step_time" in line:
            # trl logs the mean over the steps since the last line, and the tokens of all steps.
            seconds += line["step_time"] * num_steps
            tokens = line["num_tokens"]
        else:
            if "eval_judging/seconds_per_pair" in line:
                evaluation = line
            continue
        last_step = line["step"]
    if evaluation is None or not last_step:
        return None
    pairs = last_step * records_per_step
    return Cost(
        pairs=pairs,
        tokens_a_pair=tokens / pairs,
        seconds_a_pair=seconds / pairs,
        seconds=seconds,
        use_seconds_a_pair=evaluation["eval_judging/seconds_per_pair"],
        use_tokens_a_pair=evaluation["eval_judging/tokens_per_pair"],
    )

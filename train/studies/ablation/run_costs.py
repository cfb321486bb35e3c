"""The costs of the runs of a list, in training and in evaluation, from the logs of the runs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from mmrm.eval.results.run_folder import LOG
from mmrm.train.studies.ablation.variants import Run


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a run: training without its evaluations, and use in the last evaluation.

    In training a pair counts as often as it is seen. Its tokens are those of the passes with
    gradients. With StableReinforce they are the tokens that trl counts, with a prompt for each of
    its judgements. The seconds are wall-clock time, and include texts that the model writes for its
    training.
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
    """Return the mean cost of the given runs of each variant; policies have no cost.

    Args:
        runs: Complete runs.
    """
    costs_by_variant: dict[str, list[Cost]] = {}
    for run in runs:
        with (run.folder / LOG).open(encoding="utf-8") as file:
            log = [json.loads(line) for line in file]
        cost_of_run = cost(log, run.recipe.optim.records_per_step)
        if cost_of_run is not None:
            costs_by_variant.setdefault(run.variant, []).append(cost_of_run)
    means = {}
    for variant, costs_of_variant in costs_by_variant.items():
        values = [astuple(cost_of_run) for cost_of_run in costs_of_variant]
        means[variant] = Cost(*np.mean(values, axis=0).tolist())
    return means


def cost(log: Sequence[Mapping[str, Any]], records_per_step: int) -> Cost | None:
    """Return the cost of a run from its log.

    Returns None if the run has judged no benchmark, or has logged no step.

    Args:
        log: The lines of the log.
        records_per_step: Pairs of an optimizer step.
    """
    last_step = 0
    seconds = 0.0
    tokens = 0.0
    evaluation = None
    for line in log:
        num_steps = line["step"] - last_step
        if "records_per_second" in line:
            # The packed trainer logs mean rates over the steps since the line before.
            seconds_of_steps = num_steps * records_per_step / line["records_per_second"]
            seconds += seconds_of_steps
            tokens += seconds_of_steps * line["tokens_per_second"]
        elif "step_time" in line:
            # trl logs the mean time of a step since the line before, and the tokens of all steps.
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

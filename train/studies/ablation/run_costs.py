"""What the runs of a list cost, in training and in use, from the lines of their logs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from rich.table import Column, Table

from mmrm.eval.results.run_folder import LOG
from mmrm.train.studies.ablation.variants import Run

COST_COLUMNS = (
    "pairs",
    "tokens a pair",
    "seconds a pair",
    "seconds",
    "in use: seconds a pair",
    "tokens written",
)
"""Heads of a cost's figures; the first four are of training."""
COST = "Wall-clock time of all processes, without evaluations; in use: the last evaluation. Means over the seeds."


@dataclass(frozen=True, slots=True)
class Cost:
    """Wall-clock seconds of a run, on however many ranks, and tokens of all ranks; evaluations during training are left out.

    In training a pair counts as often as it is seen. Its tokens are those of the passes with gradients; with StableReinforce they
    are trl's, which count a prompt for each of its judgements. The seconds hold it all: a critic's writing, a judge's rollouts.
    """

    pairs: float
    tokens_a_pair: float
    seconds_a_pair: float
    seconds: float
    use_seconds_a_pair: float
    """Of the last evaluation: reading, judging and writing down, over the rows of all benchmarks."""
    use_tokens_a_pair: float
    """What the judge wrote there; 0 for a reward model that only reads."""

    @property
    def cells(self) -> list[str]:
        """The figures as texts, in the order of COST_COLUMNS."""
        forms = ("{:,.0f}", "{:.0f}", "{:.4f}", "{:.0f}", "{:.4f}", "{:.1f}")
        return [form.format(value) for form, value in zip(forms, astuple(self), strict=True)]


def costs(runs: Sequence[Run]) -> dict[str, Cost]:
    """Return the mean cost of each variant's complete runs; policies, which are no judges, have none."""
    found: dict[str, list[Cost]] = {}
    for run in runs:
        with (run.folder / LOG).open(encoding="utf-8") as lines:
            one = cost([json.loads(line) for line in lines], run.recipe.optim.records_per_step)
        if one is not None:
            found.setdefault(run.variant, []).append(one)
    return {
        name: Cost(*np.mean([astuple(one) for one in ours], axis=0).tolist())
        for name, ours in found.items()
    }


def cost_table(spent: Mapping[str, Cost]) -> Table:
    """Return the costs for the console."""
    table = Table(
        "variant",
        *(Column(name, justify="right") for name in COST_COLUMNS),
        title="cost",
        caption=COST,
    )
    for name, one in spent.items():
        table.add_row(name, *one.cells)
    return table


def cost(lines: Sequence[Mapping[str, Any]], records_per_step: int) -> Cost | None:
    """Return what a run's log says of its cost; None where nothing was judged."""
    before, seconds, tokens, use = 0, 0.0, 0.0, None
    for line in lines:
        steps, records = line["step"] - before, (line["step"] - before) * records_per_step
        if "records_per_second" in line:
            seconds += records / line["records_per_second"]
            tokens += records / line["records_per_second"] * line["tokens_per_second"]
        elif (
            "step_time" in line
        ):  # trl's: the mean over the steps since the last line, and all tokens so far
            seconds += line["step_time"] * steps
            tokens = line["num_tokens"]
        else:
            use = line if "eval_judging/seconds_per_pair" in line else use
            continue
        before = line["step"]
    if use is None or not before:
        return None
    pairs = before * records_per_step
    judging = use["eval_judging/seconds_per_pair"], use["eval_judging/tokens_per_pair"]
    return Cost(pairs, tokens / pairs, seconds / pairs, seconds, *judging)

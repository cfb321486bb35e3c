"""The evaluation inside the loop: benchmarks and held-out records, judged with the model as it stands."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from torch import nn

from eval.judges.critic import CriticJudge
from eval.judges.generative import GenerativeJudge
from eval.results.result import Result
from eval.results.tables import results_table
from eval.running.suite import Suite, headline
from models.distributed import rank
from train.recipe.recipe import HELD_OUT, HELD_OUT_LOSS
from train.supervised.checkpoints import evaluation_folder
from train.supervised.held_out import HeldOut
from train.supervised.method import Method
from train.supervised.non_finite import Evaluate
from train.supervised.steps import PairEncoder
from train.supervised.whole_weights import whole_weights


def evaluation(method: Method) -> Evaluate | None:
    """Return what scores the benchmarks and the held-out records inside the loop, None where there are none.

    The held-out records are written into the run folder. Raises UserError if too many of them cannot be used.
    """
    recipe, folder, console = method.recipe, method.folder, method.console
    if not recipe.evaluates:
        return None
    suite, held_out = Suite.load(recipe.evaluation.benchmarks, recipe.evaluation.protocol), None
    if method.mixture is not None and len(method.mixture.validation):
        held_out = HeldOut.load(method.mixture, PairEncoder(method.encoder, recipe.head.read), console)
        if rank() == 0:
            held_out.write(folder)
        if f"{HELD_OUT}/accuracy" in recipe.held_out_figures:
            suite = replace(suite, benchmarks={**suite.benchmarks, HELD_OUT: held_out.benchmark()})

    def evaluate(model: nn.Module, step: int) -> dict[str, float]:
        judge = method.judge(model)
        with whole_weights(model) if isinstance(judge, CriticJudge | GenerativeJudge) else nullcontext():
            results = suite.run(judge, evaluation_folder(folder, step))
        if rank() == 0 and results:
            console.print(results_table(results, title=f"step {step}", baselines=recipe.evaluation.baselines))
        cost = judge.spent.figures() if isinstance(judge, CriticJudge | GenerativeJudge) else {}
        figures = headline(results) | {f"judging/{name}": value for name, value in cost.items()}
        loss = None if held_out is None else method.held_out_loss(model, held_out)
        if loss is not None:
            figures[HELD_OUT_LOSS] = loss
            if rank() == 0:
                console.print(f"{HELD_OUT_LOSS} {loss:.4f}", highlight=False)
        return figures

    return evaluate


def read_results(checkpoint: Path) -> dict[str, Result]:
    """Return a checkpoint's results by benchmark; empty where it was never evaluated."""
    return {path.stem: Result.model_validate_json(path.read_text("utf-8")) for path in sorted(checkpoint.glob("eval/*.json"))}

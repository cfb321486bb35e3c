"""What a critic's critiques are worth on the embedded world: scores without one, after its own, after the ground truth.

python eval/critique_ablation.py runs/shapes/critic/best --rows 600 --scalar runs/shapes/naive/best
deepspeed eval/critique_ablation.py runs/shapes/critic/best --samples 4 --temperature 0.7

Prints the accuracy of each, how true the written critiques are (read back and compared with what holds in the scenes), and
what a judgement costs beside the scalar judge's; writes the same as JSON, by default to
CHECKPOINT/eval/critique_ablation.json.
"""

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from pydantic_core import to_jsonable_python
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from mmrm.data.display.console import plain_console
from mmrm.data.storage.files import write_json
from mmrm.data.storage.output_lock import locked_file
from mmrm.data.synthetic.scenes import LEVELS
from mmrm.data.synthetic.wording import CritiqueTruth, read_critique
from mmrm.data.synthetic.world import ShapesWorld, WorldItem
from mmrm.eval.benchmarks.preference_folder import PREFERENCE_FOLDER
from mmrm.eval.candidates import Example, Scores, candidates_from_record
from mmrm.eval.cli import add_ranks, command, processes
from mmrm.eval.judges.checkpoint import Runtime, load_checkpoint
from mmrm.eval.judges.critic.config import CriticJudgeConfig
from mmrm.eval.judges.critic.judge import critic_judge
from mmrm.eval.judges.judge import cost_figures
from mmrm.eval.judges.loading import load_judge
from mmrm.eval.protocol import ProtocolConfig, with_presentations
from mmrm.eval.results.result import Accuracy, figure, outcomes
from mmrm.eval.results.summary_table import percent
from mmrm.models.backbone import load_critic
from mmrm.models.distributed import locked_by_first_rank, rank

WRITTEN = {"readable": "readable", "verdict": "right verdict", "fact": "right fact", "both": "both"}
"""What is counted of written critiques, and the heads of its columns."""


def checked(critique: str, truth: CritiqueTruth) -> dict[str, int]:
    """Return 1 or 0 for what a critique gets right beside the correct one; one that cannot be read asserts nothing."""
    found = read_critique(critique)
    verdict = found is not None and found.right == truth.right
    fact = found is not None and found.fact == truth.fact
    counts = {
        "n": True,
        "readable": found is not None,
        "verdict": verdict,
        "fact": fact,
        "both": verdict and fact,
    }
    return {name: int(count) for name, count in counts.items()}


def truth_of_critiques(
    items: Sequence[WorldItem], examples: Sequence[Example], scores: Sequence[Scores]
) -> tuple[dict[str, Counter[str]], dict[str, Accuracy]]:
    """Return how true the written critiques are, and the accuracy where both of a row are true and where one is not.

    The first by the response that the critiques are of, and by category.
    """
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    true = []
    for item, row_scores in zip(items, scores, strict=True):
        assert row_scores.texts, "a critic with its own critiques writes one of each response"
        both = [
            checked(critique, item.critique_truth(side == 0))
            for side, critique in enumerate(row_scores.texts)
        ]
        for response, one in zip(("of right responses", "of wrong responses"), both, strict=True):
            for name in ("all", response, item.category):
                counts[name].update(one)
        true.append(all(one["both"] for one in both))
    found = outcomes(examples, scores, ProtocolConfig())
    rows = {"both critiques true": True, "a critique false": False}
    return counts, {
        name: figure(found, "wrong", np.flatnonzero(np.equal(true, wanted)))
        for name, wanted in rows.items()
    }


def _right_first(item: WorldItem) -> Example:
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


def ablate(options: argparse.Namespace, runtime: Runtime) -> dict[str, Any]:
    """Judge the same rows, the right response first, in every way; all ranks call together.

    `judges` holds accuracy (a tie is wrong) and cost (see `cost_figures`; seconds are wall-clock time over the rows, on
    all ranks together), `critiques` and `by_truth` what `truth_of_critiques` returns.
    """
    world = ShapesWorld(options.level, options.seed, "benchmark")
    items = [world.item(index) for index in range(options.rows)]
    examples = [_right_first(item) for item in items]
    config = CriticJudgeConfig(
        type="critic",
        checkpoint=str(options.checkpoint),
        samples=options.samples,
        temperature=options.temperature,
    )
    critic = load_checkpoint(options.checkpoint, runtime, load_critic)
    given = {item.identity: (item.critique(True), item.critique(False)) for item in items}
    judges = {
        "no critique": critic_judge(critic, config, "none"),
        "own critique": critic_judge(critic, config),
        "ground-truth critique": critic_judge(critic, config, given),
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
    right = {
        name: figure(outcomes(examples, found, protocol), "wrong")
        for name, found in scores_by_judge.items()
    }
    critiques, by_truth = truth_of_critiques(items, examples, scores_by_judge["own critique"])
    return {
        "checkpoint": str(options.checkpoint),
        "world": f"{world.source}, split benchmark, seed {options.seed}",
        "rows": options.rows,
        "critic": config.model_dump(exclude={"checkpoint"}),
        "judges": {
            name: {"accuracy": accuracy, "cost": cost[name]} for name, accuracy in right.items()
        },
        "critiques": critiques,
        "by_truth": by_truth,
    }


def tables(found: dict[str, Any]) -> list[Table]:
    """Return the table of judges and that of the written critiques."""
    judges = Table(
        "scored after",
        "accuracy [95 %]",
        "ties",
        "s per judgement",
        "tokens/s",
        "cut off",
        title=found["checkpoint"],
    )
    for name, one in found["judges"].items():
        right, cost = one["accuracy"], one["cost"]
        written = ("–", "–")
        if "truncated" in cost:
            written = (
                f"{cost['generated_tokens_per_second']:.0f}",
                f"{100 * cost['truncated']:.1f} %",
            )
        judges.add_row(
            name, percent(right), str(right.ties), f"{cost['seconds_per_judgement']:.4f}", *written
        )
    for name, right in found["by_truth"].items():
        judges.add_row(f"  own, {name}: n = {right.n}", percent(right), str(right.ties))
    truth = Table("written critiques", "n", *WRITTEN.values(), title=found["world"])
    for name, counts in found["critiques"].items():
        truth.add_row(
            name,
            str(counts["n"]),
            *(f"{100 * counts[key] / max(counts['n'], 1):.1f} %" for key in WRITTEN),
        )
    return [judges, truth]


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, judge, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "checkpoint", type=Path, help="a critic: a checkpoint folder of `method: critic`"
    )
    parser.add_argument("--rows", type=int, default=600)
    parser.add_argument("--level", choices=sorted(LEVELS), default="demo")
    parser.add_argument("--seed", type=int, default=0, help="of the embedded world")
    parser.add_argument(
        "--scalar", type=Path, metavar="CHECKPOINT", help="a scalar reward model to stand beside it"
    )
    parser.add_argument(
        "--samples", type=int, default=1, help="critiques of each response, their scores averaged"
    )
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--output", type=Path, help="the JSON file")
    add_ranks(parser)
    options = parser.parse_args(arguments)
    target = options.output or options.checkpoint / "eval" / "critique_ablation.json"
    with (
        command(),
        processes() as device,
        locked_by_first_rank(locked_file(target)),
    ):
        found = ablate(options, Runtime(device, options.token_budget))
        if rank():
            return
        write_json(target, to_jsonable_python(found))
        plain_console(width=max(plain_console().width, 110)).print(
            *tables(found), f"saved as {target}"
        )


if __name__ == "__main__":
    main()

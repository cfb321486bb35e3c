"""How true a critic's words are: its critiques of the embedded world, whose truth is known, read back and compared.

What a critic's critiques are worth on the embedded world: scores without one, after its own, after the ground truth.

python eval/critique_ablation.py runs/shapes/critic/best --rows 600 --scalar runs/shapes/naive/best
deepspeed eval/critique_ablation.py runs/shapes/critic/best --samples 4 --temperature 0.7

Prints the accuracy of each, how true the written critiques are, and what a judgement costs beside the scalar judge's; writes
the same as JSON, by default to CHECKPOINT/eval/critique_ablation.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from dataclasses import dataclass

from data.synthetic.scenes import LEVELS
from data.synthetic.wording import CritiqueTruth, read_critique
from data.synthetic.world import Item, ShapesWorld, as_preference
from eval.benchmarks.preference_folder import PREFERENCE_FOLDER
from eval.cli import format_error, processes
from eval.judges.checkpoint import Runtime
from eval.judges.config import CriticJudgeConfig
from eval.judges.critic import CriticJudge, as_example, load_critic_checkpoint
from eval.judges.loading import load_judge
from eval.protocol import Example, ProtocolConfig, Verdict
from eval.results.outcomes import outcomes
from eval.results.result import Accuracy, Frozen, figure
from eval.results.tables import percent
from models.distributed import rank


class CritiqueAccuracy(Frozen):
    """How many critiques assert what holds; a critique that cannot be read asserts nothing."""

    n: int
    readable: int
    """In the form that `data.synthetic.wording.write_critique` gives them."""
    verdict: int
    """Rightly say whether the response is right."""
    fact: int
    """State what holds, word for word."""
    both: int

    def share(self, count: int) -> float:
        """Return `count` of all critiques; 0 where there is none."""
        return count / self.n if self.n else 0.0


def critique_accuracy(written: Sequence[str], truths: Sequence[CritiqueTruth]) -> CritiqueAccuracy:
    """Compare critiques with what the correct critique of the same response asserts, one to one."""
    pairs = [(read_critique(text), truth) for text, truth in zip(written, truths, strict=True)]
    read = [(found, truth) for found, truth in pairs if found is not None]
    return CritiqueAccuracy(
        n=len(pairs),
        readable=len(read),
        verdict=sum(found.right == truth.right for found, truth in read),
        fact=sum(found.fact == truth.fact for found, truth in read),
        both=sum(accurate(found, truth) for found, truth in read),
    )


def accurate(found: CritiqueTruth | None, truth: CritiqueTruth) -> bool:
    """Say whether a critique states the right fact and the right verdict."""
    return found is not None and (found.fact, found.right) == (truth.fact, truth.right)


@dataclass(frozen=True, slots=True)
class CritiqueRows:
    """Items of the embedded world as examples, the right response first, with their truth."""

    items: tuple[Item, ...]
    examples: tuple[Example, ...]

    @classmethod
    def of(cls, world: ShapesWorld, count: int) -> CritiqueRows:
        """Return the first `count` items."""
        items = tuple(world.item(index) for index in range(count))
        return cls(items, tuple(as_example(as_preference(item, world.source)) for item in items))


def truth_of_critiques(rows: CritiqueRows, verdicts: Sequence[Verdict]) -> dict[str, CritiqueAccuracy]:
    """Return how true the written critiques are: all, by the response that they are of, and by category."""
    parts: dict[str, list[tuple[str, Item, bool]]] = {}
    for item, verdict in zip(rows.items, verdicts, strict=True):
        for chosen, critique in zip((True, False), verdict.critiques or (), strict=True):
            for name in ("all", "of right responses" if chosen else "of wrong responses", item.category):
                parts.setdefault(name, []).append((critique, item, chosen))
    return {
        name: critique_accuracy([text for text, _, _ in part], [item.critique_truth(chosen) for _, item, chosen in part])
        for name, part in parts.items()
    }


def accuracy_by_truth(rows: CritiqueRows, verdicts: Sequence[Verdict]) -> dict[str, Accuracy]:
    """Return the accuracy where both critiques of a row are true, and where one of them is not."""
    found: dict[str, tuple[list[Example], list[Verdict]]] = {"both critiques true": ([], []), "a critique false": ([], [])}
    for item, example, verdict in zip(rows.items, rows.examples, verdicts, strict=True):
        read = [read_critique(text) for text in verdict.critiques or ()]
        true = all(accurate(one, item.critique_truth(chosen)) for one, chosen in zip(read, (True, False), strict=True))
        examples, same = found["both critiques true" if true else "a critique false"]
        examples.append(example)
        same.append(verdict)
    return {name: accuracy(examples, same) for name, (examples, same) in found.items()}


def accuracy(examples: Sequence[Example], verdicts: Sequence[Verdict]) -> Accuracy:
    """Return the accuracy under the default protocol: a tie is wrong."""
    return figure(outcomes(examples, verdicts, ProtocolConfig()), "wrong")


class ScoredRows(Frozen):
    """One way to judge."""

    accuracy: Accuracy
    cost: dict[str, float]
    """See `eval.judges.critic.JudgingCost.figures`; seconds are wall-clock time over the rows, on all ranks together."""


class CritiqueAblation(Frozen):
    """The whole table, and which rows it is of."""

    checkpoint: str
    world: str
    rows: int
    critic: dict[str, object]
    """How it was asked: see `eval.judges.config`."""
    judges: dict[str, ScoredRows]
    critiques: dict[str, CritiqueAccuracy]
    """Of the written critiques: all, of right responses, of wrong ones, by category."""
    by_truth: dict[str, Accuracy]
    """Accuracy with written critiques on rows of which both are true, and on the others."""


def ablate(options: argparse.Namespace, runtime: Runtime) -> CritiqueAblation:
    """Judge the same rows in every way; all ranks call together."""
    world = ShapesWorld(options.level, options.seed, "benchmark")
    rows = CritiqueRows.of(world, options.rows)
    config = CriticJudgeConfig(
        type="critic", checkpoint=str(options.checkpoint), samples=options.samples, temperature=options.temperature
    )
    critic = load_critic_checkpoint(options.checkpoint, runtime)
    given = {item.identity: (item.critique(True), item.critique(False)) for item in rows.items}
    judges: dict[str, CriticJudge] = {
        "no critique": critic.judge(config, "none"),
        "own critique": critic.judge(config, "own"),
        "ground-truth critique": critic.judge(config, "given", given),
    }
    verdicts = {name: judge.judge(rows.examples) for name, judge in judges.items()}
    found = {
        name: ScoredRows(accuracy=accuracy(rows.examples, verdicts[name]), cost=judge.spent.figures())
        for name, judge in judges.items()
    }
    if options.scalar is not None:
        found["scalar"] = scalar(options.scalar, rows, runtime)
    return CritiqueAblation(
        checkpoint=str(options.checkpoint),
        world=f"{world.source}, split benchmark, seed {options.seed}",
        rows=options.rows,
        critic=config.model_dump(exclude={"checkpoint"}),
        judges=found,
        critiques=truth_of_critiques(rows, verdicts["own critique"]),
        by_truth=accuracy_by_truth(rows, verdicts["own critique"]),
    )


def scalar(path: Path, rows: CritiqueRows, runtime: Runtime) -> ScoredRows:
    """Judge with another checkpoint, for comparison; loading it is not in the cost."""
    judge = load_judge(path, runtime)(PREFERENCE_FOLDER, ProtocolConfig()).judge
    started = perf_counter()
    verdicts = judge.judge(rows.examples)
    cost = {"seconds_per_judgement": (perf_counter() - started) / len(rows.examples)}
    return ScoredRows(accuracy=accuracy(rows.examples, verdicts), cost=cost)


def tables(found: CritiqueAblation) -> list[Table]:
    """Return the table of judges and that of the written critiques."""
    judges = Table("scored after", "accuracy [95 %]", "ties", "s per judgement", "tokens/s", "cut off", title=found.checkpoint)
    for name, one in found.judges.items():
        cost = one.cost
        speed = f"{cost['generated_tokens_per_second']:.0f}" if "generated_tokens_per_second" in cost else "–"
        cut = f"{100 * cost['truncated']:.1f} %" if "truncated" in cost else "–"
        seconds = f"{cost['seconds_per_judgement']:.4f}"
        judges.add_row(name, percent(one.accuracy), str(one.accuracy.ties), seconds, speed, cut)
    for name, figure_of_part in found.by_truth.items():
        judges.add_row(f"  own, {name}: n = {figure_of_part.n}", percent(figure_of_part), str(figure_of_part.ties), "", "", "")
    truth = Table("written critiques", "n", "readable", "right verdict", "right fact", "both", title=found.world)
    for name, one_part in found.critiques.items():
        counts = (one_part.readable, one_part.verdict, one_part.fact, one_part.both)
        truth.add_row(name, str(one_part.n), *(f"{100 * one_part.share(count):.1f} %" for count in counts))
    return [judges, truth]


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, judge, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="a critic: a checkpoint folder of `method: critic`")
    parser.add_argument("--rows", type=int, default=600)
    parser.add_argument("--level", choices=sorted(LEVELS), default="demo")
    parser.add_argument("--seed", type=int, default=0, help="of the embedded world")
    parser.add_argument("--scalar", type=Path, metavar="CHECKPOINT", help="a scalar reward model to stand beside it")
    parser.add_argument("--samples", type=int, default=1, help="critiques of each response, their scores averaged")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--output", type=Path, help="the JSON file")
    parser.add_argument("--token-budget", type=int, help="tokens of one packed row; default: the recipe's, or by the device")
    parser.add_argument("--local_rank", type=int, help="given by the deepspeed launcher and ignored; the environment says it")
    options = parser.parse_args(arguments)
    try:
        with processes() as device:
            found = ablate(options, Runtime(device, options.token_budget))
            if not rank():
                show(found, options.output or options.checkpoint / "eval" / "critique_ablation.json")
    except (ValueError, OSError) as error:
        sys.exit(format_error(error))


def show(found: CritiqueAblation, target: Path) -> None:
    """Print the tables and write the JSON file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(found.model_dump_json(indent=1) + "\n", encoding="utf-8")
    Console(width=max(Console().width, 110)).print(*tables(found), f"saved as {target}")


if __name__ == "__main__":
    main()

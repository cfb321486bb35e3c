"""What the embedded backbone knows before any reward training, on scenes that it never saw.

python eval/answers.py models/embedded [--level demo] [--items 1000] [--output answers.json]

Three figures for every question type: greedy answers that are right word for word (in any of the world's phrasings), verdicts
("is this answer right?") that are right, and pairs in which the right answer is the likelier one under the language model.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.table import Table
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from mmrm.data.display.console import plain_console
from mmrm.data.preference import text
from mmrm.data.storage.files import write_json
from mmrm.data.storage.output_lock import locked_file
from mmrm.data.synthetic.scenes import LEVELS
from mmrm.data.synthetic.wording import VERDICTS
from mmrm.data.synthetic.world import ShapesWorld, WorldItem
from mmrm.eval.judges.packed_inference import Packed, run_packed
from mmrm.eval.results.intervals import wilson
from mmrm.models.backbone import load_encoder, load_language_model
from mmrm.models.config import BackboneConfig, SamplingConfig
from mmrm.models.encoder import Encoder, Span
from mmrm.models.generation import generate
from mmrm.models.packing.groups import Group, PackedBatch
from mmrm.models.portable.language_model import LabelModel

KINDS = ("answer", "verdict", "likelihood")


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """An item as a group: the bare question twice, or both responses with the verdict `yes` after each."""

    encoder: Encoder
    stated: bool

    def __call__(self, item: WorldItem) -> Group:
        """Encode the item; runs in loader workers."""
        images, prompt = item.images(), item.preference().prompt
        if not self.stated:
            return self.encoder.encode(images, [self.encoder.render(prompt)] * 2, None)
        turns = [
            (*prompt, text("assistant", response)) for response in (item.chosen, item.rejected)
        ]
        spans = [
            (*self.encoder.render(turn, loss=True), Span(VERDICTS[True], loss=True))
            for turn in turns
        ]
        return self.encoder.encode(images, spans, None)


@torch.no_grad()
def examine(
    model: LabelModel, encoder: Encoder, items: Sequence[WorldItem]
) -> list[dict[str, float]]:
    """Return for every item what is right of KINDS: 0 or 1, and for the verdict the mean over both responses."""
    tokenizer, sampling = encoder.tokenizer, SamplingConfig(max_new_tokens=64)
    end, (yes, no) = (
        encoder.end_of_turn,
        tokenizer.convert_tokens_to_ids([VERDICTS[True], VERDICTS[False]]),
    )

    def answer(batch: PackedBatch, asked: list[WorldItem]) -> list[str]:
        forbidden, seeds = [encoder.vision.image], [""] * (2 * len(asked))
        found = generate(model, batch, end=end, forbidden=forbidden, sampling=sampling, seeds=seeds)
        return [tokenizer.decode(one.ids) for one in found[::2]]

    def judge(batch: PackedBatch, asked: list[WorldItem]) -> list[tuple[float, float]]:
        hidden = model.model(**batch.model_inputs()).last_hidden_state[0]
        logits: Tensor = model.lm_head(hidden[batch.label_positions]).log_softmax(-1)
        own = logits.gather(1, batch.labels[:, None])[:, 0]
        found = []
        for number in range(len(asked)):
            chosen, rejected = (
                (batch.label_owners == 2 * number + side).nonzero()[:, 0] for side in (0, 1)
            )
            says = [
                bool(logits[place[-1], yes] > logits[place[-1], no]) for place in (chosen, rejected)
            ]
            likelier = bool(own[chosen[:-1]].sum() > own[rejected[:-1]].sum())
            found.append(((says[0] + (not says[1])) / 2, float(likelier)))
        return found

    packed = Packed(encoder, torch.device("cpu"), 4096)
    written = run_packed(packed, items, AskedQuestion(encoder, stated=False), answer)
    judged = run_packed(packed, items, AskedQuestion(encoder, stated=True), judge)
    return [
        {
            "answer": float(reply in item.true.phrasings),
            "verdict": verdict,
            "likelihood": likelihood,
        }
        for item, reply, (verdict, likelihood) in zip(items, written, judged, strict=True)
    ]


def main() -> None:
    """Read the command line, examine, print and write: n and the mean of each of KINDS by question type, `all` last."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint")
    parser.add_argument("--level", choices=sorted(LEVELS), default="demo")
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    config = BackboneConfig(
        path=options.checkpoint, dtype="float32", min_pixels=784, max_pixels=200704
    )
    world = ShapesWorld(options.level, seed=0, split="validation")
    items = [world.item(index) for index in range(options.items)]
    found = examine(load_language_model(config).eval(), load_encoder(config), items)
    title = f"{options.checkpoint}: {options.items} items of {options.level}, split validation"
    table, figures = Table("question", "n", *(f"{kind} [95 %]" for kind in KINDS), title=title), {}
    for name in [*sorted({item.kind for item in items}), "all"]:
        rows = [one for item, one in zip(items, found, strict=True) if name in (item.kind, "all")]
        n, cells = len(rows), []
        figures[name] = {"n": n} | {kind: sum(one[kind] for one in rows) / n for kind in KINDS}
        for kind in KINDS:
            low, high = wilson(figures[name][kind] * n, n)
            cells.append(f"{100 * figures[name][kind]:.1f} [{100 * low:.1f}, {100 * high:.1f}]")
        table.add_row(name, str(n), *cells)
    plain_console(width=120).print(table)
    if options.output:
        with locked_file(options.output):
            write_json(options.output, figures)


if __name__ == "__main__":
    main()

"""The accuracy of the embedded backbone on unseen scenes, before any training of a reward model.

For every type of question there are three figures: the share of greedy answers that are right word
for word, in any of the world's phrasings; the share of verdicts ("is this answer right?") that are
right; and the share of pairs whose right answer is the likelier one under the language model.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mmrm.data.display.format import interval
from mmrm.data.display.study_result import StudyResult
from mmrm.data.display.table import Column, Table
from mmrm.data.preference import text
from mmrm.data.storage.files import write_json
from mmrm.data.storage.output_lock import locked_file
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
"""The figures of an item."""
TOKEN_BUDGET = 4096


def run(options: argparse.Namespace) -> StudyResult:
    """Examine a checkpoint on items of the embedded world, and return its figures by question type.

    Args:
        options: `checkpoint`, `level` of the world, and the number of `items`.
    """
    config = BackboneConfig(
        path=options.checkpoint, dtype="float32", min_pixels=784, max_pixels=200704
    )
    world = ShapesWorld(options.level, seed=0, split="validation")
    items = [world.item(index) for index in range(options.items)]
    scores = figures_of_items(load_language_model(config).eval(), load_encoder(config), items)
    figures = figures_by_type([item.kind for item in items], scores)
    title = f"{options.checkpoint}: {options.items} items of {options.level}, split validation"
    return StudyResult(figures, (figures_table(figures, title),))


def write(result: StudyResult, file: Path) -> None:
    """Write the figures to a JSON file."""
    with locked_file(file):
        write_json(file, result.figures)


def figures_by_type(
    types: Sequence[str], scores: Sequence[Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """Return the number of items and the mean of each of KINDS by question type, `all` last.

    Args:
        types: The question type of each item.
        scores: The figures of each item.
    """
    scores_by_type: dict[str, list[Mapping[str, float]]] = {
        name: [] for name in [*sorted(set(types)), "all"]
    }
    for name, score in zip(types, scores, strict=True):
        scores_by_type[name].append(score)
        scores_by_type["all"].append(score)
    figures: dict[str, dict[str, float]] = {}
    for name, own_scores in scores_by_type.items():
        n = len(own_scores)
        figures[name] = {"n": n}
        for kind in KINDS:
            figures[name][kind] = sum(score[kind] for score in own_scores) / n
    return figures


def figures_table(figures: Mapping[str, Mapping[str, float]], title: str) -> Table:
    """Return the figures in percent, with Wilson's intervals."""
    rows = []
    for name, of_type in figures.items():
        n = of_type["n"]
        cells = [name, str(n)]
        for kind in KINDS:
            low, high = wilson(of_type[kind] * n, n)
            cells.append(interval(of_type[kind], low, high))
        rows.append(tuple(cells))
    heads = ("n", *(f"{kind} [95 %]" for kind in KINDS))
    columns = (Column("question"), *(Column(head, is_number=True) for head in heads))
    return Table(title, columns, tuple(rows))


@dataclass(frozen=True, slots=True)
class QuestionLayout:
    """Encodes an item as one group of two conversations: the question alone, twice."""

    encoder: Encoder

    def __call__(self, item: WorldItem) -> Group:
        """Encode the item; a worker of the loader calls this."""
        question = self.encoder.render(item.preference().prompt)
        return self.encoder.encode(item.images(), [question, question], None)


@dataclass(frozen=True, slots=True)
class VerdictLayout:
    """Encodes an item as one group of both responses, each followed by the verdict `yes`."""

    encoder: Encoder

    def __call__(self, item: WorldItem) -> Group:
        """Encode the item; a worker of the loader calls this."""
        prompt = item.preference().prompt
        conversations = []
        for response in (item.chosen, item.rejected):
            turns = self.encoder.render((*prompt, text("assistant", response)), loss=True)
            conversations.append((*turns, Span(VERDICTS[True], loss=True)))
        return self.encoder.encode(item.images(), conversations, None)


@torch.no_grad()
def figures_of_items(
    model: LabelModel, encoder: Encoder, items: Sequence[WorldItem]
) -> list[dict[str, float]]:
    """Return the figures of every item by KINDS.

    They are 0 or 1, and for the verdict the mean over both responses.
    """
    packed = Packed(encoder, torch.device("cpu"), TOKEN_BUDGET)

    def write_answers(batch: PackedBatch, batch_items: list[WorldItem]) -> list[str]:
        return greedy_answers(model, encoder, batch, len(batch_items))

    def judge(batch: PackedBatch, batch_items: list[WorldItem]) -> list[tuple[float, float]]:
        return verdicts(model, encoder, batch, len(batch_items))

    answers = run_packed(packed, items, QuestionLayout(encoder), write_answers)
    judged = run_packed(packed, items, VerdictLayout(encoder), judge)
    scores = []
    for item, answer, (verdict, likelihood) in zip(items, answers, judged, strict=True):
        is_right = float(answer in item.true.phrasings)
        scores.append({"answer": is_right, "verdict": verdict, "likelihood": likelihood})
    return scores


def greedy_answers(
    model: LabelModel, encoder: Encoder, batch: PackedBatch, num_items: int
) -> list[str]:
    """Return the greedy answer to every item of a batch.

    A group needs two continuations, so that every answer is written twice.
    """
    answers = generate(
        model,
        batch,
        end=encoder.end_of_turn,
        forbidden=[encoder.vision.image],
        sampling=SamplingConfig(max_new_tokens=64),
        seeds=[""] * (2 * num_items),
    )
    return [encoder.tokenizer.decode(answer.ids) for answer in answers[::2]]


def verdicts(
    model: LabelModel, encoder: Encoder, batch: PackedBatch, num_items: int
) -> list[tuple[float, float]]:
    """Return verdict and likelihood of every item of a batch.

    The first is the share of its two verdicts that are right. The second is 1 if the tokens of the
    right response are together the likelier ones, else 0.
    """
    yes, no = encoder.tokenizer.convert_tokens_to_ids([VERDICTS[True], VERDICTS[False]])
    hidden = model.model(**batch.model_inputs()).last_hidden_state[0]
    # (labels, vocabulary)
    log_probabilities: Tensor = model.lm_head(hidden[batch.label_positions]).log_softmax(-1)
    of_labels = log_probabilities.gather(1, batch.labels[:, None])[:, 0]
    scores = []
    for index in range(num_items):
        # The labels of a response end with that of the verdict.
        chosen = (batch.label_owners == 2 * index).nonzero()[:, 0]
        rejected = (batch.label_owners == 2 * index + 1).nonzero()[:, 0]
        says_chosen_is_right = _prefers(log_probabilities[chosen[-1]], yes, no)
        says_rejected_is_right = _prefers(log_probabilities[rejected[-1]], yes, no)
        num_right = int(says_chosen_is_right) + int(not says_rejected_is_right)
        is_likelier = bool(of_labels[chosen[:-1]].sum() > of_labels[rejected[:-1]].sum())
        scores.append((num_right / 2, float(is_likelier)))
    return scores


def _prefers(log_probabilities: Tensor, token: int, other: int) -> bool:
    """Return True if a token is likelier than another one; the tensor has shape (vocabulary,)."""
    return bool(log_probabilities[token] > log_probabilities[other])

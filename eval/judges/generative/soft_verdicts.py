"""Soft verdicts: the probabilities that a judge gives to both verdicts where the verdict stands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from mmrm.eval.candidates import Scores, SoftVerdict
from mmrm.eval.judges.packed_inference import Packed
from mmrm.eval.verdict_form import VerdictForm
from mmrm.models.packed_alternatives import (
    Choice,
    choice_after_text,
    choice_in_text,
    log_probabilities_of_alternatives,
)
from mmrm.models.packing.packed_batch import PackedBatch, unpack


@dataclass(frozen=True, slots=True)
class WrittenJudgement:
    """A judgement as the judge wrote it; empty if it was not asked to write."""

    ids: tuple[int, ...]
    """Its tokens, without the end of the turn."""
    text: str
    is_unreadable: bool = False
    """True if the judge wrote a text in which the template's reader finds no verdict."""


def soft_verdicts(
    model: Any,
    packed: Packed,
    batch: PackedBatch,
    judgements: Sequence[WrittenJudgement],
    form: VerdictForm,
) -> list[SoftVerdict]:
    """Return the soft verdict of each judgement on a packed row.

    All ranks must call together, each with its own row.

    Args:
        model: The language model.
        packed: Its encoder and the token budget of a row.
        batch: The row whose conversations end where the judgements begin.
        judgements: A judgement for each output of the row, in order.
        form: The words of the verdict, and where they stand.
    """
    trees = unpack(batch)
    tokenizer = packed.encoder.tokenizer
    remaining_choices = iter([verdict_choice(tokenizer, each, form) for each in judgements])
    choices = [list(islice(remaining_choices, len(tree.outputs))) for tree in trees]
    log_probabilities = log_probabilities_of_alternatives(
        model, packed.encoder, trees, choices, packed.token_budget
    )
    pairs = [pair for of_tree in log_probabilities for pair in of_tree]
    verdicts: list[SoftVerdict] = []
    for judgement, (first, second) in zip(judgements, pairs, strict=True):
        verdicts.append(soft_verdict(first, second, is_opened=judgement.is_unreadable))
    return verdicts


def verdict_choice(tokenizer: Any, judgement: WrittenJudgement, form: VerdictForm) -> Choice:
    """Return the choice between both verdicts where the verdict of a judgement stands.

    If the judgement is empty or has no readable verdict, the choice follows the text with which the
    template begins one.
    """
    start = None if judgement.is_unreadable else form.find(judgement.text)
    if start is None:
        num_kept, added = form.kept_and_added(judgement.text)
        return choice_after_text(tokenizer, judgement.ids, num_kept, added, form.words)
    end = start + len(form.words[0])  # both words are equally long
    return choice_in_text(tokenizer, judgement.ids, start, end, form.words)


def soft_verdict(first: float, second: float, *, is_opened: bool) -> SoftVerdict:
    """Return the soft verdict for the log-probabilities of the two verdicts.

    Args:
        first: Log-probability of the verdict for the response shown first.
        second: Log-probability of the verdict for the other response.
        is_opened: The judge wrote a text without a readable verdict.
    """
    # The larger one is taken out, because both may be too small for exp.
    largest = max(first, second)
    weight_of_first = math.exp(first - largest)
    weight_of_second = math.exp(second - largest)
    total = weight_of_first + weight_of_second
    return SoftVerdict(
        first=weight_of_first / total,
        mass=math.exp(largest) * total,
        is_opened=is_opened,
    )


def soft_note(scores: Sequence[Scores]) -> str:
    """Return a note on where the soft verdicts of some scores were read."""
    verdicts = [
        vote.soft for row_scores in scores for vote in row_scores.votes if vote.soft is not None
    ]
    num_opened = sum(verdict.is_opened for verdict in verdicts)
    mean_mass = sum(verdict.mass for verdict in verdicts) / max(len(verdicts), 1)
    return (
        f"Soft verdicts: {num_opened:,} of {len(verdicts):,} judgements had no readable verdict, "
        "and were continued by the template's beginning of one; both verdicts together have a "
        f"probability of {mean_mass:.3f} on average."
    )

"""Choice of the pairs of responses that a labeller is asked about: by chance, or the least certain.

A reward model that scores the responses to a prompt expects one of each two to be better, with a
probability from 0.5 to 1, its certainty. A label of a pair with certainty 1 mostly confirms what
the model knows. A label of a pair with certainty 0.5 decides it, unless both responses are equally
good: then there is no preference, and the question was for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np
from scipy.special import ndtr

from mmrm.data.arrays import Floats, Ints
from mmrm.data.preference import Response
from mmrm.data.sources.shared.file_source import SourceRow
from mmrm.eval.results.uncertainty import standardised_differences
from mmrm.eval.selection.candidate_files import ATTRIBUTE_PREFIX
from mmrm.eval.selection.candidate_records import RESPONSE_COLUMNS, AnsweredPrompt
from mmrm.eval.selection.selection import ScoredResponses, TrainingRecordMaker

Choice = Literal["random", "unsure"]
"""How pairs are chosen: drawn by chance, or those of which the reward model is least certain."""

PER_RESPONSE = ("scores", "right", "normalised", "rewards", "critiques")
"""Columns of a scored record with one value for each response."""
OF_ALL_RESPONSES = ("order", "margin", "judgements", "unread", "tokens", "comparisons")
"""Columns that eval/score.py writes about all responses of a record together. A record of a pair
has none of them."""
CONVERSATION = (
    *("prompt", "messages", "images", "image", "videos", "video"),
    *(*RESPONSE_COLUMNS, "chosen", "rejected"),
)
"""Columns that hold the prompt and the responses of a record, in any of its forms."""


@dataclass(frozen=True, slots=True)
class PossiblePair:
    """Two responses to the same prompt that a labeller can be asked about."""

    record: int
    """The number of the prompt's record in its file, counted from 0."""
    first: int
    """The index of a response."""
    second: int
    """The index of a later response."""
    distance: float
    """|score(first) - score(second)|, in units of its own standard deviation if the judge states
    deviations. The certainty grows with it."""
    certainty: float
    """The probability, from 0.5 to 1, that the response with the higher score is better: by the
    stated deviations, or else sigmoid(|difference|)."""


def possible_pairs(record: int, scored_responses: ScoredResponses) -> list[PossiblePair]:
    """Return the pairs of responses to a prompt that a labeller can be asked about.

    Responses without an image or a visible character are in no pair. Of equal responses, only the
    first is in pairs.

    Args:
        record: The number of the prompt's record.
        scored_responses: The responses with their scores, and with deviations if the judge states
            them.
    """
    # A dictionary, because it keeps the first index of each response.
    index_by_response: dict[Response, int] = {}
    for index, response in enumerate(scored_responses.responses):
        if response.is_visible:
            index_by_response.setdefault(response, index)
    index_pairs = list(combinations(index_by_response.values(), 2))
    if not index_pairs:
        return []
    first = np.array([pair[0] for pair in index_pairs])
    second = np.array([pair[1] for pair in index_pairs])
    distances, certainties = _certainties(scored_responses, first, second)
    pairs: list[PossiblePair] = []
    for number, (first_index, second_index) in enumerate(index_pairs):
        pairs.append(
            PossiblePair(
                record=record,
                first=first_index,
                second=second_index,
                distance=float(distances[number]),
                certainty=float(certainties[number]),
            )
        )
    return pairs


def _certainties(
    scored_responses: ScoredResponses, first: Ints, second: Ints
) -> tuple[Floats, Floats]:
    """Return the distance and the certainty of each pair, as `PossiblePair` describes them.

    Args:
        scored_responses: The responses with their scores.
        first: Index of the first response of each pair, shape (pairs,).
        second: Index of the second response of each pair, shape (pairs,).
    """
    scores = np.array(scored_responses.scores, dtype=np.float64)
    if scored_responses.stds is None:
        distances = np.abs(scores[first] - scores[second])
        return distances, 1 / (1 + np.exp(-distances))
    stds = np.array(scored_responses.stds, dtype=np.float64)
    standardised = standardised_differences(
        scores[first], stds[first], scores[second], stds[second]
    )
    distances = np.abs(standardised)
    return distances, np.asarray(ndtr(distances))


def choose_pairs(
    pairs: Sequence[PossiblePair], num_pairs: int, choice: Choice, seed: int
) -> list[PossiblePair]:
    """Return the pairs that a labeller is asked about, in the order of `pairs`.

    Of pairs of equal certainty, those are taken that a draw puts first, so that no prompt is
    preferred because it comes early in a file.

    Args:
        pairs: The pairs of all prompts.
        num_pairs: The number of pairs to choose. All pairs are returned if there are not more.
        choice: Draw them by chance, or take the least certain ones.
        seed: The seed of the draw.
    """
    drawn_order = np.random.default_rng(seed).permutation(len(pairs)).tolist()
    if choice == "unsure":
        # A stable sort keeps the drawn order of equal distances.
        drawn_order.sort(key=lambda index: pairs[index].distance)
    return [pairs[index] for index in sorted(drawn_order[:num_pairs])]


def record_of_pair(
    row: SourceRow, answered: AnsweredPrompt, pair: PossiblePair, maker: TrainingRecordMaker
) -> dict[str, Any]:
    """Return the record of a pair for a labeller: its prompt with two responses.

    The record has the column `certainty`, the other columns of the prompt's record, and no columns
    about the prompt's other responses.

    Args:
        row: The record of the prompt.
        answered: The prompt with all responses to it.
        pair: Two of the responses.
        maker: Makes the part of the record with prompt, images, videos and responses.
    """
    record = maker.unlabelled_record(answered, pair.first, pair.second, row.identity)
    left_out = {*CONVERSATION, *OF_ALL_RESPONSES}
    for name, value in row.columns.items():
        if name in PER_RESPONSE:
            record[name] = [value[pair.first], value[pair.second]]
        elif name not in left_out and not name.startswith(ATTRIBUTE_PREFIX):
            record[name] = value
    record["certainty"] = pair.certainty
    return record


CERTAINTY_EDGES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Edges of the ranges of certainty in which pairs are counted."""


def counts_by_certainty(certainties: Sequence[float]) -> list[int]:
    """Return the number of pairs in each range between CERTAINTY_EDGES.

    A range includes its lower edge, and the last one both edges.
    """
    counts, _ = np.histogram(certainties, bins=CERTAINTY_EDGES)
    return [int(count) for count in counts]

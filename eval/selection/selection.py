"""Select the best response or preference pairs from scored responses, and make training records of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mmrm.data.errors import RecordError, UserError
from mmrm.data.images import data_uri
from mmrm.data.preference import visible
from mmrm.data.regular_files import read_bytes
from mmrm.eval.candidates import Scores
from mmrm.eval.selection.candidate_records import Answered
from mmrm.eval.verifiers import ResponseVerifier

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

Format = Literal["project", "trl"]


class NotTaken(Exception):
    """Raised if the rules select nothing from a record. The message is the reason, which callers count."""


IndexPair = tuple[int, int]
"""Indices of a better and a worse response."""


@dataclass(frozen=True, slots=True)
class ScoredResponses:
    """The responses to a prompt, their scores, and which of them are right if a verifier was used."""

    responses: Sequence[str]
    scores: Sequence[float]
    right: Sequence[bool] | None

    @property
    def order(self) -> list[int]:
        """Indices of the responses, best first."""
        return Scores(tuple(self.scores)).order


def scored(
    columns: Mapping[str, Any], responses: Sequence[str], verifier: ResponseVerifier | None
) -> ScoredResponses:
    """Return the responses of a record with their scores and verdicts.

    Args:
        columns: The columns of the record.
        responses: The responses of the record.
        verifier: The verifier of the responses; None if they are not verified.

    Raises:
        RecordError: If the column `scores` does not hold one finite number for each response.
    """
    scores = columns.get("scores")
    if (
        not isinstance(scores, list)
        or len(scores) != len(responses)
        or not all(map(_finite, scores))
    ):
        raise RecordError(
            f"`scores` is {scores!r:.60}; required is a list of {len(responses)} numbers, as eval/score.py writes it."
        )
    right = verifier.right(columns, responses) if verifier else None
    return ScoredResponses(responses, scores, right)


def _finite(value: Any) -> bool:
    """Return True if `value` is a finite number. True and False do not count as numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def best(scored_responses: ScoredResponses) -> int:
    """Return the index of the best response, or of the best right response if a verifier was used.

    Raises:
        NotTaken: If a verifier was used and no response is right.
    """
    for index in scored_responses.order:
        if scored_responses.right is None or scored_responses.right[index]:
            return index
    raise NotTaken("no response is right")


def preference_pairs(
    scored_responses: ScoredResponses, minimum: float | None, all_pairs: bool
) -> list[IndexPair]:
    """Return indices of a better and a worse response, the pairs with the better ones first.

    Without a verifier the pair is the best and the worst response by score, or all pairs with
    different scores. With a verifier it is the best right response and the worst wrong one, or all
    pairs of a right and a wrong response, whatever their scores. Responses with equal texts, and
    responses without a visible character, make no pair.

    Args:
        scored_responses: The responses to one prompt.
        minimum: The least margin between the scores of a pair; None takes any.
        all_pairs: Return all pairs instead of one.

    Raises:
        NotTaken: If there is no pair.
    """
    scores = scored_responses.scores
    texts = scored_responses.responses
    if scored_responses.right is None:
        candidates, reason = _pairs_by_score(scored_responses, all_pairs)
    else:
        candidates, reason = _pairs_by_verifier(
            scored_responses.order, scored_responses.right, all_pairs
        )
    if not candidates:
        raise NotTaken(reason)
    if minimum is not None:
        candidates = [
            (better, worse)
            for better, worse in candidates
            if scores[better] - scores[worse] >= minimum
        ]
    if not candidates:
        raise NotTaken("the margin is too small")
    taken = [
        (better, worse)
        for better, worse in candidates
        if texts[better] != texts[worse] and visible(texts[better]) and visible(texts[worse])
    ]
    if not taken:
        raise NotTaken("the texts are equal or empty")
    return taken


def _pairs_by_score(
    scored_responses: ScoredResponses, all_pairs: bool
) -> tuple[list[IndexPair], str]:
    """Return (better, worse) pairs with different scores, best first, and the reason if there are none."""
    order = scored_responses.order
    scores = scored_responses.scores
    if len(order) == 1:
        return [], "one response"
    pairs = list(combinations(order, 2)) if all_pairs else [(order[0], order[-1])]
    different = [(better, worse) for better, worse in pairs if scores[better] > scores[worse]]
    return different, "all scores are equal"


def _pairs_by_verifier(
    order: Sequence[int], is_right: Sequence[bool], all_pairs: bool
) -> tuple[list[IndexPair], str]:
    """Return (right, wrong) pairs, best first, and the reason if there are none."""
    right = [index for index in order if is_right[index]]
    wrong = [index for index in order if not is_right[index]]
    if not right:
        return [], "no response is right"
    if not wrong:
        return [], "no response is wrong"
    if all_pairs:
        return list(product(right, wrong)), ""
    return [(right[0], wrong[-1])], ""


@dataclass(frozen=True, slots=True)
class Writer:
    """Makes training records: preference records with `chosen` and `rejected`, or SFT records with one response.

    `form` is this project's form or TRL's, and `suffix` is the ending of the file to write. In JSON
    lines, images are the paths that the scored file has, or data URIs if the scored file contains the
    images. Parquet contains the images, as `datasets` stores them.
    """

    form: Format
    suffix: str

    def pair(
        self,
        answered: Answered,
        scored_responses: ScoredResponses,
        chosen: int,
        rejected: int,
        identity: str,
    ) -> dict[str, Any]:
        """Return the preference record of the responses with the indices `chosen` and `rejected`.

        Its `margin` is the difference of their scores. The record has no margin if the pair was made
        by a verifier. `identity` names the record in messages.
        """
        record = self._prompt(answered, identity) | {
            "chosen": self._response(answered.responses[chosen]),
            "rejected": self._response(answered.responses[rejected]),
        }
        if scored_responses.right is None:
            scores = scored_responses.scores
            record["margin"] = scores[chosen] - scores[rejected]
        return record

    def example(self, answered: Answered, index: int, identity: str) -> dict[str, Any]:
        """Return the SFT record of the response with this index.

        The response is in the column `completion` in TRL's form, and in `response` otherwise.
        `identity` names the record in messages.
        """
        name = "completion" if self.form == "trl" else "response"
        return self._prompt(answered, identity) | {name: self._response(answered.responses[index])}

    def _response(self, content: str) -> Any:
        """Return a response as a training record holds it: a text, or one assistant turn for TRL."""
        if self.form != "trl":
            return content
        return [self._turn({"role": "assistant", "content": [{"type": "text", "text": content}]})]

    def _turn(self, turn: Mapping[str, Any]) -> dict[str, Any]:
        """Return a turn as a training record holds it. In TRL's JSON lines its content is one text."""
        if self.form == "trl" and self.suffix == ".jsonl":
            return {
                "role": turn["role"],
                "content": "".join(part["text"] for part in turn["content"]),
            }
        return dict(turn)

    def _prompt(self, answered: Answered, identity: str) -> dict[str, Any]:
        """Return the columns `images` and `prompt` of a training record."""
        if self.suffix == ".parquet":
            images: list[Any] = [
                {"bytes": one if isinstance(one, bytes) else read_bytes(one)}
                for one in answered.images
            ]
        elif self.form == "trl" and answered.images:
            raise UserError(
                f"{identity} has images, and TRL's trainers take them from parquet: name an OUT that ends in .parquet."
            )
        else:
            images = [
                str(one) if isinstance(one, Path) else data_uri(one, identity)
                for one in answered.references
            ]
        return {"images": images, "prompt": [self._turn(turn) for turn in answered.turns]}

    def schema(self, pair: bool, verified: bool) -> pa.Schema:
        """Return the schema of the records in parquet. It tells `datasets` which columns hold images.

        Args:
            pair: True for preference records, False for SFT records.
            verified: True if a verifier made the pairs, so that they have no margin.
        """
        from datasets import Features, Image, List, Value

        content = List({"type": Value("string"), "text": Value("string")})
        turns = List({"role": Value("string"), "content": content})
        is_trl = self.form == "trl"
        response = turns if is_trl else Value("string")
        columns = {"images": List(Image()), "prompt": turns}
        if pair:
            columns["chosen"] = response
            columns["rejected"] = response
        else:
            columns["completion" if is_trl else "response"] = response
        if pair and not verified:
            columns["margin"] = Value("float64")
        return Features(columns).arrow_schema

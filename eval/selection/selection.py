"""Which of the scored responses to a prompt are taken, and the records made of them; no model is needed."""

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
from mmrm.eval.verifiers import Verifying

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

Format = Literal["project", "trl"]


class NotTaken(Exception):
    """A record that gives nothing by the rules; the message is the reason, which is counted."""


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
    columns: Mapping[str, Any], responses: Sequence[str], verifying: Verifying | None
) -> ScoredResponses:
    """Return the scores in a record's column `scores`; raise RecordError unless they are one finite number a response."""
    scores = columns.get("scores")
    if (
        not isinstance(scores, list)
        or len(scores) != len(responses)
        or not all(map(_finite, scores))
    ):
        raise RecordError(
            f"`scores` is {scores!r:.60}; required is a list of {len(responses)} numbers, as eval/score.py writes it."
        )
    return ScoredResponses(
        responses, scores, verifying.right(columns, responses) if verifying else None
    )


def _finite(value: Any) -> bool:
    """Return True for a finite number; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def best(scored_responses: ScoredResponses) -> int:
    """Return the index of the best response, of the best right one if a verifier was used.

    Raises: NotTaken if no response is right.
    """
    for index in scored_responses.order:
        if scored_responses.right is None or scored_responses.right[index]:
            return index
    raise NotTaken("no response is right")


def preference_pairs(
    scored_responses: ScoredResponses, minimum: float | None, all_pairs: bool
) -> list[IndexPair]:
    """Return indices of a better and a worse response, the pairs with the better ones first.

    Without a verifier the score decides: the best and the worst response, or all pairs with different scores. With a verifier,
    right ones stand against wrong ones, whatever their scores say: the best right one against the worst wrong one, or all.
    Texts that are equal or invisible make no pair.

    Args:
        scored_responses: The responses to one prompt.
        minimum: The least margin between the scores of a pair; None takes any.
        all_pairs: Return all pairs instead of one.

    Raises: NotTaken if there is no pair.
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
    """Makes training records of a form: `chosen` and `rejected`, or (SFT) one response.

    JSON lines name images as the scored file does; what it held inside is a data URI. Parquet holds the files themselves, as
    `datasets` stores images.
    """

    form: Format
    suffix: str

    def pair(
        self, answered: Answered, found: ScoredResponses, chosen: int, rejected: int, identity: str
    ) -> dict[str, Any]:
        """Return a preference record; its margin is the difference of the scores, and none where a verifier made the pair."""
        made = self._prompt(answered, identity) | {
            "chosen": self._response(answered.responses[chosen]),
            "rejected": self._response(answered.responses[rejected]),
        }
        return made | (
            {}
            if found.right is not None
            else {"margin": found.scores[chosen] - found.scores[rejected]}
        )

    def example(self, answered: Answered, place: int, identity: str) -> dict[str, Any]:
        """Return an SFT record: `completion` in TRL's form of prompt and completion, else `response`."""
        name = "completion" if self.form == "trl" else "response"
        return self._prompt(answered, identity) | {name: self._response(answered.responses[place])}

    def _response(self, content: str) -> Any:
        return (
            [self._turn({"role": "assistant", "content": [{"type": "text", "text": content}]})]
            if self.form == "trl"
            else content
        )

    def _turn(self, turn: Mapping[str, Any]) -> dict[str, Any]:
        if self.form == "trl" and self.suffix == ".jsonl":
            return {
                "role": turn["role"],
                "content": "".join(part["text"] for part in turn["content"]),
            }
        return dict(turn)

    def _prompt(self, answered: Answered, identity: str) -> dict[str, Any]:
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
        """Return the columns in parquet, from which `datasets` reads what it needs to open the images."""
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

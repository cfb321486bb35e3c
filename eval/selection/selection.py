"""Which of the scored responses to a prompt are taken, and the records made of them; no model is needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
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


@dataclass(frozen=True, slots=True)
class ScoredResponses:
    """The responses to a prompt, their scores, and which of them are right where a verifier says it."""

    responses: Sequence[str]
    scores: Sequence[float]
    right: Sequence[bool] | None

    @property
    def order(self) -> list[int]:
        """Places, best first."""
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
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def best(found: ScoredResponses) -> int:
    """Return the place of the best response, of the best right one where a verifier says it; raise NotTaken without one."""
    taken = [place for place in found.order if found.right is None or found.right[place]]
    if not taken:
        raise NotTaken("no response is right")
    return taken[0]


def pairs(found: ScoredResponses, minimum: float | None, every: bool) -> list[tuple[int, int]]:
    """Return places of a better and a worse response, the pairs with the better ones first; raise NotTaken without any.

    Without a verifier the score decides: the best and the worst response, with `every` all pairs, whose scores differ, by
    `minimum` at least. With one, right ones stand against wrong ones: the best right against the worst wrong, with `every` all;
    whatever their scores say, unless there is a `minimum`. Texts that are equal or that nobody can see make no pair.
    """
    order, right = found.order, found.right
    if right is None:
        possible = (
            list(combinations(order, 2))
            if every
            else [(order[0], order[-1])]
            if len(order) > 1
            else []
        )
        possible = [
            (one, other) for one, other in possible if found.scores[one] > found.scores[other]
        ]
        reason = "one response" if len(order) == 1 else "all scores are equal"
    else:
        good, wrong = ([place for place in order if right[place] == side] for side in (True, False))
        possible = [(one, other) for one in good for other in wrong]
        possible = possible if every else [(good[0], wrong[-1])] if possible else []
        reason = "no response is wrong" if good else "no response is right"
    if not possible:
        raise NotTaken(reason)
    wide = [
        (a, b)
        for a, b in possible
        if minimum is None or found.scores[a] - found.scores[b] >= minimum
    ]
    if not wide:
        raise NotTaken("the margin is too small")
    texts = found.responses
    taken = [
        (a, b) for a, b in wide if texts[a] != texts[b] and visible(texts[a]) and visible(texts[b])
    ]
    if not taken:
        raise NotTaken("the texts are equal or empty")
    return taken


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

        text, turns = (
            Value("string"),
            List(
                {
                    "role": Value("string"),
                    "content": List({"type": Value("string"), "text": Value("string")}),
                }
            ),
        )
        response = turns if self.form == "trl" else text
        names = (
            ["chosen", "rejected"] if pair else ["completion" if self.form == "trl" else "response"]
        )
        margin = {"margin": Value("float64")} if pair and not verified else {}
        return Features(
            {"images": List(Image()), "prompt": turns, **dict.fromkeys(names, response), **margin}
        ).arrow_schema

"""Select the best response or preference pairs from scored responses, and make training records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from mmrm.data.encoded_video import video_uri
from mmrm.data.errors import RecordError, UserError
from mmrm.data.images import data_uri
from mmrm.data.preference import Response
from mmrm.data.regular_files import read_bytes
from mmrm.eval.candidates import Scores
from mmrm.eval.selection.candidate_files import STD_COLUMN
from mmrm.eval.selection.candidate_records import AnsweredPrompt
from mmrm.eval.verifiers import ResponseVerifier

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

Format = Literal["project", "trl"]
"""The form of training records: this project's own, or the turns that TRL's trainers read."""

LARGEST_SCORE = 1e15
"""The largest score. Up to it, a float also holds every whole number, and the difference of two."""


class NothingSelected(Exception):
    """Raised if nothing can be selected from a record's responses.

    The message is the reason, by which callers count such records.
    """


IndexPair = tuple[int, int]
"""The indices of a better and a worse response to the same prompt."""


@dataclass(frozen=True, slots=True)
class ScoredResponses:
    """The responses to a prompt with their scores, and with verdicts if a verifier was used."""

    responses: Sequence[Response]
    scores: Sequence[float]
    right: Sequence[bool] | None
    """Whether each response is right; None if no verifier was used."""
    stds: Sequence[float] | None = None
    """The standard deviation that the judge states for each score; None if it states none, or if
    the deviations were not read."""

    @property
    def order(self) -> list[int]:
        """Indices of the responses, the highest score first."""
        return Scores(tuple(self.scores)).order

    def by_lower_bound(self, num_deviations: float) -> ScoredResponses:
        """Return the responses with score - num_deviations · std in place of each score.

        Required are standard deviations.
        """
        assert self.stds is not None, "the deviations have been read"
        bounds: list[float] = []
        for score, std in zip(self.scores, self.stds, strict=True):
            bounds.append(score - num_deviations * std)
        return replace(self, scores=bounds)


def read_scored_responses(
    columns: Mapping[str, Any],
    responses: Sequence[Response],
    verifier: ResponseVerifier | None,
    with_stds: bool = False,
) -> ScoredResponses:
    """Return the responses of a record with the scores in its columns, and with verdicts.

    Args:
        columns: The values of the record by column. The scores are in the column `scores`.
        responses: The responses of the record.
        verifier: The verifier of the responses. None leaves out the verdicts.
        with_stds: True reads the standard deviations of the scores too.

    Raises:
        RecordError: If the column `scores` does not hold one finite number for each response, or
            the deviations are wanted and there is not one for each response.
    """
    scores = columns.get("scores")
    if not _is_list_of_numbers(scores, len(responses)):
        raise RecordError(
            f"`scores` is {scores!r:.60}; required is a list of {len(responses)} numbers of at "
            f"most {LARGEST_SCORE:.0e}, as eval/score.py writes it."
        )
    right = None
    if verifier is not None:
        right = verifier.right(columns, [response.text for response in responses])
    stds = _read_stds(columns, len(responses)) if with_stds else None
    return ScoredResponses(responses, scores, right, stds)


def states_deviations(columns: Mapping[str, Any]) -> bool:
    """Return True if a scored record has standard deviations of its scores."""
    return columns.get(STD_COLUMN) is not None


def _read_stds(columns: Mapping[str, Any], length: int) -> list[float]:
    """Return the standard deviations in a record's columns, one for each of `length` responses.

    Raises:
        RecordError: If there is not one for each response, or one is negative or not finite.
    """
    stds = columns.get(STD_COLUMN)
    if not _is_list_of_numbers(stds, length) or min(stds) < 0:
        raise RecordError(
            f"`{STD_COLUMN}` is {stds!r:.60}; required is a list of {length} numbers from 0 to "
            f"{LARGEST_SCORE:.0e}, as eval/score.py writes it for a judge that states deviations."
        )
    return stds


def _is_list_of_numbers(value: Any, length: int) -> TypeGuard[list[float]]:
    """Return True if `value` is a list of `length` numbers that `_is_score` accepts."""
    if not isinstance(value, list) or len(value) != length:
        return False
    return all(map(_is_score, value))


def _is_score(value: Any) -> bool:
    """Return True if `value` is a number that is at most LARGEST_SCORE, and no boolean."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= LARGEST_SCORE  # false for NaN, too


def index_of_best(scored_responses: ScoredResponses) -> int:
    """Return the index of the response with the highest score.

    If a verifier was used, only right responses are considered.

    Raises:
        NothingSelected: If a verifier was used and no response is right.
    """
    is_right = scored_responses.right
    for index in scored_responses.order:
        if is_right is None or is_right[index]:
            return index
    raise NothingSelected("no response is right")


def preference_pairs(
    scored_responses: ScoredResponses, min_margin: float | None, all_pairs: bool
) -> list[IndexPair]:
    """Return pairs of a better and a worse response to a prompt, as indices.

    Without a verifier there is one pair, the best and the worst response by score, or with
    `all_pairs` all pairs of responses with different scores. With a verifier there is one pair, the
    best right response and the worst wrong one, or with `all_pairs` all pairs of a right and a
    wrong response, whatever their scores. Equal responses, and responses without an image or a
    visible character, make no pair. Pairs with better responses come first.

    Args:
        scored_responses: The responses to the prompt.
        min_margin: The least difference between the scores of a pair; None allows any difference.
        all_pairs: Return all pairs instead of one.

    Raises:
        NothingSelected: If there is no pair.
    """
    scores = scored_responses.scores
    responses = scored_responses.responses
    if scored_responses.right is None:
        pairs, reason = _pairs_by_score(scored_responses, all_pairs)
    else:
        pairs, reason = _pairs_by_verifier(
            scored_responses.order, scored_responses.right, all_pairs
        )
    if not pairs:
        raise NothingSelected(reason)
    if min_margin is not None:
        pairs = [
            (better, worse)
            for better, worse in pairs
            if scores[better] - scores[worse] >= min_margin
        ]
    if not pairs:
        raise NothingSelected("the margin is too small")
    usable_pairs: list[IndexPair] = []
    for better, worse in pairs:
        are_visible = responses[better].is_visible and responses[worse].is_visible
        if are_visible and responses[better] != responses[worse]:
            usable_pairs.append((better, worse))
    if not usable_pairs:
        raise NothingSelected("the texts are equal or empty")
    return usable_pairs


def _pairs_by_score(
    scored_responses: ScoredResponses, all_pairs: bool
) -> tuple[list[IndexPair], str]:
    """Return the pairs of a better and a worse response by score, and the reason if there are none.

    Without `all_pairs` the only pair is the best and the worst response. Responses with equal
    scores make no pair.
    """
    order = scored_responses.order
    scores = scored_responses.scores
    if len(order) == 1:
        return [], "one response"
    pairs = list(combinations(order, 2)) if all_pairs else [(order[0], order[-1])]
    pairs_that_differ = [
        (better, worse) for better, worse in pairs if scores[better] > scores[worse]
    ]
    return pairs_that_differ, "all scores are equal"


def _pairs_by_verifier(
    order: Sequence[int], is_right: Sequence[bool], all_pairs: bool
) -> tuple[list[IndexPair], str]:
    """Return the pairs of a right and a wrong response, and the reason if there are none.

    Args:
        order: The indices of the responses, the highest score first.
        is_right: Whether each response is right.
        all_pairs: Return all pairs instead of the best right and the worst wrong response.
    """
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
class TrainingRecordMaker:
    """Makes training records of the responses to a prompt.

    A record is a preference record with `chosen` and `rejected`, or an SFT record with one
    response. In records for JSON lines, images are the paths that the scored file has, or data URIs
    if the scored file contains the images. Videos are only in records for JSON lines of this
    project's form, in the same ways. Records for parquet contain the images, as `datasets` stores
    them.
    """

    form: Format
    suffix: str
    """The ending of the file that the records are written to: .jsonl or .parquet."""

    def preference_record(
        self,
        answered: AnsweredPrompt,
        scored_responses: ScoredResponses,
        chosen: int,
        rejected: int,
        identity: str,
    ) -> dict[str, Any]:
        """Return the preference record of two responses to a prompt.

        The `margin` of the record is the difference of their scores. The record has no margin if
        the responses were verified, because the pair was then not made by score.

        Args:
            answered: The prompt with all responses to it.
            scored_responses: The same responses with their scores.
            chosen: The index of the better response.
            rejected: The index of the worse response.
            identity: The name of the record in messages.
        """
        record = self._prompt(answered, identity) | {
            "chosen": self._response(answered.written_responses[chosen], identity),
            "rejected": self._response(answered.written_responses[rejected], identity),
        }
        if scored_responses.right is None:
            scores = scored_responses.scores
            record["margin"] = scores[chosen] - scores[rejected]
        return record

    def sft_record(self, answered: AnsweredPrompt, index: int, identity: str) -> dict[str, Any]:
        """Return the SFT record of the response with this index.

        The response is in the column `completion` in TRL's form, and in `response` otherwise.
        `identity` names the record in messages.
        """
        column = "completion" if self.form == "trl" else "response"
        response = self._response(answered.written_responses[index], identity)
        return self._prompt(answered, identity) | {column: response}

    def unlabelled_record(
        self, answered: AnsweredPrompt, first: int, second: int, identity: str
    ) -> dict[str, Any]:
        """Return a record of two responses to a prompt, of which the better one is not known.

        Args:
            answered: The prompt with all responses to it.
            first: The index of a response.
            second: The index of another one.
            identity: The name of the record in messages.
        """
        responses = [answered.written_responses[first], answered.written_responses[second]]
        return self._prompt(answered, identity) | {"responses": responses}

    def _response(self, content: Any, identity: str) -> Any:
        """Return a response in the form of the training records.

        It is a text or a list of parts in this project's form, and a list of one assistant turn in
        TRL's.

        Args:
            content: The response as the scored file has it, a text or a list of parts.
            identity: The name of the record in messages.

        Raises:
            UserError: The response has images or videos, and the records are no JSON lines of this
                project's form.
        """
        if not isinstance(content, str):
            if self.form == "trl" or self.suffix == ".parquet":
                raise UserError(
                    f"{identity}: a response has images or videos. Training records with such responses are "
                    "written as JSON lines of this project's form alone: name an OUT that ends in "
                    ".jsonl, and give no --output-format."
                )
            return content
        if self.form != "trl":
            return content
        return [self._turn({"role": "assistant", "content": [{"type": "text", "text": content}]})]

    def _turn(self, turn: Mapping[str, Any]) -> dict[str, Any]:
        """Return a turn of a prompt in the form of the training records.

        In TRL's JSON lines the content of a turn is one text, and otherwise a list of parts.
        """
        if self.form == "trl" and self.suffix == ".jsonl":
            # `_prompt` has refused images, so every part is a text.
            text = "".join(part["text"] for part in turn["content"])
            return {"role": turn["role"], "content": text}
        return dict(turn)

    def _prompt(self, answered: AnsweredPrompt, identity: str) -> dict[str, Any]:
        """Return the columns `images` and `prompt` of a training record, and `videos` if it has any.

        Raises:
            UserError: If a record for TRL's JSON lines has images, or a record has videos and is no
                JSON line of this project's form. The message begins with `identity`.
        """
        if answered.videos and (self.form == "trl" or self.suffix == ".parquet"):
            raise UserError(
                f"{identity} has videos. Training records with videos are written as JSON lines of "
                "this project's form alone: name an OUT that ends in .jsonl, and give no "
                "--output-format."
            )
        images: list[Any] = []
        if self.suffix == ".parquet":
            for image in answered.images:
                content = image if isinstance(image, bytes) else read_bytes(image)
                images.append({"bytes": content})
        elif self.form == "trl" and answered.images:
            raise UserError(
                f"{identity} has images, and TRL's trainers take them from parquet: name an OUT "
                "that ends in .parquet."
            )
        else:
            for reference in answered.references:
                is_path = isinstance(reference, Path)
                images.append(str(reference) if is_path else data_uri(reference, identity))
        videos: list[str] = []
        for video, reference in zip(answered.videos, answered.video_references, strict=True):
            is_path = isinstance(reference, Path)
            videos.append(str(reference) if is_path else video_uri(video, identity))
        turns = [self._turn(turn) for turn in answered.turns]
        columns: dict[str, Any] = {"images": images, "prompt": turns}
        return columns | {"videos": videos} if videos else columns

    def schema(self, for_pairs: bool, with_margin: bool) -> pa.Schema:
        """Return the schema of the records in parquet, which tells `datasets` where images are.

        Args:
            for_pairs: True for preference records, False for SFT records.
            with_margin: True if preference records have the column `margin`.
        """
        from datasets import Features, Image, List, Value

        content = List({"type": Value("string"), "text": Value("string")})
        turns = List({"role": Value("string"), "content": content})
        is_trl = self.form == "trl"
        response = turns if is_trl else Value("string")
        columns = {"images": List(Image()), "prompt": turns}
        if for_pairs:
            columns["chosen"] = response
            columns["rejected"] = response
        else:
            columns["completion" if is_trl else "response"] = response
        if for_pairs and with_margin:
            columns["margin"] = Value("float64")
        return Features(columns).arrow_schema

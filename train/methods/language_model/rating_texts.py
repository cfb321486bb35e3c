"""Ratings as texts to learn: the score of each response, as a judge of single responses writes it."""

from dataclasses import dataclass
from math import fsum, isnan
from typing import Literal

from mmrm.data.errors import RecordError
from mmrm.data.point_prompt import PointPrompt
from mmrm.data.preference import Preference
from mmrm.data.prompts import critiques_of
from mmrm.eval.judges.score_place import ScorePlace, goes_on_from
from mmrm.models.encoder import Conversation, Encoder
from mmrm.models.packing.segments import TokenisedConversation, prefix_tree
from mmrm.train.methods.language_model.config import LossOn
from mmrm.train.supervised.steps import TrainingExample


@dataclass(frozen=True, slots=True)
class RatingEncoder:
    """Encodes a record as the question about each of its responses, and the score to learn."""

    encoder: Encoder
    prompt: PointPrompt
    ratings_from: Literal["attributes", "preference"]
    """The numbers that a record holds, or its preference."""
    rating: str | None
    """The attribute that is learned; None for the mean of all attributes."""
    loss_on: LossOn
    """The tokens that carry loss: the whole answer and its end, or those of the score."""

    def __call__(self, record: Preference, side: int = 0) -> TrainingExample:
        """Encode the rated responses of a record as one tree; `side` is not used.

        Raises:
            RecordError: No response has the rating, a rating is not between the lowest and the
                highest score, or a critique is needed and missing.
        """
        self.encoder.refuse_control_tokens(record)
        conversations: list[Conversation] = []
        answers: list[str] = []
        for index, rating in enumerate(self._ratings(record)):
            if isnan(rating):
                continue
            response = record.responses[index]
            messages = self.prompt.ask(record.prompt, response)
            images = (*record.images, *response.images)
            videos = (*record.videos, *response.videos)
            conversations.append(Conversation(messages, images, videos=videos))
            answers.append(self._answer(record, index, rating))
        questions = self.encoder.encode_conversations(conversations, None, record.identity)
        answered: list[TokenisedConversation] = []
        for question, answer in zip(questions.conversations(), answers, strict=True):
            answered.append(self._with_answer(question, answer))
        return TrainingExample(prefix_tree(answered), record=record.identity)

    def _ratings(self, record: Preference) -> tuple[float, ...]:
        """Return the rating of each response of a record; NaN if it is unknown."""
        if self.ratings_from == "preference":
            return ratings_by_preference(record, self.prompt)
        return ratings_of(record, self.rating)

    def _answer(self, record: Preference, index: int, rating: float) -> str:
        """Return the judge's answer about a response, which ends with its score."""
        try:
            score = self.prompt.text_of(rating)
        except ValueError as error:
            raise RecordError(
                f"{record.identity}: the rating of response {index} is outside of the scores: "
                f"{error}. Set method.points.scores to the scale of the ratings."
            ) from error
        ending = f"{self.prompt.opening}{score}"
        if not self.prompt.rationale:
            return ending
        critiques = critiques_of(record)
        if critiques is None or len(record.responses) != 2:
            raise RecordError(
                f"{record.identity}: the record has no critique of each response, which "
                "method.points.rationale asks for. Annotate the records (python eval/annotate.py "
                "--help), or set method.points.rationale=false."
            )
        return f"{critiques[index]}\n{ending}"

    def _with_answer(self, question: TokenisedConversation, answer: str) -> TokenisedConversation:
        """Return a question with its answer, some tokens of which carry loss."""
        tokenizer = self.encoder.tokenizer
        ids = tokenizer(answer, add_special_tokens=False)["input_ids"]
        first_label = 0
        last_label = len(ids)  # the end of the turn
        if self.loss_on == "score":
            place = ScorePlace(self.prompt.opening, self.prompt.value_by_text)
            choice = place.choice_at_once(tokenizer)
            first_label = len(choice.written)
            score = tuple(ids[first_label:])
            # Only its end tells the score 1 from the beginning of 10.
            begins_another = any(goes_on_from(other, score) for other in choice.alternatives)
            if not begins_another:
                last_label = len(ids) - 1
        start = len(question.ids)
        return TokenisedConversation(
            ids=(*question.ids, *ids, self.encoder.end_of_turn),
            images=question.images,
            labels=tuple(range(start + first_label, start + last_label + 1)),
        )


def ratings_of(record: Preference, name: str | None) -> tuple[float, ...]:
    """Return the rating of each response of a record; NaN if it is unknown.

    Args:
        record: The record.
        name: The attribute; None for the mean of all attributes, which is unknown if one of them
            is.

    Raises: RecordError if the record has no such attribute, or no response has the rating.
    """
    attributes = record.attributes
    ratings: tuple[float, ...] = ()
    if name is None and attributes:
        columns = zip(*attributes.values(), strict=True)
        ratings = tuple(fsum(numbers) / len(numbers) for numbers in columns)
    elif name is not None:
        ratings = attributes.get(name, ())
    if all(isnan(rating) for rating in ratings):
        held = ", ".join(attributes) or "none"
        raise RecordError(
            f"{record.identity}: no response has the rating {name or 'of any attribute'!r}, from "
            f"which method.target=ratings learns. The attributes of the record: {held}. Set "
            "method.rating to one of them, or take a source with ratings."
        )
    return ratings


def ratings_by_preference(record: Preference, prompt: PointPrompt) -> tuple[float, ...]:
    """Return the highest score for the preferred response of a pair, and the lowest for the other.

    Args:
        record: A pair without a tie. Its first response is the preferred one.
        prompt: The prompt with the scores.
    """
    values = prompt.value_by_text.values()
    return (max(values), min(values))

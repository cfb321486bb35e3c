"""Pretraining the embedded backbone: a picture, many questions, and after every stated answer whether it is right.

All conversations about one picture form one group, so the picture and the system prompt are computed once. A right answer
is learned as text; after the end of the answer's turn the model learns to say `yes` or `no`: is this answer right?
That is what a reward head reads at the same place later, and it is learnt far more slowly than giving answers.
A share of the verdicts is asked for in a turn of its own instead, so that the model also knows it further on in a conversation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from data.preference import ImagePart, Message, TextPart, text
from data.questions import QUESTION_TYPES
from data.shapes import LESSON_WEIGHTS, Lesson, ShapesWorld, Turn
from data.wording import verdict_sentence
from models.encoder import Encoder, Span
from train.steps import Encoded

VERDICTS = {True: "yes", False: "no"}
REQUEST = "judge the response."


@dataclass(frozen=True, slots=True)
class Lessons:
    """The lessons of an embedded world; an epoch is `count` of them, and no epoch repeats another's."""

    world: ShapesWorld
    encoder: Encoder
    count: int
    questions: int
    stated: bool
    """Half of the answers are near misses, and a verdict follows each; else all are right and none is judged."""
    text_share: float = 1.0
    """Share of the right answers whose text is learned."""
    asked_share: float = 0.0
    """Share of the verdicts that are given in a turn of their own, after a request."""
    kinds: tuple[str, ...] | None = None
    """Question types, one named twice twice as likely; None takes the world's own weights for lessons."""

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Encoded:
        weights = LESSON_WEIGHTS if self.kinds is None else Counter(kind for kind in self.kinds if kind in QUESTION_TYPES)
        lesson = self.world.lesson(index, self.questions, weights, near_misses=self.stated)
        texts = [_is_drawn(index + number, self.text_share) for number in range(len(lesson.turns))]
        asked = [_is_drawn(index * self.questions + number, self.asked_share) for number in range(len(lesson.turns))]
        return encode_lesson(self.encoder, lesson, texts, asked, verdicts=self.stated)

    def order(self, epoch: int) -> npt.NDArray[np.integer]:
        """Return the indices of epoch `epoch`: the world is endless, so every epoch is new."""
        return np.arange(epoch * self.count, (epoch + 1) * self.count)


def _is_drawn(number: int, share: float) -> bool:
    """Say whether `number` is one of a share of all whole numbers, spaced evenly."""
    return int((number + 1) * share) > int(number * share)


def conversation(encoder: Encoder, turn: Turn, *, picture: bool, text_learned: bool, verdict: bool) -> tuple[Span, ...]:
    """Render one question with its stated answer and, if asked for, the verdict on it."""
    learned = turn.right and text_learned
    spans = encoder.render(_stated(turn, picture), learned="last" if learned else "none")
    return (*spans, Span(VERDICTS[turn.right], learned=True)) if verdict else spans


def asked_conversation(encoder: Encoder, turn: Turn, *, picture: bool) -> tuple[Span, ...]:
    """Render one question with its stated answer, the request to judge it, and the verdict, which alone is learned."""
    verdict = text("assistant", verdict_sentence(turn.right))
    return encoder.render((*_stated(turn, picture), text("user", REQUEST), verdict), learned="last")


def _stated(turn: Turn, picture: bool) -> tuple[Message, Message]:
    content: list[TextPart | ImagePart] = [{"type": "text", "text": turn.question}]
    if picture:
        content.insert(0, {"type": "image"})
    return {"role": "user", "content": content}, text("assistant", turn.answer)


def encode_lesson(encoder: Encoder, lesson: Lesson, texts: Sequence[bool], asked: Sequence[bool], *, verdicts: bool) -> Encoded:
    """Return a lesson as one group of as many continuations as it has turns.

    `texts` says whose text may be learned, and `asked` whose verdict is given in a turn of its own.
    """
    images = [] if lesson.image is None else [lesson.image]
    conversations = [
        asked_conversation(encoder, turn, picture=bool(images))
        if verdicts and own_turn
        else conversation(encoder, turn, picture=bool(images), text_learned=learned, verdict=verdicts)
        for turn, learned, own_turn in zip(lesson.turns, texts, asked, strict=True)
    ]
    return Encoded(encoder.encode(images, conversations, read=None))

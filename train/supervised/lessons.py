"""Pretraining the embedded backbone: a picture, many questions, and after every stated answer whether it is right.

All conversations about one picture form one group, so the picture and the system prompt are computed once. A right answer
is learned as text; after the end of the answer's turn the model learns to say `yes` or `no`: is this answer right?
That is what a reward head reads at the same place later, and it is learnt far more slowly than giving answers.
A share of the verdicts is given further on in the conversation instead, so that the model knows it there, too: in a critique of
the answer, and of two answers to one question by turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from data.preference import ImagePart, Message, TextPart, text
from data.prompts import ask, with_critique
from data.synthetic.questions import QUESTION_TYPES
from data.synthetic.wording import VERDICTS, compare_in_short
from data.synthetic.world import LESSON_WEIGHTS, Lesson, ShapesWorld, Turn
from models.encoder import Encoder, Span
from train.supervised.steps import TrainingExample

REQUEST = "judge the response."
Form = Literal["answer", "verdict", "critique", "stated first", "stated second"]
FORMS: tuple[Form, ...] = ("critique", "stated first", "critique", "stated second")
"""Verdicts in a turn of their own, one after another: on the stated answer, or on it and another shown after or before it."""


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
    """Share of the verdicts that are given in a turn of their own: critiques and comparisons by turns."""
    kinds: tuple[str, ...] | None = None
    """Question types, one named twice twice as likely; None takes the world's own weights for lessons."""

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> TrainingExample:
        weights = LESSON_WEIGHTS if self.kinds is None else Counter(kind for kind in self.kinds if kind in QUESTION_TYPES)
        lesson = self.world.lesson(index, self.questions, weights, near_misses=self.stated)
        texts = [_is_drawn(index + number, self.text_share) for number in range(len(lesson.turns))]
        forms = [self._form(index * self.questions + number) for number in range(len(lesson.turns))]
        return replace(encode_lesson(self.encoder, lesson, texts, forms), record=f"lesson:{index}")

    def order(self, epoch: int) -> npt.NDArray[np.integer]:
        """Return the indices of epoch `epoch`: the world is endless, so every epoch is new."""
        return np.arange(epoch * self.count, (epoch + 1) * self.count)

    def _form(self, number: int) -> Form:
        if not self.stated:
            return "answer"
        if not _is_drawn(number, self.asked_share):
            return "verdict"
        return FORMS[int((number + 1) * self.asked_share) % len(FORMS)]


def _is_drawn(number: int, share: float) -> bool:
    """Say whether `number` is one of a share of all whole numbers, spaced evenly."""
    return int((number + 1) * share) > int(number * share)


def conversation(encoder: Encoder, turn: Turn, *, picture: bool, text_learned: bool, verdict: bool) -> tuple[Span, ...]:
    """Render one question with its stated answer and, if asked for, the verdict on it."""
    asked = (_question(turn, picture), text("assistant", turn.answer))
    spans = encoder.render(asked, loss=turn.right and text_learned)
    return (*spans, Span(VERDICTS[turn.right], loss=True)) if verdict else spans


def critique_of(encoder: Encoder, turn: Turn, *, picture: bool) -> tuple[Span, ...]:
    """Render one question with its stated answer, the request to judge it, and the critique, which alone is learned."""
    asked = with_critique((_question(turn, picture),), turn.answer, REQUEST, turn.critique)
    return encoder.render(asked, loss=True)


def comparison_of(encoder: Encoder, turn: Turn, *, picture: bool, stated_first: bool) -> tuple[Span, ...]:
    """Render one question with two answers as a judge is shown them, and which is right, which alone is learned."""
    shown = (turn.answer, turn.other) if stated_first else (turn.other, turn.answer)
    asked = ask("turns", (_question(turn, picture),), *shown)
    return encoder.render((*asked, text("assistant", compare_in_short(turn.right == stated_first))), loss=True)


def _question(turn: Turn, picture: bool) -> Message:
    content: list[TextPart | ImagePart] = [{"type": "text", "text": turn.question}]
    if picture:
        content.insert(0, {"type": "image"})
    return {"role": "user", "content": content}


def encode_lesson(encoder: Encoder, lesson: Lesson, texts: Sequence[bool], forms: Sequence[Form]) -> TrainingExample:
    """Return a lesson as one group of as many continuations as it has turns.

    `texts` says of which answers the text may be learned, and `forms` how each turn is learned.
    """
    picture = lesson.image is not None
    conversations = [
        _render(encoder, turn, form, picture=picture, text_learned=learned)
        for turn, learned, form in zip(lesson.turns, texts, forms, strict=True)
    ]
    return TrainingExample(encoder.encode([] if lesson.image is None else [lesson.image], conversations, read=None))


def _render(encoder: Encoder, turn: Turn, form: Form, *, picture: bool, text_learned: bool) -> tuple[Span, ...]:
    if form == "critique":
        return critique_of(encoder, turn, picture=picture)
    if form in ("stated first", "stated second"):
        return comparison_of(encoder, turn, picture=picture, stated_first=form == "stated first")
    return conversation(encoder, turn, picture=picture, text_learned=text_learned, verdict=form == "verdict")

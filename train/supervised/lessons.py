"""Pretraining the embedded backbone: an image, many questions, and after every stated answer whether it is right.

All conversations about one image form one group, so the image and the system prompt are computed once. A right answer
is learned as text; after the end of the answer's turn the model learns to say `yes` or `no`: is this answer right?
That is what a reward head reads at the same place later, and it is learnt far more slowly than giving answers.
A share of the verdicts is given further on in the conversation instead, so that the model knows it there, too: in a critique of
the answer, and of two answers to one question by turns.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from data.preference import ImagePart, Message, TextPart, text
from data.prompts import ask, with_critique
from data.synthetic.questions import QUESTION_TYPES
from data.synthetic.wording import VERDICTS, compare_in_short
from data.synthetic.world import LESSON_WEIGHTS, ShapesWorld, Turn
from models.encoder import Encoder, Span
from train.recipe.methods import LanguageModelConfig
from train.supervised.steps import TrainingExample

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
    """Share of the verdicts that are given in a turn of their own: critiques and comparisons by turns."""
    kinds: tuple[str, ...] | None = None
    """Question types, one named twice twice as likely; None takes the world's own weights for lessons."""

    @classmethod
    def of(cls, config: LanguageModelConfig, source: Any, encoder: Encoder) -> Lessons:
        """Return the lessons of the embedded world that `source`, a recipe's only one and a ShapesConfig, names."""
        world = ShapesWorld(source.level, source.seed, source.split, source.text_only)
        if config.most_things is not None:
            world = world.of_shapes(config.most_things)
        kinds = None if source.kinds is None else tuple(source.kinds)
        shares = config.text_share, config.asked_share
        return cls(world, encoder, source.rows, config.questions, config.answers == "stated", *shares, kinds)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> TrainingExample:
        weights = LESSON_WEIGHTS if self.kinds is None else Counter(kind for kind in self.kinds if kind in QUESTION_TYPES)
        lesson = self.world.lesson(index, self.questions, weights, near_misses=self.stated)
        images = [] if lesson.image is None else [lesson.image]
        conversations = [
            self._conversation(turn, index + number, index * self.questions + number, bool(images))
            for number, turn in enumerate(lesson.turns)
        ]
        return TrainingExample(self.encoder.encode(images, conversations, read=None), record=f"lesson:{index}")

    def order(self, epoch: int) -> npt.NDArray[np.integer]:
        """Return the indices of epoch `epoch`: the world is endless, so every epoch is new."""
        return np.arange(epoch * self.count, (epoch + 1) * self.count)

    def _conversation(self, turn: Turn, text_number: int, verdict_number: int, image: bool) -> tuple[Span, ...]:
        """Render a question with its stated answer, and the verdict on it in the form whose turn it is.

        A share of 0.25 takes every fourth number.
        """
        content: list[TextPart | ImagePart] = [{"type": "text", "text": turn.question}]
        if image:
            content.insert(0, {"type": "image"})
        question: Message = {"role": "user", "content": content}
        if self.stated and _is_drawn(verdict_number, self.asked_share):
            # The verdict in a turn of its own, which alone is learned: on the answer, or on it and another, shown in both orders.
            form = int((verdict_number + 1) * self.asked_share) % 4
            if form % 2 == 0:
                return self.encoder.render(with_critique((question,), turn.answer, REQUEST, turn.critique), loss=True)
            stated_first = form == 1
            shown = (turn.answer, turn.other) if stated_first else (turn.other, turn.answer)
            verdict = text("assistant", compare_in_short(turn.right == stated_first))
            return self.encoder.render((*ask("turns", (question,), *shown), verdict), loss=True)
        learned = turn.right and _is_drawn(text_number, self.text_share)
        spans = self.encoder.render((question, text("assistant", turn.answer)), loss=learned)
        return (*spans, Span(VERDICTS[turn.right], loss=True)) if self.stated else spans


def _is_drawn(number: int, share: float) -> bool:
    """Say whether `number` is one of a share of all whole numbers, spaced evenly."""
    return int((number + 1) * share) > int(number * share)

"""Pretraining the embedded backbone: an image, many questions, and after every stated answer whether it is right.

All conversations about one image form one group, so the image and the system prompt are computed once. A right answer
is learned as text; after the end of the answer's turn the model learns to say `yes` or `no`: is this answer right?
That is what a reward head reads at the same place later, and it is learnt far more slowly than giving answers.
A share of the verdicts is given further on in the conversation instead, so that the model knows it there, too: in a critique of
the answer, and of two answers to one question by turns.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mmrm.data.preference import text
from mmrm.data.prompts import ask, with_critique
from mmrm.data.synthetic.scene_questions import QUESTION_TYPES
from mmrm.data.synthetic.wording import VERDICTS, compare_in_short
from mmrm.data.synthetic.world import LESSON_WEIGHTS, ShapesWorld, Turn
from mmrm.models.encoder import Encoder, Span
from mmrm.train.methods.language_model.config import LanguageModelConfig
from mmrm.train.supervised.steps import TrainingExample

REQUEST = "judge the response."


class Lessons:
    """The lessons of an embedded world; an epoch is as many as the source has rows, and no epoch repeats another's."""

    def __init__(self, config: LanguageModelConfig, source: Any, encoder: Encoder) -> None:
        """Take the questions of the embedded world that `source`, a recipe's only one and a ShapesConfig, names."""
        self.config, self.encoder = config, encoder
        self.count: int = source.rows
        self.world = ShapesWorld(source.level, source.seed, source.split, source.text_only)
        if config.most_things is not None:
            self.world = self.world.of_shapes(config.most_things)
        self.weights: Mapping[str, float] = LESSON_WEIGHTS
        if source.kinds is not None:
            self.weights = Counter(kind for kind in source.kinds if kind in QUESTION_TYPES)
        self.stated = config.answers == "stated"
        """Half of the answers are near misses, and a verdict follows each; else all are right and none is judged."""

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> TrainingExample:
        questions = self.config.questions
        lesson = self.world.lesson(index, questions, self.weights, near_misses=self.stated)
        images = [] if lesson.image is None else [lesson.image]
        conversations = [
            self._conversation(turn, index + number, index * questions + number, len(images))
            for number, turn in enumerate(lesson.turns)
        ]
        return TrainingExample(
            self.encoder.encode(images, conversations, read=None), record=f"lesson:{index}"
        )

    def order(self, epoch: int) -> npt.NDArray[np.integer]:
        """Return the indices of epoch `epoch`: the world is endless, so every epoch is new."""
        return np.arange(epoch * self.count, (epoch + 1) * self.count)

    def _conversation(
        self, turn: Turn, text_number: int, verdict_number: int, images: int
    ) -> tuple[Span, ...]:
        """Render a question with its stated answer, and the verdict on it in the form whose turn it is.

        A share of 0.25 takes every fourth number.
        """
        asked_share = self.config.asked_share
        question = text("user", turn.question, images)
        if self.stated and _is_drawn(verdict_number, asked_share):
            # The verdict in a turn of its own, which alone is learned: on the answer, or on it and another, shown in both orders.
            form = int((verdict_number + 1) * asked_share) % 4
            if form % 2 == 0:
                return self.encoder.render(
                    with_critique((question,), turn.answer, REQUEST, turn.critique), loss=True
                )
            stated_first = form == 1
            shown = (turn.answer, turn.other) if stated_first else (turn.other, turn.answer)
            verdict = text("assistant", compare_in_short(turn.right == stated_first))
            return self.encoder.render((*ask("turns", (question,), *shown), verdict), loss=True)
        learned = turn.right and _is_drawn(text_number, self.config.text_share)
        spans = self.encoder.render((question, text("assistant", turn.answer)), loss=learned)
        return (*spans, Span(VERDICTS[turn.right], loss=True)) if self.stated else spans


def _is_drawn(number: int, share: float) -> bool:
    """Say whether `number` is one of a share of all whole numbers, spaced evenly."""
    return int((number + 1) * share) > int(number * share)

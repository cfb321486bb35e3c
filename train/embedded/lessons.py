"""Lessons about the embedded world, from which its backbone is pretrained.

A lesson is an image and many questions about it. All conversations about one image form one group,
so that the image and the system prompt are computed once. A right answer is learned as text. After
the end of the answer's turn the model learns to say `yes` or `no`: is this answer right? A reward
head reads the same place later. Verdicts are learnt far more slowly than answers. A share of the
verdicts comes later in the conversation instead, so that the model can give them there, too: in a
critique of the answer, and in a comparison of two answers to one question.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mmrm.data.preference import Message, text
from mmrm.data.prompts import judge_conversation, with_critique
from mmrm.data.synthetic.scene_questions import QUESTION_TYPES
from mmrm.data.synthetic.wording import VERDICTS, compare_in_short
from mmrm.data.synthetic.world import LESSON_WEIGHTS, ShapesWorld, Turn
from mmrm.models.encoder import Encoder, Span
from mmrm.train.methods.language_model.config import LanguageModelConfig
from mmrm.train.supervised.steps import TrainingExample

REQUEST = "judge the response."


class Lessons:
    """The lessons of an embedded world, as records of a run.

    An epoch has as many lessons as the source has rows, and no epoch repeats another's.
    """

    def __init__(self, config: LanguageModelConfig, source: Any, encoder: Encoder) -> None:
        """Make the world of a source.

        Args:
            config: The section of the recipe.
            source: The only source of the recipe, a `ShapesConfig`.
            encoder: Encodes the conversations.
        """
        self.config = config
        self.encoder = encoder
        self.count: int = source.rows
        self.world = ShapesWorld(source.level, source.seed, source.split, source.text_only)
        if config.most_things is not None:
            self.world = self.world.of_shapes(config.most_things)
        self.weights: Mapping[str, float] = LESSON_WEIGHTS
        if source.kinds is not None:
            self.weights = Counter(kind for kind in source.kinds if kind in QUESTION_TYPES)
        self.stated = config.answers == "stated"
        """Half of the answers are near misses, and a verdict follows each. Otherwise all are right,
        and there are no verdicts."""

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> TrainingExample:
        num_questions = self.config.questions
        lesson = self.world.lesson(index, num_questions, self.weights, near_misses=self.stated)
        images = [] if lesson.image is None else [lesson.image]
        conversations = [
            self._conversation(turn, index + number, index * num_questions + number, len(images))
            for number, turn in enumerate(lesson.turns)
        ]
        group = self.encoder.encode(images, conversations, read=None)
        return TrainingExample(group, record=f"lesson:{index}")

    def order(self, epoch: int) -> npt.NDArray[np.integer]:
        """Return the indices of an epoch. The world is endless, so every epoch is new."""
        return np.arange(epoch * self.count, (epoch + 1) * self.count)

    def _conversation(
        self, turn: Turn, text_number: int, verdict_number: int, num_images: int
    ) -> tuple[Span, ...]:
        """Render a question with its stated answer, and the verdict on it in one of its forms.

        The two numbers decide what is learned: a share of 0.25 takes every fourth number.
        """
        question = text("user", turn.question, num_images)
        if self.stated and _is_drawn(verdict_number, self.config.asked_share):
            return self._conversation_about_verdict(turn, question, verdict_number)
        is_learned = turn.right and _is_drawn(text_number, self.config.text_share)
        spans = self.encoder.render((question, text("assistant", turn.answer)), loss=is_learned)
        if not self.stated:
            return tuple(spans)
        return (*spans, Span(VERDICTS[turn.right], loss=True))

    def _conversation_about_verdict(
        self, turn: Turn, question: Message, verdict_number: int
    ) -> tuple[Span, ...]:
        """Render a question with a verdict in a turn of its own, which alone is learned.

        Half of the verdicts are critiques of the answer. The others compare it with another answer,
        shown first as often as second.
        """
        form = int((verdict_number + 1) * self.config.asked_share) % 4
        if form % 2 == 0:
            critique = with_critique((question,), turn.answer, REQUEST, turn.critique)
            return self.encoder.render(critique, loss=True)
        stated_first = form == 1
        if stated_first:
            request = judge_conversation("turns", (question,), turn.answer, turn.other)
        else:
            request = judge_conversation("turns", (question,), turn.other, turn.answer)
        verdict = text("assistant", compare_in_short(turn.right == stated_first))
        return self.encoder.render((*request, verdict), loss=True)


def _is_drawn(number: int, share: float) -> bool:
    """Return True if `number` is one of a share of all whole numbers, spaced evenly."""
    return int((number + 1) * share) > int(number * share)

"""Lessons about generated scenes of shapes, from which the embedded backbone is pretrained.

A lesson is an image and many questions about it. All conversations about one image form one tree,
so that the image and the system prompt are computed once. A right answer is learned as text. After
the end of the answer's turn the model learns to say `yes` or `no`: is this answer right? A reward
head reads the same position later. Verdicts are learnt far more slowly than answers. A share of the
verdicts comes in a turn of its own instead, so that the model can give them there, too: in a
critique of the answer, and in a comparison of two answers to one question.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mmrm.data.preference import Message, Response, text
from mmrm.data.prompts import JudgeTemplate, judge_conversation, with_critique
from mmrm.data.synthetic.scene_questions import QUESTION_TYPES
from mmrm.data.synthetic.wording import VERDICTS, compare_in_short
from mmrm.data.synthetic.world import LESSON_WEIGHTS, ShapesGenerator, Turn
from mmrm.models.encoder import Encoder, Span
from mmrm.train.methods.language_model.config import LanguageModelConfig
from mmrm.train.supervised.steps import TrainingExample

CRITIQUE_REQUEST = "judge the response."
"""The user's turn before a critique of an answer."""
COMPARISON_TEMPLATE: JudgeTemplate = "turns"
"""The prompt of a comparison shows each of the two answers in a turn of its own."""


class Lessons:
    """Generated lessons about scenes of shapes, as the records of a run.

    A lesson is an image and several questions about it, each with a stated answer. An epoch has as
    many lessons as the source has rows, and every epoch has new ones.
    """

    def __init__(self, config: LanguageModelConfig, source: Any, encoder: Encoder) -> None:
        """Prepare the generator of lessons.

        Args:
            config: The section `method` of the recipe.
            source: The only source of the recipe, a `ShapesConfig`, with the settings of the scenes
                and the number of lessons in an epoch.
            encoder: Encodes the conversations.
        """
        self.config = config
        self.encoder = encoder
        self.lessons_per_epoch: int = source.rows
        self.generator = ShapesGenerator(source.level, source.seed, source.split, source.text_only)
        if config.most_things is not None:
            # Images with at most so many shapes, and nothing else.
            self.generator = self.generator.of_shapes(config.most_things)
        self.question_weights: Mapping[str, float] = LESSON_WEIGHTS
        if source.kinds is not None:
            # A question type that the source lists twice is asked twice as often.
            self.question_weights = Counter(kind for kind in source.kinds if kind in QUESTION_TYPES)
        self.has_verdicts = config.answers == "stated"
        """Half of the answers are near misses, and a verdict follows each answer. Otherwise all
        answers are right, and there are no verdicts."""

    def __len__(self) -> int:
        return self.lessons_per_epoch

    def __getitem__(self, index: int) -> TrainingExample:
        """Return a lesson, encoded as an image with a conversation for each question."""
        num_questions = self.config.questions
        lesson = self.generator.lesson(
            index, num_questions, self.question_weights, near_misses=self.has_verdicts
        )
        # A lesson about texts alone has no image.
        images = [] if lesson.image is None else [lesson.image]
        conversations = []
        for turn_index, turn in enumerate(lesson.turns):
            # The number decides if the answer is learned. It begins one higher in each lesson, so
            # that the first answers of all lessons are not always the ones that are learned.
            answer_number = index + turn_index
            verdict_number = index * num_questions + turn_index  # among those of all lessons
            conversations.append(
                self._conversation(turn, answer_number, verdict_number, len(images))
            )
        tree = self.encoder.encode(images, conversations, read=None)  # no head reads a score
        return TrainingExample(tree, record=f"lesson:{index}")

    def order(self, epoch: int) -> npt.NDArray[np.integer]:
        """Return the indices of an epoch's lessons, (len,); no two epochs have one in common."""
        start = epoch * self.lessons_per_epoch
        return np.arange(start, start + self.lessons_per_epoch)

    def _conversation(
        self, turn: Turn, answer_number: int, verdict_number: int, num_images: int
    ) -> tuple[Span, ...]:
        """Render a question, its stated answer and, if the lessons have verdicts, a verdict on it.

        Args:
            turn: The question and its stated answer.
            answer_number: Number of the answer. The setting `text_share` is the share of numbers
                whose answers, if they are right, carry the loss.
            verdict_number: Number of the verdict. The setting `asked_share` is the share of numbers
                whose verdicts are asked for in a turn of their own.
            num_images: Images of the question, 0 or 1.
        """
        question = text("user", turn.question, num_images)
        if self.has_verdicts and _is_in_share(verdict_number, self.config.asked_share):
            return self._conversation_about_verdict(turn, question, verdict_number)
        # The text of a near miss is never learned.
        is_learned = turn.right and _is_in_share(answer_number, self.config.text_share)
        spans = self.encoder.render((question, text("assistant", turn.answer)), loss=is_learned)
        if not self.has_verdicts:
            return tuple(spans)
        return (*spans, Span(VERDICTS[turn.right], loss=True))

    def _conversation_about_verdict(
        self, turn: Turn, question: Message, verdict_number: int
    ) -> tuple[Span, ...]:
        """Render a question, its stated answer and a verdict in a turn of its own.

        Only the verdict is learned. Half of these verdicts are critiques of the answer. The others
        compare it with another answer, and show it first as often as second.

        Args:
            turn: The question, its stated answer and another answer, of which one is right.
            question: The question as a message.
            verdict_number: Number of the verdict among all verdicts, which decides its form.
        """
        # The number of verdicts in turns of their own, up to this one. Their forms take turns:
        # comparison, critique, comparison in the other order, critique.
        num_asked = int((verdict_number + 1) * self.config.asked_share)
        is_critique = num_asked % 2 == 0
        stated = Response.of_text(turn.answer)
        other = Response.of_text(turn.other)
        if is_critique:
            critique = with_critique((question,), stated, CRITIQUE_REQUEST, turn.critique)
            return self.encoder.render(critique, loss=True)
        is_stated_first = num_asked % 4 == 1
        if is_stated_first:
            request = judge_conversation(COMPARISON_TEMPLATE, (question,), stated, other)
        else:
            request = judge_conversation(COMPARISON_TEMPLATE, (question,), other, stated)
        is_first_right = turn.right == is_stated_first
        verdict = text("assistant", compare_in_short(is_first_right))
        return self.encoder.render((*request, verdict), loss=True)


def _is_in_share(number: int, share: float) -> bool:
    """Return True for a share of the numbers 0, 1, 2, ..., which are spaced evenly.

    For a share of 0.25 these are 3, 7, 11 and so on.
    """
    return int((number + 1) * share) > int(number * share)

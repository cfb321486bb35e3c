"""The question to a judge that scores one response by itself, and the scores that it may give.

Training and judging use the same settings, so that a checkpoint is asked as it was trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from mmrm.data.config.section import Section
from mmrm.data.preference import Message, Response, media_parts
from mmrm.data.prompts import filled, question

Scale = Literal["1-5", "1-10", "yes/no"]

SCALES: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "1-5": {str(number): float(number) for number in range(1, 6)},
        "1-10": {str(number): float(number) for number in range(1, 11)},
        "yes/no": {"yes": 1.0, "no": 0.0},
    }
)
"""The value of each score by its text, for the scales that have a name."""

INTRODUCTION = (
    "Judge the response to a question, with respect to the question and to the images if there are "
    "any: whether it is correct, true to the images, complete, clear and safe.\n\n"
    "[Question]\n{question}\n\n[Response]\n{response}\n\n"
)
"""The beginning of the default question. Responses to one prompt share all before the response."""


ScoreValue = Annotated[float, Field(ge=-1e6, le=1e6)]
"""The number that the text of a score stands for."""


class PointPrompt(Section):
    """The question about one response, the beginning of the answer, and the possible scores.

    question: |-
      [Question] {question}
      [Response] {response}
      Is the response true to the image?
    opening: "Answer: "
    scores: {"yes": 1, "no": 0}
    """

    question: str | None = None
    """The user's turn after the images. `{question}` and `{response}` stand for those of the
    record. Null asks for a score of the response in a few words."""
    opening: str = "Score: "
    """The text directly before the score, in the judge's answer. It may end with a blank."""
    scores: Scale | dict[str, ScoreValue] = "1-5"
    """The possible scores: `1-5`, `1-10`, `yes/no` (1 and 0), or the number that each text stands
    for, such as {"good": 1, "bad": 0}. Higher is better."""
    rationale: bool = False
    """True: the judge first writes about the response, and its text ends with the opening and the
    score. False: its answer begins with the opening."""

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        """Raise ValueError if the question or the scores cannot be used."""
        if self.question is not None:
            for name in ("{question}", "{response}"):
                if name not in self.question:
                    raise ValueError(
                        f"question contains no {name}, so that the judge cannot see it"
                    )
        if self.rationale and not self.opening.strip():
            raise ValueError(
                "opening is empty, and with rationale: true it marks the place of the score in the "
                "judge's text; set a text such as 'Score: '"
            )
        texts = list(self.value_by_text)
        if len(texts) < 2 or any(not text or text != text.strip() for text in texts):
            raise ValueError(
                f"scores are {texts}; required are two different texts or more, without blanks at "
                "their ends"
            )
        if len(set(self.value_by_text.values())) < 2:
            raise ValueError("all scores have the same value, so that no response is better")
        return self

    @property
    def value_by_text(self) -> Mapping[str, float]:
        """The value of each score by its text."""
        return SCALES[self.scores] if isinstance(self.scores, str) else self.scores

    @property
    def written_question(self) -> str:
        """The user's turn, with `{question}` and `{response}` in it."""
        if self.question is not None:
            return self.question
        by_value = sorted(self.value_by_text, key=self.value_by_text.__getitem__)
        worst = by_value[0]
        best = by_value[-1]
        if self.scores == "yes/no":
            ask = "Is the response good? The score is yes or no."
        elif len(by_value) == 2:
            ask = f"How good is the response? The score is {best} or {worst}."
        else:
            ask = f"How good is the response, from {worst} (worst) to {best} (best)?"
        form = f'Reply with "{self.opening}" and the score alone.'
        if self.rationale:
            form = f'Explain your view first. End with "{self.opening}" and the score.'
        return f"{INTRODUCTION}{ask} {form}"

    def ask(self, prompt: tuple[Message, ...], response: Response) -> tuple[Message, ...]:
        """Return the conversation that asks for the score of a response.

        Its images are those of the prompt, before the text, and then those of the response.

        Args:
            prompt: The prompt of the response.
            response: The response.
        """
        contents = {"question": Response.of_text(question(prompt)), "response": response}
        parts = [*media_parts(prompt), *filled(self.written_question, contents)]
        return ({"role": "user", "content": parts},)

    def text_of(self, value: float) -> str:
        """Return the text of the score that is closest to a value; of two, the lower one.

        Raises: ValueError if the value is below the lowest or above the highest score.
        """
        values = self.value_by_text
        if not min(values.values()) <= value <= max(values.values()):
            raise ValueError(
                f"{value:g} is not between the lowest score {min(values.values()):g} and the "
                f"highest, {max(values.values()):g}"
            )
        return min(values, key=lambda text: (abs(values[text] - value), values[text]))

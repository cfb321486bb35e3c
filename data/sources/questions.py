"""Questions with a known answer and no responses, for the RL of a policy and its evaluation.

    {"images": ["1.png"], "prompt": "How many cats are there?", "answer": "2"}

A recipe names the column of each part, so that a file with other names needs no conversion. The
columns of MathVista and MMMU-Pro:

    {type: questions, hub: AI4Math/MathVista, files: [data/testmini-*], prompt: query,
     choices: choices, image_columns: [decoded_image]}
    {type: questions, hub: MMMU/MMMU_Pro, files: [standard (10 options)/*], prompt: question,
     choices: options,
     image_columns: [image_1, image_2, image_3, image_4, image_5, image_6, image_7]}

Choices are a list, or a list written as Python or JSON text. They are shown below the question,
with letters. The known answer is the letter, or the text of the choice. Images come before the
question.
"""

import ast
import math
from string import ascii_uppercase
from typing import Any, Literal

from pydantic import Field

from mmrm.data.errors import RecordError
from mmrm.data.preference import EncodedImage, Message, Preference, Rule, TextPart, Truth
from mmrm.data.sources.shared.conversation import messages, user_turn
from mmrm.data.sources.shared.file_source import FormatConfig, SourceRow


class QuestionsConfig(FormatConfig):
    """Files of questions with known answers, on which a policy is trained and evaluated."""

    has_responses = False
    has_answers = True

    type: Literal["questions"]
    files: list[str] = Field(default=["*.jsonl", "*.json", "*.parquet", "*.arrow"])
    """Which files of a folder belong to the source."""
    prompt: str = "prompt"
    """The column of the question: a text, or turns {role, content}."""
    answer: str = "answer"
    """The column of the known answer: a text, a number, or a list of texts each of which is
    right."""
    choices: str | None = None
    """The column of the choices, in rows that have some."""
    image_columns: list[str] = Field(default=["images", "image"])
    """Columns of an image or of a list of images. A column that a row lacks is skipped."""
    instruction: str = ""
    """A text below every question that tells how to write the answer."""
    verifier: Rule | None = None
    """How a response is compared with the answer (eval/verifiers.py). Null takes multiple_choice
    for a row with choices, numeric if the answer is a number, and exact otherwise."""
    group: str | None = None
    """A column to group the questions by."""

    @property
    def patterns(self) -> list[str]:
        """The patterns that the recipe sets."""
        return self.files

    def convert(self, row: SourceRow) -> Preference:
        """Read the question, its images, its choices, its known answer and its group.

        Raises:
            RecordError: If the question has no answer, or one that is none of its choices.
        """
        images = self._images(row)
        prompt = messages(user_turn(row.value(self.prompt, str | list)), len(images))
        choices = [] if self.choices is None else listed(row.columns.get(self.choices))
        answers = self._answers(row)
        rule = self.verifier or default_rule(choices, answers)
        if rule == "multiple_choice" and choices:
            answers = tuple(letter(answer, choices) for answer in answers)

        lines = []
        for sign, choice in zip(ascii_uppercase, choices, strict=False):
            lines.append(f"{sign}. {choice}")
        if self.instruction:
            lines.append(self.instruction)
        category = "" if self.group is None else row.label(self.group)
        return Preference(
            row.identity,
            extended(prompt, "\n".join(lines)),
            "",
            "",
            images,
            category=category,
            truth=Truth(rule, answers),
        )

    def _images(self, row: SourceRow) -> tuple[EncodedImage, ...]:
        """Return the images of all image columns in the order of the recipe."""
        images: list[EncodedImage] = []
        for name in self.image_columns:
            images += row.all_images(row.columns.get(name))
        return tuple(images)

    def _answers(self, row: SourceRow) -> tuple[str, ...]:
        """Return the texts that are right answers."""
        value = row.value(self.answer, str | int | float | list)
        values = value if isinstance(value, list) else [value]
        answers = tuple(str(answer) for answer in values)
        if not answers or not all(answer.strip() for answer in answers):
            raise RecordError(
                f"{self.answer!r} is {value!r:.60}; required is the known answer. Write an answer, "
                "or remove the row."
            )
        return answers


def default_rule(choices: list[str], answers: tuple[str, ...]) -> Rule:
    """Return the rule by which answers are verified if the recipe sets none."""
    if choices:
        return "multiple_choice"
    if all(_is_number(answer) for answer in answers):
        return "numeric"
    return "exact"


def listed(choices: Any) -> list[str]:
    """Return the choices of a row; none for None or an empty text.

    Raises:
        RecordError: If they are neither a list nor the text of one, or more than there are letters.
    """
    if choices is None or choices == "":
        return []
    try:
        values = ast.literal_eval(choices) if isinstance(choices, str) else choices
    except (SyntaxError, ValueError) as error:
        raise RecordError(
            f"the choices {choices!r:.60} cannot be read as a list ({error}). Write a list as JSON."
        ) from error
    if not isinstance(values, list) or len(values) > len(ascii_uppercase):
        raise RecordError(
            f"the choices are {values!r:.60}; required is a list of at most "
            f"{len(ascii_uppercase)}, one for each letter. Correct the row, or remove it."
        )
    return [str(value) for value in values]


def letter(answer: str, choices: list[str]) -> str:
    """Return the letter of a known answer, which is the letter itself or the text of a choice.

    Raises:
        RecordError: If the answer is neither.
    """
    if answer in choices:
        return ascii_uppercase[choices.index(answer)]
    sign = answer.strip().strip("()").upper()
    if len(sign) == 1 and sign in ascii_uppercase[: len(choices)]:
        return sign
    raise RecordError(
        f"the answer {answer!r:.60} is none of the {len(choices)} choices, nor the letter of one. "
        "Correct the answer, or remove the row."
    )


def extended(prompt: tuple[Message, ...], text: str) -> tuple[Message, ...]:
    """Return the prompt with a text below its last turn, or unchanged if the text is empty."""
    if not text:
        return prompt
    *before, last = prompt
    below: TextPart = {"type": "text", "text": f"\n{text}"}
    return (*before, {"role": last["role"], "content": [*last["content"], below]})


def _is_number(text: str) -> bool:
    """Return True for a finite number; commas may separate thousands."""
    try:
        return math.isfinite(float(text.replace(",", "")))
    except ValueError:
        return False

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
from mmrm.data.preference import (
    UNANSWERED,
    EncodedImage,
    Message,
    Preference,
    Rule,
    TextPart,
    Truth,
)
from mmrm.data.sources.shared.conversation import as_turns, prompt_from_turns
from mmrm.data.sources.shared.file_source import FormatConfig, SourceRow


class QuestionsConfig(FormatConfig):
    """A source of questions with known answers, on which a policy is trained and evaluated."""

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
    """The rule that compares a response with the answer (eval/verifiers.py). Null takes
    multiple_choice for a row with choices, numeric if the answer is a number, and exact
    otherwise."""
    group: str | None = None
    """A column to group the questions by."""

    @property
    def patterns(self) -> list[str]:
        """The `fnmatch` patterns, set in the recipe, of the files that belong to the source."""
        return self.files

    def convert(self, row: SourceRow) -> Preference:
        """Return the record of a question and its known answer, with empty texts as responses.

        The choices and the instruction are written below the question.

        Raises:
            RecordError: If the question has no answer, or one that is none of its choices.
        """
        images = self._images(row)
        turns = as_turns(row.value(self.prompt, str | list))
        prompt = prompt_from_turns(turns, len(images))
        choices = [] if self.choices is None else parsed_choices(row.columns.get(self.choices))
        answers = self._answers(row)
        rule = self.verifier or default_rule(choices, answers)
        if rule == "multiple_choice" and choices:
            answers = tuple(choice_letter(answer, choices) for answer in answers)

        lines_below = []
        for letter, choice in zip(ascii_uppercase, choices, strict=False):
            lines_below.append(f"{letter}. {choice}")
        if self.instruction:
            lines_below.append(self.instruction)
        category = "" if self.group is None else row.text_or_empty(self.group)
        return Preference(
            row.identity,
            with_text_below(prompt, "\n".join(lines_below)),
            responses=UNANSWERED,
            images=images,
            category=category,
            truth=Truth(rule, answers),
        )

    def _images(self, row: SourceRow) -> tuple[EncodedImage, ...]:
        """Return the images of all image columns, in the order of `image_columns`."""
        images: list[EncodedImage] = []
        for name in self.image_columns:
            images += row.all_images(row.columns.get(name))
        return tuple(images)

    def _answers(self, row: SourceRow) -> tuple[str, ...]:
        """Return the known answer as a text, or all of them if the row lists several.

        Raises:
            RecordError: If there is no answer, or an answer is empty.
        """
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
    """Return the rule that compares responses with the known answers if the recipe sets none."""
    if choices:
        return "multiple_choice"
    if all(_is_number(answer) for answer in answers):
        return "numeric"
    return "exact"


def parsed_choices(choices: Any) -> list[str]:
    """Return the choices of a row, given as a list or as the text of one in Python or JSON.

    The result is empty if `choices` is None or an empty text.

    Raises:
        RecordError: If `choices` has another form, or there are more choices than letters.
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


def choice_letter(answer: str, choices: list[str]) -> str:
    """Return the letter of the choice that is the known answer.

    Args:
        answer: The text of a choice, or its letter, such as "B" or "(b)".
        choices: The texts of all choices.

    Raises:
        RecordError: If the answer is neither a choice nor the letter of one.
    """
    if answer in choices:
        return ascii_uppercase[choices.index(answer)]
    letter = answer.strip().strip("()").upper()
    if len(letter) == 1 and letter in ascii_uppercase[: len(choices)]:
        return letter
    raise RecordError(
        f"the answer {answer!r:.60} is none of the {len(choices)} choices, nor the letter of one. "
        "Correct the answer, or remove the row."
    )


def with_text_below(prompt: tuple[Message, ...], text: str) -> tuple[Message, ...]:
    """Return the prompt with `text` on a new line at the end of its last turn.

    If the text is empty, the prompt is returned unchanged.
    """
    if not text:
        return prompt
    *turns_before, last_turn = prompt
    new_part: TextPart = {"type": "text", "text": f"\n{text}"}
    content = [*last_turn["content"], new_part]
    return (*turns_before, {"role": last_turn["role"], "content": content})


def _is_number(text: str) -> bool:
    """Return True if a text is a finite number, in which commas may separate thousands."""
    try:
        return math.isfinite(float(text.replace(",", "")))
    except ValueError:
        return False

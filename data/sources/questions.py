"""Questions with a known answer and no responses, for the RL of a policy and for evaluating it: a question a row.

    {"images": ["1.png"], "prompt": "How many cats are there?", "answer": "2"}

A recipe says which columns hold what, so that a file with other names needs no conversion. MathVista's and MMMU-Pro's:

    {type: questions, hub: AI4Math/MathVista, files: [data/testmini-*], prompt: query, choices: choices,
     image_columns: [decoded_image]}
    {type: questions, hub: MMMU/MMMU_Pro, files: [standard (10 options)/*], prompt: question, choices: options,
     image_columns: [image_1, image_2, image_3, image_4, image_5, image_6, image_7]}

Choices (a list, or its text as Python or JSON writes it) are shown below the question, lettered; the known answer may be the
letter or the choice's own words. Images stand before the question.
"""

import ast
import math
from string import ascii_uppercase
from typing import Any, Literal

from pydantic import Field

from mmrm.data.errors import RecordError
from mmrm.data.preference import Message, Preference, Rule, Truth
from mmrm.data.sources.shared.conversation import messages, user_turn
from mmrm.data.sources.shared.file_source import FormatConfig, SourceRow


class QuestionsConfig(FormatConfig):
    """Files of questions with known answers: what a policy is trained and evaluated on."""

    has_responses = False
    has_answers = True

    type: Literal["questions"]
    files: list[str] = Field(default=["*.jsonl", "*.json", "*.parquet", "*.arrow"])
    """Which files of a folder belong to the source."""
    prompt: str = "prompt"
    """The column of the question: a text, or turns {role, content}."""
    answer: str = "answer"
    """The column of the known answer: a text, a number, or a list of texts each of which is right."""
    choices: str | None = None
    """The column of the choices, in rows that have some."""
    image_columns: list[str] = Field(default=["images", "image"])
    """Columns of an image or of a list of them; those that a row lacks are passed over."""
    instruction: str = ""
    """Put below every question: how the answer is to be written."""
    verifier: Rule | None = None
    """How a response is compared with the answer (eval/verifiers.py); null takes multiple_choice for a row with choices,
    numeric where the answer is a number, else exact."""
    group: str | None = None
    """A column to group the questions by."""

    @property
    def patterns(self) -> list[str]:
        """What the recipe names."""
        return self.files

    def convert(self, row: SourceRow) -> Preference:
        """Return the question; raise RecordError for one without an answer, or whose answer is none of its choices."""
        images = tuple(
            image for name in self.image_columns for image in row.all_images(row.columns.get(name))
        )
        prompt = messages(user_turn(row.value(self.prompt, str | list)), len(images))
        choices = [] if self.choices is None else listed(row.columns.get(self.choices))
        answers = self._answers(row)
        rule = self.verifier or (
            "multiple_choice"
            if choices
            else "numeric"
            if all(map(_is_number, answers))
            else "exact"
        )
        if rule == "multiple_choice" and choices:
            answers = tuple(letter(answer, choices) for answer in answers)
        lettered = [
            f"{sign}. {choice}" for sign, choice in zip(ascii_uppercase, choices, strict=False)
        ]
        below = "\n".join(filter(None, [*lettered, self.instruction]))
        category = "" if self.group is None else row.label(self.group)
        truth = Truth(rule, answers)
        return Preference(
            row.identity, extended(prompt, below), "", "", images, category=category, truth=truth
        )

    def _answers(self, row: SourceRow) -> tuple[str, ...]:
        found = row.value(self.answer, str | int | float | list)
        answers = tuple(str(one) for one in (found if isinstance(found, list) else [found]))
        if not answers or not all(one.strip() for one in answers):
            raise RecordError(f"{self.answer!r} is {found!r:.60}; required is the known answer.")
        return answers


def listed(choices: Any) -> list[str]:
    """Return choices, given as a list or as the text of one; raise RecordError for anything else, and for more than letters."""
    if choices is None or choices == "":
        return []
    try:
        found = ast.literal_eval(choices) if isinstance(choices, str) else choices
    except (SyntaxError, ValueError) as error:
        raise RecordError(f"the choices {choices!r:.60} are no list: {error}") from error
    if not isinstance(found, list) or len(found) > len(ascii_uppercase):
        raise RecordError(
            f"the choices are {found!r:.60}; required is a list of at most {len(ascii_uppercase)}."
        )
    return [str(one) for one in found]


def letter(answer: str, choices: list[str]) -> str:
    """Return the letter of a known answer, which is the letter itself or the choice's own words.

    Raises: RecordError if it is neither.
    """
    if answer in choices:
        return ascii_uppercase[choices.index(answer)]
    sign = answer.strip().strip("()").upper()
    if len(sign) == 1 and sign in ascii_uppercase[: len(choices)]:
        return sign
    raise RecordError(
        f"the answer {answer!r:.60} is none of the {len(choices)} choices, and no letter of one."
    )


def extended(prompt: tuple[Message, ...], below: str) -> tuple[Message, ...]:
    """Return the prompt with a text below its last turn."""
    if not below:
        return prompt
    *before, last = prompt
    return (
        *before,
        {
            "role": last["role"],
            "content": [*last["content"], {"type": "text", "text": f"\n{below}"}],
        },
    )


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text.replace(",", "")))
    except ValueError:
        return False

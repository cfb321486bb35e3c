"""The place of the verdict in the judgements of a template, for verdicts that are read softly.

A hard verdict is the word that a judge wrote. A soft verdict is the probability of each of the two
words at the place where the verdict stands. Each template has its own words, and its own text in
front of them: `VerdictForm` holds them next to the template's prompt and reader.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mmrm.data.prompts import RUBRIC_FORM, TEMPLATES, THINK_FORM, JudgeTemplate
from mmrm.eval.candidates import Side

ANSWER = re.compile(r"<answer>\s*+([12])\s*+</answer>")


@dataclass(frozen=True, slots=True)
class VerdictForm:
    """The words between which a judgement decides, and the text of the template around them."""

    words: tuple[str, str]
    """The verdict for the response that is shown first, and the verdict for the other one. They are
    different words of equal length."""
    find: Callable[[str], int | None]
    """Returns the index of the verdict's first character in a judgement that the template's reader
    can read. It may return None, or any index, for other texts."""
    opening: str
    """The text directly before the verdict, such as "<answer>"."""
    closing: str
    """The text after the verdict, such as "</answer>"."""
    mark: str = ""
    """The text with which the part that holds the verdict begins, and that occurs nowhere else in a
    judgement. Empty if there is no such text."""
    separator: str = ""
    """The text between a rationale and `opening`."""
    without_rationale: str | None = ""
    """The text before `opening` in a judgement without a rationale. None if the template's reader
    reads no judgement without one."""
    sections: tuple[str, ...] = ("think",)
    """The names of the tags around the parts of a rationale. If a judgement was cut off inside of
    such a part, the part is closed before the verdict."""

    def kept_and_added(self, judgement: str) -> tuple[int, str]:
        """Return how a judgement without a readable verdict continues up to the verdict's place.

        If it has a part for the verdict, such as an answer tag with another word in it, this part
        is cut off. If its reasoning is still open, because the judgement was cut off at the limit,
        the reasoning is closed.

        Returns:
            The number of characters of the judgement that are kept, and the text that follows them,
            which ends with `opening`.
        """
        if not judgement:
            return 0, (self.without_rationale or "") + self.opening
        num_kept = len(judgement)
        if self.mark and self.mark in judgement:
            num_kept = judgement.index(self.mark)
        kept = judgement[:num_kept]
        end_of_reasoning = ""
        for name in self.sections:
            if kept.count(f"<{name}>") > kept.count(f"</{name}>"):
                end_of_reasoning += f"</{name}>"
        return num_kept, end_of_reasoning + self.separator + self.opening

    def rationale(self, judgement: str) -> str:
        """Return the reasoning of a judgement that the template's reader can read.

        It is the text between the think tags, or without them the text before the verdict and
        before the words that open it. It is empty if there is none.
        """
        think_start = judgement.find("<think>")
        think_end = judgement.find("</think>")
        if 0 <= think_start < think_end:
            return judgement[think_start + len("<think>") : think_end].strip()
        verdict_start = self.find(judgement)
        if verdict_start is None:
            return ""
        reasoning = judgement[:verdict_start].removesuffix(self.opening)
        return reasoning.removesuffix(self.separator).strip()

    def judgement_at_once(self, side: Side) -> str:
        """Return the judgement without a rationale that names the response shown at `side`."""
        return (self.without_rationale or "") + self.opening + self.words[side] + self.closing


def find_answer(judgement: str) -> int | None:
    """Return the index of the number in the first answer tag that holds 1 or 2 alone."""
    match = ANSWER.search(judgement)
    return None if match is None else match.start(1)


TAGGED = VerdictForm(
    words=("1", "2"),
    find=find_answer,
    opening="<answer>",
    closing="</answer>",
    mark="<answer>",
    without_rationale="<think></think>",
)
"""R1-Reward's form, which `data.prompts.write_judgement` writes."""

RUBRIC = VerdictForm(
    words=("1", "2"),
    find=find_answer,
    opening="<answer>",
    closing="</answer>",
    mark="<answer>",
    separator="\n",
    without_rationale=None,
    sections=("rubric", "eval"),
)
"""The form of `mmrm.data.rubric`. A judgement without criteria and checks is none."""

VERDICT_FORMS: Mapping[str, VerdictForm] = MappingProxyType(
    {THINK_FORM.name: TAGGED, RUBRIC_FORM.name: RUBRIC}
)
"""The place of the verdict by the name of a form in `mmrm.data.prompts`."""


def verdict_form_of(template: JudgeTemplate) -> VerdictForm:
    """Return the place of the verdict in the judgements that a template of training asks for."""
    return VERDICT_FORMS[TEMPLATES[template].form.name]

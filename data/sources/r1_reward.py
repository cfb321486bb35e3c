"""R1-Reward (yifanzhang114/R1-Reward-RL): prompts of a pairwise judge and which response is better; 17,261 rows.

A row holds `message`, a chat as JSON text whose user turn shows both responses under "[Response 1]:" and
"[Response 2]:", and `answer`, as ["<answer>2</answer>"]. The SFT file carries the judgement as the chat's last turn,
"<think>…</think><answer>2</answer>", which becomes the rationale.
Not confirmed at the source: that `image` holds the image itself in base64 (give `images` if it holds paths), and the
layout of the SFT file. A row of another form is refused.
"""

import base64
import re
from typing import Literal

from mmrm.data.errors import ImageError, RecordError
from mmrm.data.preference import EncodedImage, Preference
from mmrm.data.rationales import with_chosen_first
from mmrm.data.sources.shared.conversation import parsed, question, text_of
from mmrm.data.sources.shared.file_source import FormatConfig, SourceRow

SHOWN = re.compile(
    r"(?>.*?\[Question\]:)(?>(?P<question>.*?)(?:(?<!#)#++\s*)?\[Response 1\]:)"
    r"(?>(?P<one>.*?)(?:(?<!#)#++\s*)?\[Response 2\]:)(?P<two>.*)",
    re.DOTALL,
)
"""For `match`. The groups are atomic: a text that repeats one mark and lacks the next is read once, not once for each mark."""
ANSWER = re.compile(r"<answer>\s*([12])\s*</answer>")
THOUGHT = re.compile(r"(?>.*?<think>)(.*?)</think>", re.DOTALL)


class R1RewardConfig(FormatConfig):
    """The judged pairs of the RL or the SFT file; without `images` the column `image` is read as base64."""

    FILES = ("*.parquet", "*.jsonl", "*.json")
    COLUMNS = ("message", "image")
    has_rationales = True

    type: Literal["r1_reward"]
    hub: str | None = "yifanzhang114/R1-Reward-RL"
    licence: str = "see the card"
    """What the data card states."""

    def convert(self, row: SourceRow) -> Preference:
        """Columns message, image, answer and others."""
        texts = {turn["role"]: text_of(turn) for turn in parsed(row.json("message", list))}
        user, judgement = texts.get("user", ""), texts.get("assistant", "")
        shown = SHOWN.match(user)
        if shown is None:
            raise RecordError(
                "the user turn holds no '[Question]:', '[Response 1]:' and '[Response 2]:' in this order."
            )
        responses = shown["one"].strip(), shown["two"].strip()
        answers = row.optional("answer", list | str) or judgement
        found = ANSWER.findall(
            " ".join(map(str, answers)) if isinstance(answers, list) else answers
        )
        if len(set(found)) != 1:
            raise RecordError(
                f"the answer is {answers!r}; required is one <answer>1</answer> or <answer>2</answer>."
            )
        winner = int(found[0])
        thought = THOUGHT.match(judgement)
        reasoning = None if thought is None else thought[1].strip()
        rationale, first = with_chosen_first(reasoning or "", winner)
        images = self._images(row)
        return Preference(
            row.identity,
            question(shown["question"].strip(), len(images)),
            chosen=responses[winner - 1],
            rejected=responses[2 - winner],
            images=images,
            rationale=rationale or None,
            first_in_rationale=first if rationale else "chosen",
        )

    def _images(self, row: SourceRow) -> tuple[EncodedImage, ...]:
        image = row.label("image")
        if not image:
            return ()
        if self.images is not None or image.startswith("data:"):
            return (row.image(image),)
        try:
            return (base64.b64decode(image, validate=True),)
        except ValueError as error:  # also for letters that are not ASCII
            raise ImageError(
                f"{row.identity}: 'image' is no base64 ({error}); if it is a path, give the source its `images` folder."
            ) from error

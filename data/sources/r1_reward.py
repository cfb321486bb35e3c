"""R1-Reward (yifanzhang114/R1-Reward-RL): 17,261 judged pairs of responses.

A row holds `message`, a chat as JSON text whose user turn shows both responses under "[Response
1]:" and "[Response 2]:", and `answer`, as ["<answer>2</answer>"]. In the SFT file, the last turn of
the chat is the judgement "<think>…</think><answer>2</answer>", which becomes the rationale.

Two assumptions were not confirmed at the source: `image` holds the image itself in base64 (give
`images` if it holds paths), and the layout of the SFT file. A row of another form is refused.
"""

import base64
import re
from typing import Literal

from mmrm.data.errors import ImageError, RecordError
from mmrm.data.preference import EncodedImage, Preference, positions_of_pair, text_responses
from mmrm.data.rationales import with_chosen_first
from mmrm.data.sources.shared.conversation import parsed_turns, prompt_from_question, turn_text
from mmrm.data.sources.shared.file_source import FormatConfig, SourceRow

COMPARISON = re.compile(
    r"(?>.*?\[Question\]:)(?>(?P<question>.*?)(?:(?<!#)#++\s*)?\[Response 1\]:)"
    r"(?>(?P<response_1>.*?)(?:(?<!#)#++\s*)?\[Response 2\]:)(?P<response_2>.*)",
    re.DOTALL,
)
"""The user turn, for `match`. The groups are atomic: a text that repeats one mark and lacks the
next one is read once, not once for each mark."""
ANSWER = re.compile(r"<answer>\s*([12])\s*</answer>")
THOUGHT = re.compile(r"(?>.*?<think>)(.*?)</think>", re.DOTALL)


class R1RewardConfig(FormatConfig):
    """A source of the judged pairs in the RL file or the SFT file of R1-Reward.

    Without the key `images`, the column `image` is read as base64.
    """

    FILES = ("*.parquet", "*.jsonl", "*.json")
    COLUMNS = ("message", "image")
    has_rationales = True

    type: Literal["r1_reward"]
    hub: str | None = "yifanzhang114/R1-Reward-RL"
    licence: str = "see the card"
    """The licence that the data card states."""

    def convert(self, row: SourceRow) -> Preference:
        """Return the preference record of a row with the columns message, image and answer.

        The question and both responses are cut out of the user turn of `message`. The text between
        <think> and </think> in its assistant turn becomes the rationale.
        """
        turns = parsed_turns(row.json_value("message", list))
        text_by_role = {turn["role"]: turn_text(turn) for turn in turns}
        judgement = text_by_role.get("assistant", "")
        comparison = COMPARISON.match(text_by_role.get("user", ""))
        if comparison is None:
            raise RecordError(
                "the user turn of 'message' does not hold '[Question]:', '[Response 1]:' and "
                "'[Response 2]:' in this order. Correct the row, or remove it."
            )
        winner = _winner(row, judgement)
        chosen = comparison["response_1"].strip()
        rejected = comparison["response_2"].strip()
        if winner == 2:
            chosen, rejected = rejected, chosen

        thought = THOUGHT.match(judgement)
        reasoning = "" if thought is None else thought[1].strip()
        # The rationale speaks of Response 1 and 2. If possible, it is rewritten so that Response 1
        # is the chosen one.
        rationale, first_in_rationale = with_chosen_first(reasoning, winner)
        images = self._images(row)
        return Preference(
            row.identity,
            prompt_from_question(comparison["question"].strip(), len(images)),
            responses=text_responses(chosen, rejected),
            images=images,
            rationale=rationale or None,
            first_in_rationale=first_in_rationale if rationale else "chosen",
            positions=positions_of_pair(winner == 1),
        )

    def _images(self, row: SourceRow) -> tuple[EncodedImage, ...]:
        """Return the image in the column `image`, or an empty tuple if the column is empty.

        Raises:
            ImageError: If the value is neither base64 nor an image that `SourceRow.image` reads.
        """
        image = row.text_or_empty("image")
        if not image:
            return ()
        if self.images is not None or image.startswith("data:"):
            return (row.image(image),)
        try:
            return (base64.b64decode(image, validate=True),)
        except ValueError as error:  # raised for text that is not base64, or not even ASCII
            raise ImageError(
                f"{row.identity}: 'image' is not base64 ({error}). If it is a path, set `images` "
                "to the folder that paths are relative to."
            ) from error


def _winner(row: SourceRow, judgement: str) -> int:
    """Return the better response, 1 or 2, as the column `answer` or else the judgement names it.

    Raises:
        RecordError: If no response is named, or both are.
    """
    answer = row.optional_value("answer", list | str) or judgement
    text = answer
    if isinstance(answer, list):
        text = " ".join(map(str, answer))
    winners = set(ANSWER.findall(text))
    if len(winners) != 1:
        raise RecordError(
            f"'answer' is {answer!r}; required is one <answer>1</answer> or <answer>2</answer>. "
            "Correct the row, or remove it."
        )
    return int(winners.pop())

"""R1-Reward (yifanzhang114/R1-Reward-RL): prompts of a pairwise judge and which response is better; 17,261 rows.

A row holds `message`, a chat as JSON text whose user turn shows both responses under "[Response 1]:" and
"[Response 2]:", and `answer`, as ["<answer>2</answer>"]. The SFT file carries the judgement as the chat's last turn,
"<think>…</think><answer>2</answer>", which becomes the rationale.
Not confirmed at the source: that `image` holds the image itself in base64 (give `images` if it holds paths), and the
layout of the SFT file. A row of another form is refused.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from pathlib import Path
from typing import Any, Literal

from data.errors import ImageError, RecordError
from data.preference import EncodedImage, Preference
from data.prompts import swapped
from data.sources.shared.base import Source, TableSource
from data.sources.shared.conversation import MARKER, question
from data.sources.shared.files import FilesConfig
from data.sources.shared.media import encoded
from data.storage.rows import Row, field, optional
from data.storage.tables import open_rows

SHOWN = re.compile(
    r"\[Question\]:(?P<question>.*?)(?:#+\s*)?\[Response 1\]:(?P<one>.*?)(?:#+\s*)?\[Response 2\]:(?P<two>.*)", re.DOTALL
)
ANSWER = re.compile(r"<answer>\s*([12])\s*</answer>")
THOUGHT = re.compile(r"<think>(.*?)</think>", re.DOTALL)


class R1RewardConfig(FilesConfig):
    """The judged pairs of the RL or the SFT file."""

    type: Literal["r1_reward"]
    hub: str | None = "yifanzhang114/R1-Reward-RL"
    images: str | None = None
    """The folder that image paths are relative to; None reads the column `image` as base64."""
    licence: str = "see the card"

    def open(self, cache: Path) -> Source:
        """Open the parquet files, or JSON."""
        located = self.locate(["*.parquet", "*.jsonl", "*.json"])
        rows = open_rows(located.files, cache, ("message", "image"))
        convert = _Convert(Path(self.images).expanduser() if self.images else None)
        return TableSource(self.label, self.licence, located.revision, rows, convert, self.settings)


class _Convert:
    """Rows to records; a class so that it pickles."""

    def __init__(self, root: Path | None) -> None:
        self.root = root

    def __call__(self, row: Row, record: str) -> Preference:
        user, judgement = _turns(field(row, "message", str, record), record)
        shown = SHOWN.search(user)
        if shown is None:
            raise RecordError(
                f"{record}: the user turn holds no '[Question]:', '[Response 1]:' and '[Response 2]:' in this order."
            )
        one, two = shown["one"].strip(), shown["two"].strip()
        second = _winner(row, judgement, record) == "2"
        images = self._images(row, record)
        return Preference(
            identity=record,
            prompt=(question(shown["question"].replace(MARKER, "").strip(), len(images), record),),
            chosen=two if second else one,
            rejected=one if second else two,
            images=images,
            rationale=_rationale(judgement, second),
        )

    def _images(self, row: Row, record: str) -> tuple[EncodedImage, ...]:
        image = optional(row, "image", str, record)
        if not image:
            return ()
        if self.root is not None or image.startswith("data:"):
            return (encoded(image, self.root or Path(), record),)
        try:
            return (base64.b64decode(image, validate=True),)
        except binascii.Error as error:
            raise ImageError(
                f"{record}: 'image' is no base64 ({error}); if it is a path, give the source its `images` folder."
            ) from error


def _turns(message: str, record: str) -> tuple[str, str]:
    """Return the text of the user's turn, and that of the assistant's if there is one."""
    try:
        chat: Any = json.loads(message)
    except ValueError as error:
        raise RecordError(f"{record}: 'message' is no JSON ({error}); expected is a list of turns.") from error
    if not isinstance(chat, list) or not all(isinstance(turn, dict) for turn in chat):
        raise RecordError(f"{record}: 'message' is no list of turns of role and content.")
    texts = {turn.get("role"): _text(turn.get("content"), record) for turn in chat}
    return texts.get("user", ""), texts.get("assistant", "")


def _text(content: Any, record: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RecordError(
            f"{record}: the content of a turn is a {type(content).__name__}; expected is a text or a list of parts."
        )
    return "".join(part["text"] for part in content if isinstance(part, dict) and part.get("text"))


def _winner(row: Row, judgement: str, record: str) -> str:
    answers = optional(row, "answer", (list, str), record) or judgement
    found = ANSWER.findall(" ".join(answers) if isinstance(answers, list) else answers)
    if len(set(found)) != 1:
        raise RecordError(f"{record}: the answer is {answers!r}; required is one <answer>1</answer> or <answer>2</answer>.")
    return str(found[0])


def _rationale(judgement: str, second: bool) -> str | None:
    thought = THOUGHT.search(judgement)
    if thought is None:
        return None
    reasoning = thought[1].strip()
    return swapped(reasoning) if second else reasoning

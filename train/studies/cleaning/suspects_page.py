"""The page of suspicious records, on which people decide by the keyboard whether labels are right."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrm.data.display.html import render
from mmrm.data.errors import RecordError
from mmrm.data.film_strip import film_strip
from mmrm.data.preference import UNANSWERED, Preference, validate
from mmrm.data.preparation.decisions import written_key
from mmrm.data.preparation.mixing import Mixture
from mmrm.data.shown_records import shown_images, shown_responses
from mmrm.data.storage.files import digest
from mmrm.train.studies.cleaning.label_study import JudgedLabels

TEMPLATE = Path(__file__).with_name("suspects.html")
SCRIPT = Path(__file__).with_name("suspects.js")
SEED = 0
"""Seed of the other records, the order and the sides of a blind page."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class Button:
    """A button of the page, and the key that does the same."""

    action: str
    """A decision; or `first` and `second` for the better response of a blind page; or `undo`,
    `previous` or `next`."""
    words: str
    key: str


LABEL_BUTTONS = (Button("keep", "Label right", "r"), Button("flip", "Label wrong", "w"))
"""The buttons of a page that shows the labels."""
BLIND_BUTTONS = (Button("first", "A is better", "a"), Button("second", "B is better", "b"))
"""The buttons of a page that hides the labels."""
OTHER_BUTTONS = (
    Button("equal", "Both equal", "e"),
    Button("leave_out", "Leave out", "l"),
    Button("undo", "Undo", "u"),
    Button("previous", "Previous", "p"),
    Button("next", "Next", "n"),
)


def suspects_page(
    labels: JudgedLabels, mixture: Mixture, title: str, most_shown: int, *, is_blind: bool
) -> str:
    """Return the page of the suspicious records, as HTML that needs no other file.

    A blind page hides the labels. The responses are in random order, and as many records that are
    not suspicious are mixed with the suspects. It has pairs only.

    Args:
        labels: What is known of the label of each training record.
        mixture: The training records.
        title: The name of the recipe.
        most_shown: The largest number of suspicious records on the page.
        is_blind: True for a blind page.
    """
    generator = random.Random(SEED)
    suspects = labels.suspects
    num_suspects = len(suspects)
    if is_blind:
        suspects = [index for index in suspects if _is_pair(labels, index)]
    suspects = suspects[:most_shown]
    shown = list(suspects)
    introduction = (
        f"{len(suspects):,} of {num_suspects:,} suspicious records, the most probably wrong first. "
    )
    if is_blind:
        others = _other_pairs(labels, len(suspects), generator)
        shown += others
        generator.shuffle(shown)
        introduction = (
            f"{len(suspects):,} suspicious pairs and {len(others):,} others in random order, with "
            "the responses in random order. "
        )
    samples = [_sample(labels, mixture, index, generator, is_blind=is_blind) for index in shown]
    keys = [sample["key"] for sample in samples]
    return render(
        TEMPLATE,
        script=SCRIPT.read_text(encoding="utf-8"),
        title=title,
        introduction=(
            f"{introduction}Download the decisions, and name the file in the recipe's "
            "data.decisions."
        ),
        buttons=[*(BLIND_BUTTONS if is_blind else LABEL_BUTTONS), *OTHER_BUTTONS],
        samples=samples,
        is_blind=is_blind,
        store=f"mmrm-labels-{digest(repr((is_blind, keys)))}",
    )


def _is_pair(labels: JudgedLabels, index: int) -> bool:
    """Return True if a record has a better and a worse response."""
    return labels.records.records[index].ranks == (0, 1)


def _other_pairs(labels: JudgedLabels, count: int, generator: random.Random) -> Sequence[int]:
    """Draw up to `count` pairs that are not suspicious, and return their indices."""
    suspects = set(labels.suspects)
    others = []
    for index in range(len(labels.records.records)):
        if index not in suspects and _is_pair(labels, index):
            others.append(index)
    return generator.sample(others, min(count, len(others)))


def _sample(
    labels: JudgedLabels,
    mixture: Mixture,
    index: int,
    generator: random.Random,
    *,
    is_blind: bool,
) -> dict[str, Any]:
    """Return a record as the template shows it.

    Args:
        labels: What is known of the labels.
        mixture: The training records.
        index: The index of the record.
        generator: Draws the order of the responses of a blind page.
        is_blind: True for a blind page.
    """
    labelled = labels.records.records[index]
    sample: dict[str, Any] = {
        "key": written_key(labelled.key),
        "source": labelled.source,
        "row": labelled.row,
        "place": labelled.place,
        "reason": " ".join(labels.reasons(index)),
        "first_decision": "keep",
        "second_decision": "flip",
        "problem": "",
        "images": [],
        "videos": [],
        "responses": [],
    }
    # An empty record is shown in place of one that cannot be read.
    record = Preference(labelled.place, prompt=(), responses=UNANSWERED)
    try:
        record = _training_record(mixture, index)
        sample["images"] = shown_images(record.images, record.identity)
        sample["videos"] = [film_strip(video, record.identity) for video in record.videos]
        sample["responses"] = shown_responses(record)
    except RecordError as error:
        sample["problem"] = f"It cannot be shown: {error}"
    if is_blind and generator.random() < 0.5:
        sample["responses"].reverse()
        sample["first_decision"] = "flip"
        sample["second_decision"] = "keep"
    sample["prompt"] = record.prompt
    sample["letters"] = [
        LETTERS[number] if number < len(LETTERS) else str(number + 1)
        for number in range(len(sample["responses"]))
    ]
    return sample


def _training_record(mixture: Mixture, index: int) -> Preference:
    """Return a training record with the images of its source, also if the recipe trains on grey ones.

    Raises:
        RecordError: The record cannot be used.
    """
    number, position = mixture.records.locate(index)
    split = mixture.splits[number]
    return validate(split.source.record(int(split.rows[position])))

"""The number of records of an epoch and of steps of a run, before the data are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from mmrm.data.preparation.mixing import MixtureConfig
from mmrm.data.storage.files import read_json
from mmrm.train.recipe.recipe import Recipe

UNKNOWN = "known once the data are read (python data/mixture.py RECIPE --plan)"
"""The text about the source of a number of records that is not known yet."""


def epoch_records(data: MixtureConfig) -> tuple[int | None, str]:
    """Return the number of records of an epoch, and a text on the source of this number.

    The number is None if it depends on data that have not been read. `data` is the section of the
    recipe.
    """
    if data.records is not None:
        return data.records, "data.records"
    num_rows_by_source: dict[str, int] = {}
    for source in data.sources:
        num_rows, _ = source.expected_rows()
        if num_rows is not None:
            num_rows_by_source[source.label] = num_rows
    are_all_known = len(num_rows_by_source) == len(data.sources)
    # A stage of one modality takes only records with images, or only those without.
    has_modalities = any(stage.modality != "all" for stage in data.stages)
    # A selection by difficulty, or a balance of shortcuts, may leave out most records.
    is_selected = data.curriculum.selects or bool(data.balance)
    if not are_all_known or has_modalities or is_selected:
        return planned_records(data)
    if not data.stages:
        num_records = sum(num_rows_by_source.values()) - data.validation
        return num_records, "the sum of its sources less validation, before filters"
    num_records_of_stages = 0.0
    for stage in data.stages:
        # A stage that names no sources takes all of them.
        names = stage.sources or list(num_rows_by_source)
        num_rows_of_stage = sum(num_rows_by_source[name] for name in names)
        num_records_of_stages += stage.repeat * num_rows_of_stage
    return round(num_records_of_stages), "the sum of its stages, before filters"


def planned_records(data: MixtureConfig) -> tuple[int | None, str]:
    """Return the number of records of an epoch that a data card states, and a text with its path.

    If there is no card, the number is None, and the text says how to get one.
    """
    card, file = _newest_card(data)
    if card is None:
        return None, UNKNOWN
    return int(card["epoch_size"]), f"counted by data/mixture.py --plan: {file}"


class PlannedTokens(NamedTuple):
    """The mean numbers of tokens of a record, by a data card."""

    images: float
    """Tokens of images and videos."""
    text: float


def planned_tokens(data: MixtureConfig) -> PlannedTokens | None:
    """Return the mean numbers of tokens of a record that a data card states.

    The result is None if there is no card, or if it has no records.
    """
    card, _ = _newest_card(data)
    if card is None or not card["total"]["kept"]:
        return None
    total = card["total"]
    return PlannedTokens(
        total["image_tokens"] / total["kept"], total["text_tokens"] / total["kept"]
    )


def _newest_card(data: MixtureConfig) -> tuple[dict[str, Any] | None, Path | None]:
    """Return the newest data card of the same `data` section, and its file; None without a card.

    A data card is a file in the cache that `python data/mixture.py RECIPE --plan` writes when it
    has read the data.
    """
    card_files = list(data.cache_folder.glob("*.card.json"))
    newest_first = sorted(card_files, key=lambda file: -file.stat().st_mtime)
    for file in newest_first:
        card: dict[str, Any] = read_json(file)
        if card.get("section") == data.digest:
            return card, file
    return None, None


def known_steps(recipe: Recipe) -> int | None:
    """Return the number of optimizer steps of a run.

    The result is None if it depends on data that have not been read.
    """
    num_examples = epoch_examples(recipe)
    if recipe.optim.max_steps is None and num_examples is None:
        return None
    # With max_steps, the number of examples does not matter.
    return recipe.steps(num_examples or 0)


def epoch_examples(recipe: Recipe) -> int | None:
    """Return the number of examples of an epoch; None if it depends on data that were not read.

    An example is a record, or a record in one of two orders of its responses.
    """
    num_records, _ = epoch_records(recipe.data)
    if num_records is None:
        return None
    return num_records * recipe.method.examples_per_record

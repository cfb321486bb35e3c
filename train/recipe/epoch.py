"""The records of an epoch and the steps of a run, as far as they are known before data are read."""

from __future__ import annotations

from mmrm.data.preparation.mixing import MixtureConfig
from mmrm.data.storage.files import read_json
from mmrm.train.recipe.recipe import Recipe

UNKNOWN = "known once the data are read (python data/mixture.py RECIPE --plan)"


def epoch_records(data: MixtureConfig) -> tuple[int | None, str]:
    """Return the number of records of an epoch, and a text on where the number comes from.

    The number is None if it depends on data that have not been read.
    """
    if data.records is not None:
        return data.records, "data.records"
    rows_by_source: dict[str, int] = {}
    for source in data.sources:
        rows, _ = source.expected_rows()
        if rows is not None:
            rows_by_source[source.label] = rows
    has_modalities = any(stage.modality != "all" for stage in data.stages)
    if len(rows_by_source) < len(data.sources) or has_modalities:
        return planned_records(data)
    if not data.stages:
        num_records = sum(rows_by_source.values()) - data.validation
        return num_records, "the sum of its sources less validation, before filters"
    num_drawn = 0.0
    for stage in data.stages:
        names = stage.sources or list(rows_by_source)
        num_drawn += stage.repeat * sum(rows_by_source[name] for name in names)
    return round(num_drawn), "the sum of its stages, before filters"


def planned_records(data: MixtureConfig) -> tuple[int | None, str]:
    """Return the number of records that a data card in the cache states, and the card's file.

    `data/mixture.py --plan` writes the cards. The newest card of this `data` section is taken. The
    number is None if there is none.
    """
    cards = sorted(data.cache_folder.glob("*.card.json"), key=lambda file: -file.stat().st_mtime)
    for file in cards:
        card = read_json(file)
        if card.get("section") == data.digest:
            return int(card["epoch_size"]), f"counted by data/mixture.py --plan: {file}"
    return None, UNKNOWN


def known_steps(recipe: Recipe) -> int | None:
    """Return the optimizer steps of a run, None if they depend on data that have not been read."""
    num_records, _ = epoch_records(recipe.data)
    if recipe.optim.max_steps is None and num_records is None:
        return None
    return recipe.steps(num_records or 0)

"""How many records an epoch draws and how many steps a run has, as far as that is known before the data are read."""

from __future__ import annotations

from mmrm.data.preparation.mixing import MixtureConfig
from mmrm.data.storage.files import read_json
from mmrm.train.recipe.recipe import Recipe

UNKNOWN = "known once the data are read (python data/mixture.py RECIPE --plan)"


def epoch_records(data: MixtureConfig) -> tuple[int | None, str]:
    """Return the length of an epoch, None if it depends on data that nobody has read, and how it is known."""
    if data.records is not None:
        return data.records, "data.records"
    known = {
        source.label: rows
        for source in data.sources
        if (rows := source.expected_rows()[0]) is not None
    }
    if len(known) < len(data.sources) or any(part.modality != "all" for part in data.stages):
        return planned_records(data)
    if data.stages:
        drawn = [
            part.repeat * sum(known[name] for name in part.sources or known) for part in data.stages
        ]
        return round(sum(drawn)), "the sum of its stages, before filters"
    return sum(
        known.values()
    ) - data.validation, "the sum of its sources less validation, before filters"


def planned_records(data: MixtureConfig) -> tuple[int | None, str]:
    """Return the epoch of the newest data card of this `data` section that `data/mixture.py --plan` left in the cache."""
    for file in sorted(
        data.cache_folder.glob("*.card.json"), key=lambda found: -found.stat().st_mtime
    ):
        card = read_json(file)
        if card.get("section") == data.digest:
            return int(card["epoch_size"]), f"counted by data/mixture.py --plan: {file}"
    return None, UNKNOWN


def known_steps(recipe: Recipe) -> int | None:
    """Return the optimizer steps of a run, None where only the data can tell."""
    records, _ = epoch_records(recipe.data)
    return (
        None if recipe.optim.max_steps is None and records is None else recipe.steps(records or 0)
    )

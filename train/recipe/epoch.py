"""How many records an epoch draws and how many steps a run has, as far as that is known before the data are read."""

from __future__ import annotations

from mmrm.data.preparation.mixing import MixtureConfig
from mmrm.data.sources.shapes import ShapesConfig
from mmrm.data.sources.shared.file_source import FilesConfig
from mmrm.data.sources.shared.source import SourceConfig
from mmrm.data.sources.ultrafeedback import UltraFeedbackConfig
from mmrm.data.storage.files import read_json
from mmrm.train.recipe.recipe import Recipe

STATED_ROWS = {
    "OpenGVLab/MMPR-v1.2": 3_000_000,
    "allenai/llama-3.1-tulu-3-8b-preference-mixture": 271_409,
    "allenai/olmo-2-1124-7b-preference-mix": 378_341,
    "nvidia/HelpSteer3": 38_459,
    "openbmb/RLAIF-V-Dataset": 83_132,
    "openbmb/UltraFeedback": 63_967,
    "trl-lib/rlaif-v": 83_132,
    "yifanzhang114/R1-Reward-RL": 17_261,
}
"""Rows of public data sets as their cards state them; what a run really reads is in its data card."""

UNKNOWN = "known once the data are read (python data/mixture.py RECIPE --plan)"


def source_rows(source: SourceConfig) -> tuple[int | None, str]:
    """Return the rows that an epoch draws from `source` before anything is left out, and how that is known."""
    several = isinstance(source, UltraFeedbackConfig) and source.pairs == "all"  # pairs a row
    if isinstance(source, ShapesConfig):
        rows, origin = source.rows, "generated"
    elif (
        isinstance(source, FilesConfig)
        and source.path is None
        and source.hub in STATED_ROWS
        and not several
    ):
        rows, origin = STATED_ROWS[source.hub], "stated by its card"
    else:
        return None, "counted at the first reading"
    if source.cap is not None and source.cap < rows:
        rows, origin = source.cap, f"{origin}, capped"
    return round(rows * source.repeat), origin


def epoch_records(data: MixtureConfig) -> tuple[int | None, str]:
    """Return the length of an epoch, None if it depends on data that nobody has read, and how it is known."""
    if data.records is not None:
        return data.records, "data.records"
    known = {
        source.label: rows
        for source in data.sources
        if (rows := source_rows(source)[0]) is not None
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

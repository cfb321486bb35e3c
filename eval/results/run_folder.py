"""What a report is made of, read from a run folder or from the output folder of a sweep: log, provenance and results."""

from pathlib import Path

from mmrm.data.storage.manifest import JUDGE_CARD

CARD, RECIPE, LAUNCHES = JUDGE_CARD, "recipe.yaml", "provenance.json"


PROVENANCE, STATE, BEST = "provenance.json", "trainer_state.json", "best"


SWEEP, ABLATION = "sweep.json", "ablation.json"
"""What makes a folder that of a sweep, and that of a list of train/ablate.py."""


LOG = "log.jsonl"
"""Every line of a run's log as it comes; the states of checkpoints have it too, up to their step."""

OVEROPTIMISATION, PREDICTORS = (
    Path("overoptimisation", "figures.json"),
    Path("predictors", "predictors.json"),
)


HELD_OUT = "held_out"
"""Name of the evaluation on the records that `data.validation` withholds from training."""

HELD_OUT_RECORDS = "validation.jsonl"
"""The held-out records in this project's format, images included."""

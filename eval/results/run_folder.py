"""Names of the files in run folders, checkpoints, sweeps and the folders of studies."""

from pathlib import Path

from mmrm.data.storage.manifest import JUDGE_CARD

CARD = JUDGE_CARD
"""In a checkpoint: the judge that it is."""
RECIPE = "recipe.yaml"
"""In a run folder: the recipe with all its values."""
LAUNCHES = "provenance.json"
PROVENANCE = "provenance.json"
"""In a run folder: the command, code and data of each launch of the run."""
STATE = "trainer_state.json"
"""In a checkpoint: the trainer's state with the log up to its step."""
BEST = "best"
"""In a run folder: a link to the best checkpoint."""
LOG = "log.jsonl"
"""In a run folder: every line of the run's log, written when it occurs."""

SWEEP = "sweep.json"
"""The file by which the output folder of a sweep is recognised."""
ABLATION = "ablation.json"
"""The file by which the output folder of train/ablate.py is recognised."""
OVEROPTIMISATION = Path("overoptimisation", "figures.json")
"""In the folder of an ablation: the figures of eval/overoptimisation.py."""
PREDICTORS = Path("predictors", "predictors.json")
"""In the folder of an ablation: the figures of train/predictors.py."""

HELD_OUT = "held_out"
"""Name of the evaluation on the records that `data.validation` withholds from training."""
HELD_OUT_RECORDS = "validation.jsonl"
"""The held-out records in this project's format, with images."""

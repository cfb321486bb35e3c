"""Names of the files and figures in a run folder that training writes and evaluation reads."""

HELD_OUT = "held_out"
"""Name of the evaluation on the records that `data.validation` withholds from training."""
HELD_OUT_RECORDS = "validation.jsonl"
"""The held-out records in this project's format, images included."""

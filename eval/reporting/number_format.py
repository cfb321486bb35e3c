"""The page of a list of runs: its variants side by side, and beside them what was found out about policies and reward models.

Read are the files that train/ablate.py, eval/overoptimisation.py and train/predictors.py leave in the list's folder.
"""

from mmrm.eval.reporting.run_charts import Score


def scored(score: Score) -> str:
    """Return a mean score with its interval as a text."""
    mean, *interval = score
    return signed(mean) + (f" [{signed(interval[0])}, {signed(interval[1])}]" if interval else "")


def signed(value: float) -> str:
    """Return a number with its sign and two decimals."""
    return f"{value:+.2f}".replace("-", "−")

"""What is behind a score: calibration, margins, and the pull of the longer response.

Pure functions on numpy arrays, one entry a row of the benchmark. A *margin* is score(better response) - score(other response);
credits are as in `eval.results.intervals`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from eval.protocol import Floats, Ints
from eval.results.intervals import Z95, wilson


@dataclass(frozen=True, slots=True)
class Bin:
    """Rows that lie between two edges: how many, how many credits, and the accuracy's 95 % interval."""

    low_edge: float
    high_edge: float
    n: int
    mean: float | None
    """Mean of what was binned (a confidence, a log ratio of lengths); None for an empty bin."""
    accuracy: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Calibration:
    """How often the response of the higher score is the better one, against sigmoid(|margin|), which claims to say so."""

    ece: float
    """Expected calibration error: the mean gap between confidence and accuracy, weighted by rows."""
    bins: tuple[Bin, ...]


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts between edges; `edges` is one longer than `counts`."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LengthBias:
    """How right and wrong answers depend on which response is longer."""

    slope: float | None
    """Change of accuracy for each doubling of length(better) / length(other), by least squares; None if the ratio is constant."""
    low: float | None
    high: float | None
    """The slope's 95 % interval, by heteroscedasticity-consistent standard errors (HC1)."""
    prefers_longer: float | None
    """Share of rows of unequal length in which the judge prefers the longer response."""
    longer_is_better: float | None
    """Share of the same rows in which it should."""
    bins: tuple[Bin, ...]
    """Accuracy by log2(length(better) / length(other)), equally many rows a bin."""


def calibration(margins: Floats, bins: int = 10) -> Calibration | None:
    """Return how far sigmoid(|margin|) is from the share of rows whose higher score is the better response's.

    Arguments: finite margins of shape (n,). Bins are equally wide over confidences from 0.5 to 1; a margin of zero has
    confidence 0.5 and counts as half right. Returns None without rows. Source: Guo et al. 2017, section 2 (ECE).
    """
    if not len(margins):
        return None
    confidence = 1 / (1 + np.exp(-np.abs(np.asarray(margins, dtype=np.float64))))
    credit = np.where(margins > 0, 1.0, np.where(margins == 0, 0.5, 0.0))
    filled = _bins(np.linspace(0.5, 1.0, bins + 1), confidence, credit)
    gaps = [abs((entry.mean or 0) - (entry.accuracy or 0)) * entry.n for entry in filled]
    return Calibration(sum(gaps) / len(margins), filled)


def margin_histogram(margins: Floats, bins: int = 40) -> Histogram | None:
    """Return how many finite margins lie in each of `bins` equal parts of [-m, m], m the largest |margin|; None without rows."""
    if not len(margins):
        return None
    reach = float(np.abs(margins).max()) or 1.0
    counts, edges = np.histogram(np.asarray(margins, dtype=np.float64) / reach, bins=bins, range=(-1, 1))
    return Histogram(tuple(map(float, edges * reach)), tuple(map(int, counts)))


def length_bias(better: Ints, other: Ints, credit: Floats, bins: int = 5) -> LengthBias:
    """Return how the credit depends on the lengths of the two responses.

    Arguments, all of shape (n,): length of the better response and of the other one (characters), and the credit of
    rows with a verdict: 1 if the judge prefers the better response, 0 if the other, 0.5 for a tie.
    """
    ratio = np.log2((better + 1) / (other + 1))
    unequal = better != other
    longer = (better > other)[unequal]
    prefers = np.where(longer, credit[unequal], 1 - credit[unequal])
    edges = np.quantile(ratio, np.linspace(0, 1, bins + 1)) if len(ratio) else np.zeros(bins + 1)
    slope, low, high = _slope(ratio, credit) or (None, None, None)
    return LengthBias(
        slope=slope,
        low=low,
        high=high,
        prefers_longer=float(prefers.mean()) if unequal.any() else None,
        longer_is_better=float(longer.mean()) if unequal.any() else None,
        bins=_bins(edges, ratio, credit),
    )


def _slope(x: Floats, y: Floats) -> tuple[float, float, float] | None:
    """Return the least-squares slope of y on x and its 95 % interval (HC1); None where x does not vary."""
    n = len(x)
    centred = x - x.mean() if n > 2 else np.zeros(1)
    spread = float((centred**2).sum())
    if spread == 0:
        return None
    slope = float((centred * y).sum() / spread)
    residual = y - y.mean() - slope * centred
    variance = float((centred**2 * residual**2).sum()) / spread**2 * n / (n - 2)
    error = math.sqrt(variance)
    return slope, slope - Z95 * error, slope + Z95 * error


def _bins(edges: Floats, value: Floats, credit: Floats) -> tuple[Bin, ...]:
    """Return the rows by where their value lies between the edges, the last bin with its upper edge."""
    place = np.clip(np.searchsorted(edges, value, side="right") - 1, 0, len(edges) - 2)
    found = []
    for index in range(len(edges) - 1):
        inside = place == index
        n = int(inside.sum())
        mean, accuracy = (float(of[inside].mean()) if n else None for of in (value, credit))
        low, high = wilson(float(credit[inside].sum()), n) if n else (None, None)
        found.append(Bin(float(edges[index]), float(edges[index + 1]), n, mean, accuracy, low, high))
    return tuple(found)

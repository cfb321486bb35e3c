"""How far shortcuts predict the labels of a source, for the data card.

A shortcut is a property of responses that says nothing about their quality, such as their length
(`mmrm.data.text_shortcuts`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mmrm.data.display.format import percent, whole_percent
from mmrm.data.preparation.row_index import ShortcutArrays
from mmrm.data.share_intervals import share_interval
from mmrm.data.text_shortcuts import SHORTCUTS, UNKNOWN


@dataclass(frozen=True)
class ShortcutCounts:
    """The figures that say how far one shortcut predicts the labels of a source."""

    name: str
    """A key of SHORTCUTS."""
    pairs: int
    """Number of records with a preference in which the shortcut is known. Records with more than
    two responses count by their best and their worst one."""
    share: float
    """Share of these records whose preferred response has more of the property. A record whose
    responses have equally much counts half. It is 0.5 if the shortcut predicts nothing."""
    low: float
    high: float
    """The 95 % interval of `share`. Records of one image or, without an image, of one prompt are
    not independent."""
    equal: float
    """Share of these records whose responses have equally much of the property."""

    @property
    def line(self) -> str:
        """The counts as a sentence for people."""
        return (
            f"{SHORTCUTS[self.name].description} is preferred in {percent(self.share)} % "
            f"[{percent(self.low)}, {percent(self.high)}] "
            f"({whole_percent(round(self.equal, 3))} equal)"
        )


@dataclass(frozen=True)
class ShortcutCard:
    """The shortcuts of one source."""

    shortcuts: list[ShortcutCounts]
    """The shortcuts that are known in some record, in the order of SHORTCUTS."""
    overlap: float | None
    """Mean overlap of the words of the preferred and the other response, from 0 to 1; None without
    records. Pairs of a large overlap differ in little."""

    def lines(self, source: str) -> list[str]:
        """Return the shortcuts as lines for the console.

        Shortcuts that are equal in all records are named in the last line.

        Args:
            source: The name of the source.
        """
        shown = [counts for counts in self.shortcuts if counts.equal < 1]
        without_difference = [counts.name for counts in self.shortcuts if counts.equal == 1]
        lines = [f"{source}: {counts.line}" for counts in shown]
        facts = []
        if without_difference:
            facts.append(f"equal in all pairs: {', '.join(without_difference)}")
        if self.overlap is not None:
            facts.append(
                f"both responses share {percent(self.overlap)} % of their words on average"
            )
        if facts:
            lines.append(f"{source}: {'; '.join(facts)}")
        return lines


def shortcut_card(
    shortcuts: ShortcutArrays,
    image_keys: npt.NDArray[np.uint64],
    prompt_keys: npt.NDArray[np.uint64],
) -> ShortcutCard:
    """Return how far each shortcut predicts the labels of some records.

    Args:
        shortcuts: Signs and overlaps of the records, as in a row index.
        image_keys: Numbers that are equal for records whose prompts begin with the same image, 0
            without an image, (records,).
        prompt_keys: Numbers that are equal for records with the same prompt, (records,).
    """
    # Two records with one prompt have one first image, so a prompt's own key is needed only without.
    keys = np.where(image_keys > 0, image_keys, prompt_keys)
    _, clusters = np.unique(keys, return_inverse=True)
    counts = []
    for column, name in enumerate(SHORTCUTS):
        signs = shortcuts[:, column]
        is_known = signs != UNKNOWN
        if not is_known.any():
            continue
        known_signs = signs[is_known]
        credits = (known_signs + 1) / 2
        estimate = share_interval(credits, clusters[is_known])
        assert estimate.low is not None, "a share has an interval"
        assert estimate.high is not None, "a share has an interval"
        counts.append(
            ShortcutCounts(
                name=name,
                pairs=int(is_known.sum()),
                share=estimate.mean,
                low=estimate.low,
                high=estimate.high,
                equal=float((known_signs == 0).mean()),
            )
        )
    overlaps = shortcuts[:, -1]
    mean_overlap = float(overlaps.mean()) / 100 if len(overlaps) else None
    return ShortcutCard(counts, mean_overlap)

"""The share of tokens and patches that is left to compute if records share prompts and images.

Without sharing, every pair is computed by itself: its prompt and images once, and both responses.
That is 100 %. The shares are estimates from the row indices: tokens of texts are estimated from
bytes, limits such as the token budget are left out, and a response that several pairs compare is
counted for each of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.number]


@dataclass(frozen=True)
class LeftToCompute:
    """The shares of a source's tokens and patches that are left to compute, from 0 to 1."""

    tokens: float
    patches: float | None
    """None if the source has no images, or if it is generated."""

    @property
    def cells(self) -> list[str]:
        """The shares of tokens and of patches as text, such as "63%"; "-" without images."""
        patches = "-" if self.patches is None else f"{self.patches:.0%}"
        return [f"{self.tokens:.0%}", patches]


@dataclass(frozen=True)
class RecordLengths:
    """Lengths of the records of a mixture in tokens, (records,) each."""

    total: Numbers
    """Prompt, images and both responses."""
    prompt: Numbers
    """The prompt with its images."""
    images: Numbers
    """All images, those of the responses among them."""
    prompt_images: Numbers
    """The images of the prompt."""
    first_image: Numbers
    """The image with which the prompt begins; 0 without images."""


def left_to_compute(
    lengths: RecordLengths,
    order: npt.NDArray[np.integer],
    same_prompt: npt.NDArray[np.bool_],
    same_image: npt.NDArray[np.bool_],
    source_numbers: npt.NDArray[np.integer],
    num_sources: int,
) -> list[LeftToCompute]:
    """Return for each source what is left to compute of its records in `order`.

    Args:
        lengths: The lengths of all records.
        order: Indices of records, (n,).
        same_prompt: Whether each record is computed with the one before it, which has the same
            prompt, (n,).
        same_image: The same for records that begin with the same image, (n,).
        source_numbers: The source of each record in `order`, (n,).
        num_sources: The number of sources.
    """
    saved_tokens = np.zeros(len(order))
    saved_patches = np.zeros(len(order))  # in tokens of images
    saved_tokens[same_image] = lengths.first_image[order][same_image]
    saved_patches[same_image] = lengths.first_image[order][same_image]
    saved_tokens[same_prompt] = lengths.prompt[order][same_prompt]
    saved_patches[same_prompt] = lengths.prompt_images[order][same_prompt]

    total = np.bincount(source_numbers, lengths.total[order], num_sources)
    images = np.bincount(source_numbers, lengths.images[order], num_sources)
    total_saved = np.bincount(source_numbers, saved_tokens, num_sources)
    images_saved = np.bincount(source_numbers, saved_patches, num_sources)
    shares = []
    for source in range(num_sources):
        # A source of which nothing is drawn, or which is generated, has no tokens here.
        tokens = 1.0
        if total[source]:
            tokens = float(1 - total_saved[source] / total[source])
        patches = None
        if images[source]:
            patches = float(1 - images_saved[source] / images[source])
        shares.append(LeftToCompute(tokens, patches))
    return shares


def repeats(values: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
    """Return for each value whether it is equal to the one before it, (n,)."""
    return np.asarray(np.diff(values, prepend=-1) == 0)

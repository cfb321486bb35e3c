"""The influence of each source on held-out pairs, by inner products of gradients.

A step of gradient descent on a pair, with a small learning rate η, changes the loss of a held-out
pair by -η times the inner product of their two gradients. The influence of a source is the mean of
these inner products over the source's pairs and the held-out pairs, at the weights of a checkpoint:
above 0, training on the source lowers the loss of the held-out pairs, and below 0 it raises it.
This is TracIn (arXiv 2002.08484, equation 1) at one checkpoint, and LESS (arXiv 2402.04333) without
the preconditioner of Adam, without the division by the lengths of the gradients, and without random
projections.

The gradients are those of the loss that training minimises, with respect to the weights that it
trains, in eval mode.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmrm.data.arrays import Floats
from mmrm.eval.results.intervals import Estimate, student_quantile


@dataclass(frozen=True, slots=True)
class Products:
    """Inner products of the gradient of each pair with means of other pairs' gradients.

    Sources and targets are in the same order. A target is the held-out pairs of one source.
    """

    sources: tuple[str, ...]
    of_training: tuple[Floats, ...]
    """For each source, its pairs with the mean gradient of each target: (pairs, targets)."""
    of_held_out: tuple[Floats, ...]
    """For each target, its pairs with the mean gradient of each source: (pairs, sources)."""

    def influence(self, source: str, targets: Sequence[str]) -> tuple[float, float, int]:
        """Return the influence of a source on the held-out pairs of several sources together.

        Every held-out pair counts alike.

        Returns:
            The mean inner product, its standard error over the training pairs and the held-out
            pairs, and the degrees of freedom of the standard error: one less than the pairs of the
            source, or of the target with the fewest pairs.
        """
        source_index = self.sources.index(source)
        target_indices = [self.sources.index(target) for target in targets]
        counts = np.array([len(self.of_held_out[index]) for index in target_indices])
        shares = counts / counts.sum()
        of_training = self.of_training[source_index][:, target_indices] @ shares
        # The pairs of all sides are drawn independently. To first order, the variance of a mean
        # over all combinations is the sum of the variances of the sides (Hoeffding 1948).
        variance = of_training.var(ddof=1) / len(of_training)
        for index, share in zip(target_indices, shares.tolist(), strict=True):
            of_held_out = self.of_held_out[index][:, source_index]
            variance += share**2 * of_held_out.var(ddof=1) / len(of_held_out)
        degrees = min(len(of_training), int(counts.min())) - 1
        return float(of_training.mean()), math.sqrt(variance), degrees

    @property
    def plain(self) -> dict[str, Any]:
        """The products in the form that is written to JSON."""
        return {
            "sources": list(self.sources),
            "of_training": [products.tolist() for products in self.of_training],
            "of_held_out": [products.tolist() for products in self.of_held_out],
        }

    @classmethod
    def from_plain(cls, stored: Mapping[str, Any]) -> "Products":
        """Return the products that `plain` has written."""
        num_sources = len(stored["sources"])
        of_training = [np.reshape(rows, (-1, num_sources)) for rows in stored["of_training"]]
        of_held_out = [np.reshape(rows, (-1, num_sources)) for rows in stored["of_held_out"]]
        return cls(tuple(stored["sources"]), tuple(of_training), tuple(of_held_out))


def mean_influence(
    products: Sequence[Products], source: str, targets: Sequence[str], comparisons: int = 1
) -> Estimate:
    """Return the mean influence of a source over checkpoints, with its interval over pairs.

    The held-out pairs are the same for all checkpoints, so their errors do not cancel: the standard
    error of the mean is the mean of the standard errors, as if all errors were equal. The interval
    is for other pairs, not for other trainings.

    Args:
        products: The products at each checkpoint.
        source: The source.
        targets: The sources of the held-out pairs.
        comparisons: Number of intervals that are read together; they hold together at 95 %.
    """
    influences = [at_checkpoint.influence(source, targets) for at_checkpoint in products]
    mean = float(np.mean([influence for influence, _, _ in influences]))
    error = float(np.mean([error for _, error, _ in influences]))
    degrees = min(degrees for _, _, degrees in influences)
    half_width = student_quantile(degrees, comparisons) * error
    return Estimate(mean, mean - half_width, mean + half_width)

"""The prompts of a run in their order: what a judge is asked about pairs, or what a policy is asked.

models/packed_generation.py samples texts on them.
"""

from dataclasses import dataclass, replace

import numpy as np

from mmrm.train.methods.language_model.method import Indices
from mmrm.train.reinforce.rollouts import Prompt, RunPrompts


@dataclass
class PolicyQuestions(RunPrompts):
    """What a policy is asked."""

    def order(self, epoch: int) -> Indices:
        """Return the mixture's own order."""
        return self.mixture.order(epoch).astype(np.int64)

    def load(self, index: int, place: int) -> Prompt:
        """Return a record's prompt."""
        return self.mixture.load(
            index, lambda found: replace(self.encode(found, found.prompt, place), question=found)
        )

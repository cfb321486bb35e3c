"""The prompts of a policy: the questions of the records of a recipe."""

from dataclasses import dataclass, replace

import numpy as np

from mmrm.data.preference import Preference
from mmrm.train.methods.language_model.method import Indices
from mmrm.train.reinforce.rollouts import Prompt, RunPrompts


@dataclass
class PolicyQuestions(RunPrompts):
    """The questions that a policy is asked. The index of a prompt is the index of its record."""

    def order(self, epoch: int) -> Indices:
        """Return the indices of the records of an epoch, in the order of the mixture."""
        return self.mixture.order(epoch).astype(np.int64)

    def load(self, index: int, place: int) -> tuple[Prompt, ...]:
        """Return the prompt of record `index`, or of the next usable record of its source."""
        return self.mixture.load(index, lambda record: self._encode(record, place))

    def _encode(self, record: Preference, place: int) -> tuple[Prompt, ...]:
        """Return the prompt of a record, with the record, which the reward reads."""
        prompt = self.encode(record, record.prompt, record.images, record.videos, place)
        return (replace(prompt, question=record),)

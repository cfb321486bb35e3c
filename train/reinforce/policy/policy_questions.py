"""The prompts of a policy: the questions of the mixture."""

from dataclasses import dataclass, replace

import numpy as np

from mmrm.data.preference import Preference
from mmrm.train.methods.language_model.method import Indices
from mmrm.train.reinforce.rollouts import Prompt, RunPrompts


@dataclass
class PolicyQuestions(RunPrompts):
    """The questions that a policy is asked."""

    def order(self, epoch: int) -> Indices:
        """Return the mixture's own order."""
        return self.mixture.order(epoch).astype(np.int64)

    def load(self, index: int, place: int) -> Prompt:
        """Return the prompt of the record `index`, with the record, which the reward needs."""
        return self.mixture.load(index, lambda record: self._encode(record, place))

    def _encode(self, record: Preference, place: int) -> Prompt:
        return replace(self.encode(record, record.prompt, place), question=record)

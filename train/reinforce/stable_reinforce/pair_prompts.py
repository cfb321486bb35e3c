"""The prompts of a judge: requests to compare the responses of a pair."""

from dataclasses import dataclass, replace

from mmrm.data.preference import Preference
from mmrm.data.prompts import JudgeTemplate, judge_conversation
from mmrm.train.methods.language_model.method import Indices, indices_with_sides, shown_responses
from mmrm.train.reinforce.rollouts import Prompt, RunPrompts


@dataclass
class PairPrompts(RunPrompts):
    """Requests to compare pairs, with the winner first in exactly half of each epoch."""

    template: JudgeTemplate

    def order(self, epoch: int) -> Indices:
        """Return the indices of the prompts of an epoch: 2 * (index of the record) + side."""
        return indices_with_sides(self.mixture.order(epoch), self.mixture.config.seed, epoch)

    def load(self, index: int, place: int) -> Prompt:
        """Return a prompt: the winner is the first response for an even `index`, else the second."""
        record, side = divmod(index, 2)
        return self.mixture.load(record, lambda pair: self._encode(pair, side, place))

    def _encode(self, record: Preference, side: int, place: int) -> Prompt:
        request = judge_conversation(self.template, record.prompt, *shown_responses(record, side))
        return replace(self.encode(record, request, place), winner=1 if side == 0 else 2)

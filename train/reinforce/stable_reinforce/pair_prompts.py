"""The prompts of a judge: requests to compare the responses of a pair."""

from dataclasses import dataclass, field, replace

from mmrm.data.preference import Preference
from mmrm.data.prompts import JudgeTemplate, judge_conversation
from mmrm.train.methods.language_model.method import Indices, indices_with_sides, shown_responses
from mmrm.train.reinforce.rollouts import Prompt, RunPrompts


@dataclass
class PairPrompts(RunPrompts):
    """Requests to compare the responses of pairs, with the better one first in half of each epoch.

    The index of a prompt is 2 * (index of its record) + side. The better response is shown first if
    the side is 0, and second if it is 1.
    """

    template: JudgeTemplate
    """The name of the prompt in which the pair is shown."""
    both_orders: bool = field(default=False, kw_only=True)
    """A pair has a prompt for each order of its responses: first that of its index, then the other
    one."""

    @property
    def prompts_per_place(self) -> int:
        """The number of orders in which a pair is shown."""
        return 2 if self.both_orders else 1

    def order(self, epoch: int) -> Indices:
        """Return the indices of the prompts of an epoch, in the order of their records."""
        return indices_with_sides(self.mixture.order(epoch), self.mixture.config.seed, epoch)

    def load(self, index: int, place: int) -> tuple[Prompt, ...]:
        """Return the prompts of `index`, with its record or the next usable one of its source."""
        record_index, side = divmod(index, 2)
        sides = (side, 1 - side) if self.both_orders else (side,)

        def prompts(record: Preference) -> tuple[Prompt, ...]:
            return tuple(self._encode(record, side, place) for side in sides)

        return self.mixture.load(record_index, prompts)

    def _encode(self, record: Preference, side: int, place: int) -> Prompt:
        """Return the prompt that compares a record's responses, the better one first on side 0."""
        first, second = shown_responses(record, side)
        request = judge_conversation(self.template, record.prompt, first, second)
        images = (*record.images, *first.images, *second.images)
        videos = (*record.videos, *first.videos, *second.videos)
        prompt = self.encode(record, request, images, videos, place)
        return replace(prompt, winner=1 if side == 0 else 2, question=record)

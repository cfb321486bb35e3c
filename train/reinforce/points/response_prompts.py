"""The prompts of a judge of single responses: a question about each response of a pair."""

from dataclasses import dataclass

import numpy as np

from mmrm.data.point_prompt import PointPrompt
from mmrm.data.preference import Preference, Response
from mmrm.train.methods.language_model.method import Indices
from mmrm.train.reinforce.rollouts import Prompt, RunPrompts


@dataclass
class ResponsePrompts(RunPrompts):
    """Questions about the responses of pairs. The index of the prompts is that of their record."""

    points: PointPrompt
    """The question about one response."""

    @property
    def prompts_per_place(self) -> int:
        """The number of responses of a pair."""
        return 2

    def order(self, epoch: int) -> Indices:
        """Return the indices of the records of an epoch, in the order of the mixture."""
        return self.mixture.order(epoch).astype(np.int64)

    def load(self, index: int, place: int) -> tuple[Prompt, ...]:
        """Return the questions about the better and the worse response, in this order.

        They are those of record `index`, or of the next usable record of its source.
        """

        def prompts(record: Preference) -> tuple[Prompt, ...]:
            responses = (record.chosen, record.rejected)
            return tuple(self._encode(record, response, place) for response in responses)

        return self.mixture.load(index, prompts)

    def _encode(self, record: Preference, response: Response, place: int) -> Prompt:
        """Return the question about one response of a record."""
        request = self.points.ask(record.prompt, response)
        images = (*record.images, *response.images)
        videos = (*record.videos, *response.videos)
        return self.encode(record, request, images, videos, place)

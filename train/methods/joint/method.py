"""The joint reward model: all responses to a prompt in one conversation, each read at its end."""

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mmrm.data.errors import RecordError
from mmrm.data.preference import Preference
from mmrm.eval.judges.joint.judge import JointJudge
from mmrm.models.config import Read
from mmrm.models.encoder import Conversation, Encoder
from mmrm.models.portable.orders import MOST_ORDERS
from mmrm.train.methods.joint.config import JointConfig
from mmrm.train.methods.method import SupervisedMethod
from mmrm.train.objectives.listwise.objective import Listwise
from mmrm.train.objectives.response_objective import ObjectiveSettings
from mmrm.train.supervised.steps import (
    Costs,
    Encode,
    MixtureRecords,
    TrainingExample,
    expected_costs,
)


def shown_order(seed: int, epoch: int, record: Preference) -> list[int]:
    """Draw the order in which an epoch shows the responses of a record, as their indices.

    It depends on the arguments alone. Loader workers, ranks and resumed runs draw the same order.
    """
    order = list(range(len(record.responses)))
    random.Random(f"{seed}/{epoch}/{record.identity}").shuffle(order)
    return order


@dataclass(frozen=True, slots=True)
class JointEncoder:
    """Encodes a record as one conversation that ends with all of its responses.

    The responses are successive turns of the assistant, in the order of `shown_order`. The outputs
    of the tree are in the order of the record, the best response first.

    Example: the order 2, 0, 1 gives

        prompt | response 2 | response 0 | response 1
                     the third    the first    the second output
    """

    encoder: Encoder
    read: Read
    seed: int
    most_responses: int
    """Largest number of responses of a record."""

    def __call__(self, record: Preference, epoch: int = 0) -> TrainingExample:
        """Decode the images of a record and encode it for an epoch.

        Raises:
            RecordError: The record cannot be decoded or encoded, or has too many responses.
        """
        self.encoder.refuse_control_tokens(record)
        num_responses = len(record.responses)
        if num_responses > self.most_responses:
            raise RecordError(
                f"{record.identity}: the record has {num_responses} responses, and "
                f"method.responses allows {self.most_responses} in one conversation. Set "
                f"method.responses={num_responses}, or filter such records."
            )
        order = shown_order(self.seed, epoch, record)
        responses = [record.responses[index] for index in order]
        conversation = Conversation.answered(
            record.prompt, record.images, *responses, videos=record.videos
        )
        tree = self.encoder.encode_joint(conversation, num_responses, self.read, record.identity)
        outputs = [tree.outputs[order.index(response)] for response in range(num_responses)]
        return TrainingExample(
            tree.with_outputs(outputs),
            ranks=record.ranks,
            attributes=((),) * num_responses,
            record=record.identity,
        )


@dataclass(frozen=True, slots=True)
class JointRecords(MixtureRecords):
    """The records of the mixture in every epoch.

    An index is (number of the epoch) * (number of records) + (index of the record), because the
    epoch decides the order of a record's responses. The index alone therefore tells a loader worker
    or a resumed run how to encode the record.
    """

    def __getitem__(self, index: int) -> TrainingExample:
        epoch, record_index = divmod(index, len(self.mixture))
        return self.load(record_index, epoch)

    def order(self, epoch: int) -> npt.NDArray[np.int64]:
        """Return the indices of an epoch in their order, the same on every rank."""
        records = self.mixture.order(epoch).astype(np.int64)
        return records + epoch * len(self.mixture)


@dataclass(frozen=True, slots=True)
class JointCosts(Costs):
    """The expected costs of the records of `JointRecords`, which are the same in every epoch."""

    def of_sets(
        self, drawn: npt.NDArray[np.integer]
    ) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.integer]]:
        """Return the costs and sizes of sets, as `Costs.of_sets` does.

        Args:
            drawn: Indices of `JointRecords`, which contain the epoch.
        """
        record_indices = drawn % len(self.records)
        return Costs.of_sets(self, record_indices)


class JointMethod(SupervisedMethod):
    """Trains a reward head that scores all responses to a prompt in one conversation."""

    config: JointConfig

    def prepare(self) -> None:
        """Build the records of the mixture, their expected costs, and the objective."""
        self.encode = JointEncoder(
            self.encoder, self.recipe.head.read, self.mixture.config.seed, self.config.responses
        )
        self.records = JointRecords(self.mixture, self.encode)
        self.costs = JointCosts(expected_costs(self.mixture))
        self.objective = Listwise(self.config.objective, ObjectiveSettings())

    def held_out_encoder(self) -> Encode:
        """Return the function that encodes a record of data.validation to see if it can be used.

        It also refuses a record with too many responses for one conversation.
        """
        return self.encode

    def judge(self, model: Any) -> JointJudge:
        """Return the model in training as a judge that scores all responses together."""
        most_trained = self.config.joint_responses(self.recipe)
        assert most_trained is not None, "the method shows several responses in a conversation"
        return JointJudge(
            model=model,
            packed=self.packed(),
            read=self.recipe.head.read,
            most_trained=most_trained,
            orders=MOST_ORDERS,
        )

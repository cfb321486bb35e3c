"""The critic: it writes a critique of each response, and its head scores the response after it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers import Trainer

from mmrm.data.errors import UserError
from mmrm.data.preference import Preference
from mmrm.data.preparation.mixing import Mixture
from mmrm.data.prompts import critiques_of, with_critique
from mmrm.eval.benchmarks.preference_folder import PREFERENCE_FOLDER
from mmrm.eval.candidates import Candidates, Scores
from mmrm.eval.judges.critic.judge import CriticJudge, CritiqueLayout
from mmrm.eval.protocol import ProtocolConfig
from mmrm.models.config import SamplingConfig
from mmrm.models.distributed import gather, rank, world_size
from mmrm.models.encoder import Conversation, Encoder
from mmrm.train.methods.critic.config import CriticConfig
from mmrm.train.methods.critic.objective import JointCritique
from mmrm.train.methods.critic.own_critiques import CritiqueStore, WriteCritiques
from mmrm.train.methods.method import SupervisedMethod
from mmrm.train.supervised.devices import unwrapped
from mmrm.train.supervised.steps import (
    MixtureRecords,
    TrainingExample,
    contents_of_images,
    shared_costs,
)
from mmrm.train.supervised.whole_weights import whole_weights

ModelCritiques = Callable[[Preference], Sequence[str] | None]
"""Returns the critiques of a record's chosen and rejected response that the model wrote; None for a
record that is scored on the critiques from the data."""


@dataclass(frozen=True, slots=True)
class CriticEncoder:
    """Encodes a preference as one tree of conversations, chosen first.

        prompt | response, request, critique | response, request, critique

    The critiques are those of the record, and their tokens are learned. A record that is scored on
    critiques by the model gets two more conversations with these, which are not learned. A record
    without any critique is scored after the bare responses.
    """

    encoder: Encoder
    request: str
    """The user's turn that asks for a critique."""
    model_critiques: ModelCritiques | None = None
    """None if all records are scored on the critiques from the data."""

    def __call__(self, record: Preference, side: int = 0) -> TrainingExample:
        """Decode the images of a record and encode its conversations; `side` is not used."""
        self.encoder.refuse_control_tokens(record)
        true_critiques = critiques_of(record)
        model_critiques = None
        if self.model_critiques is not None:
            model_critiques = self.model_critiques(record)
        responses = (record.chosen, record.rejected)
        conversations: list[Conversation] = []
        for critiques, is_learned in ((true_critiques, True), (model_critiques, False)):
            if critiques is None:
                continue
            for response, critique in zip(responses, critiques, strict=True):
                messages = with_critique(record.prompt, response, self.request, critique)
                images = (*record.images, *response.images)
                videos = (*record.videos, *response.videos)
                conversations.append(Conversation(messages, images, loss=is_learned, videos=videos))
        if not conversations:
            for response in responses:
                conversations.append(
                    Conversation.answered(
                        record.prompt, record.images, response, videos=record.videos
                    )
                )
        tree = self.encoder.encode_conversations(conversations, "end_of_turn", record.identity)
        return TrainingExample(
            tree,
            record.margin or 0.0,
            record=record.identity,
            prompt=(record.prompt, contents_of_images(tree)),
            has_model_critiques=model_critiques is not None,
        )


def refuse_missing_critiques(mixture: Mixture) -> None:
    """Raise UserError if some records of the mixture lack a critique of one of their responses.

    All ranks call together, and each reads its share of the records. The records of a generated
    source are all alike, so only one of them is read.
    """
    own_missing: list[int] = []
    start = 0
    for split in mixture.splits:
        indices_of_source = range(start, start + len(split.rows))
        own_indices = indices_of_source[rank() :: world_size()]
        if split.source.generated:
            own_indices = indices_of_source[:1]
        own_missing += [index for index in own_indices if critiques_of(mixture[index]) is None]
        start = indices_of_source.stop
    missing: list[int] = []
    for missing_of_rank in gather(own_missing):
        missing += missing_of_rank
    if missing:
        first = mixture[min(missing)].identity
        raise UserError(
            f"{len(missing):,} of {len(mixture):,} records have no critique of both responses (the "
            f"first: {first}). A critic learns from them. Add chosen_critique and "
            "rejected_critique to the records, or set method.records_without_critique: score_only "
            "to train their scores alone."
        )


class CriticMethod(SupervisedMethod):
    """A critic writes a critique of a response, then its head scores it (MM-RLHF-Reward)."""

    config: CriticConfig

    def prepare(self) -> None:
        """Build the records and the objective.

        If scores are trained on critiques by the model, also build the store of these critiques.
        """
        config = self.config
        if config.records_without_critique == "refuse":
            refuse_missing_critiques(self.mixture)
        self.store: CritiqueStore | None = None
        if config.critique != "ground_truth":
            self.store = CritiqueStore(self.folder / "critiques", config, self.recipe.seed)
            self.prepare_step = self.store.load
        self.encode = CriticEncoder(self.encoder, config.written_critiques.request)
        self.records = MixtureRecords(
            self.mixture,
            replace(self.encode, model_critiques=self.store),
            config.pairs_together,
            config.images_together,
        )
        self.costs = shared_costs(self.mixture, config.images_together)
        self.objective = JointCritique(config)

    def judge(self, model: Any, *, forgiving: bool = False) -> CriticJudge:
        """Return the model in training as a critic that writes critiques greedily.

        Args:
            model: The model; DeepSpeed, DDP or PEFT may have wrapped it.
            forgiving: Judge a filler in place of a record that cannot be encoded, instead of
                raising an error. Training skips and counts such records when it reads them.
        """
        return CriticJudge(
            model=unwrapped(model),
            # "own": the judge writes the critiques, after which it scores.
            critique=CritiqueLayout("own", self.config.written_critiques.request),
            forgiving=forgiving,
            packed=self.packed(),
            sampling=SamplingConfig(max_new_tokens=self.config.critique_max_tokens),
        )

    def trainer(self, **trainer: Any) -> Trainer:
        """Return the packed trainer, with a callback that writes critiques if scores need them.

        Args:
            trainer: Further arguments of FiniteTrainer.
        """
        packed_trainer = super().trainer(**trainer)
        if self.store is None:
            return packed_trainer

        def write(model: Any, batch: Sequence[Candidates]) -> Sequence[Scores]:
            """Return scores of pairs with the critiques that the model wrote for them."""
            judge = self.judge(model, forgiving=True)
            with whole_weights(packed_trainer.model_wrapped):
                return judge.under(ProtocolConfig(), PREFERENCE_FOLDER).score_batch(batch)

        packed_trainer.add_callback(WriteCritiques(self.store, self.steps, self.mixture, write))
        return packed_trainer

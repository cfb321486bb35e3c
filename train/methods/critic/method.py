"""The critic: it writes a critique of each response, and its head scores the response after it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers import Trainer

from mmrm.data.errors import UserError
from mmrm.data.preference import Message, Preference, text
from mmrm.data.preparation.mixing import Mixture
from mmrm.data.prompts import critiques_of, with_critique
from mmrm.eval.candidates import Example, Verdict
from mmrm.eval.judges.critic.judge import CriticJudge, CritiqueEncoder
from mmrm.models.config import SamplingConfig
from mmrm.models.distributed import gather, rank, world_size
from mmrm.models.encoder import Encoder
from mmrm.train.methods.critic.config import CriticConfig
from mmrm.train.methods.critic.objective import JointCritique
from mmrm.train.methods.critic.own_critiques import CritiqueStore, WriteCritiques
from mmrm.train.methods.method import SupervisedMethod, WritingUsage
from mmrm.train.supervised.devices import unwrapped
from mmrm.train.supervised.steps import MixtureRecords, TrainingExample, shared_costs
from mmrm.train.supervised.whole_weights import whole_weights

Critiques = Callable[[Preference], Sequence[str] | None]
"""The critiques on which a record is scored; None for a record that has none."""


@dataclass(frozen=True, slots=True)
class CriticEncoder:
    """Encodes a preference as one group of continuations, chosen first.

        prompt | response, request, critique | response, request, critique

    The critiques are the record's, and their tokens are learned. A record that is to be scored on
    critiques by the model gets two more continuations with those, which are not learned. A record
    without any critique is scored after the bare responses.
    """

    encoder: Encoder
    request: str
    written: Critiques | None = None
    """Critiques by the model, for the records that are to be scored on them. A record is scored on
    its own critiques if this is None, or returns None for it."""

    def __call__(self, record: Preference, side: int = 0) -> TrainingExample:
        """Decode the images and encode all continuations."""
        self.encoder.refuse_control_tokens(record)
        true_critiques = critiques_of(record)
        own_critiques = None
        if self.written is not None:
            own_critiques = self.written(record)
        responses = (record.chosen, record.rejected)
        conversations: list[tuple[Message, ...]] = []
        for critiques in (true_critiques, own_critiques):
            if critiques is None:
                continue
            for response, critique in zip(responses, critiques, strict=True):
                conversations.append(with_critique(record.prompt, response, self.request, critique))
        if not conversations:
            for response in responses:
                conversations.append((*record.prompt, text("assistant", response)))
        group = self.encoder.encode_conversations(
            record.images,
            conversations,
            "end_of_turn",
            record.identity,
            with_loss=0 if true_critiques is None else 2,
        )
        return TrainingExample(
            group,
            record.margin or 0.0,
            record=record.identity,
            prompt=(record.prompt, record.images),
            own_critiques=own_critiques is not None,
        )


def refuse_missing_critiques(mixture: Mixture) -> None:
    """Refuse the mixture if some records lack a critique.

    All ranks call together and read a share of the records each. Records of a generator are all
    alike: one of them is read.

    Raises:
        UserError: With the number of such records.
    """
    own_missing: list[int] = []
    start = 0
    for part in mixture.parts:
        indices = range(start, start + len(part.rows))
        read = indices[:1] if part.source.generated else indices[rank() :: world_size()]
        own_missing += [index for index in read if critiques_of(mixture[index]) is None]
        start = indices.stop
    missing: list[int] = []
    for missing_of_rank in gather(own_missing):
        missing += missing_of_rank
    if missing:
        first = mixture[min(missing)].identity
        raise UserError(
            f"{len(missing):,} of {len(mixture):,} records have no critique of both responses (the "
            f"first: {first}). A critic learns from them. Add chosen_critique and rejected_critique "
            "to the records, or set method.records_without_critique: score_only to train their "
            "scores alone."
        )


class CriticMethod(SupervisedMethod):
    """A critic (MM-RLHF-Reward)."""

    config: CriticConfig

    def prepare(self) -> None:
        """Build the records, and the store of the critic's own critiques if it writes some."""
        config = self.config
        if config.records_without_critique == "refuse":
            refuse_missing_critiques(self.mixture)
        self.store: CritiqueStore | None = None
        if config.critique != "ground_truth":
            self.store = CritiqueStore(self.folder / "critiques", config, self.recipe.seed)
            self.prepare_step = self.store.load
        self.encode = CriticEncoder(self.encoder, config.written_critiques.request)
        self.records = MixtureRecords(
            self.mixture, replace(self.encode, written=self.store), config.pairs_together
        )
        self.costs = shared_costs(self.mixture)
        self.objective = JointCritique(config)

    def judge(self, model: Any, *, forgiving: bool = False) -> CriticJudge:
        """Return the critic that writes its own critiques, greedily."""
        return CriticJudge(
            model=unwrapped(model),
            encode=CritiqueEncoder(
                self.encoder, "own", self.config.written_critiques.request, forgiving=forgiving
            ),
            packed=self.packed(),
            sampling=SamplingConfig(max_new_tokens=self.config.critique_max_tokens),
        )

    def writing_usage(self, judge: CriticJudge) -> WritingUsage:
        """Return the count of the critiques that a judge has written."""
        spent = judge.spent
        if not spent.judgements:
            return WritingUsage()
        return WritingUsage(spent.tokens, spent.figures())

    def trainer(self, **trainer: Any) -> Trainer:
        """Return the packed trainer, which writes the critic's own critiques on the way."""
        packed_trainer = super().trainer(**trainer)
        if self.store is None:
            return packed_trainer

        def write(model: Any, examples: Sequence[Example]) -> Sequence[Verdict]:
            with whole_weights(packed_trainer.model_wrapped):
                return self.judge(model, forgiving=True).judge(examples)

        packed_trainer.add_callback(WriteCritiques(self.store, self.steps, self.mixture, write))
        return packed_trainer

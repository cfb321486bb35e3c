"""The critic: critiques by cross-entropy and scores by Bradley-Terry, from one pass over a packed row.

The scores may be trained on critiques that the critic itself writes at stated steps, to close the gap to inference. At the first
step of every window of `refresh_every_steps` steps, all ranks write the critiques of the window's records together and store
them in the run folder; loader workers, which run ahead, wait for that file. A resume inside a window finds the file and goes on
with the very same critiques; files of other windows are left from what the run did before it was cut off, perhaps with another
recipe, and are removed when it starts. Critiques are stored under a digest of their record, as two sources may call different
records alike.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers import Trainer

from mmrm.data.errors import UserError
from mmrm.data.preference import Preference, text
from mmrm.data.preparation.mixing import Mixture
from mmrm.data.prompts import critiques_of, with_critique
from mmrm.eval.candidates import Example, Verdict
from mmrm.eval.judges.critic.judge import CriticJudge, CritiqueEncoder
from mmrm.models.config import SamplingConfig
from mmrm.models.distributed import gather, rank, world_size
from mmrm.models.encoder import Encoder
from mmrm.train.methods.critic.objective import JointCritique
from mmrm.train.methods.critic.own_critiques import CritiqueStore, WriteCritiques
from mmrm.train.methods.method import SupervisedMethod
from mmrm.train.recipe.methods import CriticConfig
from mmrm.train.supervised.devices import unwrapped
from mmrm.train.supervised.steps import MixtureRecords, TrainingExample, shared_costs
from mmrm.train.supervised.whole_weights import whole_weights

Critiques = Callable[[Preference], Sequence[str] | None]
"""The critiques on which a record is scored; None for a record that has none."""


@dataclass(frozen=True, slots=True)
class CriticEncoder:
    """A preference as one group `prompt | response, request, critique | response, request, critique`, chosen first.

    The critiques are the record's, and their tokens are learned. A record that is to be scored on critiques by the model
    gets two more continuations with those, which are not learned. A record without any critique is scored after the bare
    responses.
    """

    encoder: Encoder
    request: str
    written: Critiques | None = None
    """Critiques by the model for the records that are to be scored on its own; None, or a None from it: the ground truth."""

    def __call__(self, record: Preference, side: int = 0) -> TrainingExample:
        """Decode the images and encode all continuations."""
        self.encoder.refuse_control_tokens(record)
        true, own = critiques_of(record), None if self.written is None else self.written(record)
        responses = (record.chosen, record.rejected)
        conversations = [
            with_critique(record.prompt, response, self.request, critique)
            for critiques in (true, own)
            if critiques is not None
            for response, critique in zip(responses, critiques, strict=True)
        ] or [(*record.prompt, text("assistant", response)) for response in responses]
        with_loss = 0 if true is None else 2
        group = self.encoder.encode_conversations(
            record.images, conversations, "end_of_turn", record.identity, with_loss=with_loss
        )
        prompt = record.prompt, record.images
        return TrainingExample(
            group,
            record.margin or 0.0,
            record=record.identity,
            prompt=prompt,
            own_critiques=own is not None,
        )


def refuse_missing_critiques(mixture: Mixture) -> None:
    """Refuse the mixture if some records lack a critique; raises UserError with their number.

    All ranks call together and read a share of the records each. Records of a generator are all alike: one of them is read.
    """
    missing: list[int] = []
    start = 0
    for part in mixture.splits:
        records = range(start, start + len(part.rows))
        read = records[:1] if part.source.generated else records[rank() :: world_size()]
        missing += [index for index in read if critiques_of(mixture[index]) is None]
        start = records.stop
    missing = sorted(index for part_of_rank in gather(missing) for index in part_of_rank)
    if missing:
        raise UserError(
            f"{len(missing):,} of {len(mixture):,} records have no critique of both responses (the first: "
            f"{mixture[missing[0]].identity}). A critic learns from them. Add chosen_critique and rejected_critique to the "
            "records, or set method.records_without_critique: score_only to train their scores alone."
        )


class CriticMethod(SupervisedMethod):
    """A critic (MM-RLHF-Reward)."""

    config: CriticConfig

    def prepare(self) -> None:
        """Take critiques, and the store of the critic's own where the recipe asks for some."""
        config = self.config
        if config.records_without_critique == "refuse":
            refuse_missing_critiques(self.mixture)
        self.store: CritiqueStore | None = None
        if config.critique != "ground_truth":
            self.store = CritiqueStore(self.folder / "critiques", config, self.recipe.seed)
            self.prepare_step = self.store.load
        self.encode = CriticEncoder(self.encoder, config.writing.request)
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
                self.encoder, "own", self.config.writing.request, forgiving=forgiving
            ),
            packed=self.packed(),
            sampling=SamplingConfig(max_new_tokens=self.config.critique_max_tokens),
        )

    def trainer(self, **trainer: Any) -> Trainer:
        """Return the packed trainer, which writes the critic's own critiques on the way."""
        found = super().trainer(**trainer)
        if self.store is not None:

            def write(model: Any, examples: Sequence[Example]) -> Sequence[Verdict]:
                with whole_weights(found.model_wrapped):
                    return self.judge(model, forgiving=True).judge(examples)

            found.add_callback(WriteCritiques(self.store, self.steps, self.mixture, write))
        return found

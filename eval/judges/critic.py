"""Critics as judges: write a critique of each response, then score it, or score given critiques, or none.

Request and limit of a critique come with the checkpoint.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import attrgetter
from time import perf_counter
from typing import Any, Literal

import torch

from data.errors import RecordError
from data.preference import Preference, text
from data.prompts import CRITIQUE_REQUEST, with_critique
from eval.journal import SILENT, Journal
from eval.judges.checkpoint import LoadedCheckpoint
from eval.judges.config import CriticJudgeConfig
from eval.judges.packed_inference import Cost, Packed, run_packed
from eval.protocol import Candidates, Example, Verdict, journal_key
from models.config import CritiqueConfig, SamplingConfig, StoredRead
from models.encoder import Encoder
from models.generation import Generation, WritingCost, generate
from models.packing.groups import Group, PackedBatch

Critiques = Literal["own", "none"] | Mapping[str, Sequence[str]]
"""Written by the model, left out (the score is read after the bare response), or given: of all responses by example's key."""


def as_example(record: Preference) -> Example:
    """Return a preference record as something to judge, the better response first.

    Its key, from which judgements are drawn, is the record's identity, which another record may share: whatever is stored of
    it belongs under `journal_key` or `record_key`.
    """
    return Example(
        key=record.identity,
        images=record.images,
        prompt=record.prompt,
        responses=(record.chosen, record.rejected),
        better=0,
        group=record.category,
        source=record.source,
        identity=record.identity,
        row={},
    )


@dataclass(frozen=True, slots=True)
class CritiqueEncoder:
    """Candidates as one group for a critic; runs in loader workers."""

    encoder: Encoder
    critiques: Critiques
    request: str = CRITIQUE_REQUEST
    samples: int = 1
    """Critiques of each response, for `own`."""
    forgiving: bool = False
    """For an example that cannot be encoded take a stand-in instead of an error: training will skip that record."""

    def __call__(self, example: Candidates) -> Group:
        """Encode all responses; `own` ends where the critique is to be written."""
        try:
            return self._group(example)
        except RecordError:
            if not self.forgiving:
                raise
            return self._group(
                replace(
                    example,
                    images=(),
                    prompt=(text("user", "-"),),
                    responses=("-",) * len(example.responses),
                )
            )

    def _group(self, example: Candidates) -> Group:
        critiques = (
            [None] * len(example.responses)
            if isinstance(self.critiques, str)
            else self.critiques[example.key]
        )
        conversations = [
            (*example.prompt, text("assistant", response))
            if self.critiques == "none"
            else with_critique(example.prompt, response, self.request, critique)
            for response, critique in zip(example.responses, critiques, strict=True)
            for _ in range(self.samples)
        ]
        read: StoredRead | None = None if self.critiques == "own" else "end_of_turn"
        return self.encoder.encode_conversations(
            example.images, conversations, read, example.identity
        )


@dataclass
class JudgingCost:
    """What judging cost, for the table beside the scalar judge."""

    judgements: int = 0
    critiques: int = 0
    tokens: int = 0
    """Of the critiques, with their ends."""
    truncated: int = 0
    """Critiques that the limit cut off."""
    seconds: float = 0.0

    def figures(self) -> dict[str, float]:
        """Return what a log shows; shares of written critiques are left out where none was written."""
        found = {"seconds_per_judgement": self.seconds / max(self.judgements, 1)}
        if self.critiques:
            written = {
                "truncated": self.truncated / self.critiques,
                "tokens_per_critique": self.tokens / self.critiques,
            }
            found |= written | {"generated_tokens_per_second": self.tokens / self.seconds}
        return found

    def add(self, judgements: int, written: Iterable[tuple[int, int]], started: float) -> None:
        """Count judgements that began at `started`: the tokens of what was written for them, and how often the limit cut off."""
        self.judgements += judgements
        for tokens, truncated in written:
            self.tokens += tokens
            self.truncated += truncated
        self.seconds += perf_counter() - started


@dataclass(frozen=True, slots=True, kw_only=True)
class WritingJudge:
    """What judges that write have in common."""

    model: Any
    """Unwrapped, in eval mode."""
    packed: Packed
    sampling: SamplingConfig
    spent: JudgingCost = field(default_factory=JudgingCost)
    """Of all ranks together."""
    about: tuple[str, ...] = ()
    """What must be said beside its figures, whatever judging costs."""
    penalty: float = 1.0
    """On tokens that are there already; 1 is none."""

    @property
    def cost(self) -> WritingCost:
        """What a group takes of a token budget while it is written on."""
        return WritingCost.of(self.model.config, self.sampling)

    def notes(self) -> tuple[str, ...]:
        """Return what must be said beside the figures: also what judging cost."""
        spent = self.spent
        mean = spent.tokens / max(spent.judgements, 1)
        cost = f"{spent.judgements:,} judgements of {mean:.0f} tokens on average; {spent.truncated:,} cut off at the limit."
        return (*self.about, cost)

    def write(
        self, batch: PackedBatch, forbidden: Sequence[int], seeds: Sequence[str]
    ) -> list[Generation]:
        """Write after every continuation of a row, never one of the `forbidden` tokens."""
        end = self.packed.encoder.end_of_turn
        settings: dict[str, Any] = {
            "sampling": self.sampling,
            "seeds": seeds,
            "penalty": self.penalty,
        }
        return generate(self.model, batch, end=end, forbidden=forbidden, **settings)


Judged = tuple[Verdict, int, int]
"""A verdict, the tokens of its critiques, and how many of them were cut off; ranks gather it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticJudge(WritingJudge):
    """A critic: the response whose critique is followed by the higher score is the better one.

    Several critiques of a response (`encode.samples`) are drawn at the sampling's temperature and their scores averaged;
    the first is kept as the one to show. A critique that the limit cut off is scored as it is, and counted in `spent`.
    """

    encode: CritiqueEncoder
    seed: int = 0

    @torch.no_grad()
    def judge(self, examples: Sequence[Candidates], journal: Journal = SILENT) -> list[Verdict]:
        """Return the scores of all responses, and the critiques that were written; all ranks must call together."""
        started, (run, cost) = perf_counter(), self.way
        with journal.judging(list(map(journal_key, examples)), Judged, len(examples)) as judging:
            found = run_packed(self.packed, examples, self.encode, run, cost, judging)
        self.spent.add(len(examples), ((tokens, cut) for _, tokens, cut in found), started)
        if self.encode.critiques == "own":
            self.spent.critiques += self.encode.samples * sum(
                len(example.responses) for example in examples
            )
        return [verdict for verdict, _, _ in found]

    @property
    def way(self) -> tuple[Callable[[PackedBatch, Sequence[Candidates]], list[Judged]], Cost]:
        """What runs a packed row, and what a group takes of the budget there: with critiques of its own, or without."""
        return (
            (self._own, self.cost)
            if self.encode.critiques == "own"
            else (self._given, attrgetter("cost"))
        )

    def notes(self) -> tuple[str, ...]:
        """Return what must be said beside the figures: also how many critiques were cut off, if any were."""
        if not self.spent.truncated:
            return self.about
        limit = f"the limit of {self.sampling.max_new_tokens} tokens"
        cut = f"{self.spent.truncated} of {self.spent.critiques} critiques were cut off by {limit} and scored as they are."
        return (*self.about, cut)

    def _given(self, batch: PackedBatch, examples: Sequence[Candidates]) -> list[Judged]:
        scores = iter(self.model(**batch.joint_inputs())[0].tolist())
        return [
            (Verdict(scores=tuple(islice(scores, len(example.responses)))), 0, 0)
            for example in examples
        ]

    def _own(self, batch: PackedBatch, examples: Sequence[Candidates]) -> list[Judged]:
        samples, tokenizer = self.encode.samples, self.packed.encoder.tokenizer
        counts = [samples * len(example.responses) for example in examples]
        seeds = [
            f"{self.seed}/{example.key}/{n}"
            for example, count in zip(examples, counts, strict=True)
            for n in range(count)
        ]
        written = self.write(batch, self.packed.encoder.vision_ids, seeds)
        if not written:  # the head runs all the same: under ZeRO-3 the other ranks wait for this one's share of it
            self.model.scores(
                torch.zeros(1, self.model.config.text_config.hidden_size, device=self.packed.device)
            )
            return []
        means = iter(
            self.model.scores(torch.stack([one.end_hidden for one in written]))
            .view(-1, samples)
            .mean(1)
            .tolist()
        )
        rest, found = iter(written), []
        for count in counts:
            ours = list(islice(rest, count))
            critiques = tuple(tokenizer.decode(one.ids) for one in ours[::samples])
            verdict = Verdict(scores=tuple(islice(means, len(critiques))), critiques=critiques)
            found.append(
                (verdict, sum(len(one.ids) + 1 for one in ours), sum(one.truncated for one in ours))
            )
        return found


def critic_judge(
    found: LoadedCheckpoint, config: CriticJudgeConfig, critiques: Critiques | None = None
) -> CriticJudge:
    """Return a judge that has spent nothing yet; `critiques` are those of the encoder, None: the config's."""
    critiques = critiques or config.critiques
    critique = (found.card and found.card.critique) or CritiqueConfig.model_validate(
        found.model.config.critique
    )
    return CriticJudge(
        model=found.model,
        encode=CritiqueEncoder(
            found.packed.encoder,
            critiques,
            critique.request,
            config.samples if critiques == "own" else 1,
        ),
        packed=found.packed,
        sampling=SamplingConfig(
            temperature=config.temperature,
            top_p=config.top_p,
            max_new_tokens=config.max_new_tokens or critique.max_new_tokens,
        ),
        seed=config.seed,
        about=found.notes,
    )

"""Critics as judges: write a critique of each response, then score it, or score given critiques, or none.

Request and limit of a critique come with the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from time import perf_counter
from typing import Literal

import torch

from data.errors import RecordError
from data.preference import Message, Preference, text
from data.prompts import CRITIQUE_REQUEST, with_critique
from eval.judges.checkpoint import LoadedCheckpoint
from eval.judges.config import CriticJudgeConfig
from eval.judges.packed_inference import Packed, run_packed
from eval.protocol import Example, Verdict
from models.config import CritiqueConfig, StoredRead
from models.encoder import VISION_TEXT, Encoder
from models.generation import SamplingConfig, WritingCost, generate
from models.packing.groups import Group, PackedBatch
from models.portable.critic import CriticRewardModel

Critiques = Literal["own", "given", "none"]
"""Written by the model, given with the example, or left out (the score is read after the bare response)."""


def as_example(record: Preference) -> Example:
    """Return a preference record as something to judge, the better response first; its key is the record's identity."""
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
    """An example as one group for a critic; runs in loader workers."""

    encoder: Encoder
    mode: Critiques
    request: str = CRITIQUE_REQUEST
    samples: int = 1
    """Critiques of each response, for `own`."""
    given: Mapping[str, tuple[str, str]] | None = None
    """Critiques of both responses by the example's key, for `given`."""
    forgiving: bool = False
    """For an example that cannot be encoded take a stand-in instead of an error: training will skip that record."""

    def __call__(self, example: Example) -> Group:
        """Encode both responses; `own` ends where the critique is to be written."""
        try:
            return self._group(example)
        except RecordError:
            if not self.forgiving:
                raise
            return self._group(replace(example, images=(), prompt=(text("user", "-"),), responses=("-", "-")))

    def _group(self, example: Example) -> Group:
        conversations = [one for side in (0, 1) for one in self._conversations(example, side)]
        read: StoredRead | None = None if self.mode == "own" else "end_of_turn"
        return self.encoder.encode_conversations(example.images, conversations, read, example.identity)

    def _conversations(self, example: Example, side: int) -> list[tuple[Message, ...]]:
        response = example.responses[side]
        if self.mode == "none":
            return [(*example.prompt, text("assistant", response))]
        given = None if self.given is None else self.given[example.key][side]
        return [with_critique(example.prompt, response, self.request, given)] * (self.samples if self.mode == "own" else 1)


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
            written = {"truncated": self.truncated / self.critiques, "tokens_per_critique": self.tokens / self.critiques}
            found |= written | {"generated_tokens_per_second": self.tokens / self.seconds}
        return found


Judged = tuple[Verdict, int, int]
"""A verdict, the tokens of its critiques, and how many of them were cut off; ranks gather it."""


@dataclass(frozen=True, slots=True)
class CriticJudge:
    """A critic: the response whose critique is followed by the higher score is the better one.

    Several critiques of a response (`encode.samples`) are drawn at the sampling's temperature and their scores averaged;
    the first is kept as the one to show. A critique that the limit cut off is scored as it is, and counted in `spent`.
    """

    model: CriticRewardModel
    """The unwrapped critic, in eval mode."""
    encode: CritiqueEncoder
    device: torch.device
    token_budget: int
    sampling: SamplingConfig
    spent: JudgingCost = field(default_factory=JudgingCost)
    """Of all ranks together."""
    workers: int = 0
    seed: int = 0
    about: tuple[str, ...] = ()
    """What must be said beside its figures, whatever judging costs."""

    @torch.no_grad()
    def judge(self, examples: Sequence[Example]) -> list[Verdict]:
        """Return both scores of every example, and the critiques that were written; all ranks must call together."""
        started = perf_counter()
        packed = Packed(self.encode.encoder, self.device, self.token_budget, self.workers)
        own = self.encode.mode == "own"
        run = self._own if own else self._given
        found = run_packed(
            packed,
            examples,
            self.encode,
            lambda batch, items: run(batch, [examples[i].key for i in items]),
            WritingCost.of(self.model.config.text_config, self.sampling) if own else attrgetter("cost"),
        )
        self.spent.judgements += len(examples)
        self.spent.critiques += 2 * self.encode.samples * len(examples) if own else 0
        self.spent.tokens += sum(tokens for _, tokens, _ in found)
        self.spent.truncated += sum(truncated for _, _, truncated in found)
        self.spent.seconds += perf_counter() - started
        return [verdict for verdict, _, _ in found]

    def notes(self) -> tuple[str, ...]:
        """Return what must be said beside the figures: also how many critiques were cut off, if any were."""
        if not self.spent.truncated:
            return self.about
        limit = f"the limit of {self.sampling.max_new_tokens} tokens"
        cut = f"{self.spent.truncated} of {self.spent.critiques} critiques were cut off by {limit} and scored as they are."
        return (*self.about, cut)

    def _given(self, batch: PackedBatch, keys: Sequence[str]) -> list[Judged]:
        scores = self.model(**batch.joint_inputs())[0].view(len(keys), 2).tolist()
        return [(Verdict(scores=(first, second)), 0, 0) for first, second in scores]

    def _own(self, batch: PackedBatch, keys: Sequence[str]) -> list[Judged]:
        samples = self.encode.samples
        seeds = [f"{self.seed}/{key}/{n}" for key in keys for n in range(2 * samples)]
        tokenizer = self.encode.encoder.tokenizer
        end = tokenizer.convert_tokens_to_ids("<|im_end|>")
        forbidden = tokenizer.convert_tokens_to_ids(list(VISION_TEXT))
        written = generate(self.model, batch, end=end, forbidden=forbidden, sampling=self.sampling, seeds=seeds)
        if not written:  # the head runs all the same: under ZeRO-3 the other ranks wait for this one's share of it
            self.model.scores(torch.zeros(1, self.model.config.text_config.hidden_size, device=self.device))
            return []
        means = self.model.scores(torch.stack([one.end_hidden for one in written])).view(-1, 2, samples).mean(2).tolist()
        found = []
        for n, (first, second) in enumerate(means):
            ours = written[2 * samples * n : 2 * samples * (n + 1)]
            critiques = tokenizer.decode(ours[0].ids), tokenizer.decode(ours[samples].ids)
            verdict = Verdict(scores=(first, second), critiques=critiques)
            found.append((verdict, sum(len(one.ids) + 1 for one in ours), sum(one.truncated for one in ours)))
        return found


def critic_judge(
    found: LoadedCheckpoint,
    config: CriticJudgeConfig,
    mode: Critiques | None = None,
    given: Mapping[str, tuple[str, str]] | None = None,
) -> CriticJudge:
    """Return a judge that has spent nothing yet; `mode` (None: the config's) and `given` are those of the encoder."""
    mode = mode or config.critiques
    asked = found.card and found.card.critique
    critique = asked or CritiqueConfig.model_validate(found.model.config.critique)
    return CriticJudge(
        model=found.model,
        encode=CritiqueEncoder(found.encoder, mode, critique.request, config.samples if mode == "own" else 1, given),
        device=found.device,
        token_budget=found.token_budget,
        sampling=SamplingConfig(
            temperature=config.temperature,
            top_p=config.top_p,
            max_new_tokens=config.max_new_tokens or critique.max_new_tokens,
        ),
        workers=found.workers,
        seed=config.seed,
        about=found.notes,
    )

"""Critics as judges: they write a critique of each response and then score it.

They can also score with given critiques, or without any. The request for a critique and its limit
of tokens come with the checkpoint.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Literal

import torch

from mmrm.data.errors import CheckpointError, RecordError
from mmrm.data.preference import text
from mmrm.data.prompts import CRITIQUE_REQUEST, with_critique
from mmrm.eval.candidates import Candidates, Scores, Usage, total_usage
from mmrm.eval.judges.checkpoint import LoadedCheckpoint, Runtime, load_checkpoint
from mmrm.eval.judges.critic.config import CriticJudgeConfig
from mmrm.eval.judges.judge import JudgeInfo
from mmrm.eval.judges.packed_inference import Cost
from mmrm.eval.judges.packed_judge import (
    Conversation,
    Unit,
    UnitEncoder,
    UnitResult,
    joined_texts,
    joined_values,
    refuse_non_finite,
    units_of_responses,
)
from mmrm.eval.judges.registry import judge_config
from mmrm.eval.judges.writing import WritingJudge, usage_of_texts
from mmrm.models.backbone import load_critic
from mmrm.models.config import CritiqueConfig, SamplingConfig, StoredRead
from mmrm.models.packing.groups import Group, PackedBatch

Critiques = Literal["own", "none"] | Mapping[str, Sequence[str]]
"""Written by the model, left out (the score is read after the bare response), or given: of all
responses, by the key of their candidates."""


@dataclass(frozen=True, slots=True)
class CritiqueLayout:
    """Each response as the answer to the prompt, then the request for a critique and the critique."""

    critiques: Critiques = "own"
    request: str = CRITIQUE_REQUEST
    samples: int = 1
    """Critiques of each response, for `own`."""

    def __call__(self, unit: Unit) -> tuple[list[Conversation], StoredRead | None]:
        """Return the conversations. If the judge writes its `own` critiques, they end before the critique."""
        prompt = unit.candidates.prompt
        if self.critiques == "none":
            bare: list[Conversation] = [
                (*prompt, text("assistant", response)) for response in unit.responses
            ]
            return bare, "end_of_turn"
        conversations: list[Conversation] = []
        if self.critiques == "own":
            for response in unit.responses:
                asked = with_critique(prompt, response, self.request, None)
                conversations += [asked] * self.samples
            return conversations, None
        given = self.critiques[unit.candidates.key]
        for index in unit.shown:
            response = unit.candidates.responses[index]
            conversations.append(with_critique(prompt, response, self.request, given[index]))
        return conversations, "end_of_turn"


@dataclass(frozen=True, slots=True)
class ForgivingEncoder:
    """Encodes units. A unit that cannot be encoded becomes a filler with as many responses.

    Critiques for training are written before training reads the records, and training skips and
    counts the records that cannot be encoded.
    """

    encode: UnitEncoder

    def __call__(self, unit: Unit) -> Group:
        """Encode a unit, or the filler that replaces it."""
        try:
            return self.encode(unit)
        except RecordError:
            stand_in = replace(
                unit.candidates,
                images=(),
                prompt=(text("user", "-"),),
                responses=("-",) * len(unit.candidates.responses),
            )
            return self.encode(replace(unit, candidates=stand_in))


@dataclass(frozen=True, kw_only=True)
class CriticJudge(WritingJudge):
    """A critic: the response whose critique is followed by the higher score is the better one.

    If there are several critiques of a response, their scores are averaged, and the first one is
    kept for reports. A critique that the limit cut off is scored unchanged, and counted.
    """

    critique: CritiqueLayout
    seed: int = 0
    forgiving: bool = False
    """Judge a filler in place of each unit that cannot be encoded (see `ForgivingEncoder`)."""

    @property
    def info(self) -> JudgeInfo:
        """A critic scores each response after text that it wrote."""
        return JudgeInfo(writes=True)

    @property
    def layout(self) -> CritiqueLayout:
        """The prompt once, then the responses, each with its critique."""
        return self.critique

    @property
    def encode(self) -> Callable[[Unit], Group]:
        """Encodes a unit; picklable for loader workers."""
        encode = UnitEncoder(self.packed.encoder, self.layout)
        return ForgivingEncoder(encode) if self.forgiving else encode

    @property
    def row_cost(self) -> Cost:
        """The function that returns the tokens a group needs of a row's budget.

        A group needs more tokens if critiques are written.
        """
        if self.critique.critiques == "own":
            return super().row_cost
        return attrgetter("cost")

    @property
    def units_share_groups(self) -> bool:
        """False if critiques are drawn, because a draw depends on the response's index in its unit."""
        return self.critique.critiques != "own" or self.sampling.temperature == 0

    def notes(self, scores: Sequence[Scores]) -> tuple[str, ...]:
        """Return notes to print with the figures, with the number of critiques that were cut off."""
        usage = total_usage(scores)
        if not usage.truncated:
            return self.about
        limit = f"the limit of {self.sampling.max_new_tokens} tokens"
        cut_off = f"{usage.truncated} of {usage.critiques} critiques were cut off by {limit} and scored as they are."
        return (*self.about, cut_off)

    def units(self, candidates: Candidates) -> list[Unit]:
        """Return the responses in groups that fit into a row; a benchmark's row is one group."""
        if self.protocol is not None:
            return [self._with_seeds(unit) for unit in units_of_responses(candidates, None)]
        budget = self.packed.token_budget
        return [self._with_seeds(unit) for unit in units_of_responses(candidates, budget)]

    def _with_seeds(self, unit: Unit) -> Unit:
        """Return the unit with a seed for each of its critiques.

        If the unit holds only some responses of the prompt, the seeds also depend on the index of its
        first response.
        """
        label = unit.candidates.key
        if len(unit.shown) < len(unit.candidates.responses):
            label = f"{label}/{unit.shown[0]}"
        num_critiques = self.critique.samples * len(unit.shown)
        seeds = tuple(f"{self.seed}/{label}/{number}" for number in range(num_critiques))
        return replace(unit, seeds=seeds)

    def run(self, batch: PackedBatch, units: Sequence[Unit]) -> list[UnitResult]:
        """Return the scores of the responses, and the critiques that were written."""
        if self.critique.critiques == "own":
            return self._run_with_own_critiques(batch, units)
        scores = iter(self.model(**batch.joint_inputs())[0].tolist())
        return [UnitResult(values=tuple(islice(scores, len(unit.shown)))) for unit in units]

    def _run_with_own_critiques(
        self, batch: PackedBatch, units: Sequence[Unit]
    ) -> list[UnitResult]:
        """Write the critiques of a row, and score each response at the end of its critique."""
        samples = self.critique.samples
        tokenizer = self.packed.encoder.tokenizer
        seeds = [seed for unit in units for seed in unit.seeds]
        written = self.write(batch, self.packed.encoder.vision_ids, seeds)
        if not written:
            # The head runs without units as well: under ZeRO-3 the other ranks wait for this
            # rank's share of its weights.
            hidden_size = self.model.config.text_config.hidden_size
            self.model.scores(torch.zeros(1, hidden_size, device=self.packed.device))
            return []
        hidden = torch.stack([critique.end_hidden for critique in written])
        # (responses * samples,) -> (responses,)
        mean_scores = iter(self.model.scores(hidden).view(-1, samples).mean(1).tolist())
        remaining = iter(written)
        results: list[UnitResult] = []
        for unit in units:
            critiques = list(islice(remaining, len(unit.seeds)))
            texts = tuple(tokenizer.decode(critique.ids) for critique in critiques[::samples])
            usage = usage_of_texts(critiques) + Usage(critiques=len(critiques))
            values = tuple(islice(mean_scores, len(texts)))
            results.append(UnitResult(values=values, texts=texts, usage=usage))
        return results

    def merge(
        self, candidates: Candidates, units: Sequence[Unit], results: Sequence[UnitResult]
    ) -> Scores:
        """Return the scores and critiques of all units."""
        values = joined_values(results)
        if self.protocol is None:
            refuse_non_finite(candidates, values)
        usage = sum((result.usage for result in results), Usage())
        return Scores(values, texts=joined_texts(results), usage=usage)


def critic_judge(
    checkpoint: LoadedCheckpoint, config: CriticJudgeConfig, critiques: Critiques | None = None
) -> CriticJudge:
    """Return the judge with a critic's weights; `critiques` replaces `config.critiques`."""
    if critiques is None:
        critiques = config.critiques
    writing = checkpoint.card.critique if checkpoint.card else None
    if writing is None:
        writing = CritiqueConfig.model_validate(checkpoint.model.config.critique)
    sampling = SamplingConfig(
        temperature=config.temperature,
        top_p=config.top_p,
        max_new_tokens=config.max_new_tokens or writing.max_new_tokens,
    )
    samples = config.samples if critiques == "own" else 1
    return CriticJudge(
        model=checkpoint.model,
        packed=checkpoint.packed,
        sampling=sampling,
        critique=CritiqueLayout(critiques, writing.request, samples),
        seed=config.seed,
        about=checkpoint.notes,
    )


def load_critic_judge(path: Path, runtime: Runtime, config: CriticJudgeConfig) -> CriticJudge:
    """Return the critic that `config` names. `path` is its folder or YAML file."""
    folder = Path(config.checkpoint).expanduser()
    kind = judge_config(folder).type
    if kind != "critic":
        raise CheckpointError(
            f"{path}: {folder} is a {kind!r} judge and no critic; give a checkpoint of `method: critic`."
        )
    return critic_judge(load_checkpoint(folder, runtime, load_critic), config)

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
from mmrm.data.preference import text, text_responses
from mmrm.data.prompts import CRITIQUE_REQUEST, with_critique
from mmrm.eval.candidates import (
    Candidates,
    Scores,
    Usage,
    images_as_shown,
    total_usage,
    videos_as_shown,
)
from mmrm.eval.judges.checkpoint import LoadedCheckpoint, Runtime, load_checkpoint
from mmrm.eval.judges.critic.config import CriticJudgeConfig
from mmrm.eval.judges.judge import JudgeInfo
from mmrm.eval.judges.packed_inference import Cost
from mmrm.eval.judges.packed_judge import (
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
from mmrm.models.encoder import Conversation
from mmrm.models.packing.packed_batch import PackedBatch
from mmrm.models.packing.segments import SegmentTree

Critiques = Literal["own", "none"] | Mapping[str, Sequence[str]]
"""The critiques that a critic scores with. `own`: the model writes them. `none`: there are none,
and the score is read after the bare response. A mapping holds given critiques of all responses, by
the key of their candidates."""


@dataclass(frozen=True, slots=True)
class CritiqueLayout:
    """Makes a critic's conversations: prompt, response, request for a critique, and critique."""

    critiques: Critiques = "own"
    request: str = CRITIQUE_REQUEST
    samples: int = 1
    """Number of critiques of each response, if the model writes its `own`."""

    def __call__(self, unit: Unit) -> tuple[list[Conversation], StoredRead | None]:
        """Return the conversations of a unit, and the token at which each score is read.

        If the model writes its `own` critiques, the conversations end where these begin, and there
        are `samples` of them for each response. The second value is then None, because the score is
        read after the text is generated.
        """
        candidates = unit.candidates
        conversations: list[Conversation] = []
        if self.critiques == "none":
            for response in unit.responses:
                conversations.append(
                    Conversation.answered(
                        candidates.prompt, candidates.images, response, videos=candidates.videos
                    )
                )
            return conversations, "end_of_turn"
        if self.critiques == "own":
            for index in unit.shown:
                conversations += [self._conversation(candidates, index, None)] * self.samples
            return conversations, None
        given_critiques = self.critiques[candidates.key]
        for index in unit.shown:
            conversations.append(self._conversation(candidates, index, given_critiques[index]))
        return conversations, "end_of_turn"

    def _conversation(
        self, candidates: Candidates, index: int, critique: str | None
    ) -> Conversation:
        """Return the conversation about one response, with its images.

        Args:
            candidates: The prompt and its responses.
            index: The index of the response.
            critique: The critique that ends the conversation. With None, it ends with the request.
        """
        response = candidates.responses[index]
        messages = with_critique(candidates.prompt, response, self.request, critique)
        return Conversation(
            messages,
            images_as_shown(candidates, [index]),
            videos=videos_as_shown(candidates, [index]),
        )


@dataclass(frozen=True, slots=True)
class ForgivingEncoder:
    """Encodes units like `UnitEncoder`, and never refuses one.

    A unit that cannot be encoded is replaced by one with minimal texts. This is used to write
    critiques for training, before training reads the records. The critiques of the replaced units
    are not used: training skips and counts the records that cannot be encoded.
    """

    encode: UnitEncoder

    def __call__(self, unit: Unit) -> SegmentTree:
        """Return a unit as a tree; if that fails, the tree of a unit with "-" for all texts."""
        try:
            return self.encode(unit)
        except RecordError:
            minimal_candidates = replace(
                unit.candidates,
                images=(),
                prompt=(text("user", "-"),),
                responses=text_responses("-") * len(unit.candidates.responses),
            )
            return self.encode(replace(unit, candidates=minimal_candidates))


@dataclass(frozen=True, kw_only=True)
class CriticJudge(WritingJudge):
    """A critic, which writes a critique of each response and then scores the response.

    If there are several critiques of a response, their scores are averaged, and the first critique
    is kept for reports. A critique that the limit cut off is scored unchanged, and counted.
    """

    critique: CritiqueLayout
    seed: int = 0
    forgiving: bool = False
    """True replaces a unit that cannot be encoded by one with minimal texts (see
    `ForgivingEncoder`). False raises an error."""

    @property
    def info(self) -> JudgeInfo:
        """Properties of the judge: it scores each response, and writes text before it does."""
        return JudgeInfo(writes=True)

    @property
    def layout(self) -> CritiqueLayout:
        """The function that makes the conversations about some of the responses to a prompt."""
        return self.critique

    @property
    def encode(self) -> Callable[[Unit], SegmentTree]:
        """The function that encodes the responses of a unit for the model.

        A unit is some of the responses to one prompt. The function can be pickled for loader
        workers.
        """
        encode = UnitEncoder(self.packed.encoder, self.layout)
        return ForgivingEncoder(encode) if self.forgiving else encode

    @property
    def row_cost(self) -> Cost:
        """A function that returns the number of tokens of a packed row's budget that a tree needs.

        A tree is a prompt with the texts that follow it. It needs more tokens if critiques are
        written.
        """
        if self.critique.critiques == "own":
            return super().row_cost
        return attrgetter("cost")

    @property
    def can_divide_units(self) -> bool:
        """True if the server may divide the responses of a unit over several rows.

        It is False if critiques are sampled, because the draws depend on the response's index in
        its unit.
        """
        return self.critique.critiques != "own" or self.sampling.temperature == 0

    def notes(self, scores: Sequence[Scores]) -> tuple[str, ...]:
        """Return notes to print with figures that are computed from these scores.

        If the limit cut off critiques, the last note counts them.
        """
        usage = total_usage(scores)
        if not usage.truncated:
            return self.about
        limit = f"the limit of {self.sampling.max_new_tokens} tokens"
        cut_off = (
            f"{usage.truncated} of {usage.critiques} critiques were cut off by {limit} and scored "
            "as they are."
        )
        return (*self.about, cut_off)

    def units(self, candidates: Candidates) -> list[Unit]:
        """Divide the responses to a prompt into units, each with the seeds of its critiques.

        The responses of a unit are judged together, as many as fit into a packed row. The responses
        of a benchmark's row are always one unit.
        """
        is_benchmark = self.protocol is not None
        budget = None if is_benchmark else self.packed.token_budget
        image_tokens = self.packed.encoder.image_tokens
        units = units_of_responses(candidates, budget, image_tokens)
        return [self._with_seeds(unit) for unit in units]

    def _with_seeds(self, unit: Unit) -> Unit:
        """Return a copy of the unit with a seed for each of its critiques.

        If the unit holds only some responses of the prompt, the seeds also depend on the index of
        its first response.
        """
        label = unit.candidates.key
        if len(unit.shown) < len(unit.candidates.responses):
            label = f"{label}/{unit.shown[0]}"
        num_critiques = self.critique.samples * len(unit.shown)
        seeds = tuple(f"{self.seed}/{label}/{number}" for number in range(num_critiques))
        return replace(unit, seeds=seeds)

    def run(self, batch: PackedBatch, units: Sequence[Unit]) -> list[UnitResult]:
        """Run the model on a packed row, and return one result for each unit in the row.

        A result has the scores of the unit's responses, and the critiques that were written.
        """
        if self.critique.critiques == "own":
            return self._run_with_own_critiques(batch, units)
        scores = iter(self.model(**batch.joint_inputs())[0].tolist())
        results: list[UnitResult] = []
        for unit in units:
            unit_scores = tuple(islice(scores, len(unit.shown)))
            results.append(UnitResult(values=unit_scores))
        return results

    def _run_with_own_critiques(
        self, batch: PackedBatch, units: Sequence[Unit]
    ) -> list[UnitResult]:
        """Write critiques of all responses of a packed row, and return the scores that follow them.

        A score is read at the end of a critique. A result has the mean score of each response, and
        the first critique of it.
        """
        samples = self.critique.samples
        tokenizer = self.packed.encoder.tokenizer
        seeds = [seed for unit in units for seed in unit.seeds]
        all_critiques = self.write(batch, self.packed.encoder.vision_ids, seeds)
        if not all_critiques:
            # The head runs without units as well: under ZeRO-3 the other ranks wait for this
            # rank's share of its weights.
            hidden_size = self.model.config.text_config.hidden_size
            self.model.scores(torch.zeros(1, hidden_size, device=self.packed.device))
            return []
        hidden = torch.stack([critique.end_hidden for critique in all_critiques])
        # (responses * samples,) -> (responses,)
        mean_scores = iter(self.model.scores(hidden).view(-1, samples).mean(1).tolist())
        remaining_critiques = iter(all_critiques)
        results: list[UnitResult] = []
        for unit in units:
            critiques = list(islice(remaining_critiques, len(unit.seeds)))
            first_of_each_response = critiques[::samples]
            texts = tuple(tokenizer.decode(critique.ids) for critique in first_of_each_response)
            usage = usage_of_texts(critiques) + Usage(critiques=len(critiques))
            values = tuple(islice(mean_scores, len(texts)))
            results.append(UnitResult(values=values, texts=texts, usage=usage))
        return results

    def merge(
        self, candidates: Candidates, units: Sequence[Unit], results: Sequence[UnitResult]
    ) -> Scores:
        """Return the scores and critiques of all responses to a prompt.

        The arguments are those of `PackedJudge.merge`.

        Raises: NonFiniteError if a score is not finite and this is not the judge of a benchmark.
        """
        values = joined_values(results)
        if self.protocol is None:
            refuse_non_finite(candidates, values)
        usage = sum((result.usage for result in results), Usage())
        return Scores(values, texts=joined_texts(results), usage=usage)


def critic_judge(
    checkpoint: LoadedCheckpoint, config: CriticJudgeConfig, critiques: Critiques | None = None
) -> CriticJudge:
    """Return a loaded critic as a judge.

    Args:
        checkpoint: The loaded critic.
        config: The settings of the judge: its sampling and, by default, which critiques it uses.
        critiques: The critiques to score with in place of `config.critiques`; None uses the latter.
    """
    if critiques is None:
        critiques = config.critiques
    # The request for a critique and its length, as in training.
    critique_settings = checkpoint.card.critique if checkpoint.card else None
    if critique_settings is None:
        critique_settings = CritiqueConfig.model_validate(checkpoint.model.config.critique)
    sampling = SamplingConfig(
        temperature=config.temperature,
        top_p=config.top_p,
        max_new_tokens=config.max_new_tokens or critique_settings.max_new_tokens,
    )
    samples = config.samples if critiques == "own" else 1
    return CriticJudge(
        model=checkpoint.model,
        packed=checkpoint.packed,
        sampling=sampling,
        critique=CritiqueLayout(critiques, critique_settings.request, samples),
        seed=config.seed,
        about=checkpoint.notes,
    )


def load_critic_judge(path: Path, runtime: Runtime, config: CriticJudgeConfig) -> CriticJudge:
    """Load the critic that `config` names, and return it as a judge.

    `path` is the folder or YAML file of the judge, for messages.

    Raises: CheckpointError if the checkpoint is of another kind of judge.
    """
    folder = Path(config.checkpoint).expanduser()
    judge_type = judge_config(folder).type
    if judge_type != "critic":
        raise CheckpointError(
            f"{path}: {folder} is a {judge_type!r} judge and no critic; give a checkpoint of "
            "`method: critic`."
        )
    return critic_judge(load_checkpoint(folder, runtime, load_critic), config)

"""Critics as judges: write a critique of each response, then score it, or score given critiques, or none.

Request and limit of a critique come with the checkpoint.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from operator import attrgetter
from pathlib import Path
from time import perf_counter
from typing import Literal

import torch

from mmrm.data.errors import CheckpointError, RecordError
from mmrm.data.preference import text
from mmrm.data.prompts import CRITIQUE_REQUEST, with_critique
from mmrm.eval.candidates import Candidates, Ranking, Verdict
from mmrm.eval.journal import SILENT, Journal
from mmrm.eval.judges.checkpoint import LoadedCheckpoint, Runtime, load_checkpoint
from mmrm.eval.judges.critic.config import CriticJudgeConfig
from mmrm.eval.judges.loaded import LoadedJudge
from mmrm.eval.judges.packed_inference import Cost, run_packed
from mmrm.eval.judges.packed_judge import PackedRanker, _cut, _scored, _share
from mmrm.eval.judges.registry import judge_config
from mmrm.eval.judges.writing import Judged, WritingJudge
from mmrm.eval.protocol import journal_key
from mmrm.models.backbone import load_critic
from mmrm.models.config import CritiqueConfig, SamplingConfig, StoredRead
from mmrm.models.encoder import Encoder
from mmrm.models.packing.groups import Group, PackedBatch

Critiques = Literal["own", "none"] | Mapping[str, Sequence[str]]
"""Written by the model, left out (the score is read after the bare response), or given: of all responses by example's key."""


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


def critic_ranker(judge: CriticJudge) -> PackedRanker[Candidates, Judged]:
    """Return what ranks by a critic's scores; draws of a critique depend on all responses that are judged together."""
    run, cost = judge.way
    cut = partial(_cut, judge.packed.token_budget)
    drawn = judge.encode.critiques == "own" and judge.sampling.temperature > 0

    def join(candidates: Candidates, found: Sequence[Judged]) -> Ranking:
        return _scored(candidates, [verdict for verdict, _, _ in found])

    def share(found: Judged, places: slice) -> Judged:
        return _share(found[0], places), 0, 0

    return PackedRanker(
        judge.packed, judge.encode, cost, run, Judged, cut, join, None if drawn else share
    )


def load_critic_judge(path: Path, runtime: Runtime, config: CriticJudgeConfig) -> LoadedJudge:
    """Return the critic that `config` names. `path` is its folder or YAML file."""
    folder = Path(config.checkpoint).expanduser()
    kind = judge_config(folder).type
    if kind != "critic":
        raise CheckpointError(
            f"{path}: {folder} is a {kind!r} judge and no critic; give a checkpoint of `method: critic`."
        )
    found = load_checkpoint(folder, runtime, load_critic)
    return LoadedJudge(
        critic_ranker(critic_judge(found, config)),
        lambda benchmark, protocol: critic_judge(found, config),
    )

"""Packed groups through a model, data-parallel: the one forward path of evaluation; and its simplest user, the scalar judge.

Work is dealt to ranks by index, encoded in loader workers a chunk at a time (pixels of a whole benchmark would not fit in
memory), packed under the token budget, and run in lock-step: a rank without work runs the filler row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import attrgetter
from pathlib import Path

import torch
from torch import nn

from mmrm.data.preference import text
from mmrm.eval.candidates import Candidates, Verdict
from mmrm.eval.journal import SILENT, Journal
from mmrm.eval.judges.checkpoint import Runtime, load_checkpoint
from mmrm.eval.judges.loaded import LoadedJudge
from mmrm.eval.judges.packed_inference import Packed, run_packed
from mmrm.eval.judges.packed_judge import PackedRanker, _cut, _scored, _share
from mmrm.eval.judges.scalar.config import ScalarJudgeConfig
from mmrm.eval.protocol import journal_key
from mmrm.models.backbone import load_scalar
from mmrm.models.config import HeadConfig, StoredRead
from mmrm.models.encoder import Encoder
from mmrm.models.packing.groups import Group, PackedBatch


@dataclass(frozen=True, slots=True)
class ResponsesEncoder:
    """Candidates as one group: their prompt once, then the responses with read positions; runs in loader workers."""

    encoder: Encoder
    read: StoredRead

    def __call__(self, example: Candidates) -> Group:
        """Encode candidates; raises RecordError for an image that cannot be decoded."""
        conversations = [
            (*example.prompt, text("assistant", response)) for response in example.responses
        ]
        return self.encoder.encode_conversations(
            example.images, conversations, self.read, example.identity
        )


@dataclass(frozen=True, slots=True)
class ScalarJudge:
    """A scalar reward model: the response with the higher score is the better one."""

    model: nn.Module
    """May be wrapped by DeepSpeed or DDP; in eval mode."""
    packed: Packed
    read: StoredRead
    about: tuple[str, ...] = ()
    """What must be said beside its figures."""

    @torch.no_grad()
    def judge(self, examples: Sequence[Candidates], journal: Journal = SILENT) -> list[Verdict]:
        """Return the scores of all responses, fp32 values; all ranks must call together, and all get all verdicts."""
        with journal.judging(list(map(journal_key, examples)), Verdict, len(examples)) as judging:
            return run_packed(self.packed, examples, self.encode, self.verdicts, judging=judging)

    @property
    def encode(self) -> ResponsesEncoder:
        """How candidates become a group."""
        return ResponsesEncoder(self.packed.encoder, self.read)

    def verdicts(self, batch: PackedBatch, examples: Sequence[Candidates]) -> list[Verdict]:
        """Return what a row says of the candidates that it holds."""
        scores = iter(self.model(**batch.score_inputs()).tolist())
        return [
            Verdict(scores=tuple(islice(scores, len(example.responses)))) for example in examples
        ]

    def notes(self) -> tuple[str, ...]:
        """Return what must be said beside the figures."""
        return self.about


def scalar_ranker(judge: ScalarJudge) -> PackedRanker[Candidates, Verdict]:
    """Return what ranks by a scalar reward model."""
    cut = partial(_cut, judge.packed.token_budget)
    return PackedRanker(
        judge.packed,
        judge.encode,
        attrgetter("cost"),
        judge.verdicts,
        Verdict,
        cut,
        _scored,
        _share,
    )


def load_scalar_judge(path: Path, runtime: Runtime, config: ScalarJudgeConfig) -> LoadedJudge:
    """Return the scalar reward model that `config` names."""
    other = partial(load_scalar, head=HeadConfig(layers=1, activation="none", read=config.read))
    found = load_checkpoint(
        Path(config.checkpoint).expanduser(), runtime, other if path.is_file() else load_scalar
    )
    judge = ScalarJudge(
        found.model, found.packed, found.model.config.reward_head["read"], found.notes
    )
    return LoadedJudge(scalar_ranker(judge), lambda benchmark, protocol: judge)

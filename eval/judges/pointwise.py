"""Judges that write about each response by itself, and end with its score."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mmrm.eval.candidates import Candidates, Scores, Usage
from mmrm.eval.judges.judge import JudgeInfo
from mmrm.eval.judges.packed_judge import (
    Conversation,
    Unit,
    UnitResult,
    joined_texts,
    joined_values,
)
from mmrm.eval.judges.released.templates import PointTemplate
from mmrm.eval.judges.writing import WritingJudge, usage_of_texts
from mmrm.models.packing.groups import PackedBatch


@dataclass(frozen=True, slots=True)
class PointLayout:
    """One response in one prompt."""

    template: PointTemplate

    def __call__(self, unit: Unit) -> tuple[list[Conversation], None]:
        """Return the conversation, which ends before the judge's text."""
        [response] = unit.responses
        return [self.template.ask(unit.candidates, response)], None


@dataclass(frozen=True, kw_only=True)
class PointJudge(WritingJudge):
    """A judge that writes a score for each response; NaN if the text holds none."""

    template: PointTemplate

    @property
    def info(self) -> JudgeInfo:
        """A point judge writes about each response by itself."""
        return JudgeInfo(writes=True)

    @property
    def layout(self) -> PointLayout:
        """One response in one prompt."""
        return PointLayout(self.template)

    def units(self, candidates: Candidates) -> list[Unit]:
        """Return each response by itself."""
        seed = self.protocol.seed if self.protocol else 0
        return [
            Unit(str(index), candidates, (index,), (f"{seed}/{candidates.key}/{index}",))
            for index in range(len(candidates.responses))
        ]

    def run(self, batch: PackedBatch, units: Sequence[Unit]) -> list[UnitResult]:
        """Return the score of each response, and the texts that were written about it."""
        encoder = self.packed.encoder
        seeds = [seed for unit in units for seed in unit.seeds]
        results: list[UnitResult] = []
        for judgement in self.write(batch, [encoder.vision.image], seeds):
            text = encoder.tokenizer.decode(judgement.ids)
            score = self.template.read(text)
            results.append(UnitResult((score,), texts=(text,), usage=usage_of_texts([judgement])))
        return results

    def merge(
        self, candidates: Candidates, units: Sequence[Unit], results: Sequence[UnitResult]
    ) -> Scores:
        """Return the scores of all responses.

        In a ranking, a score that cannot be read is 0, as the authors' scripts count it.
        """
        values = joined_values(results)
        num_unread = sum(not math.isfinite(value) for value in values)
        if self.protocol is None:
            values = tuple(value if math.isfinite(value) else 0.0 for value in values)
        usage = sum((result.usage for result in results), Usage())
        usage += Usage(judgements=len(values), unread=num_unread)
        return Scores(values, texts=joined_texts(results), usage=usage)

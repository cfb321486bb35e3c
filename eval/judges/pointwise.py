"""Judges that write about each response by itself, and end with its score."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mmrm.eval.candidates import Candidates, Scores, Usage, images_as_shown, videos_as_shown
from mmrm.eval.judges.judge import JudgeInfo
from mmrm.eval.judges.packed_judge import (
    Unit,
    UnitResult,
    joined_texts,
    joined_values,
)
from mmrm.eval.judges.released.templates import PointTemplate
from mmrm.eval.judges.writing import WritingJudge, usage_of_texts
from mmrm.models.encoder import Conversation
from mmrm.models.packing.packed_batch import PackedBatch


@dataclass(frozen=True, slots=True)
class PointLayout:
    """Makes the conversation that asks a judge for the score of one response."""

    template: PointTemplate

    def __call__(self, unit: Unit) -> tuple[list[Conversation], None]:
        """Return the conversation, which ends where the judge's text begins.

        The second value is None, because no score is read from the model.
        """
        [response] = unit.responses
        messages = self.template.ask(unit.candidates, response)
        images = images_as_shown(unit.candidates, unit.shown)
        videos = videos_as_shown(unit.candidates, unit.shown)
        return [Conversation(messages, images, videos=videos)], None


@dataclass(frozen=True, kw_only=True)
class PointJudge(WritingJudge):
    """A judge that writes a score for each response; the score is NaN if its text holds none."""

    template: PointTemplate

    @property
    def info(self) -> JudgeInfo:
        """Properties of the judge: it scores each response by writing text about it."""
        return JudgeInfo(writes=True)

    @property
    def layout(self) -> PointLayout:
        """The function that makes the conversation about one response."""
        return PointLayout(self.template)

    def units(self, candidates: Candidates) -> list[Unit]:
        """Return a unit for each response, with the seed of the text that is written about it."""
        protocol_seed = self.protocol.seed if self.protocol else 0
        units: list[Unit] = []
        for index in range(len(candidates.responses)):
            seed = f"{protocol_seed}/{candidates.key}/{index}"
            units.append(Unit(str(index), candidates, shown=(index,), seeds=(seed,)))
        return units

    def run(self, batch: PackedBatch, units: Sequence[Unit]) -> list[UnitResult]:
        """Generate a text about each response in a packed row, and return the scores in them."""
        encoder = self.packed.encoder
        seeds = [seed for unit in units for seed in unit.seeds]
        results: list[UnitResult] = []
        # Each unit has one seed, so there is one judgement for each unit.
        for judgement in self.write(batch, [encoder.vision.image], seeds):
            text = encoder.tokenizer.decode(judgement.ids)
            score = self.template.read(text)
            usage = usage_of_texts([judgement])
            results.append(UnitResult(values=(score,), texts=(text,), usage=usage))
        return results

    def merge(
        self, candidates: Candidates, units: Sequence[Unit], results: Sequence[UnitResult]
    ) -> Scores:
        """Return the scores of all responses to a prompt.

        If people's own responses are ranked, a score that cannot be read is 0, as the authors'
        scripts count it. In a benchmark it stays NaN. The arguments are those of
        `PackedJudge.merge`.
        """
        values = joined_values(results)
        num_unread = sum(not math.isfinite(value) for value in values)
        is_benchmark = self.protocol is not None
        if not is_benchmark:
            values = tuple(value if math.isfinite(value) else 0.0 for value in values)
        usage = sum((result.usage for result in results), Usage())
        usage += Usage(judgements=len(values), unread=num_unread)
        return Scores(values, texts=joined_texts(results), usage=usage)

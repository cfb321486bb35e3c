"""Judges that are asked for the score of each response by itself.

`PointJudge` writes a text about a response, and its score is the one that the text states.
`ExpectedPointJudge` reads the distribution of the score at its place, and its score is the expected
value. It is finer than a written score, so that two responses hardly ever tie.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import attrgetter

from mmrm.data.preference import Message, Response
from mmrm.eval.candidates import (
    NO_USAGE,
    STD,
    Candidates,
    Scores,
    Usage,
    images_as_shown,
    videos_as_shown,
)
from mmrm.eval.judges.judge import JudgeInfo
from mmrm.eval.judges.packed_inference import Cost
from mmrm.eval.judges.packed_judge import (
    Unit,
    UnitResult,
    joined_attributes,
    joined_texts,
    joined_values,
    refuse_non_finite,
)
from mmrm.eval.judges.score_place import NO_SCORE, ScoreDistribution, ScorePlace
from mmrm.eval.judges.writing import WritingJudge, usage_of_texts
from mmrm.models.encoder import Conversation
from mmrm.models.generation import Generation
from mmrm.models.packed_alternatives import Choice, log_probabilities_of_alternatives
from mmrm.models.packing.packed_batch import PackedBatch, unpack

MASS = "mass"
"""The name in `Scores.attributes` of the probability that the judge gives to its scores."""

AskPoint = Callable[[Candidates, Response], tuple[Message, ...]]
"""Makes the conversation that asks for the score of one response to the prompt of `Candidates`. It
can be pickled for loader workers."""


@dataclass(frozen=True, slots=True)
class PointLayout:
    """Makes the conversation that asks a judge for the score of one response."""

    ask: AskPoint

    def __call__(self, unit: Unit) -> tuple[list[Conversation], None]:
        """Return the conversation, which ends where the judge's text begins.

        The second value is None, because no score is read from the model's head.
        """
        [response] = unit.responses
        messages = self.ask(unit.candidates, response)
        images = images_as_shown(unit.candidates, unit.shown)
        videos = videos_as_shown(unit.candidates, unit.shown)
        return [Conversation(messages, images, videos=videos)], None


@dataclass(frozen=True, kw_only=True)
class PointJudge(WritingJudge):
    """A judge that writes a score for each response; the score is NaN if its text holds none."""

    ask: AskPoint
    read: Callable[[str], float]
    """Returns the score in a text; NaN if it has none."""

    @property
    def info(self) -> JudgeInfo:
        """Properties of the judge: it scores each response by writing text about it."""
        return JudgeInfo(writes=True)

    @property
    def layout(self) -> PointLayout:
        """The function that makes the conversation about one response."""
        return PointLayout(self.ask)

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
        tokenizer = self.packed.encoder.tokenizer
        results: list[UnitResult] = []
        for judgement in self.judgements(batch, units):
            text = tokenizer.decode(judgement.ids)
            score = self.read(text)
            usage = usage_of_texts([judgement])
            results.append(UnitResult(values=(score,), texts=(text,), usage=usage))
        return results

    def judgements(self, batch: PackedBatch, units: Sequence[Unit]) -> list[Generation]:
        """Generate a text about each response in a packed row; each unit has one response."""
        seeds = [seed for unit in units for seed in unit.seeds]
        return self.write(batch, [self.packed.encoder.vision.image], seeds)

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
        return Scores(
            values,
            attributes=joined_attributes(results),
            texts=joined_texts(results),
            usage=usage,
        )


@dataclass(frozen=True, kw_only=True)
class ExpectedPointJudge(PointJudge):
    """A judge whose score is the expected value of the score that it would write.

    `Scores.attributes` has the standard deviation of that score, `std`, and the probability that
    one of the scores is written at its place, `mass`.
    """

    place: ScorePlace
    at_once: bool
    """The judge's answer begins with the opening and the score, so that no text is written. Prompt
    and images of all responses are computed once. False: the judge writes a text, and the score is
    read at its place in the text."""

    @property
    def info(self) -> JudgeInfo:
        """Properties of the judge: it scores each response, and writes unless it answers at once."""
        return JudgeInfo(writes=not self.at_once)

    @property
    def row_cost(self) -> Cost:
        """A function that returns the number of tokens of a packed row's budget that a tree needs.

        A tree is a prompt with the texts that follow it.
        """
        return attrgetter("cost") if self.at_once else super().row_cost

    def run(self, batch: PackedBatch, units: Sequence[Unit]) -> list[UnitResult]:
        """Return the distributions of the scores of the responses in a packed row."""
        tokenizer = self.packed.encoder.tokenizer
        if self.at_once:
            choice = self.place.choice_at_once(tokenizer)
            distributions = self._distributions(batch, [choice] * len(units))
            return [_result_of(found) for found in distributions]
        judgements = self.judgements(batch, units)
        choices = [self.place.choice_in(tokenizer, judgement.ids) for judgement in judgements]
        results: list[UnitResult] = []
        for judgement, found in zip(judgements, self._distributions(batch, choices), strict=True):
            text = tokenizer.decode(judgement.ids)
            results.append(_result_of(found, (text,), usage_of_texts([judgement])))
        return results

    def _distributions(
        self, batch: PackedBatch, choices: Sequence[Choice | None]
    ) -> list[ScoreDistribution]:
        """Return the distribution of the score of each response in a packed row.

        Args:
            batch: The packed row.
            choices: The place of the score after each of the row's outputs; None if there is none.
        """
        # A text without a place is read anywhere, so that every output has a choice.
        anywhere = self.place.choice_at_once(self.packed.encoder.tokenizer)
        remaining_choices = iter([choice or anywhere for choice in choices])
        trees = unpack(batch)
        choices_by_tree: list[list[Choice]] = []
        for tree in trees:
            choices_by_tree.append(list(islice(remaining_choices, len(tree.outputs))))
        log_probabilities = log_probabilities_of_alternatives(
            self.model, self.packed.encoder, trees, choices_by_tree, self.packed.token_budget
        )
        values = [of_output for of_tree in log_probabilities for of_output in of_tree]
        distributions: list[ScoreDistribution] = []
        for choice, of_alternatives in zip(choices, values, strict=True):
            if choice is None:
                distributions.append(NO_SCORE)
            else:
                distributions.append(self.place.distribution(choice, of_alternatives))
        return distributions

    def merge(
        self, candidates: Candidates, units: Sequence[Unit], results: Sequence[UnitResult]
    ) -> Scores:
        """Return the scores of all responses to a prompt, and their standard deviations.

        The arguments are those of `PackedJudge.merge`. A text without a score is treated as by
        `PointJudge`.

        Raises: NonFiniteError if a score that is read at once is not finite, and this is not the
        judge of a benchmark.
        """
        if not self.at_once:
            scores = super().merge(candidates, units, results)
            if self.protocol is not None:
                return scores
            # As its score, the deviation of a text without a score is 0: JSON has no NaN.
            stds = tuple(std if math.isfinite(std) else 0.0 for std in scores.attributes[STD])
            return replace(scores, attributes={**scores.attributes, STD: stds})
        values = joined_values(results)
        if self.protocol is None:
            refuse_non_finite(candidates, values)
        return Scores(values, attributes=joined_attributes(results))

    def notes(self, scores: Sequence[Scores]) -> tuple[str, ...]:
        """Return notes to print with figures that are computed from these scores.

        The last one says how probable it is that the judge writes one of the scores.
        """
        notes = self.about if self.at_once else super().notes(scores)
        masses = [mass for row_scores in scores for mass in row_scores.attributes.get(MASS, ())]
        if not masses:
            return notes
        note = (
            f"The judge writes one of its scores at their place with the probability "
            f"{sum(masses) / len(masses):.3f} on average, and {min(masses):.3f} at least."
        )
        return (*notes, note)


def _result_of(
    found: ScoreDistribution, texts: tuple[str, ...] = (), usage: Usage = NO_USAGE
) -> UnitResult:
    """Return the result of a unit with one response, from the distribution of its score."""
    attributes = {STD: (found.std,), MASS: (found.mass,)}
    return UnitResult(values=(found.mean,), attributes=attributes, texts=texts, usage=usage)

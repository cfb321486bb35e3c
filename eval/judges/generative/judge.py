"""Generative judges: both responses in one prompt, and a judgement that names the better one.

All votes on two responses in one order are continuations of one prompt, so prompt and image are
computed once for them.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

from mmrm.data.errors import CheckpointError
from mmrm.data.preference import Message
from mmrm.data.prompts import JudgeTemplate, ask, read
from mmrm.eval.benchmarks.benchmark import Benchmark
from mmrm.eval.benchmarks.multimodal_rewardbench import GENERAL_PROMPT
from mmrm.eval.candidates import Candidates, Scores, Side, Usage, Vote
from mmrm.eval.judges.checkpoint import Runtime, load_checkpoint
from mmrm.eval.judges.generative.config import GenerativeJudgeConfig
from mmrm.eval.judges.judge import JudgeInfo
from mmrm.eval.judges.packed_judge import Conversation, Unit, UnitResult
from mmrm.eval.judges.tournament import (
    Ask,
    Comparison,
    comparisons,
    pair_conversation,
    scores_from_votes,
)
from mmrm.eval.judges.writing import WritingJudge, usage_of_texts
from mmrm.eval.protocol import ProtocolConfig
from mmrm.models.backbone import load_language_model
from mmrm.models.config import BackboneConfig, SamplingConfig
from mmrm.models.packing.groups import PackedBatch
from mmrm.models.portable.language_model import LabelModel


def by_template(template: JudgeTemplate) -> Ask:
    """Return the prompt that this project's judges are trained on."""
    return partial(_ask_by_template, template)


def _ask_by_template(template: JudgeTemplate, pair: Candidates, first: Side) -> tuple[Message, ...]:
    return ask(template, pair.prompt, pair.responses[first], pair.responses[1 - first])


def position(text: str) -> Side | None:
    """Return the position (0 first, 1 second) that a judgement in R1-Reward's form names.

    Returns None if the judgement names none.
    """
    answer = read(text).answer
    if answer is None:
        return None
    return 0 if answer == 1 else 1


@dataclass(frozen=True, slots=True)
class PairLayout:
    """Two responses in one prompt, once for each judgement that is to be written about them."""

    ask: Ask

    def __call__(self, unit: Unit) -> tuple[list[Conversation], None]:
        """Return the conversations, which end before the judge's text."""
        conversation = pair_conversation(self.ask, unit.candidates, unit.shown)
        return [conversation] * len(unit.seeds), None


@dataclass(frozen=True, kw_only=True)
class GenerativeJudge(WritingJudge):
    """A judge that compares two responses in writing."""

    ask: Ask
    read: Callable[[str], Side | None] = position
    """The position (0 first, 1 second) that a judgement names; None if it cannot be read."""
    takes_benchmark_prompt: bool = False
    """Ask with the prompt of the benchmark that is judged, and read with its parser."""

    @property
    def info(self) -> JudgeInfo:
        """A generative judge compares in writing."""
        return JudgeInfo(compares=True, writes=True)

    @property
    def layout(self) -> PairLayout:
        """Both responses in one prompt."""
        return PairLayout(self.ask)

    def under(self, protocol: ProtocolConfig, benchmark: Benchmark) -> "GenerativeJudge":
        """Return the judge of a benchmark.

        Raises: CheckpointError for several votes at temperature 0, which would be equal.
        """
        refuse_equal_votes(self.sampling, protocol)
        if not self.takes_benchmark_prompt:
            return replace(self, protocol=protocol)
        prompt = benchmark.prompt or GENERAL_PROMPT
        return replace(self, protocol=protocol, ask=prompt.ask, read=prompt.read)

    def units(self, candidates: Candidates) -> list[Unit]:
        """Return one unit for every ordered pair of responses that has to be judged.

        A unit has a seed for each vote on the pair in that order.
        """
        units: dict[tuple[object, ...], Unit] = {}
        for comparison in sorted(comparisons(candidates), key=_pair_then_order):
            seed = f"{self.protocol.seed if self.protocol else 0}/{comparison.label}"
            identity = self._identity(candidates, comparison.shown)
            unit = units.get(identity)
            if unit is None:
                key = "-".join(map(str, comparison.shown))
                units[identity] = Unit(key, candidates, comparison.shown, (seed,))
            elif candidates.presentations:
                units[identity] = replace(unit, seeds=(*unit.seeds, seed))
        return list(units.values())

    def _identity(self, candidates: Candidates, shown: tuple[int, ...]) -> tuple[object, ...]:
        """Return the key of a unit: the responses' indices, or their texts.

        A greedy judge writes the same about the same texts. In a tournament, where responses are
        often equal, every two texts are therefore judged once in each order.
        """
        if self.sampling.temperature > 0 or candidates.presentations:
            return shown
        return tuple(candidates.responses[index] for index in shown)

    def run(self, batch: PackedBatch, units: Sequence[Unit]) -> list[UnitResult]:
        """Return the judgements of each unit, one for each of its seeds."""
        encoder = self.packed.encoder
        seeds = [seed for unit in units for seed in unit.seeds]
        written = iter(self.write(batch, [encoder.vision.image], seeds))
        results: list[UnitResult] = []
        for unit in units:
            judgements = list(islice(written, len(unit.seeds)))
            texts = tuple(encoder.tokenizer.decode(judgement.ids) for judgement in judgements)
            results.append(UnitResult(texts=texts, usage=usage_of_texts(judgements)))
        return results

    def merge(
        self, candidates: Candidates, units: Sequence[Unit], results: Sequence[UnitResult]
    ) -> Scores:
        """Return the votes, in the order of the comparisons, and the scores that they make."""
        texts_by_identity: dict[tuple[object, ...], tuple[str, ...]] = {}
        for unit, result in zip(units, results, strict=True):
            texts_by_identity[self._identity(candidates, unit.shown)] = result.texts
        votes: list[Vote] = []
        num_votes: Counter[tuple[object, ...]] = Counter()
        for comparison in comparisons(candidates):
            identity = self._identity(candidates, comparison.shown)
            texts = texts_by_identity[identity]
            # There is one text for each vote on a pair in one order. A greedy judge's only text on
            # two responses is its vote on all pairs of the same texts.
            text = texts[num_votes[identity] % len(texts)]
            num_votes[identity] += 1
            position_named = self.read(text)
            named = None if position_named is None else comparison.shown[position_named]
            votes.append(Vote(comparison.shown, named, text))
        usage = sum((result.usage for result in results), Usage())
        return scores_from_votes(candidates, votes, usage)


def _pair_then_order(comparison: Comparison) -> tuple[list[int], tuple[int, ...]]:
    """Sort comparisons by their two responses, and by the order in which these are shown."""
    return sorted(comparison.shown), comparison.shown


def load_writer(backbone: BackboneConfig, *, nf4: bool = False, **heads: object) -> LabelModel:
    """Load a language model for `load_checkpoint`, which requires a model with heads."""
    return load_language_model(backbone, nf4=nf4)


def refuse_equal_votes(sampling: SamplingConfig, protocol: ProtocolConfig) -> None:
    """Raise CheckpointError for several votes at temperature 0, which would be equal."""
    if protocol.votes > 1 and not sampling.temperature:
        raise CheckpointError(
            f"{protocol.votes} greedy votes are all alike. Give a YAML file with `type`, `checkpoint` and a `temperature` above "
            "0 (R1-Reward's is 1), or ask for 1 vote."
        )


def load_generative_judge(
    path: Path, runtime: Runtime, config: GenerativeJudgeConfig
) -> GenerativeJudge:
    """Return the judge that `config` names, with the prompts of its training.

    `config.template` replaces the template of its training.
    """
    checkpoint = load_checkpoint(Path(config.checkpoint).expanduser(), runtime, load_writer)
    template = config.template
    notes = checkpoint.notes
    if template is None and checkpoint.card is not None:
        template = checkpoint.card.template
    if template is None:
        template = "r1_reward"
        note = f"Nothing says how {config.checkpoint} was asked in training; it is asked as R1-Reward is."
        notes = (*notes, note)
    judge = GenerativeJudge(
        model=checkpoint.model,
        packed=checkpoint.packed,
        sampling=config,
        ask=GENERAL_PROMPT.ask,
        read=GENERAL_PROMPT.read,
        takes_benchmark_prompt=template == "benchmark",
        about=notes,
    )
    if template == "benchmark":
        return judge
    return replace(judge, ask=by_template(template), read=position)

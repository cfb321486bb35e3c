"""Generative judges: both responses in one prompt, and a judgement that names the better one.

All votes on two responses in one order are texts after one prompt, so prompt and image are
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
from mmrm.data.prompts import JudgeTemplate, judge_conversation, read_judgement
from mmrm.eval.benchmarks.benchmark import Benchmark
from mmrm.eval.benchmarks.multimodal_rewardbench import GENERAL_PROMPT
from mmrm.eval.candidates import (
    Candidates,
    Scores,
    Side,
    Usage,
    Vote,
    images_as_shown,
    videos_as_shown,
)
from mmrm.eval.judges.checkpoint import Runtime, load_checkpoint
from mmrm.eval.judges.generative.config import GenerativeJudgeConfig
from mmrm.eval.judges.judge import JudgeInfo
from mmrm.eval.judges.packed_judge import Unit, UnitResult
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
from mmrm.models.encoder import Conversation
from mmrm.models.packing.packed_batch import PackedBatch
from mmrm.models.portable.language_model import LabelModel


def by_template(template: JudgeTemplate) -> Ask:
    """Return the function that makes the conversation about two responses by a template's words.

    It can be pickled for loader workers.
    """
    return partial(_ask_by_template, template)


def _ask_by_template(template: JudgeTemplate, pair: Candidates, first: Side) -> tuple[Message, ...]:
    """Return the conversation that shows two responses to a judge.

    The response with index `first` is shown first.
    """
    return judge_conversation(
        template, pair.prompt, pair.responses[first], pair.responses[1 - first]
    )


def position(text: str) -> Side | None:
    """Return the position of the response that a judgement in R1-Reward's form names.

    It is 0 for the response that is shown first and 1 for the second; None if none is named.
    """
    answer = read_judgement(text).answer  # 1 or 2, as the judge's text numbers the responses
    if answer is None:
        return None
    return 0 if answer == 1 else 1


@dataclass(frozen=True, slots=True)
class PairLayout:
    """Makes the conversations that ask a judge which of two responses is better."""

    ask: Ask

    def __call__(self, unit: Unit) -> tuple[list[Conversation], None]:
        """Return one conversation for each judgement, which ends where the judge's text begins.

        They are equal and differ in the seeds of the unit. The second value is None, because no
        score is read from the model.
        """
        messages = pair_conversation(self.ask, unit.candidates, unit.shown)
        conversation = Conversation(
            messages,
            images_as_shown(unit.candidates, unit.shown),
            videos=videos_as_shown(unit.candidates, unit.shown),
        )
        return [conversation] * len(unit.seeds), None


@dataclass(frozen=True, kw_only=True)
class GenerativeJudge(WritingJudge):
    """A judge that writes a comparison of two responses, which names the better one."""

    ask: Ask
    read: Callable[[str], Side | None] = position
    """Returns the position of the response that a judgement names, 0 for the first shown and 1 for
    the second; None if the judgement cannot be read."""
    takes_benchmark_prompt: bool = False
    """True asks with the prompt of the benchmark that is judged, and reads with its parser."""

    @property
    def info(self) -> JudgeInfo:
        """Properties of the judge: it compares two responses by writing text."""
        return JudgeInfo(compares=True, writes=True)

    @property
    def layout(self) -> PairLayout:
        """The function that makes the conversations about two responses."""
        return PairLayout(self.ask)

    def under(self, protocol: ProtocolConfig, benchmark: Benchmark) -> "GenerativeJudge":
        """Return a copy of this judge that follows a benchmark's protocol.

        Raises: CheckpointError for several votes at temperature 0, which would be equal.
        """
        refuse_equal_votes(self.sampling, protocol)
        if not self.takes_benchmark_prompt:
            return replace(self, protocol=protocol)
        prompt = benchmark.prompt or GENERAL_PROMPT
        return replace(self, protocol=protocol, ask=prompt.ask, read=prompt.read)

    def units(self, candidates: Candidates) -> list[Unit]:
        """Return one unit for every ordered pair of responses that has to be judged.

        A unit is judged in one tree of a packed row. It has a seed for each vote on the pair in
        that order.
        """
        protocol_seed = self.protocol.seed if self.protocol else 0
        units: dict[tuple[object, ...], Unit] = {}
        for comparison in sorted(comparisons(candidates), key=_pair_then_order):
            seed = f"{protocol_seed}/{comparison.label}"
            identity = self._identity(candidates, comparison.shown)
            unit = units.get(identity)
            if unit is None:
                key = "-".join(map(str, comparison.shown))
                units[identity] = Unit(key, candidates, comparison.shown, (seed,))
            elif candidates.presentations:
                # Another vote on the pair in this order.
                units[identity] = replace(unit, seeds=(*unit.seeds, seed))
            # In a tournament, a repeated identity has the same texts. The judgement of its unit
            # counts for this comparison too (see `merge`).
        return list(units.values())

    def _identity(self, candidates: Candidates, shown: tuple[int, ...]) -> tuple[object, ...]:
        """Return the key of a pair's unit: the indices of the two responses, or themselves.

        A greedy judge writes the same about the same texts. In a tournament, where responses are
        often equal, every two texts are therefore judged once in each order.
        """
        if self.sampling.temperature > 0 or candidates.presentations:
            return shown
        return tuple(candidates.responses[index] for index in shown)

    def run(self, batch: PackedBatch, units: Sequence[Unit]) -> list[UnitResult]:
        """Generate the judgements on a packed row, and return one result for each unit in the row.

        A unit is an ordered pair of responses. A result has a text for each seed of the unit.
        """
        encoder = self.packed.encoder
        seeds = [seed for unit in units for seed in unit.seeds]
        all_judgements = iter(self.write(batch, [encoder.vision.image], seeds))
        results: list[UnitResult] = []
        for unit in units:
            judgements = list(islice(all_judgements, len(unit.seeds)))
            texts = tuple(encoder.tokenizer.decode(judgement.ids) for judgement in judgements)
            results.append(UnitResult(texts=texts, usage=usage_of_texts(judgements)))
        return results

    def merge(
        self, candidates: Candidates, units: Sequence[Unit], results: Sequence[UnitResult]
    ) -> Scores:
        """Return the judge's votes on a prompt's responses, and the scores that follow from them.

        There is a vote for each of the `comparisons` of the candidates, in the same order. The
        arguments are those of `PackedJudge.merge`.
        """
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
            named_position = self.read(text)
            named_response = None if named_position is None else comparison.shown[named_position]
            votes.append(Vote(comparison.shown, named_response, text))
        usage = sum((result.usage for result in results), Usage())
        return scores_from_votes(candidates, votes, usage)


def _pair_then_order(comparison: Comparison) -> tuple[list[int], tuple[int, ...]]:
    """Return a sorting key: first the two responses, then the order in which they are shown.

    Both orders of a pair then follow one another.
    """
    return sorted(comparison.shown), comparison.shown


def load_writer(backbone: BackboneConfig, *, nf4: bool = False, **heads: object) -> LabelModel:
    """Load a language model; this function is the `load_model` of `load_checkpoint`.

    Args:
        backbone: The checkpoint and its settings.
        nf4: True loads the language model's matrices in 4 bits.
        heads: Settings of reward heads. They are ignored, because a language model has none.
    """
    return load_language_model(backbone, nf4=nf4)


def refuse_equal_votes(sampling: SamplingConfig, protocol: ProtocolConfig) -> None:
    """Raise CheckpointError for several votes at temperature 0, which would be equal."""
    if protocol.votes > 1 and not sampling.temperature:
        raise CheckpointError(
            f"{protocol.votes} greedy votes are all alike. Give a YAML file with `type`, "
            "`checkpoint` and a `temperature` above 0 (R1-Reward's is 1), or ask for 1 vote."
        )


def load_generative_judge(
    path: Path, runtime: Runtime, config: GenerativeJudgeConfig
) -> GenerativeJudge:
    """Load the checkpoint that `config` names, and return it as a judge.

    The judge asks with the template of its training, or with `config.template` if it is set.
    """
    checkpoint = load_checkpoint(Path(config.checkpoint).expanduser(), runtime, load_writer)
    template = config.template
    notes = checkpoint.notes
    if template is None and checkpoint.card is not None:
        template = checkpoint.card.template
    if template is None:
        template = "r1_reward"
        note = (
            f"Nothing says how {config.checkpoint} was asked in training; it is asked as R1-Reward "
            "is."
        )
        notes = (*notes, note)
    if template == "benchmark":
        # A general prompt for people's own responses. `under` sets the benchmark's prompt.
        ask_pair: Ask = GENERAL_PROMPT.ask
        read_position = GENERAL_PROMPT.read
    else:
        ask_pair = by_template(template)
        read_position = position
    return GenerativeJudge(
        model=checkpoint.model,
        packed=checkpoint.packed,
        sampling=config,
        ask=ask_pair,
        read=read_position,
        takes_benchmark_prompt=template == "benchmark",
        about=notes,
    )

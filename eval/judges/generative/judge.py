"""Generative judges: both responses in one prompt, and a judgement that names the better one.

All votes on two responses in one order are texts after one prompt, so prompt and image are
computed once for them. With soft verdicts, one more forward pass over the judgements of a row reads
the probabilities of both verdicts where the verdicts stand (see soft_verdicts.py).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path

from mmrm.data.errors import CheckpointError
from mmrm.data.preference import Message
from mmrm.data.prompts import TEMPLATES, JudgeTemplate, judge_conversation
from mmrm.eval.benchmarks.benchmark import Benchmark
from mmrm.eval.benchmarks.multimodal_rewardbench import GENERAL_PROMPT
from mmrm.eval.candidates import (
    Candidates,
    Scores,
    Side,
    SoftVerdict,
    Usage,
    Vote,
    images_as_shown,
    videos_as_shown,
    won_shares,
)
from mmrm.eval.journal import SILENT, Journal
from mmrm.eval.judges.checkpoint import Runtime, load_checkpoint
from mmrm.eval.judges.generative.config import GenerativeJudgeConfig
from mmrm.eval.judges.generative.soft_verdicts import (
    WrittenJudgement,
    soft_note,
    soft_verdicts,
)
from mmrm.eval.judges.judge import JudgeInfo
from mmrm.eval.judges.judge_card import JudgeCard
from mmrm.eval.judges.judging_config import EVERY_PAIR, ComparisonsConfig
from mmrm.eval.judges.packed_inference import Cost
from mmrm.eval.judges.packed_judge import PairRounds, Unit, UnitResult
from mmrm.eval.judges.pair_ranking import PairRanking, ranked_batch
from mmrm.eval.judges.tournament import (
    Ask,
    Comparison,
    comparisons,
    pair_conversation,
    scores_from_votes,
)
from mmrm.eval.judges.writing import WritingJudge, usage_of_texts
from mmrm.eval.protocol import ProtocolConfig, Rationale, Verdicts
from mmrm.eval.verdict_form import TAGGED, VerdictForm, verdict_form_of
from mmrm.models.backbone import load_language_model
from mmrm.models.config import BackboneConfig, SamplingConfig
from mmrm.models.encoder import Conversation
from mmrm.models.generation import Generation
from mmrm.models.packing.packed_batch import PackedBatch
from mmrm.models.portable.language_model import LabelModel

HARD = "hard"
"""The name in `Scores.attributes` of the share of its comparisons that a response won by the words
of the judgements, if its score is the mean of their probabilities."""


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


def reader_of(template: JudgeTemplate) -> Callable[[str], Side | None]:
    """Return the function that reads which response a judgement in a template's form names."""
    return partial(position, template=template)


def position(text: str, template: JudgeTemplate = "r1_reward") -> Side | None:
    """Return the position of the response that a judgement in a template's form names.

    It is 0 for the response that is shown first and 1 for the second; None if none is named.
    """
    answer = TEMPLATES[template].form.read(text).answer  # 1 or 2, as the judge's text numbers them
    if answer is None:
        return None
    return 0 if answer == 1 else 1


@dataclass(frozen=True, slots=True)
class PairLayout:
    """Makes the conversations that ask a judge which of two responses is better."""

    ask: Ask

    def opening(self, unit: Unit) -> str:
        """Return the beginning of the judge's texts about a unit that is given to the judge."""
        return ""

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
            opening=self.opening(unit),
        )
        return [conversation] * len(unit.seeds), None


@dataclass(frozen=True, kw_only=True)
class GenerativeJudge(WritingJudge):
    """A judge that writes a comparison of two responses, which names the better one."""

    ask: Ask
    read: Callable[[str], Side | None] = position
    """Returns the position of the response that a judgement names, 0 for the first shown and 1 for
    the second; None if the judgement cannot be read."""
    form: VerdictForm = TAGGED
    """The place of the verdict in a judgement that `read` can read."""
    takes_benchmark_prompt: bool = False
    """True asks with the prompt of the benchmark that is judged, and reads with its parser."""
    comparisons: ComparisonsConfig = EVERY_PAIR
    """The comparisons by which people's own responses are ranked. Those of a benchmark are in its
    protocol."""
    verdicts: Verdicts = "hard"
    """How verdicts on people's own responses are read. Those of a benchmark are read by its
    protocol."""
    rationale: Rationale = "written"
    """Whether a rationale is written about people's own responses. If it is "none", `verdicts` is
    "soft". The protocol of a benchmark decides about its rows."""

    @property
    def reads_softly(self) -> bool:
        """True if verdicts are probabilities."""
        verdicts = self.verdicts if self.protocol is None else self.protocol.verdicts
        return verdicts == "soft"

    @property
    def writes_rationales(self) -> bool:
        """False if soft verdicts are read at once, so that no text is generated."""
        rationale = self.rationale if self.protocol is None else self.protocol.rationale
        return rationale == "written"

    @property
    def row_cost(self) -> Cost:
        """A function that returns the cost of a tree; texts count only if they are generated."""
        return super().row_cost if self.writes_rationales else attrgetter("cost")

    @property
    def info(self) -> JudgeInfo:
        """Properties of the judge: it compares two responses by writing text."""
        return JudgeInfo(compares=True, writes=True, compares_all=self.comparisons.asks_all)

    @property
    def layout(self) -> PairLayout:
        """The function that makes the conversations about two responses."""
        return PairLayout(self.ask)

    def under(self, protocol: ProtocolConfig, benchmark: Benchmark) -> "GenerativeJudge":
        """Return a copy of this judge that follows a benchmark's protocol.

        Raises: CheckpointError for several votes at temperature 0, which would be equal, and for
            verdicts without a rationale if the judge's template has no judgement without one.
        """
        refuse_equal_votes(self.sampling, protocol)
        if not self.takes_benchmark_prompt:
            refuse_missing_rationale(self.form, protocol.rationale)
            return replace(self, protocol=protocol)
        prompt = benchmark.prompt or GENERAL_PROMPT
        return replace(self, protocol=protocol, ask=prompt.ask, read=prompt.read, form=prompt.form)

    def ranking(self, candidates: Candidates) -> PairRounds | None:
        """Return a new ranking of people's own responses; None if every two are compared.

        Raises: RecordError for a single response.
        """
        if self.comparisons.asks_all or self.protocol is not None:
            return None
        return PairRanking(candidates, self.comparisons)

    def score_batch(self, batch: Sequence[Candidates], journal: Journal = SILENT) -> list[Scores]:
        """Return the scores of each prompt's responses, in the order of `batch`, on every rank.

        They are shares of comparisons won, or strengths (see `ComparisonsConfig`). All ranks must
        call together. The journal shows the progress, and keeps the results.

        Raises:
            RecordError: A text or an image cannot be encoded, or a prompt has a single response.
        """
        if self.comparisons.asks_all or self.protocol is not None:
            return super().score_batch(batch, journal)
        return ranked_batch(batch, self.comparisons, super().score_batch, journal)

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

        A unit is an ordered pair of responses. A result has a text for each seed of the unit, and
        with soft verdicts the probabilities of both verdicts for each text.
        """
        encoder = self.packed.encoder
        seeds = [seed for unit in units for seed in unit.seeds]
        generations: list[Generation] = []
        texts: list[str] = []
        judgements = [WrittenJudgement((), "")] * len(seeds)
        if self.writes_rationales:
            generations = self.write(batch, [encoder.vision.image], seeds)
            openings = [self.layout.opening(unit) for unit in units for _ in unit.seeds]
            judgements = []
            for opening, generation in zip(openings, generations, strict=True):
                written = encoder.tokenizer.decode(generation.ids)
                text = opening + written
                texts.append(text)
                judgements.append(
                    WrittenJudgement(generation.ids, written, self.read(text) is None)
                )
        verdicts: list[SoftVerdict] = []
        if self.reads_softly:
            verdicts = soft_verdicts(self.model, self.packed, batch, judgements, self.form)
        if not self.writes_rationales:
            texts = [self._likelier_judgement(verdict) for verdict in verdicts]

        results: list[UnitResult] = []
        start = 0
        for unit in units:
            end = start + len(unit.seeds)
            results.append(
                UnitResult(
                    texts=tuple(texts[start:end]),
                    verdicts=tuple(verdicts[start:end]),
                    usage=usage_of_texts(generations[start:end]),
                )
            )
            start = end
        return results

    def _likelier_judgement(self, verdict: SoftVerdict) -> str:
        """Return the judgement without a rationale that has the higher probability.

        It stands for the text of a verdict that was read at once, in files and by official rules.
        """
        return self.form.judgement_at_once(0 if verdict.first >= 0.5 else 1)

    def merge(
        self, candidates: Candidates, units: Sequence[Unit], results: Sequence[UnitResult]
    ) -> Scores:
        """Return the judge's votes on a prompt's responses, and the scores that follow from them.

        There is a vote for each of the `comparisons` of the candidates, in the same order. The
        arguments are those of `PackedJudge.merge`.
        """
        result_by_identity: dict[tuple[object, ...], UnitResult] = {}
        for unit, result in zip(units, results, strict=True):
            result_by_identity[self._identity(candidates, unit.shown)] = result
        votes: list[Vote] = []
        num_votes: Counter[tuple[object, ...]] = Counter()
        for comparison in comparisons(candidates):
            identity = self._identity(candidates, comparison.shown)
            result = result_by_identity[identity]
            # There is one text for each vote on a pair in one order. A greedy judge's only text on
            # two responses is its vote on all pairs of the same texts.
            index = num_votes[identity] % len(result.texts)
            num_votes[identity] += 1
            text = result.texts[index]
            named_position = self.read(text)
            named_response = None if named_position is None else comparison.shown[named_position]
            verdict = result.verdicts[index] if result.verdicts else None
            votes.append(Vote(comparison.shown, named_response, text, verdict))
        usage = sum((result.usage for result in results), Usage())
        scores = scores_from_votes(candidates, votes, usage)
        if self.protocol is None and self.reads_softly:
            hard_votes = [replace(vote, soft=None) for vote in votes]
            hard_shares = won_shares(len(candidates.responses), hard_votes)
            scores = replace(scores, attributes={HARD: hard_shares})
        return scores

    def notes(self, scores: Sequence[Scores]) -> tuple[str, ...]:
        """Return notes to print with figures that are computed from these scores.

        With soft verdicts, one of them says where the verdicts were read.
        """
        notes = super().notes(scores)
        return (*notes, soft_note(scores)) if self.reads_softly else notes


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


def refuse_missing_rationale(form: VerdictForm, rationale: Rationale) -> None:
    """Raise CheckpointError if no rationale is written, and a form has no judgement without one."""
    if rationale == "none" and form.without_rationale is None:
        raise CheckpointError(
            "rationale=none reads the verdict at once, and this judge is asked by a template with "
            "a rubric, whose judgements have no verdict without criteria and checks. Remove "
            "rationale=none, or set `template` to one without a rubric."
        )


def rationale_of(
    config: GenerativeJudgeConfig, card: JudgeCard | None, form: VerdictForm
) -> Rationale:
    """Return "written" if a judge writes rationales about people's own responses, else "none".

    Args:
        config: The settings of the judge.
        card: The card of its checkpoint; None if the checkpoint has none.
        form: The form of its judgements.

    Raises: CheckpointError if the settings say none, and the form has no judgement without one.
    """
    if config.rationale is not None:
        refuse_missing_rationale(form, config.rationale)
        return config.rationale
    if config.verdicts == "hard" or form.without_rationale is None or card is None:
        return "written"
    return card.protocol.rationale


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
        form = GENERAL_PROMPT.form
    else:
        ask_pair = by_template(template)
        read_position = reader_of(template)
        form = verdict_form_of(template)
    rationale = rationale_of(config, checkpoint.card, form)
    verdicts = config.verdicts
    if verdicts is None:
        verdicts = "soft" if rationale == "none" else "hard"
    return GenerativeJudge(
        model=checkpoint.model,
        packed=checkpoint.packed,
        sampling=config,
        ask=ask_pair,
        read=read_position,
        form=form,
        takes_benchmark_prompt=template == "benchmark",
        comparisons=config,
        verdicts=verdicts,
        rationale=rationale,
        about=notes,
    )

"""Generative judges: both responses in one prompt, a written judgement, and the response that it names.

All votes on an example in one order are continuations of one prompt, so prompt and image are computed once for them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

import torch

from mmrm.data.errors import CheckpointError
from mmrm.data.preference import Message
from mmrm.data.prompts import JudgeTemplate, ask, read
from mmrm.eval.benchmarks.benchmark import Benchmark
from mmrm.eval.benchmarks.multimodal_rewardbench import GENERAL_PROMPT
from mmrm.eval.benchmarks.preference_folder import PREFERENCE_FOLDER
from mmrm.eval.candidates import Candidates, Example, Ranking, Side, Verdict, Vote
from mmrm.eval.journal import SILENT, Journal
from mmrm.eval.judges.checkpoint import LoadedCheckpoint, Runtime, load_checkpoint
from mmrm.eval.judges.generative.config import GenerativeJudgeConfig
from mmrm.eval.judges.loaded import LoadedJudge
from mmrm.eval.judges.packed_inference import run_packed
from mmrm.eval.judges.packed_judge import PackedRanker
from mmrm.eval.judges.tournament import pairs, won
from mmrm.eval.judges.writing import WritingJudge
from mmrm.eval.protocol import ProtocolConfig, journal_key, presentations
from mmrm.models.backbone import load_language_model
from mmrm.models.config import BackboneConfig, SamplingConfig
from mmrm.models.encoder import Encoder
from mmrm.models.packing.groups import Group, PackedBatch
from mmrm.models.portable.language_model import LabelModel

Ask = Callable[[Example, Side], tuple[Message, ...]]
"""Makes the conversation that shows an example with the given response first; picklable for loader workers."""


def by_template(template: JudgeTemplate) -> Ask:
    """Return the prompt that this project's judges are trained on."""
    return partial(_ask_by_template, template)


def _ask_by_template(template: JudgeTemplate, example: Example, first: Side) -> tuple[Message, ...]:
    return ask(template, example.prompt, example.responses[first], example.responses[1 - first])


def position(text: str) -> Side | None:
    """Return the position (0 first, 1 second) that a judgement in R1-Reward's form names; None where it cannot be read."""
    answer = read(text).answer
    return None if answer is None else 0 if answer == 1 else 1


@dataclass(frozen=True, slots=True)
class ShownPair:
    """An example with one response shown first, for one or more judgements."""

    example: Example
    first: Side
    turns: tuple[int, ...]
    """The judgements' places in the verdict's votes."""


def showings(example: Example, protocol: ProtocolConfig) -> list[ShownPair]:
    """Return an example once for every response that the protocol shows first, each with the judgements asked for."""
    firsts = presentations(example, protocol)
    return [
        ShownPair(example, side, tuple(turn for turn, first in enumerate(firsts) if first == side))
        for side in sorted(set(firsts))
    ]


@dataclass(frozen=True, slots=True)
class ShownEncoder:
    """Encodes what is shown as one prompt with as many continuations as there are judgements; runs in loader workers."""

    encoder: Encoder
    ask: Ask

    def __call__(self, shown: ShownPair) -> Group:
        """Encode up to the place where the judge begins to write."""
        conversations = [self.ask(shown.example, shown.first)] * len(shown.turns)
        return self.encoder.encode_conversations(
            shown.example.images, conversations, None, shown.example.identity
        )


Judgements = list[tuple[Vote, int, bool]]
"""Vote, tokens and whether the limit cut it off, of every judgement of what is shown once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerativeJudge(WritingJudge):
    """A judge that compares both responses in writing."""

    ask: Ask
    protocol: ProtocolConfig
    read: Callable[[str], Side | None] = position
    """The position (0 first, 1 second) that a judgement names; None where it cannot be read."""

    @torch.no_grad()
    def judge(self, examples: Sequence[Example], journal: Journal = SILENT) -> list[Verdict]:
        """Return the votes on every example, in the order of the protocol's presentations; all ranks must call together."""
        started = perf_counter()
        shown = [one for example in examples for one in showings(example, self.protocol)]
        contents = {id(example): journal_key(example) for example in examples}
        keys = [f"{contents[id(one.example)]}/{one.first}" for one in shown]
        encode = ShownEncoder(self.packed.encoder, self.ask)
        with journal.judging(keys, Judgements, len(examples)) as judging:
            found = run_packed(self.packed, shown, encode, self.judgements, self.cost, judging)
        votes = {
            (id(one.example), turn): vote
            for one, judgements in zip(shown, found, strict=True)
            for turn, (vote, _, _) in zip(one.turns, judgements, strict=True)
        }
        self.spent.add(
            len(votes),
            ((tokens, cut) for judgements in found for _, tokens, cut in judgements),
            started,
        )
        return [
            Verdict(
                votes=tuple(
                    votes[id(example), turn]
                    for turn in range(len(presentations(example, self.protocol)))
                )
            )
            for example in examples
        ]

    def judgements(self, batch: PackedBatch, shown: Sequence[ShownPair]) -> list[Judgements]:
        """Return the judgements of what is shown."""
        seeds = [
            f"{self.protocol.seed}/{one.example.key}/{turn}" for one in shown for turn in one.turns
        ]
        written = iter(self.write(batch, [self.packed.encoder.vision.image], seeds))

        def vote(first: Side) -> tuple[Vote, int, bool]:
            one = next(written)
            text = self.packed.encoder.tokenizer.decode(one.ids)
            return Vote.at(text, first, self.read(text)), len(one.ids) + 1, one.truncated

        return [[vote(one.first) for _ in one.turns] for one in shown]


def load_writer(backbone: BackboneConfig, *, nf4: bool = False, **heads: object) -> LabelModel:
    """Load a language model where `load_checkpoint` asks for a model with heads."""
    return load_language_model(backbone, nf4=nf4)


def refuse_equal_votes(sampling: SamplingConfig, protocol: ProtocolConfig) -> None:
    """Raise CheckpointError for several votes at temperature 0, which would all be alike."""
    if protocol.votes > 1 and not sampling.temperature:
        raise CheckpointError(
            f"{protocol.votes} greedy votes are all alike. Give a YAML file with `type`, `checkpoint` and a `temperature` above "
            "0 (R1-Reward's is 1), or ask for 1 vote."
        )


def generative_judge(
    found: LoadedCheckpoint,
    config: GenerativeJudgeConfig,
    benchmark: Benchmark,
    protocol: ProtocolConfig,
) -> GenerativeJudge:
    """Return the judge for a benchmark, asked as its own training asked it unless `config` says otherwise.

    Raises: CheckpointError as `refuse_equal_votes` does.
    """
    refuse_equal_votes(config, protocol)
    template, notes = config.template or (found.card.template if found.card else None), found.notes
    if template is None:
        template = "r1_reward"
        notes = (
            *notes,
            f"Nothing says how {config.checkpoint} was asked in training; it is asked as R1-Reward is.",
        )
    if template == "benchmark":
        own = benchmark.prompt or GENERAL_PROMPT
        asked, reader = own.ask, own.read
    else:
        asked, reader = by_template(template), position
    return GenerativeJudge(
        model=found.model,
        packed=found.packed,
        sampling=config,
        ask=asked,
        read=reader,
        protocol=protocol,
        about=notes,
    )


def tournament_ranker(judge: GenerativeJudge) -> PackedRanker[ShownPair, Judgements]:
    """Return what ranks by a tournament of a judge, who is asked in both orders.

    At temperature 0 a judge writes of the same two texts what it wrote before: where responses are equal, as often a policy's,
    every two texts are shown once in each order.
    """
    drawn = judge.sampling.temperature > 0

    def shown(candidates: Candidates) -> Iterator[tuple[tuple[str, ...], str, ShownPair]]:
        for pair in pairs(candidates):
            for one in showings(pair, judge.protocol):
                key = f"{pair.key}/{one.first}"
                yield (key,) if drawn else pair.responses[:: -1 if one.first else 1], key, one

    def cut(candidates: Candidates) -> Iterator[tuple[str, ShownPair]]:
        once: dict[tuple[str, ...], tuple[str, ShownPair]] = {}
        for content, key, one in shown(candidates):
            once.setdefault(content, (key, one))
        yield from once.values()

    def join(candidates: Candidates, found: Sequence[Judgements]) -> Ranking:
        every = list(shown(candidates))
        known = dict(zip(dict.fromkeys(content for content, _, _ in every), found, strict=True))
        texts = (
            (vote.text, one.first) for content, _, one in every for vote, _, _ in known[content]
        )
        return won(candidates, [Vote.at(text, first, judge.read(text)) for text, first in texts])

    encode = ShownEncoder(judge.packed.encoder, judge.ask)
    return PackedRanker(
        judge.packed, encode, judge.cost, judge.judgements, Judgements, cut, join, None
    )


def load_generative_judge(
    path: Path, runtime: Runtime, config: GenerativeJudgeConfig
) -> LoadedJudge:
    """Return the judge that `config` names. `path` is its folder or YAML file."""
    judge_for = partial(
        generative_judge,
        load_checkpoint(Path(config.checkpoint).expanduser(), runtime, load_writer),
        config,
    )
    return LoadedJudge(tournament_ranker(judge_for(PREFERENCE_FOLDER, ProtocolConfig())), judge_for)

"""Generative judges: both responses in one prompt, a written judgement, and the response that it names.

All votes on an example in one order are continuations of one prompt, so prompt and image are computed once for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any

import torch

from data.errors import CheckpointError
from data.preference import Message
from data.prompts import JudgeTemplate, ask, read
from eval.benchmarks.benchmark import Benchmark, PairwisePrompt
from eval.benchmarks.multimodal_rewardbench import GENERAL_PROMPT
from eval.judges.checkpoint import LoadedCheckpoint
from eval.judges.config import GenerativeJudgeConfig
from eval.judges.critic import JudgingCost
from eval.judges.packed_inference import Packed, run_packed
from eval.protocol import Example, ProtocolConfig, Side, Verdict, Vote, presentations
from models.encoder import Encoder
from models.generation import SamplingConfig, WritingCost, generate
from models.packing.groups import Group, PackedBatch


@dataclass(frozen=True, slots=True)
class JudgePrompt:
    """What a judge is asked about an example, and how its text is read; picklable for loader workers."""

    ask: Callable[[Example, Side], tuple[Message, ...]]
    read: Callable[[str], Side | None]
    """The position (0 first, 1 second) that a judgement names; None where it cannot be read."""

    @classmethod
    def of_template(cls, template: JudgeTemplate) -> JudgePrompt:
        """Return the prompt that this project's judges are trained on."""
        return cls(partial(_ask_by_template, template), position)


def _ask_by_template(template: JudgeTemplate, example: Example, first: Side) -> tuple[Message, ...]:
    return ask(template, example.prompt, example.responses[first], example.responses[1 - first])


def position(text: str) -> Side | None:
    """Return the position that a judgement in R1-Reward's form names."""
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
    sides: tuple[Side, Side] = (0, 1)
    return [
        ShownPair(example, side, tuple(turn for turn, first in enumerate(firsts) if first == side))
        for side in sides
        if side in firsts
    ]


@dataclass(frozen=True, slots=True)
class ShownEncoder:
    """Encodes what is shown as one prompt with as many continuations as there are judgements; runs in loader workers."""

    encoder: Encoder
    prompt: JudgePrompt | PairwisePrompt

    def __call__(self, shown: ShownPair) -> Group:
        """Encode up to the place where the judge begins to write."""
        conversations = [self.prompt.ask(shown.example, shown.first)] * len(shown.turns)
        return self.encoder.encode_conversations(shown.example.images, conversations, None, shown.example.identity)


@dataclass(frozen=True, slots=True)
class GenerativeJudge:
    """A judge that writes; `model` is the unwrapped language model in eval mode."""

    model: Any
    encode: ShownEncoder
    device: torch.device
    token_budget: int
    sampling: SamplingConfig
    protocol: ProtocolConfig
    spent: JudgingCost = field(default_factory=JudgingCost)
    """Of all ranks together."""
    workers: int = 0
    about: tuple[str, ...] = ()
    """What must be said beside its figures, whatever judging costs."""

    @torch.no_grad()
    def judge(self, examples: Sequence[Example]) -> list[Verdict]:
        """Return the votes on every example, in the order of the protocol's presentations; all ranks must call together."""
        started = perf_counter()
        shown = [one for example in examples for one in showings(example, self.protocol)]
        packed = Packed(self.encode.encoder, self.device, self.token_budget, self.workers)
        cost = WritingCost.of(self.model.config.text_config, self.sampling)
        found = run_packed(packed, shown, self.encode, lambda batch, items: self._write(batch, [shown[i] for i in items]), cost)
        votes: dict[tuple[int, int], Vote] = {}
        for one, judgements in zip(shown, found, strict=True):
            for turn, (text, tokens, truncated) in zip(one.turns, judgements, strict=True):
                votes[id(one.example), turn] = Vote.at(text, one.first, self.encode.prompt.read(text))
                self.spent.tokens += tokens
                self.spent.truncated += truncated
        self.spent.judgements += len(votes)
        self.spent.seconds += perf_counter() - started
        return [
            Verdict(votes=tuple(votes[id(example), turn] for turn in range(len(presentations(example, self.protocol)))))
            for example in examples
        ]

    def notes(self) -> tuple[str, ...]:
        """Return what must be said beside the figures: also what judging cost."""
        spent = self.spent
        mean = spent.tokens / max(spent.judgements, 1)
        cost = f"{spent.judgements:,} judgements of {mean:.0f} tokens on average; {spent.truncated:,} cut off at the limit."
        return (*self.about, cost)

    def _write(self, batch: PackedBatch, shown: Sequence[ShownPair]) -> list[list[tuple[str, int, bool]]]:
        """Return text, tokens and whether the limit cut it off, of every judgement of what is shown."""
        tokenizer = self.encode.encoder.tokenizer
        seeds = [f"{self.protocol.seed}/{one.example.key}/{turn}" for one in shown for turn in one.turns]
        end = tokenizer.convert_tokens_to_ids("<|im_end|>")
        forbidden = [self.encode.encoder.vision.image]
        written = generate(self.model, batch, end=end, forbidden=forbidden, sampling=self.sampling, seeds=seeds)

        counted = ((tokenizer.decode(one.ids), len(one.ids) + 1, one.truncated) for one in written)
        return [list(islice(counted, len(one.turns))) for one in shown]


def generative_judge(
    found: LoadedCheckpoint, config: GenerativeJudgeConfig, benchmark: Benchmark, protocol: ProtocolConfig
) -> GenerativeJudge:
    """Return the judge for a benchmark, asked as its own training asked it unless `config` says otherwise.

    Raises: CheckpointError for several votes at temperature 0, which would all be alike.
    """
    if protocol.votes > 1 and not config.temperature:
        raise CheckpointError(
            f"{protocol.votes} greedy votes are all alike. Give a YAML file with `type: generative`, `checkpoint` and a "
            "`temperature` above 0 (R1-Reward's is 1), or ask for 1 vote."
        )
    template, notes = config.template or (found.card.template if found.card else None), found.notes
    if template is None:
        template, unknown = (
            "r1_reward",
            f"Nothing says how {config.checkpoint} was asked in training; it is asked as R1-Reward is.",
        )
        notes = (*notes, unknown)
    own = benchmark.prompt or GENERAL_PROMPT
    return GenerativeJudge(
        model=found.model,
        encode=ShownEncoder(found.encoder, own if template == "benchmark" else JudgePrompt.of_template(template)),
        device=found.device,
        token_budget=found.token_budget,
        sampling=SamplingConfig(temperature=config.temperature, top_p=config.top_p, max_new_tokens=config.max_new_tokens),
        protocol=protocol,
        workers=found.workers,
        about=notes,
    )

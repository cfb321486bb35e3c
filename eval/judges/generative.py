"""Generative judges: both responses in one prompt, a written judgement, and the response that it names.

All votes on an example in one order are continuations of one prompt, so prompt and image are computed once for them.

From a language model's checkpoint to a generative judge, asked as its own training asked it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from peft import PeftModel

from data.errors import CheckpointError
from data.preference import Message
from data.prompts import JudgeTemplate, ask, read
from eval.benchmarks.benchmark import Benchmark, PairwisePrompt
from eval.benchmarks.multimodal_rewardbench import GENERAL_PROMPT
from eval.judges.checkpoint import LoadedCheckpoint, Runtime, load_with_head, recorded
from eval.judges.config import GenerativeJudgeConfig
from eval.judges.critic import JudgingCost
from eval.judges.packed_inference import Packed, run_packed
from eval.protocol import Example, ProtocolConfig, Side, Verdict, Vote, presentations
from models.backbone import load_language_model
from models.config import BackboneConfig, HeadConfig
from models.encoder import Encoder
from models.generation import SamplingConfig, generate
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
        return cls(TemplateQuestion(template), position)

    @classmethod
    def of_benchmark(cls, prompt: PairwisePrompt) -> JudgePrompt:
        """Return a benchmark's own prompt, for models that were not trained as judges."""
        return cls(prompt.ask, prompt.read)


@dataclass(frozen=True, slots=True)
class TemplateQuestion:
    """Asks with one of the project's templates."""

    template: JudgeTemplate

    def __call__(self, example: Example, first: Side) -> tuple[Message, ...]:
        """Return the conversation that shows response `first` as Response 1."""
        return ask(self.template, example.prompt, example.responses[first], example.responses[1 - first])


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


@dataclass(frozen=True, slots=True)
class ShownEncoder:
    """Encodes what is shown as one prompt with as many continuations as there are judgements; runs in loader workers."""

    encoder: Encoder
    prompt: JudgePrompt

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
    spent: JudgingCost
    workers: int = 0

    @torch.no_grad()
    def judge(self, examples: Sequence[Example]) -> list[Verdict]:
        """Return the votes on every example, in the order of the protocol's presentations; all ranks must call together."""
        started = perf_counter()
        shown = [one for example in examples for one in showings(example, self.protocol)]
        packed = Packed(self.encode.encoder, self.device, self.token_budget, self.workers)
        texts = run_packed(packed, shown, self.encode, lambda batch, items: self._write(batch, [shown[i] for i in items]))
        votes: dict[tuple[int, int], Vote] = {}
        for one, written in zip(shown, texts, strict=True):
            for turn, text in zip(one.turns, written, strict=True):
                votes[id(one.example), turn] = self._vote(text, one.first)
        self.spent.judgements += len(votes)
        self.spent.seconds += perf_counter() - started
        counts = [len(presentations(example, self.protocol)) for example in examples]
        return [
            Verdict(votes=tuple(votes[id(example), turn] for turn in range(count)))
            for example, count in zip(examples, counts, strict=True)
        ]

    def _vote(self, text: str, first: Side) -> Vote:
        named = self.encode.prompt.read(text)
        other: Side = 1 if first == 0 else 0
        return Vote(text, first, None if named is None else first if named == 0 else other)

    def _write(self, batch: PackedBatch, shown: Sequence[ShownPair]) -> list[list[str]]:
        tokenizer = self.encode.encoder.tokenizer
        seeds = [f"{self.protocol.seed}/{one.example.key}/{turn}" for one in shown for turn in one.turns]
        end = tokenizer.convert_tokens_to_ids("<|im_end|>")
        forbidden = [self.encode.encoder.vision.image]
        written = generate(self.model, batch, end=end, forbidden=forbidden, sampling=self.sampling, seeds=seeds)
        self.spent.tokens += sum(len(one.ids) + 1 for one in written)
        self.spent.truncated += sum(one.truncated for one in written)
        texts = iter([tokenizer.decode(one.ids) for one in written])
        return [[next(texts) for _ in one.turns] for one in shown]


def showings(example: Example, protocol: ProtocolConfig) -> list[ShownPair]:
    """Return an example once for every response that the protocol shows first, each with the judgements asked for."""
    firsts = presentations(example, protocol)
    sides: tuple[Side, Side] = (0, 1)
    turns = {side: tuple(turn for turn, first in enumerate(firsts) if first == side) for side in sides}
    return [ShownPair(example, side, turns[side]) for side in sides if turns[side]]


RELEASED: JudgeTemplate = "r1_reward"


@dataclass(frozen=True, slots=True)
class LoadedJudge:
    """A generative judge's checkpoint, ready for any benchmark."""

    checkpoint: LoadedCheckpoint
    config: GenerativeJudgeConfig
    template: JudgeTemplate | None
    """None asks with the benchmark's own prompt."""
    notes: tuple[str, ...]

    def judge(self, benchmark: Benchmark, protocol: ProtocolConfig) -> tuple[GenerativeJudge, Callable[[], tuple[str, ...]]]:
        """Return the judge for a benchmark, and what must be said beside its figures once it has judged.

        Raises: CheckpointError for several votes at temperature 0, which would all be alike.
        """
        if protocol.votes > 1 and not self.config.temperature:
            raise CheckpointError(
                f"{protocol.votes} greedy votes are all alike. Give a YAML file with `type: generative`, `checkpoint` and a "
                "`temperature` above 0 (R1-Reward's is 1), or ask for 1 vote."
            )
        own = benchmark.prompt or GENERAL_PROMPT
        prompt = JudgePrompt.of_benchmark(own) if self.template is None else JudgePrompt.of_template(self.template)
        sampling = SamplingConfig(**{name: getattr(self.config, name) for name in SamplingConfig.model_fields})
        found, model = self.checkpoint, self.checkpoint.model
        inner = model.get_base_model() if isinstance(model, PeftModel) else model
        encode = ShownEncoder(found.encoder, prompt)
        spent = JudgingCost()
        judge = GenerativeJudge(inner, encode, found.device, found.token_budget, sampling, protocol, spent, found.workers)
        return judge, lambda: (*found.notes, *self.notes, cost(spent))


def load_generative(config: GenerativeJudgeConfig, runtime: Runtime) -> LoadedJudge:
    """Load a language model as a judge; raises what `load_with_head` raises."""
    path = Path(config.checkpoint).expanduser()
    checkpoint = load_with_head(path, runtime, _load)
    if config.template is not None:
        return LoadedJudge(checkpoint, config, None if config.template == "benchmark" else config.template, ())
    run = recorded(path)
    if run is not None and run.template is not None:
        return LoadedJudge(checkpoint, config, run.template, ())
    note = f"Nothing says how {path} was asked in training; it is asked as R1-Reward is."
    return LoadedJudge(checkpoint, config, RELEASED, (note,))


def _load(backbone: BackboneConfig, head: HeadConfig | None = None, *, fresh_head: bool = False, nf4: bool = False) -> Any:
    return load_language_model(backbone, nf4=nf4)


def cost(spent: JudgingCost) -> str:
    """Say what judging cost."""
    mean = spent.tokens / max(spent.judgements, 1)
    return f"{spent.judgements:,} judgements of {mean:.0f} tokens on average; {spent.truncated:,} cut off at the limit."

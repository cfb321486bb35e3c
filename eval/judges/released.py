"""Reward models that others released, as judges: each is loaded, asked and read as its authors' code does it.

A row says what no checkpoint says of itself. A generative one has the stock class of its family, in the released key layout or in
the current one; a scalar one brings its head beside it, in `value_head.safetensors`. To add one, add a row to `RELEASED` and its
name to `ReleasedModel`, its texts to `released_templates.py`, and a judge file to `recipes/judges/`.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from data.errors import CheckpointError
from data.prompts import R1_REWARD
from data.storage.files import read_json
from eval.journal import SILENT, Journal
from eval.judges import released_templates as templates
from eval.judges.checkpoint import Runtime, fetched, load_checkpoint
from eval.judges.config import ReleasedJudgeConfig, ReleasedModel
from eval.judges.critic import Judged, WritingJudge
from eval.judges.generative import GenerativeJudge, load_writer, refuse_equal_votes
from eval.judges.loaded import LoadedJudge
from eval.judges.packed_inference import ScalarJudge, run_packed
from eval.judges.ranking import PackedRanker, scalar_ranker, tournament_ranker
from eval.judges.released_templates import PairTemplate, PointTemplate
from eval.protocol import Candidates, ProtocolConfig, Ranking, Verdict, journal_key
from models.backbone import load_scalar
from models.config import HeadConfig, SamplingConfig
from models.encoder import Encoder
from models.packing.groups import Group, PackedBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """What a released reward model is, and how its authors run it."""

    family: str
    """`model_type` of its config.json."""
    way: PairTemplate | PointTemplate | HeadConfig
    """What it is asked and how that is read, or the head of a scalar one and where it reads."""
    sees: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the backbone in its authors' script; what is not here is as the checkpoint's own files say."""
    max_new_tokens: int = 4096
    penalised: bool = True
    """The script leaves the repetition penalty to the checkpoint's generation_config.json."""


QWEN2_5 = "You are a helpful assistant."
"""The system turn that two clients write out; the chat template of Qwen2.5-VL writes the same where there is none."""
BETTER = templates.answer_is_better

RELEASED: dict[ReleasedModel, Released] = {
    "r1_reward": Released(
        family="qwen2_5_vl",
        way=PairTemplate(R1_REWARD, templates.answer_tag),
        sees={
            "max_pixels": 1003520 // 2
        },  # yfzhang114/r1_reward 3693413, all three scripts in inference/
    ),
    "unified_reward": Released(
        family="qwen2_5_vl", way=PairTemplate(templates.UNIFIED_REWARD, BETTER)
    ),
    "unified_reward_points": Released(
        family="qwen2_5_vl",
        way=PointTemplate(templates.UNIFIED_REWARD_POINTS, templates.final_score),
    ),
    "unified_reward_think": Released(
        family="qwen2_5_vl", way=PairTemplate(templates.UNIFIED_REWARD_THINK, BETTER)
    ),
    "unified_reward_qwen3vl": Released(
        family="qwen3_vl", way=PairTemplate(templates.UNIFIED_REWARD, BETTER)
    ),
    "unified_reward_think_qwen3vl": Released(
        family="qwen3_vl", way=PairTemplate(templates.UNIFIED_REWARD_THINK_QWEN3VL, BETTER)
    ),
    "llava_critic_r1": Released(
        family="qwen2_5_vl",
        way=PairTemplate(templates.LLAVA_CRITIC_R1, templates.boxed),
        sees={"system_prompt": QWEN2_5},
        penalised=False,
    ),
    "sophia_thinking_reward": Released(
        family="qwen2_5_vl",
        way=PointTemplate(templates.THINKING_REWARD, templates.thinking_score, mark="<image> "),
        sees={"system_prompt": QWEN2_5},
        max_new_tokens=1024,  # its client sets none
    ),
    "skywork_vl_reward": Released(  # Skywork/Skywork-VL-Reward-7B, model card: TRL's value head at the conversation's last token
        family="qwen2_5_vl", way=HeadConfig(layers=1, activation="none", read="last_token")
    ),
}
"""The rows; docs/evaluation.md says where each was read, and what its authors measured."""


def compares(config: object) -> bool:
    """Say whether a judge is a released one that names the better response and gives no scores."""
    return isinstance(config, ReleasedJudgeConfig) and isinstance(
        RELEASED[config.model].way, PairTemplate
    )


def released_judge(path: Path, runtime: Runtime, config: ReleasedJudgeConfig) -> LoadedJudge:
    """Return the judge of a row with the weights of a checkpoint.

    Raises: CheckpointError for a checkpoint of another family, and for sampling settings of a judge that writes nothing.
    """
    row, folder = RELEASED[config.model], fetched(Path(config.checkpoint).expanduser())
    file = folder / "config.json"
    kind = read_json(file).get("model_type") if file.is_file() else None
    if kind != row.family:
        raise CheckpointError(
            f"{path}: {folder} holds {f'a {kind!r} model' if kind else 'no config.json'}; `model: {config.model}` is asked of a "
            f"whole {row.family!r} checkpoint, adapters merged. Give the hub id that recipes/judges/ names, or a copy of it."
        )
    about: tuple[str, ...] = (
        f"Asked and read as the row {config.model} of eval/judges/released.py says.",
    )
    written = config.model_fields_set & {"temperature", "top_p", "max_new_tokens"}
    if isinstance(row.way, HeadConfig):
        if written:
            raise CheckpointError(
                f"{path}: {', '.join(sorted(written))}: {config.model} writes nothing; remove it."
            )
        found = load_checkpoint(folder, runtime, partial(load_scalar, head=row.way), row.sees)
        judge = ScalarJudge(found.model, found.packed, row.way.read, about)
        return LoadedJudge(scalar_ranker(judge), lambda benchmark, protocol: judge)
    found = load_checkpoint(folder, runtime, load_writer, row.sees)
    sampling = SamplingConfig(
        temperature=config.temperature,
        top_p=config.top_p,
        max_new_tokens=config.max_new_tokens or row.max_new_tokens,
    )
    file = folder / "generation_config.json"
    penalty = (
        (read_json(file).get("repetition_penalty") or 1.0)
        if row.penalised and file.is_file()
        else 1.0
    )
    if penalty != 1:
        about = (*about, f"Repetition penalty {penalty}, as its generation_config.json says.")
    writing: dict[str, Any] = {"model": found.model, "packed": found.packed, "sampling": sampling}
    writing |= {"about": about, "penalty": penalty}
    if isinstance(row.way, PointTemplate):
        points = partial(PointJudge, **writing, way=row.way)
        return LoadedJudge(
            points_ranker(points(seed=0)), lambda benchmark, protocol: points(seed=protocol.seed)
        )
    pairs = partial(_pairs, row.way, writing)
    return LoadedJudge(
        tournament_ranker(pairs(ProtocolConfig())), lambda benchmark, protocol: pairs(protocol)
    )


def _pairs(way: PairTemplate, writing: dict[str, Any], protocol: ProtocolConfig) -> GenerativeJudge:
    refuse_equal_votes(writing["sampling"], protocol)
    return GenerativeJudge(**writing, ask=way.ask, read=way.read, protocol=protocol)


@dataclass(frozen=True, slots=True)
class PointEncoder:
    """Encodes one response, up to the place where the judge begins to write; runs in loader workers."""

    encoder: Encoder
    way: PointTemplate

    def __call__(self, one: Candidates) -> Group:
        """Encode it; raises RecordError for an image that cannot be decoded."""
        return self.encoder.encode_conversations(
            one.images, [self.way.ask(one)], None, one.identity
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PointJudge(WritingJudge):
    """A judge that writes about each response by itself and ends with its score; NaN where the text gives none."""

    way: PointTemplate
    seed: int

    @property
    def encode(self) -> PointEncoder:
        """How one response becomes a group."""
        return PointEncoder(self.packed.encoder, self.way)

    @torch.no_grad()
    def judge(self, examples: Sequence[Candidates], journal: Journal = SILENT) -> list[Verdict]:
        """Return the scores of all responses, and what was written of each; all ranks must call together."""
        started, parts = perf_counter(), [list(alone(example)) for example in examples]
        items = [item for part in parts for item in part]
        keys = [
            f"{content}/{place}"
            for content, part in zip(map(journal_key, examples), parts, strict=True)
            for place in range(len(part))
        ]
        with journal.judging(keys, Judged, len(examples)) as judging:
            found = run_packed(
                self.packed, [one for _, one in items], self.encode, self.run, self.cost, judging
            )
        self.spent.add(len(found), ((tokens, cut) for _, tokens, cut in found), started)
        rest = iter(found)
        return [_together([verdict for verdict, _, _ in islice(rest, len(part))]) for part in parts]

    def run(self, batch: PackedBatch, items: Sequence[Candidates]) -> list[Judged]:
        """Return what a row says of its responses."""
        seeds = [f"{self.seed}/{one.key}" for one in items]
        found = []
        for one in self.write(batch, [self.packed.encoder.vision.image], seeds):
            text = self.packed.encoder.tokenizer.decode(one.ids)
            found.append(
                (
                    Verdict(scores=(self.way.read(text),), critiques=(text,)),
                    len(one.ids) + 1,
                    int(one.truncated),
                )
            )
        return found


def alone(candidates: Candidates) -> Iterator[tuple[str, Candidates]]:
    """Yield each response by itself, with its key."""
    for place, response in enumerate(candidates.responses):
        key = f"{candidates.key}/{place}"
        yield (
            key,
            Candidates(key, candidates.images, candidates.prompt, (response,), candidates.identity),
        )


def _together(parts: Sequence[Verdict]) -> Verdict:
    scores = tuple(score for part in parts for score in part.scores or ())
    return Verdict(
        scores=scores, critiques=tuple(text for part in parts for text in part.critiques or ())
    )


def points_ranker(judge: PointJudge) -> PackedRanker[Candidates, Judged]:
    """Return what ranks by written scores; one that cannot be read is 0, as the authors' scripts count it, and `unread`."""

    def join(candidates: Candidates, found: Sequence[Judged]) -> Ranking:
        verdict = _together([one for one, _, _ in found])
        read = [math.isfinite(score) for score in verdict.scores or ()]
        scores = tuple(
            score if known else 0.0 for score, known in zip(verdict.scores or (), read, strict=True)
        )
        return Ranking(scores, verdict.critiques or (), len(read), read.count(False))

    return PackedRanker(
        judge.packed, judge.encode, judge.cost, judge.run, Judged, alone, join, None
    )

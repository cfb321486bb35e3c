"""Soft verdicts: the probabilities of both verdicts are those of the stock model where the verdict stands."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from mmrm.data.errors import CheckpointError
from mmrm.data.preference import text_pair
from mmrm.data.prompts import write_judgement
from mmrm.eval.candidates import Candidates, SoftVerdict, Vote, won_shares
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.generative.config import GenerativeJudgeConfig
from mmrm.eval.judges.generative.judge import GenerativeJudge, by_template, rationale_of
from mmrm.eval.judges.generative.soft_verdicts import soft_verdict
from mmrm.eval.judges.judge_card import JudgeCard
from mmrm.eval.judges.loading import load_judge
from mmrm.eval.judges.packed_inference import Packed
from mmrm.eval.judges.packed_judge import Unit
from mmrm.eval.judges.tournament import comparisons
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.results.run_folder import CARD
from mmrm.eval.verdict_form import RUBRIC, TAGGED, VerdictForm
from mmrm.models.backbone import load_language_model
from mmrm.models.config import BackboneConfig, SamplingConfig
from mmrm.models.generation import Generation
from mmrm.models.packing.packed_batch import PackedBatch
from tests.eval.doubles import JudgeOfBenchmark
from tests.eval.judges.example_rows import example
from tests.models import tiny
from tests.models.exactness import assert_exact
from tests.trees import image_inputs

pytestmark = pytest.mark.usefixtures("module_in_float64")
NUM_NEW_TOKENS = 6


EXAMPLES = [example(0), example(1, images=0), example(2, images=2)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, module_in_float64: None) -> str:
    return str(tiny.checkpoint(tmp_path_factory.mktemp("tiny")))


@cache
def model(folder: str) -> Any:
    return load_language_model(BackboneConfig(path=folder, dtype="float32")).eval()


@dataclass(frozen=True, kw_only=True)
class ScriptedJudge(GenerativeJudge):
    """A judge that writes given texts, one for each order in which it is shown a pair."""

    script: dict[tuple[int, ...], str] = field(default_factory=dict)

    def write(
        self, batch: PackedBatch, forbidden: Sequence[int], seeds: Sequence[str]
    ) -> list[Generation]:
        """Return the text of each judgement; its seed ends with its number: 0, then 1."""
        generations = []
        for seed in seeds:
            shown = (0, 1) if seed.endswith("/0") else (1, 0)
            ids = tuple(encoded(self.script[shown]))
            generations.append(Generation(ids, truncated=False, end_hidden=torch.zeros(1)))
        return generations


def encoded(text: str) -> list[int]:
    ids: list[int] = tiny.tokenizer().encode(text, add_special_tokens=False)
    return ids


def judge(
    checkpoint: str, kind: type[GenerativeJudge] = GenerativeJudge, **settings: Any
) -> GenerativeJudge:
    budget = settings.pop("budget", 8192)
    sampling = SamplingConfig(max_new_tokens=NUM_NEW_TOKENS, temperature=settings.pop("at", 0.0))
    return kind(
        model=model(checkpoint),
        ask=settings.pop("ask", by_template("r1_reward")),
        packed=Packed(tiny.encoder(), torch.device("cpu"), budget),
        sampling=sampling,
        **settings,
    )


def soft(judging: GenerativeJudge, **protocol: Any) -> JudgeOfBenchmark:
    return JudgeOfBenchmark(judging, ProtocolConfig(verdicts="soft", **protocol))


def stock_inputs(judging: GenerativeJudge, pair: Candidates, shown: tuple[int, ...]) -> Any:
    """Return the prompt that shows a pair in an order, as the stock model takes it."""
    tree = judging.encode(Unit("", pair, shown, ("",)))
    [conversation] = tree.conversations()
    return torch.tensor([conversation.ids]), image_inputs(tree)


def stock_logits(
    judging: GenerativeJudge, pair: Candidates, shown: tuple[int, ...], text: str
) -> Tensor:
    """Return the stock model's logits at the end of a text after the prompt."""
    prompt, images = stock_inputs(judging, pair, shown)
    ids = torch.cat([prompt, torch.tensor([encoded(text)], dtype=torch.int64)], dim=1)
    stock = tiny.language_model()
    with torch.no_grad():
        logits: Tensor = stock(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            mm_token_type_ids=(ids == stock.config.image_token_id).int(),
            **images,
        ).logits
    return logits[0, -1]


def stock_verdict(logits: Tensor, words: tuple[str, str] = ("1", "2")) -> list[float]:
    """Return the probability of the first verdict among both, and that of both together."""
    [first], [second] = (encoded(word) for word in words)
    restricted = logits[[first, second]].softmax(0)
    mass = logits.softmax(0)[[first, second]].sum()
    return [float(restricted[0]), float(mass)]


CUT_OFF = "<think>The first one has"
SCRIPTS = {
    # The text of the judge, and the text after which its verdict is read.
    "read": (write_judgement("both are so", 1), "<think>both are so</think><answer>"),
    "blank": ("<think>r</think><answer> 2 </answer>", "<think>r</think><answer> "),
    "cut off": (CUT_OFF, CUT_OFF + "</think><answer>"),
    "another word": ("<think>r</think><answer>both</answer>", "<think>r</think><answer>"),
    "no tags": ("I like it.", "I like it.<answer>"),
    "nothing": ("", "<think></think><answer>"),
}
OPENED = {"cut off", "another word", "no tags", "nothing"}


@pytest.mark.numerics
@pytest.mark.parametrize("case", SCRIPTS)
def test_a_soft_verdict_is_the_stock_models_where_the_verdict_stands(
    checkpoint: str, case: str
) -> None:
    text, read_after = SCRIPTS[case]
    script = {(0, 1): text, (1, 0): text}
    judging = judge(checkpoint, ScriptedJudge, script=script)
    verdicts = soft(judging).judge(EXAMPLES)
    for pair, scores in zip(EXAMPLES, verdicts, strict=True):
        firsts = []
        for vote in scores.votes:
            assert vote.soft is not None
            wanted = stock_verdict(stock_logits(judging, pair, vote.shown, read_after))
            assert_exact([vote.soft.first, vote.soft.mass], wanted)
            assert vote.soft.is_opened == (case in OPENED)
            assert vote.text == text
            firsts.append(wanted[0])
        # The second vote shows response 1 first.
        of_response_0 = (firsts[0] + 1 - firsts[1]) / 2
        assert_exact(scores.values, [of_response_0, 1 - of_response_0])
    # The two orders differ, or a forgotten swap would show nothing.
    assert abs(firsts[0] - (1 - firsts[1])) > 1e-3


@pytest.mark.numerics
def test_verdicts_without_a_rationale_are_read_after_the_prompt(checkpoint: str) -> None:
    judging = judge(checkpoint)
    found = soft(judging, rationale="none")
    verdicts = found.judge(EXAMPLES)
    for pair, scores in zip(EXAMPLES, verdicts, strict=True):
        for vote in scores.votes:
            assert vote.soft is not None
            logits = stock_logits(judging, pair, vote.shown, "<think></think><answer>")
            assert_exact([vote.soft.first, vote.soft.mass], stock_verdict(logits))
            # The text that stands for the verdict names the likelier response.
            likelier: Literal[1, 2] = 1 if vote.soft.first >= 0.5 else 2
            assert vote.text == write_judgement("", likelier)
            assert vote.named == vote.shown[likelier - 1]
            assert not vote.soft.is_opened
    assert found.spent.tokens == 0
    assert found.spent.unread == 0


@pytest.mark.numerics
def test_a_greedy_judgements_verdict_has_the_scores_of_generate(checkpoint: str) -> None:
    """The verdict is a word that the judge itself chose: the fourth token of its text."""
    number = 3
    other = "Q"
    forbidden = tiny.encoder().vision_ids
    written = judge(checkpoint)
    pair = EXAMPLES[0]
    [text, _] = [vote.text for vote in soft(written).judge([pair])[0].votes]
    prompt, images = stock_inputs(written, pair, (0, 1))
    stock = tiny.language_model()
    output = stock.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        mm_token_type_ids=(prompt == stock.config.image_token_id).int(),
        suppress_tokens=forbidden[:1],
        do_sample=False,
        max_new_tokens=NUM_NEW_TOKENS,
        output_scores=True,
        return_dict_in_generate=True,
        pad_token_id=0,
        **images,
    )
    ids = output.sequences[0, prompt.shape[1] :].tolist()
    tokenizer = tiny.tokenizer()
    assert tokenizer.decode(ids) == text
    word = tokenizer.decode(ids[number])
    start = len(tokenizer.decode(ids[:number]))
    assert len(word) == len(other)
    form = VerdictForm((word, other), lambda judgement: start, opening="?", closing="?")
    judging = judge(checkpoint, form=form, read=lambda judgement: 0)
    [scores] = soft(judging).judge([pair])
    [vote, _] = scores.votes
    assert vote.text == text
    assert vote.soft is not None
    wanted = output.scores[number][0][[ids[number], encoded(other)[0]]].softmax(0)
    assert_exact(vote.soft.first, float(wanted[0]))
    assert vote.soft.first > 0.5  # a greedy judge wrote the likelier word


def test_rows_and_company_change_no_soft_verdict(checkpoint: str) -> None:
    """Votes on sampled rationales: each has its own verdict, whatever else is in its row."""
    settings: dict[str, Any] = {"at": 1.0, "ask": by_template("short")}
    together = soft(judge(checkpoint, **settings), votes=2).judge(EXAMPLES)
    narrow = soft(judge(checkpoint, budget=1, **settings), votes=2).judge(EXAMPLES)
    assert [scores.texts for scores in narrow] == [scores.texts for scores in together]
    for found, wanted in zip(narrow, together, strict=True):
        assert len({vote.text for vote in found.votes}) > 1
        assert_exact(found.values, wanted.values)
        firsts = [vote.soft.first for vote in found.votes if vote.soft]
        assert len(set(firsts)) == 4


def test_hard_verdicts_compute_and_hold_nothing_more(checkpoint: str) -> None:
    judging = judge(checkpoint, ask=by_template("short"))
    hard = JudgeOfBenchmark(judging).judge(EXAMPLES)
    assert all(vote.soft is None for scores in hard for vote in scores.votes)
    assert not any(scores.is_soft for scores in hard)
    softly = soft(judging).judge(EXAMPLES)
    assert [scores.texts for scores in softly] == [scores.texts for scores in hard]
    for soft_scores, hard_scores in zip(softly, hard, strict=True):
        named = [vote.named for vote in hard_scores.votes]
        assert [vote.named for vote in soft_scores.votes] == named


def test_a_judge_without_a_protocol_gives_hard_verdicts(checkpoint: str) -> None:
    judging = soft(judge(checkpoint, ask=by_template("short"))).judging
    assert judging.reads_softly
    judging = judge(checkpoint, ask=by_template("short"))
    assert not judging.reads_softly
    [scores] = judging.score_batch(EXAMPLES[:1])
    assert not scores.is_soft


def test_soft_verdicts_on_own_responses_come_with_those_of_the_words(checkpoint: str) -> None:
    """The file's `verdicts` decides without a protocol; a benchmark's protocol decides in its place."""
    judging = judge(checkpoint, ask=by_template("short"), verdicts="soft")
    [scores] = judging.score_batch(EXAMPLES[:1])
    [by_protocol] = soft(judge(checkpoint, ask=by_template("short"))).judge(EXAMPLES[:1])
    assert_exact(scores.values[0], by_protocol.values[0])
    assert by_protocol.attributes == {}
    [hard] = judge(checkpoint, ask=by_template("short")).score_batch(EXAMPLES[:1])
    assert scores.attributes == {"hard": hard.values}
    assert not JudgeOfBenchmark(judging).judge(EXAMPLES[:1])[0].is_soft


def test_own_responses_are_judged_at_once_if_the_judge_writes_nothing(checkpoint: str) -> None:
    judging = judge(checkpoint, ask=by_template("short"), verdicts="soft", rationale="none")
    [scores] = judging.score_batch(EXAMPLES[:1])
    [by_protocol] = soft(judge(checkpoint, ask=by_template("short")), rationale="none").judge(
        EXAMPLES[:1]
    )
    assert_exact(scores.values[0], by_protocol.values[0])
    assert scores.usage.tokens == 0
    assert soft(judging).judging.writes_rationales  # a protocol decides in its place


AT_ONCE = JudgeCard(
    backbone=BackboneConfig(path="embedded"),
    head=None,
    method="language_model",
    judge_type="generative",
    autocast=False,
    nf4=False,
    critique=None,
    template="short",
    token_budget=None,
    workers=0,
    benchmarks=(),
    protocol=ProtocolConfig(verdicts="soft", rationale="none"),
    baselines=True,
)
"""The card of a judge that was evaluated without rationales in its training."""


@pytest.mark.parametrize(
    ("settings", "card", "form", "rationale"),
    [
        ({}, None, TAGGED, "written"),
        ({}, AT_ONCE, TAGGED, "none"),
        ({"verdicts": "hard"}, AT_ONCE, TAGGED, "written"),
        ({"rationale": "written"}, AT_ONCE, TAGGED, "written"),
        ({"rationale": "none"}, None, TAGGED, "none"),
        ({}, AT_ONCE, RUBRIC, "written"),
    ],
)
def test_a_checkpoint_is_asked_as_it_was_evaluated(
    settings: dict[str, str], card: JudgeCard | None, form: VerdictForm, rationale: str
) -> None:
    config = GenerativeJudgeConfig.model_validate(
        {"type": "generative", "checkpoint": "runs/a/best", **settings}
    )
    assert rationale_of(config, card, form) == rationale


@pytest.mark.parametrize(("settings", "softly"), [({}, True), ({"verdicts": "hard"}, False)])
def test_a_loaded_judge_of_verdicts_writes_nothing(
    tmp_path: Path, settings: dict[str, str], softly: bool
) -> None:
    checkpoint = tiny.checkpoint(tmp_path / "checkpoint")
    (checkpoint / CARD).write_text(AT_ONCE.model_dump_json())
    file = tmp_path / "judge.yaml"
    file.write_text(json.dumps({"type": "generative", "checkpoint": str(checkpoint), **settings}))
    loaded: Any = load_judge(file, Runtime(torch.device("cpu"))).judge
    assert loaded.reads_softly is softly
    assert loaded.writes_rationales is not softly


def test_what_cannot_be_read_at_once_is_refused() -> None:
    settings = {"type": "generative", "checkpoint": "runs/a/best", "rationale": "none"}
    with pytest.raises(CheckpointError, match="a template with a rubric"):
        rationale_of(GenerativeJudgeConfig.model_validate(settings), None, RUBRIC)
    with pytest.raises(ValidationError, match="Set `verdicts` to soft"):
        GenerativeJudgeConfig.model_validate(settings | {"verdicts": "hard"})


def test_a_digest_names_how_verdicts_are_read_if_the_file_does() -> None:
    """A file without the keys has a digest of its own, because the checkpoint decides what they mean."""
    settings = {"type": "generative", "checkpoint": "runs/a/best"}
    unset = GenerativeJudgeConfig.model_validate(settings).deciding_settings(is_file=True)
    assert "verdicts" not in unset[1]
    assert "rationale" not in unset[1]
    hard = GenerativeJudgeConfig.model_validate(settings | {"verdicts": "hard"})
    assert '"verdicts":"hard"' in hard.deciding_settings(is_file=True)[1]
    softly = GenerativeJudgeConfig.model_validate(settings | {"verdicts": "soft"})
    assert '"verdicts":"soft"' in softly.deciding_settings(is_file=True)[1]


def test_notes_count_the_judgements_without_a_verdict(checkpoint: str) -> None:
    script = {(0, 1): write_judgement("r", 1), (1, 0): CUT_OFF}
    found = soft(judge(checkpoint, ScriptedJudge, script=script, ask=by_template("short")))
    found.judge(EXAMPLES)
    [note] = [note for note in found.notes() if note.startswith("Soft verdicts")]
    assert f"{len(EXAMPLES)} of {2 * len(EXAMPLES)} judgements had no readable verdict" in note


def test_a_tournament_has_soft_verdicts(checkpoint: str) -> None:
    responses = text_pair("a red square", "two blue circles") + text_pair("no", "a red square")
    candidates = Candidates("key", (), EXAMPLES[1].prompt, responses, "four")
    judging = soft(judge(checkpoint, ask=by_template("short")), rationale="none").judging
    [scores] = judging.score_batch([candidates])
    shown = [comparison.shown for comparison in comparisons(candidates)]
    assert [vote.shown for vote in scores.votes] == shown
    # Every comparison gives one point in all; each response is in 6 of the 12.
    assert_exact(sum(scores.values), 12 / 6)
    assert_exact(scores.values[0], scores.values[3])  # equal texts
    assert 0.5 not in scores.values


def test_extreme_logits_give_a_probability() -> None:
    assert soft_verdict(-2000.0, -1999.0, is_opened=False).first == pytest.approx(0.26894142)
    assert soft_verdict(-float("inf"), 0.0, is_opened=False) == SoftVerdict(0.0, 1.0)
    assert soft_verdict(0.0, -5000.0, is_opened=True) == SoftVerdict(1.0, 1.0, True)


def test_a_soft_vote_counts_for_both_responses() -> None:
    votes = [
        Vote((0, 1), 0, "", SoftVerdict(0.9, 1.0)),
        Vote((1, 0), 1, "", SoftVerdict(0.7, 1.0)),
    ]
    assert won_shares(2, votes) == pytest.approx((0.6, 0.4))

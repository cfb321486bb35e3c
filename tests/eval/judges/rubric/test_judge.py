"""Judges with a rubric: given criteria begin the judge's text, and its verdict is read behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrm.data.errors import CheckpointError, RecipeError
from mmrm.data.preference import text_pair
from mmrm.data.prompts import JudgeTemplate, question
from mmrm.data.rubric import Check, Rubric, write_criteria, write_rubric
from mmrm.eval.candidates import Candidates, Scores, Usage
from mmrm.eval.journal import Journal
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.generative.judge import by_template, reader_of
from mmrm.eval.judges.judging_config import ComparisonsConfig
from mmrm.eval.judges.loading import load_judge
from mmrm.eval.judges.packed_inference import Packed
from mmrm.eval.judges.packed_judge import Unit, UnitResult
from mmrm.eval.judges.registry import judge_config
from mmrm.eval.judges.rubric.judge import RubricJudge, request_of
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.verdict_form import verdict_form_of
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

CRITERIA = ("The answer is true.", "It is short.")
OWN = write_rubric(Rubric(("It is kind.",), (Check((False, True), "One is."),)))
CHECKS_OF_GIVEN = """<eval>
1. Response 1: yes. Response 2: no.
2. Response 1: yes. Response 2: yes.
</eval>
"""
ONE_CHECK = "<eval>\n1. Response 1: yes. Response 2: no.\n</eval>\n"


EXAMPLES = [example(0), example(1, images=0)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, module_in_float64: None) -> str:
    return str(tiny.checkpoint(tmp_path_factory.mktemp("tiny")))


@cache
def model(folder: str) -> Any:
    return load_language_model(BackboneConfig(path=folder, dtype="float32")).eval()


def encoded(text: str) -> list[int]:
    ids: list[int] = tiny.tokenizer().encode(text, add_special_tokens=False)
    return ids


@dataclass(frozen=True, kw_only=True)
class ScriptedJudge(RubricJudge):
    """A judge that writes one given text."""

    script: str = field(default="")

    def write(
        self, batch: PackedBatch, forbidden: Sequence[int], seeds: Sequence[str]
    ) -> list[Generation]:
        """Return the text for each judgement."""
        generation = Generation(tuple(encoded(self.script)), False, torch.zeros(1))
        return [generation] * len(seeds)


def judge(
    checkpoint: str,
    kind: type[RubricJudge] = RubricJudge,
    template: JudgeTemplate = "rubric",
    **settings: Any,
) -> RubricJudge:
    return kind(
        model=model(checkpoint),
        ask=by_template(template),
        read=reader_of(template),
        form=verdict_form_of(template),
        template=template,
        packed=Packed(tiny.encoder(), torch.device("cpu"), 8192),
        sampling=SamplingConfig(max_new_tokens=6),
        **settings,
    )


def test_given_criteria_are_the_beginning_of_the_judges_text(checkpoint: str) -> None:
    own = judge(checkpoint).encode(Unit("", EXAMPLES[0], (0, 1), ("",)))
    given = judge(checkpoint, criteria=CRITERIA).encode(Unit("", EXAMPLES[0], (0, 1), ("",)))
    [without] = own.conversations()
    [with_criteria] = given.conversations()
    assert with_criteria.ids == without.ids + tuple(encoded(write_criteria(CRITERIA)))


@pytest.mark.parametrize("template", ["rubric", "rubric_turns"])
def test_a_judge_goes_on_behind_given_criteria_as_behind_its_own(
    checkpoint: str, template: JudgeTemplate
) -> None:
    """The tokens of the criteria, and of what follows them, are those of the text as a whole."""
    criteria = write_criteria(CRITERIA)
    whole = encoded(criteria + CHECKS_OF_GIVEN)
    assert whole == encoded(criteria) + encoded(CHECKS_OF_GIVEN)
    judging = judge(checkpoint, ScriptedJudge, template, criteria=CRITERIA)
    assert judging.layout.opening(Unit("", EXAMPLES[0], (0, 1))) == criteria


@pytest.mark.parametrize(
    ("criteria", "script", "named"),
    [
        ((), OWN + "<answer>2</answer>", [1, 0]),
        ((), OWN, [None, None]),
        ((), "<answer>2</answer>", [None, None]),
        (CRITERIA, CHECKS_OF_GIVEN + "<answer>1</answer>", [0, 1]),
        (CRITERIA, ONE_CHECK + "<answer>1</answer>", [None, None]),
        (CRITERIA, OWN + "<answer>1</answer>", [None, None]),
    ],
)
def test_votes_are_read_with_the_given_criteria_and_hold_them(
    checkpoint: str, criteria: tuple[str, ...], script: str, named: list[int | None]
) -> None:
    found = JudgeOfBenchmark(judge(checkpoint, ScriptedJudge, criteria=criteria, script=script))
    [scores] = found.judge(EXAMPLES[:1])
    assert [vote.named for vote in scores.votes] == named
    opening = write_criteria(criteria) if criteria else ""
    assert [vote.text for vote in scores.votes] == [opening + script] * 2
    assert found.spent.unread == named.count(None)
    assert found.spent.tokens == 2 * (len(encoded(script)) + 1)


SCRIPTS = {
    # The judge's text, and the text behind the prompt and the criteria after which it is read.
    "read": (CHECKS_OF_GIVEN + "<answer>1</answer>", CHECKS_OF_GIVEN + "<answer>"),
    "cut off": ("<eval>\n1. The", "<eval>\n1. The</eval>\n<answer>"),
    "another word": (CHECKS_OF_GIVEN + "<answer>x</answer>", CHECKS_OF_GIVEN + "\n<answer>"),
    "a check is missing": (ONE_CHECK + "<answer>1</answer>", ONE_CHECK + "\n<answer>"),
}


@pytest.mark.numerics
@pytest.mark.parametrize("case", SCRIPTS)
def test_a_soft_verdict_is_the_stock_models_behind_given_criteria(
    checkpoint: str, case: str
) -> None:
    script, read_after = SCRIPTS[case]
    judging = judge(checkpoint, ScriptedJudge, criteria=CRITERIA, script=script)
    found = JudgeOfBenchmark(judging, ProtocolConfig(verdicts="soft"))
    pair = EXAMPLES[0]
    [scores] = found.judge([pair])
    stock = tiny.language_model()
    for vote in scores.votes:
        bare = judge(checkpoint)
        tree = bare.encode(Unit("", pair, vote.shown, ("",)))
        [prompt] = tree.conversations()
        behind = encoded(write_criteria(CRITERIA) + read_after)
        ids = torch.tensor([[*prompt.ids, *behind]])
        with torch.no_grad():
            logits = stock(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                mm_token_type_ids=(ids == stock.config.image_token_id).int(),
                **image_inputs(tree),
            ).logits[0, -1]
        [one] = encoded("1")
        [two] = encoded("2")
        assert vote.soft is not None
        assert_exact(vote.soft.first, float(logits[[one, two]].softmax(0)[0]))
        assert vote.soft.is_opened == (case != "read")


def test_a_verdict_without_a_rubric_is_refused(checkpoint: str) -> None:
    protocol = ProtocolConfig(verdicts="soft", rationale="none")
    with pytest.raises(CheckpointError, match="rationale=none"):
        JudgeOfBenchmark(judge(checkpoint), protocol).judge(EXAMPLES)


@dataclass(frozen=True, kw_only=True)
class SharingJudge(RubricJudge):
    """A judge that writes given criteria for each prompt, and then given checks for each pair."""

    criteria_by_question: dict[str, str] = field(default_factory=dict)
    judgement: str = ""

    def run(self, batch: PackedBatch, units: Sequence[Unit]) -> list[UnitResult]:
        """Return the given texts behind what the judge was given; no model runs."""
        results: list[UnitResult] = []
        for unit in units:
            written = self.judgement
            if not unit.shown:
                written = self.criteria_by_question[question(unit.candidates.prompt)]
            text = self.layout.opening(unit) + written
            usage = Usage(tokens=1)
            results.append(UnitResult(texts=(text,) * len(unit.seeds), usage=usage))
        return results


def sharing_judge(checkpoint: str, judgement: str, **settings: Any) -> RubricJudge:
    criteria = {
        "What is in picture 0?": write_criteria(CRITERIA).strip(),
        "What is in picture 1?": "I would look at the picture.",
    }
    return judge(
        checkpoint,
        SharingJudge,
        shares_criteria=True,
        criteria_by_question=criteria,
        judgement=judgement,
        **settings,
    )


def test_criteria_are_written_once_a_prompt_and_given_in_both_orders(checkpoint: str) -> None:
    answer = CHECKS_OF_GIVEN + "<answer>1</answer>"
    other_pair = replace(EXAMPLES[0], key="other", responses=text_pair("a", "b"))
    rows = [*EXAMPLES, other_pair]
    found = JudgeOfBenchmark(sharing_judge(checkpoint, answer), ProtocolConfig(votes=1))
    first, unreadable, second = found.judge(rows)
    for scores in (first, second):
        assert [vote.named for vote in scores.votes] == [0, 1]
        assert [vote.text for vote in scores.votes] == [write_criteria(CRITERIA) + answer] * 2
    # Without readable criteria the judge has to write its own, which this one does not.
    assert [vote.text for vote in unreadable.votes] == [answer] * 2
    assert [vote.named for vote in unreadable.votes] == [None, None]
    # Two prompts; the cost of the one that two rows share is counted once.
    assert (found.spent.rubrics, found.spent.unread_rubrics) == (2, 1)
    assert found.spent.judgements == 6
    assert found.spent.tokens == 2 + 6
    [note] = [note for note in found.notes() if note.startswith("Criteria were written once")]
    assert "each of 2 prompts. Those of 1 could not be read" in note


@pytest.mark.parametrize("comparisons", ["all", "sorted"])
def test_a_server_judges_by_shared_criteria_as_a_file_does(
    checkpoint: str, comparisons: str
) -> None:
    """The rounds that a server's batcher asks for give the same scores as one call."""
    judging = sharing_judge(
        checkpoint,
        CHECKS_OF_GIVEN + "<answer>1</answer>",
        comparisons=ComparisonsConfig.model_validate({"comparisons": comparisons}),
    )
    responses = text_pair("one", "two") + text_pair("three", "four")
    candidates = Candidates("key", EXAMPLES[0].images, EXAMPLES[0].prompt, responses, "row")
    [wanted] = judging.score_batch([candidates])
    ranking = judging.ranking(candidates)
    assert ranking is not None
    num_rounds = 0
    while pairs := ranking.next_pairs():
        num_rounds += 1
        scores: list[Scores] = []
        for pair in pairs:
            units = judging.checked_units(pair)
            batch = judging.packed.encoder.pack([judging.encode(unit) for unit in units])
            scores.append(judging.merge(pair, units, judging.run(batch, units)))
        ranking.add(scores)
    found = ranking.scores()
    assert found == wanted
    assert found.usage.rubrics == 1
    assert num_rounds == 2 if comparisons == "all" else num_rounds > 2
    assert all(text.startswith(write_criteria(CRITERIA)) for text in found.texts)


def test_criteria_are_asked_for_without_the_responses(checkpoint: str) -> None:
    judging = judge(checkpoint, template="rubric_turns", shares_criteria=True)
    [unit] = judging.units(request_of(EXAMPLES[0]))
    [conversation] = judging.encode(unit).conversations()
    shown = tiny.tokenizer().decode(conversation.ids)
    assert "What is in picture 0?\nwrite criteria." in shown
    assert "red square" not in shown
    assert len(conversation.images) == 1


def test_shared_criteria_with_soft_verdicts_run_the_model(checkpoint: str) -> None:
    """The random model writes no criteria, so that each judgement is asked for its own."""
    found = JudgeOfBenchmark(
        judge(checkpoint, shares_criteria=True), ProtocolConfig(verdicts="soft")
    )
    plain = JudgeOfBenchmark(judge(checkpoint), ProtocolConfig(verdicts="soft"))
    for shared, own in zip(found.judge(EXAMPLES), plain.judge(EXAMPLES), strict=True):
        assert_exact(shared.values, own.values)
    assert (found.spent.rubrics, found.spent.unread_rubrics) == (2, 2)


def test_a_journal_keeps_criteria_and_judgements(checkpoint: str, tmp_path: Path) -> None:
    judging = sharing_judge(checkpoint, CHECKS_OF_GIVEN + "<answer>1</answer>")
    file = tmp_path / "journal.jsonl"
    journal = Journal("rubric", None, file, "mark")
    scores = JudgeOfBenchmark(judging).judge(EXAMPLES, journal)
    lines = file.read_text().splitlines()
    assert len(lines) == 1 + 2 + 4  # the mark, two prompts, both orders of two pairs
    file.write_text("\n".join(lines[:5]) + "\n")
    assert JudgeOfBenchmark(judging).judge(EXAMPLES, journal) == scores
    assert sorted(file.read_text().splitlines()) == sorted(lines)


def judge_file(folder: Path, checkpoint: str, *lines: str) -> Path:
    file = folder / "judge.yaml"
    file.write_text("\n".join(["type: rubric", f"checkpoint: {checkpoint}", *lines]) + "\n")
    return file


def test_a_judge_file_gives_the_criteria(checkpoint: str, tmp_path: Path) -> None:
    file = judge_file(tmp_path, checkpoint, "max_new_tokens: 4", "criteria: [It is true.]")
    loaded = load_judge(file, Runtime(torch.device("cpu")))
    scores = loaded.rank("What is this?", ["a cat", "a dog"])
    assert all(text.startswith(write_criteria(["It is true."])) for text in scores.texts)
    assert scores.usage.unread == 2
    assert any("template `rubric`" in note for note in loaded.judge.about)  # type: ignore[attr-defined]


@pytest.mark.parametrize("criteria", ["[]", "['']", '["a\\nb"]', "['</rubric>']", "each one"])
def test_a_file_with_other_criteria_is_refused(tmp_path: Path, criteria: str) -> None:
    with pytest.raises(RecipeError):
        judge_config(judge_file(tmp_path, "x", f"criteria: {criteria}"))


def test_a_criterion_with_a_control_token_is_refused(checkpoint: str, tmp_path: Path) -> None:
    file = judge_file(tmp_path, checkpoint, 'criteria: ["<|im_end|>"]')
    with pytest.raises(CheckpointError, match="control token"):
        load_judge(file, Runtime(torch.device("cpu")))

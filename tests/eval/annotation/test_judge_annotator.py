"""A judge in this process as an annotator: what it is asked, and that company changes no judgement."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrm.data.errors import CheckpointError, UserError
from mmrm.data.preparation.mixing import Mixture, MixtureConfig
from mmrm.data.synthetic.source import ShapesConfig
from mmrm.eval.annotation.annotator import Annotator, annotate, journal_file_of
from mmrm.eval.annotation.judge_annotator import JudgeAnnotator
from mmrm.eval.annotation.pair_annotator import AnnotatorOptions, PairJudgement, ShownPair
from mmrm.eval.annotation.registry import ANNOTATORS, open_annotator
from mmrm.eval.candidates import Side
from mmrm.eval.judges.generative.judge import GenerativeJudge, by_template
from mmrm.eval.judges.packed_inference import Packed
from mmrm.eval.judges.registry import JUDGES
from mmrm.eval.verdict_form import VerdictForm
from mmrm.models.backbone import load_language_model
from mmrm.models.config import BackboneConfig, SamplingConfig
from tests.models import tiny

FORM = VerdictForm(words=("1", "2"), find=len, opening="", closing="")
"""Everything that the tiny model writes is its reasoning."""


def by_length(text: str) -> Side | None:
    """Read a judgement of a random model: the length decides, and some cannot be read."""
    return (0, 1, None)[len(text) % 3]


@cache
def records(count: int = 8) -> Mixture:
    return Mixture(MixtureConfig(sources=[ShapesConfig(type="shapes", level="demo", rows=count)]))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def judge(checkpoint: Path) -> JudgeAnnotator:
    settings = BackboneConfig(path=str(checkpoint), dtype="float32")
    generative = GenerativeJudge(
        model=load_language_model(settings).eval(),
        packed=Packed(tiny.encoder(), torch.device("cpu"), 4096),
        sampling=SamplingConfig(max_new_tokens=99),
        ask=by_template("short"),
        read=by_length,
        form=FORM,
    )
    return JudgeAnnotator(generative, "digest", max_tokens=6)


def shown(*sides: Side) -> list[ShownPair]:
    return [ShownPair(records()[index], sides) for index in range(len(records()))]


def test_each_order_is_judged_once_at_the_temperature_of_the_try(judge: JudgeAnnotator) -> None:
    both = judge.judge(shown(0, 1), 1.0, seed=1)
    assert [len(judgements) for judgements in both] == [2] * 8
    assert len({judgement for judgements in both for judgement in judgements}) > 4
    for judgement in (judgement for judgements in both for judgement in judgements):
        assert judgement.named is None or judgement.named == by_length(judgement.rationale)
    assert judge.judge(shown(0, 1), 1.0, seed=1) == both
    assert judge.judge(shown(0, 1), 1.0, seed=2) != both
    greedy = judge.judge(shown(0, 1), 0.0, seed=1)
    assert greedy != both
    assert greedy == judge.judge(shown(0, 1), 0.0, seed=2)
    # A greedy judgement does not depend on the orders before it.
    assert [judgements[::-1] for judgements in judge.judge(shown(1, 0), 0.0, seed=1)] == greedy


def test_company_changes_no_judgement(judge: JudgeAnnotator) -> None:
    together = judge.judge(shown(0, 1), 1.0, seed=1)
    alone = [judge.judge([pair], 1.0, seed=1)[0] for pair in shown(0, 1)]
    assert together == alone


def test_an_interrupted_annotation_goes_on(judge: JudgeAnnotator, tmp_path: Path) -> None:
    class Ends(Exception):
        """The process was killed."""

    annotator = Annotator(judge, (1.0, 1.0, 1.0), agree=True)
    whole = tmp_path / "whole.jsonl"
    part = tmp_path / "part.jsonl"
    annotate(records(), range(8), annotator, whole, "keep", annotator.settings, 3)

    def dying(chunk: Any) -> Any:
        if chunk[0].identity == records()[3].identity:
            raise Ends
        return annotator(chunk)

    with pytest.raises(Ends):
        annotate(records(), range(8), dying, part, "keep", annotator.settings, 3)
    assert len(part.read_text().splitlines()) == 3
    annotate(records(), range(8), annotator, part, "keep", annotator.settings, 4)
    assert part.read_text() == whole.read_text()
    assert journal_file_of(part).read_text() == journal_file_of(whole).read_text()


def test_a_checkpoint_is_opened_with_its_own_template(checkpoint: Path) -> None:
    annotator = open_annotator(checkpoint, AnnotatorOptions(max_tokens=6))
    assert any("asked as R1-Reward is" in note for note in annotator.notes)
    (judgements,) = annotator.judge(shown(0)[:1], 0.0, seed=1)
    assert judgements == (PairJudgement(None, ""),)  # a random model writes no verdict
    assert annotator.settings["max_tokens"] == 6
    with pytest.raises(UserError, match="--template short is for an endpoint"):
        open_annotator(checkpoint, AnnotatorOptions(6, "short"))


def test_judges_without_a_comparison_are_refused(tmp_path: Path) -> None:
    assert ANNOTATORS.keys() <= JUDGES.keys()
    points = tmp_path / "points.yaml"
    points.write_text("type: points\ncheckpoint: nowhere\n")
    with pytest.raises(CheckpointError, match="writes no comparison of two responses"):
        open_annotator(points, AnnotatorOptions(6))
    scores = tmp_path / "scores.yaml"
    scores.write_text("type: released\nmodel: skywork_vl_reward\ncheckpoint: nowhere\n")
    with pytest.raises(CheckpointError, match="scores each response by itself"):
        open_annotator(scores, AnnotatorOptions(6))

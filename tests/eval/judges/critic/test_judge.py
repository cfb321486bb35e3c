"""Critics as judges: with their own critiques, with given ones and without, on one rank and on two."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrm.data.errors import RecipeError
from mmrm.data.preference import Message
from mmrm.data.prompts import with_critique
from mmrm.data.synthetic.world import ShapesGenerator
from mmrm.eval.candidates import Example, Scores
from mmrm.eval.critique_ablation import main as ablation
from mmrm.eval.journal import Journal
from mmrm.eval.judges import writing
from mmrm.eval.judges.checkpoint import Runtime, load_checkpoint
from mmrm.eval.judges.critic.config import CriticJudgeConfig
from mmrm.eval.judges.critic.judge import CriticJudge, CritiqueLayout, critic_judge
from mmrm.eval.judges.judge import cost_figures
from mmrm.eval.judges.loading import load_judge
from mmrm.eval.studies.critique_ablation import matching_parts, row_with_right_first
from mmrm.models import generation
from mmrm.models.backbone import load_critic
from mmrm.models.config import BackboneConfig, CritiqueConfig, SamplingConfig
from mmrm.models.generation import Generation
from mmrm.models.packing.packed_batch import PackedBatch
from tests.eval.doubles import JudgeOfBenchmark
from tests.models import tiny
from tests.models.exactness import RELATIVE, assert_exact
from tests.train.ranks import run_ranks

pytestmark = pytest.mark.usefixtures("module_in_float64")

LIMIT = 6
WORLD = ShapesGenerator("demo", 0, "benchmark")
EXAMPLES = [row_with_right_first(WORLD.item(index)) for index in range(7)]
ASKED = "judge the response."


def make_checkpoint(folder: Path) -> Path:
    """Write a critic whose critiques end at different lengths (the end token is made likely)."""
    model = tiny.language_model(seed=7)
    with torch.no_grad():
        model.lm_head.weight[tiny.tokenizer().convert_tokens_to_ids("<|im_end|>")] *= 3.0
    model.save_pretrained(folder / "backbone")
    config = BackboneConfig(path=str(folder / "backbone"), dtype="float32")
    model = load_critic(config, critique=CritiqueConfig(request=ASKED, max_new_tokens=LIMIT))
    tiny.stir(model.head, 0.5)
    model.save_pretrained(folder / "checkpoint-1")
    tiny.encoder().save_pretrained(folder / "checkpoint-1")
    tiny.call_float32(folder / "checkpoint-1")
    return folder / "checkpoint-1"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("run"))


def judge(
    checkpoint: Path, mode: Any = "own", given: Any = None, budget: int = 4096, **settings: Any
) -> JudgeOfBenchmark:
    config = CriticJudgeConfig(type="critic", checkpoint=str(checkpoint), **settings)
    found = load_checkpoint(checkpoint, Runtime(torch.device("cpu"), budget), load_critic)
    return JudgeOfBenchmark(critic_judge(found, config, given or mode))


def scores(verdicts: list[Scores]) -> torch.Tensor:
    return torch.tensor([verdict.values for verdict in verdicts])


def alone(judging: JudgeOfBenchmark, messages: tuple[Message, ...], example: Example) -> float:
    """Score one conversation by itself."""
    encoder = judging.judging.packed.encoder
    tree = encoder.encode(pictures(example), [encoder.render(messages)], "end_of_turn")
    with torch.no_grad():
        return float(judging.judging.model(**encoder.pack([tree]).joint_inputs())[0])


def pictures(example: Example) -> list[Any]:
    from mmrm.data.images import decode

    return [decode(image, example.identity) for image in example.images]


@pytest.mark.numerics
def test_its_own_critiques_are_shown_and_scored_where_they_end(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: dict[str, Generation] = {}

    def watched(*arguments: Any, seeds: Sequence[str], **settings: Any) -> list[Generation]:
        found = generation.generate(*arguments, seeds=seeds, **settings)
        written.update(zip(seeds, found, strict=True))
        return found

    monkeypatch.setattr(writing, "generate", watched)
    own, tokenizer, read_again = judge(checkpoint, budget=300), tiny.tokenizer(), 0
    for example, verdict in zip(EXAMPLES, own.judge(EXAMPLES), strict=True):
        for side, response in enumerate(example.responses):
            one, critique, score = (
                written[f"0/{example.key}/{side}"],
                verdict.texts[side],
                verdict.values[side],
            )
            assert critique == tokenizer.decode(one.ids)
            assert score == pytest.approx(
                float(own.judging.model.scores(one.end_hidden[None]).detach()), rel=RELATIVE
            )
            if tokenizer(critique)["input_ids"] == list(
                one.ids
            ):  # random bytes need not survive as text
                wanted = alone(
                    own, with_critique(example.prompt, response, ASKED, critique), example
                )
                assert score == pytest.approx(wanted, rel=RELATIVE)
                read_again += 1
    assert read_again
    assert len({len(one.ids) for one in written.values()}) > 2


def test_what_it_may_write_counts_when_rows_are_filled(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A budget that holds all prompts holds those of one row when many tokens may be generated."""
    sizes: list[int] = []

    def watched(model: Any, batch: PackedBatch, **settings: Any) -> list[Generation]:
        sizes.append(sum(batch.output_counts))
        return generation.generate(model, batch, **settings)

    monkeypatch.setattr(writing, "generate", watched)
    judge(checkpoint, budget=2000, max_new_tokens=1).judge(EXAMPLES)
    assert sizes == [2 * len(EXAMPLES)]
    sizes.clear()
    judging = judge(checkpoint, budget=2000, max_new_tokens=5000)
    monkeypatch.setattr(
        writing,
        "generate",
        lambda *args, **settings: watched(
            *args, **settings | {"sampling": SamplingConfig(max_new_tokens=1)}
        ),
    )
    judging.judge(EXAMPLES)
    assert sizes == [2] * len(EXAMPLES)


def test_what_judging_cost_is_counted(checkpoint: Path) -> None:
    whole, short = judge(checkpoint), judge(checkpoint, max_new_tokens=3)
    for judging, limit in ((whole, LIMIT), (short, 3)):
        judging.judge(EXAMPLES)
        spent = judging.spent
        assert (len(judging.scores), spent.critiques) == (7, 14)
        assert 0 < spent.truncated < 14
        assert judging.notes()[1:] == (
            f"{spent.truncated} of 14 critiques were cut off by the limit of {limit} tokens and scored as they are.",
        )
    assert 14 < short.spent.tokens < whole.spent.tokens <= 14 * (LIMIT + 1)
    assert short.spent.truncated > whole.spent.truncated
    figures = cost_figures(short.scores)
    assert figures["truncated"] == short.spent.truncated / 14
    assert figures["tokens_per_critique"] == short.spent.tokens / 14
    assert figures["generated_tokens_per_second"] == pytest.approx(
        short.spent.tokens / short.spent.seconds
    )
    assert figures["seconds_per_judgement"] == pytest.approx(short.spent.seconds / 7)


@pytest.mark.numerics
def test_a_critic_goes_on_from_its_journal(checkpoint: Path, tmp_path: Path) -> None:
    journal, whole, first, rest = (
        Journal(file=tmp_path / "journal.jsonl", fingerprint="m"),
        *(judge(checkpoint) for _ in range(3)),
    )
    verdicts = whole.judge(EXAMPLES)
    first.judge(EXAMPLES[:3], journal)
    again = rest.judge(EXAMPLES, journal)
    assert [one.texts for one in again] == [one.texts for one in verdicts]
    assert_exact(scores(again), scores(verdicts))
    assert rest.notes() == whole.notes()
    assert len((tmp_path / "journal.jsonl").read_text().splitlines()) == 1 + len(EXAMPLES)


@pytest.mark.numerics
def test_given_critiques_and_none(checkpoint: Path) -> None:
    given = {
        example.key: ("it is right.", f"it is wrong, {n}.") for n, example in enumerate(EXAMPLES)
    }
    first, second = (
        judge(checkpoint, "given", given, budget=300),
        judge(checkpoint, "none", budget=300),
    )
    found, bare = scores(first.judge(EXAMPLES)), scores(second.judge(EXAMPLES))
    for n, example in enumerate(EXAMPLES):
        for side, response in enumerate(example.responses):
            critique = given[example.key][side]
            wanted = alone(first, with_critique(example.prompt, response, ASKED, critique), example)
            assert float(found[n, side]) == pytest.approx(wanted, rel=RELATIVE)
            wanted = alone(first, (*example.prompt, response.turn), example)
            assert float(bare[n, side]) == pytest.approx(wanted, rel=RELATIVE)
    assert len(first.notes()) == len(second.notes()) == 1
    assert set(cost_figures(first.scores)) == {"seconds_per_judgement"}


@pytest.mark.numerics
def test_scores_of_several_critiques_are_averaged(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    several = judge(checkpoint, samples=3, temperature=1.0)
    found = several.judge(EXAMPLES)
    assert several.spent.critiques == 42
    drawn: list[torch.Tensor] = []
    score = several.judging.model.scores

    def watched(pooled: torch.Tensor) -> torch.Tensor:
        drawn.append(score(pooled))
        return drawn[-1]

    monkeypatch.setattr(several.judging.model, "scores", watched)
    again = several.judge(EXAMPLES)
    assert again == found  # the draws depend on the seed alone
    draws = torch.cat(drawn).view(-1, 2, 3)
    assert float(draws.std(2).max()) > 1e-4, "the draws do not differ: the test would show nothing"
    assert sorted(draws.mean(2).flatten().tolist()) == pytest.approx(
        sorted(scores(again).flatten().tolist()), rel=RELATIVE
    )
    with pytest.raises(ValueError, match="temperature above 0"):
        CriticJudgeConfig(type="critic", checkpoint="x", samples=2)


@pytest.mark.numerics
def test_a_forgiving_encoder_replaces_what_cannot_be_encoded(checkpoint: Path) -> None:
    broken = replace(EXAMPLES[0], images=(b"no picture",))
    strict = judge(checkpoint)
    with pytest.raises(ValueError, match="demo-benchmark:0"):
        strict.judge([broken])
    forgiving = JudgeOfBenchmark(replace(strict.judging, forgiving=True))
    assert forgiving.judge([broken, EXAMPLES[1]])[1].values == pytest.approx(
        strict.judge(EXAMPLES[1:2])[0].values, rel=RELATIVE
    )


def test_vision_tokens_are_never_written(checkpoint: Path) -> None:
    """A critique with an image mark could not be trained on."""
    judging = judge(checkpoint, temperature=1.0)
    marks = tiny.tokenizer().convert_tokens_to_ids(
        ["<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<|video_pad|>"]
    )
    with torch.no_grad():
        judging.judging.model.lm_head.weight[marks] *= 50.0
    for verdict in judging.judge(EXAMPLES[:3]):
        assert not any("<|vi" in critique or "<|image" in critique for critique in verdict.texts)


def on_ranks(checkpoint: str, target: str) -> None:
    """Judge in every mode on all ranks of a group, and write what the last rank found."""
    from mmrm.eval.cli import rank_device
    from mmrm.models.distributed import rank

    with rank_device():
        given = {example.key: ("right", "wrong") for example in EXAMPLES}
        found = {}
        for mode in ("own", "given", "none"):
            judging = judge(Path(checkpoint), mode, given if mode == "given" else None, budget=300)
            verdicts = judging.judge(EXAMPLES)
            cost = judging.spent
            spent = cost.critiques, cost.tokens, cost.truncated
            found[mode] = [scores(verdicts).tolist(), [one.texts for one in verdicts], spent]
        if rank() == 1:
            Path(target).write_text(json.dumps(found))


@pytest.mark.slow
@pytest.mark.numerics
def test_two_ranks_give_the_figures_of_one(checkpoint: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "found.json")
    run_ranks(tmp_path, on_ranks, str(checkpoint), target, in_float64=True)
    found = json.loads((tmp_path / "found.json").read_text())
    given = {example.key: ("right", "wrong") for example in EXAMPLES}
    for mode in ("own", "given", "none"):
        one = judge(checkpoint, mode, given if mode == "given" else None, budget=300)
        verdicts = one.judge(EXAMPLES)
        values, critiques, spent = found[mode]
        assert_exact(values, scores(verdicts))
        assert [tuple(pair) for pair in critiques] == [verdict.texts for verdict in verdicts]
        assert tuple(spent) == (
            one.spent.critiques,
            one.spent.tokens,
            one.spent.truncated,
        )


def test_a_checkpoint_is_judged_by_its_path_and_a_file_may_ask_for_more(
    checkpoint: Path, tmp_path: Path
) -> None:
    runtime = Runtime(torch.device("cpu"))
    judging = JudgeOfBenchmark(load_judge(checkpoint, runtime).judge)
    assert isinstance(judging.judging, CriticJudge)
    assert judging.judging.critique == CritiqueLayout("own", ASKED)
    assert judging.judging.sampling == SamplingConfig(max_new_tokens=LIMIT)
    judging.judge(EXAMPLES)
    assert "no recipe.yaml" in judging.notes()[0]
    assert "cut off by the limit of 6 tokens" in judging.notes()[1]

    file = tmp_path / "judge.yaml"
    file.write_text(
        f"type: critic\ncheckpoint: {checkpoint}\nsamples: 3\ntemperature: 0.5\nmax_new_tokens: 1\n"
    )
    asked = JudgeOfBenchmark(load_judge(file, runtime).judge)
    sampling = asked.judging.sampling
    samples = asked.judging.critique.samples
    assert (samples, sampling.temperature, sampling.max_new_tokens) == (3, 0.5, 1)
    asked.judge(EXAMPLES)
    assert "of 42 critiques were cut off" in asked.notes()[1]
    file.write_text(f"type: critic\ncheckpoint: {checkpoint}\nsample: 3\n")
    with pytest.raises(RecipeError, match="sample"):
        load_judge(file, runtime)


def test_the_truth_of_critiques_is_counted() -> None:
    items = [WORLD.item(index) for index in range(3)]
    truths = [item.critique_truth(chosen) for item in items for chosen in (True, False)]
    right = [item.critique(chosen) for item in items for chosen in (True, False)]
    assert (
        list(map(matching_parts, right, truths))
        == [{"n": 1, "readable": 1, "verdict": 1, "fact": 1, "both": 1}] * 6
    )
    wrong_verdict = right[0].replace("the response is right.", "the response is wrong.")
    wrong_fact = right[1].replace(truths[1].fact, "there is nothing", 1)
    some = map(matching_parts, [wrong_verdict, wrong_fact, "I cannot say"], truths)
    assert [list(counts.values()) for counts in some] == [
        [1, 1, 0, 1, 0],
        [1, 1, 1, 0, 0],
        [1, 0, 0, 0, 0],
    ]


def test_the_ablation_is_one_command(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "table.json"
    ablation([str(checkpoint), "--rows", "6", "--output", str(target)])
    found = json.loads(target.read_text())
    assert list(found["judges"]) == ["no critique", "own critique", "ground-truth critique"]
    assert all(one["accuracy"]["n"] == 6 for one in found["judges"].values())
    assert found["critiques"]["all"]["n"] == 12
    assert (
        found["critiques"]["of right responses"]["n"]
        == found["critiques"]["of wrong responses"]["n"]
        == 6
    )
    assert sum(figure["n"] for figure in found["by_truth"].values()) == 6
    printed = capsys.readouterr().out
    assert "ground-truth critique" in printed
    assert "right fact" in printed


def test_a_rank_without_work_runs_the_head_all_the_same(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under ZeRO-3 the other ranks would wait for ever for this one's share of the head."""
    judging = judge(checkpoint).judging
    pooled_rows: list[int] = []
    score = judging.model.scores

    def watched(pooled: torch.Tensor) -> Any:
        pooled_rows.append(len(pooled))
        return score(pooled)

    monkeypatch.setattr(judging.model, "scores", watched)
    filler = judging.packed.encoder.pack([])
    without_critiques = replace(judging, critique=CritiqueLayout("none"))
    with torch.no_grad():
        assert judging.run(filler, []) == without_critiques.run(filler, []) == []
    assert pooled_rows == [1, 0]

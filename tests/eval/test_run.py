"""eval/run.py: the same figures as inside the training loop, from any number of processes; scoring and comparing."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mmrm.eval.benchmarks.registry import BENCHMARKS
from mmrm.eval.judges.generative.config import GenerativeJudgeConfig
from mmrm.eval.results.result import Result
from mmrm.eval.run import main
from mmrm.models.backbone import load_encoder, load_scalar
from mmrm.train.methods.naive.method import NaiveMethod
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.runs.evaluation_loop import evaluation
from mmrm.train.runs.provenance import recipe_yaml
from tests.eval import run_folders
from tests.models import tiny

CLONE = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two benchmarks, and a run of two checkpoints whose recipe names one of them."""
    root = tmp_path_factory.mktemp("world")
    run_folders.vl_rewardbench(root / "vl")
    run_folders.mm_rlhf_rewardbench(root / "mm")
    benchmarks = [{"name": "vl_rewardbench", "location": str(root / "vl")}]
    run_folders.run_folder(
        root / "run", (1, 2), run_folders.recipe(root / "run" / "base", benchmarks)
    )
    return root


def result(folder: Path, name: str = "vl_rewardbench") -> Result:
    return Result.model_validate_json((folder / f"{name}.json").read_text(encoding="utf-8"))


def same_figures(first: Path, second: Path, name: str) -> None:
    """Every figure is the same, and every score to 1e-6: where weights lie in memory decides the last bit of a sum."""
    one, two = (
        result(folder, name).model_dump(exclude={"calibration", "margins"})
        for folder in (first, second)
    )
    assert one == two
    rows, others = (
        run_folders.lines(folder / name / "predictions.jsonl") for folder in (first, second)
    )
    assert [row["key"] for row in rows] == [row["key"] for row in others]
    assert [row["margin"] for row in rows] == pytest.approx(
        [row["margin"] for row in others], abs=1e-6
    )


def test_figures_equal_those_inside_the_loop(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, run = world / "run" / "base", tmp_path / "run"
    (tmp_path / "recipe.yaml").write_text(
        f"""
backbone: {{path: {base}, dtype: float32, max_pixels: 3136, system_prompt: Look twice.}}
data: {{sources: [{{type: shapes, level: demo, rows: 8}}]}}
method: {{type: naive}}
optim: {{learning_rate: 1.0e-4, records_per_step: 4, epochs: 1, token_budget: 300}}
evaluation: {{benchmarks: [{{name: vl_rewardbench, location: {world / "vl"}, limit: 9}}]}}
output: {{folder: {run}, save_every_steps: 1}}
workers: 0
"""
    )
    recipe: Any = read_recipe(tmp_path / "recipe.yaml")
    encoder, model = load_encoder(recipe.backbone), load_scalar(recipe.backbone, recipe.head).eval()
    tiny.stir(model.head, 0.3)
    method = NaiveMethod(recipe, encoder, Console(quiet=True))
    method.setup()
    inside = evaluation(method)
    assert inside is not None
    inside(model, 3)
    model.save_pretrained(run / "checkpoint-3")
    encoder.save_pretrained(run / "checkpoint-3")
    (run / "recipe.yaml").write_text(recipe_yaml(recipe))
    (run / "provenance.json").write_text("[]")
    main([str(run / "checkpoint-3"), "--output", str(tmp_path / "out")])
    same_figures(tmp_path / "out", run / "checkpoint-3" / "eval", "vl_rewardbench")
    assert str(tmp_path / "out") in capsys.readouterr().out.replace("\n", "")


def test_without_the_recipe_the_checkpoint_says_what_it_can_and_the_result_says_so(
    world: Path, tmp_path: Path
) -> None:
    checkpoint = run_folders.checkpoint(world / "run" / "base", tmp_path / "checkpoint-1", seed=1)
    main([str(checkpoint), "--benchmarks", f"vl_rewardbench={world / 'vl'}"])
    assert "no recipe.yaml" in result(checkpoint / "eval").notes[-1]
    with pytest.raises(
        SystemExit, match=r"its recipe names no benchmark, and there is no validation\.jsonl"
    ):
        main([str(checkpoint)])


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        SystemExit, match=r"checkpoint-9: there is no such folder or file. Give a checkpoint folder"
    ):
        main([str(tmp_path / "checkpoint-9")])


def test_ablations_stand_in_the_table_and_in_folders_of_their_own(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([str(world / "run" / "checkpoint-1"), "--ablations", "--output", str(tmp_path)])
    assert {path.name for path in (tmp_path / "ablations").iterdir()} == {
        "none",
        "grey",
        "shuffled",
    }
    assert result(tmp_path).protocol["images"] == "real"
    assert result(tmp_path / "ablations" / "grey").protocol["images"] == "grey"
    shown = capsys.readouterr().out
    assert all(words in shown for words in ("without images", "grey images", "shuffled images"))
    scores = [
        run_folders.lines(folder / "vl_rewardbench" / "predictions.jsonl")[0]["scores"]
        for folder in (tmp_path, tmp_path / "ablations" / "none", tmp_path / "ablations" / "grey")
    ]
    assert scores[0] != scores[1] != scores[2] != scores[0]
    main(
        [
            str(world / "run" / "checkpoint-1"),
            "--images",
            "grey",
            "--output",
            str(tmp_path / "grey"),
        ]
    )
    assert result(tmp_path / "grey" / "ablations" / "grey") == result(
        tmp_path / "ablations" / "grey"
    )


def test_figures_of_few_rows_do_not_replace_those_of_all(world: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "run" / "checkpoint-1"
    shutil.copytree(world / "run", tmp_path / "run", symlinks=True)
    main([str(checkpoint)])
    few = ["--benchmarks", f"vl_rewardbench={world / 'vl'},limit=2"]
    with pytest.raises(SystemExit, match="would take their place"):
        main([str(checkpoint), *few])
    whole = result(checkpoint / "eval").micro.n
    assert whole > 2
    main([str(checkpoint), *few, "--output", str(tmp_path / "few")])
    assert (result(tmp_path / "few").micro.n, result(checkpoint / "eval").micro.n) == (2, whole)


@pytest.mark.slow
def test_two_processes_give_the_figures_of_one(world: Path, tmp_path: Path) -> None:
    checkpoint = world / "run" / "checkpoint-2"
    arguments = [
        "--benchmarks",
        f"vl_rewardbench={world / 'vl'}",
        f"mm_rlhf_rewardbench={world / 'mm'}",
    ]
    main([str(checkpoint), *arguments, "--output", str(tmp_path / "one")])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {
        **os.environ,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": "1",
    }
    command = [
        sys.executable,
        "eval/run.py",
        str(checkpoint),
        *arguments,
        "--output",
        str(tmp_path / "two"),
    ]
    ranks = [
        subprocess.Popen(
            [*command, f"--local_rank={rank}"],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=CLONE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    said = [process.communicate(timeout=240)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], said
    for name in ("vl_rewardbench", "mm_rlhf_rewardbench"):
        same_figures(tmp_path / "one", tmp_path / "two", name)
    assert "accuracy" in said[0]
    assert "accuracy" not in said[1]


def test_a_generative_judge_goes_the_same_way(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A double that always names the response shown first: all ties in both orders, which the result must show."""
    monkeypatch.setattr(GenerativeJudgeConfig, "implementation", "tests.eval.doubles:load_follower")
    (tmp_path / "judge").mkdir()
    config = {
        "model_type": "qwen2_5_vl",
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "dtype": "float32",
    }
    (tmp_path / "judge" / "config.json").write_text(json.dumps(config))
    (tmp_path / "judge" / "preprocessor_config.json").write_text(
        '{"min_pixels": 3136, "max_pixels": 3136}'
    )
    main(
        [
            str(tmp_path / "judge"),
            "--benchmarks",
            f"vl_rewardbench={world / 'vl'}",
            "--protocol",
            "votes=2",
        ]
    )
    found = result(tmp_path / "judge" / "eval")
    assert (found.micro.ties, found.micro.n, found.notes[-1]) == (10, 10, "a double")
    assert found.votes is not None
    assert (found.votes.votes, found.votes.names_first) == (40, 1.0)
    assert found.votes.order is not None
    assert found.votes.order.rate == 0.0


def test_soft_verdicts_are_a_setting_of_the_protocol(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_folders.vl_rewardbench(tmp_path / "vl", rows=3)
    checkpoint = tiny.checkpoint(tmp_path / "checkpoint")
    judge = tmp_path / "judge.yaml"
    judge.write_text(
        f"type: generative\ncheckpoint: {checkpoint}\nmax_new_tokens: 3\ntemplate: short\n"
    )
    options = [str(judge), "--benchmarks", f"vl_rewardbench={tmp_path / 'vl'}", "--protocol"]
    for name, settings in {
        "hard": ["verdicts=hard"],
        "soft": ["verdicts=soft"],
        "none": ["verdicts=soft", "rationale=none"],
    }.items():
        main([*options, *settings, "--output", str(tmp_path / name)])
    shown = capsys.readouterr().out
    assert "soft verdicts without a rationale" in shown
    assert "Soft verdicts: both orders prefer the same response in" in shown.replace("\n", " ")
    hard, soft, none = (result(tmp_path / name) for name in ("hard", "soft", "none"))
    assert hard.soft is None
    # A random model writes no verdict: the words have none, and the probabilities do.
    assert hard.micro.unparsable == 3
    assert soft.micro.unparsable == 0
    assert soft.soft is not None
    assert soft.soft.hard == hard.micro
    assert soft.soft.opened == 6
    assert none.soft is not None
    assert (none.soft.opened, none.soft.hard.unparsable) == (0, 0)
    # Without a rationale, the words that stand for a verdict name the likelier response.
    assert none.votes is not None
    assert none.votes.order == none.soft.order
    predictions = Path("vl_rewardbench", "predictions.jsonl")
    hard_rows = run_folders.lines(tmp_path / "hard" / predictions)
    soft_rows = run_folders.lines(tmp_path / "soft" / predictions)
    for hard_row, soft_row in zip(hard_rows, soft_rows, strict=True):
        hard_texts = [vote["text"] for vote in hard_row["votes"]]
        assert [vote["text"] for vote in soft_row["votes"]] == hard_texts


def test_several_judges_get_folders_of_their_own_and_compare_says_whether_they_differ(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = [str(world / "run" / f"checkpoint-{step}") for step in (1, 2)]
    main([*checkpoints, "--output", str(tmp_path)])
    folders = [str(tmp_path / f"run-checkpoint-{step}") for step in (1, 2)]
    capsys.readouterr()
    main(["--compare", folders[0], folders[0]])
    assert "not distinguishable" in capsys.readouterr().out
    path = tmp_path / "run-checkpoint-2" / "vl_rewardbench" / "predictions.jsonl"
    rows = [{**row, "credit": 1.0} for row in run_folders.lines(path)]
    worse = tmp_path / "run-checkpoint-1" / "vl_rewardbench" / "predictions.jsonl"
    for file, credit in ((path, 1.0), (worse, 0.0)):
        file.write_text("".join(json.dumps({**row, "credit": credit}) + "\n" for row in rows))
    main(["--compare", *folders])
    shown = capsys.readouterr().out
    assert "the second is better" in shown
    assert "-100.0" in shown
    worse.write_text("".join(json.dumps(row) + "\n" for row in rows[:-1]))
    with pytest.raises(SystemExit, match=rf"vl_rewardbench: {len(rows) - 1} and {len(rows)} rows"):
        main(["--compare", *folders])
    with pytest.raises(SystemExit, match="no benchmark is in both"):
        main(["--compare", folders[0], str(tmp_path / "nowhere")])


def test_a_predictions_file_made_elsewhere_is_scored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "theirs.jsonl"
    rows = [
        {"id": "RLAIF-V-1", "rewards": [1.0, 0.5]},
        {"id": "mathverse-1", "rewards": [0.5, 0.5]},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["--score", str(file), "--benchmark", "vl_rewardbench", "--rules"]
    with pytest.raises(
        SystemExit, match=r"does not hold each row of vl_rewardbench once and no other.*--partial"
    ):
        main([*arguments, "r1_reward"])
    assert "2 not in the benchmark: 'RLAIF-V-1', 'mathverse-1'" in capsys.readouterr().out
    main([*arguments, "r1_reward", "--partial", "--output", str(tmp_path / "out")])
    shown = capsys.readouterr().out
    assert "484/448/318" in shown
    assert "NOT THE WHOLE BENCHMARK" in shown
    assert "1,250 missing: " in shown
    assert (
        json.loads((tmp_path / "out" / "vl_rewardbench.r1_reward.json").read_text())["micro"] == 0.5
    )
    with pytest.raises(SystemExit, match="no rules 'mine'"):
        main([*arguments, "mine"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give either JUDGES, or --score FILE, or --compare"),
        (["x", "--compare", "a", "b"], "give either"),
        (["--score", "x"], "--score and --benchmark go together"),
        (["--score", "x", "--benchmark", "vl_reward"], "Did you mean vl_rewardbench"),
        (["x", "--k", "3"], "--rules, --k and --partial are for --score"),
        (["x", "--ablations", "--images", "grey"], "--ablations holds all of --images"),
        (["x", "--benchmarks", "vl_rewardbensh=hub"], "Did you mean vl_rewardbench"),
        (
            ["x", "--benchmarks", "vl_rewardbench=hub,limit=0"],
            "limit: Input should be greater than or equal to 1",
        ),
        (["x", "--protocol", "votes"], "required is KEY=VALUE"),
    ],
)
def test_a_wrong_command_line_is_told_at_once(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--protocol", "votes=many"], "--protocol: votes: Input should be a valid integer"),
        (["--protocol", "vote=3"], "--protocol: vote: Extra inputs"),
        (["--benchmarks", "vl_rewardbench=hub", "vl_rewardbench=embedded"], "more than once"),
        (["--benchmarks", "vl_rewardbench=/nowhere"], "/nowhere is not there"),
    ],
)
def test_what_cannot_be_done_ends_with_a_message(
    world: Path, options: list[str], said: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([str(world / "run" / "checkpoint-1"), *options])
    assert said in str(stopped.value.code)


def test_predictions_of_our_own_are_compared_with_the_rows_they_were_evaluated_on(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = [f"vl_rewardbench={world / 'vl'},limit=7", f"mm_rlhf_rewardbench={world / 'mm'}"]
    main([str(world / "run" / "checkpoint-1"), "--benchmarks", *places, "--output", str(tmp_path)])
    shown = capsys.readouterr().out
    assert "mcq (Acc+)" in shown
    assert (
        "vl_rewardbench: each response scored by itself, ties wrong, 7 rows, drawn, seed 0"
        in " ".join(shown.split())
    )
    for name, rows in (("vl_rewardbench", 7), ("mm_rlhf_rewardbench", 6)):
        for form in ("official", "predictions"):
            main(["--score", str(tmp_path / name / f"{form}.jsonl"), "--benchmark", name])
            assert (
                f"{rows} of {rows} rows; compared with those at {world}" in capsys.readouterr().out
            )
    file = tmp_path / "mm_rlhf_rewardbench" / "predictions.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*lines[1:], lines[1]]))
    with pytest.raises(SystemExit, match="--partial"):
        main(["--score", str(file), "--benchmark", "mm_rlhf_rewardbench"])
    shown = capsys.readouterr().out
    assert "1 missing: '0'" in shown
    assert "1 duplicated: '0'" in shown


def test_runs_and_files_of_any_name_are_compared(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (1, 2):
        place = world / "run" / f"checkpoint-{step}" / "eval"
        main([str(world / "run" / f"checkpoint-{step}"), "--output", str(place)])
        (tmp_path / f"{step}.jsonl").write_bytes(
            (place / "vl_rewardbench" / "predictions.jsonl").read_bytes()
        )
    capsys.readouterr()
    main(["--compare", str(world / "run"), str(world / "run" / "checkpoint-1")])
    assert "checkpoint-2/eval/vl_rewardbench/predictions.jsonl" in "".join(
        capsys.readouterr().out.split()
    )
    main(["--compare", str(tmp_path / "1.jsonl"), str(tmp_path / "2.jsonl")])
    assert "10" in capsys.readouterr().out


def test_help_names_every_use(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown: Any = capsys.readouterr().out
    assert all(words in shown for words in ("--score", "--compare", "--ablations", "--benchmarks"))
    for name, benchmark in BENCHMARKS.items():
        rules = shown.split(f"{name}: rules\n")[1].split("\n\n")[0]
        for rule, scoring in benchmark.rules.items():
            assert (
                f"  {rule} (reads {scoring.reads}): {scoring.about}\n    differs from the released script: {scoring.differs}"
                in rules
            )
        assert all(f"  {form}: {about.about}" in shown for form, about in benchmark.files.items())


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["--score", "nothing.jsonl", "--benchmark", "vl_rewardbench"],
        ["--compare", "nothing", "nothing-else"],
        ["nothing", "--benchmarks", "vl_rewardbench=embedded"],
    ],
    ids=["score", "compare", "judge"],
)
def test_an_error_exit_imports_no_torch(arguments: list[str], tmp_path: Path) -> None:
    """Importing torch takes 5 to 13 seconds, in which a user waits for one sentence."""
    code = (
        "import sys\n"
        f"sys.path.insert(0, {str(CLONE)!r})\n"
        "from mmrm.eval.run import main\n"
        "try:\n"
        f"    main({arguments!r})\n"
        "except SystemExit as end:\n"
        "    print(end.code, file=sys.stderr)\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "False", done.stderr
    assert "error: " in done.stderr
    assert "nothing" in done.stderr

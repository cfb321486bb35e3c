"""The dry run says what will happen, without weights, network or torch."""

from __future__ import annotations

import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from mmrm.data.preparation.mixing import Mixture
from mmrm.train.planning.dry_run import dry_run, plan_lines, show
from mmrm.train.recipe.parsing import parse_arguments, read_recipe
from mmrm.train.recipe.recipe import Recipe
from tests.train.minimal import write

CLONE = Path(__file__).resolve().parents[3]
PUBLIC = "data.sources=[{type: trl, name: one, hub: trl-lib/rlaif-v}]"


def said(folder: Path, *overrides: str) -> str:
    """Return all that the plan of the minimal recipe says."""
    return "\n".join(
        line
        for lines in plan_lines(read_recipe(write(folder), overrides)).values()
        for line in lines
    )


def shown(recipe: Recipe, world_size: int = 1, width: int = 120) -> str:
    """Return what the dry run prints."""
    console = Console(width=width, record=True, file=StringIO())
    show(recipe, world_size, console)
    return console.export_text()


def test_basereward_is_announced() -> None:
    text = shown(read_recipe(CLONE / "recipes" / "basereward.yaml"))
    for part in (
        "Qwen/Qwen2.5-VL-7B-Instruct in bfloat16",
        "7.76 B parameters",
        "2 linear layers with silu between, width 3584",
        "learning rate 3e-06",
        "128 records a step",
        "ZeRO-3 divides optimizer states, gradients and weights",
        "vl_rewardbench (hub, 1,247 rows stated)",
        "multimodal_rewardbench (hub, 4,711 rows stated)",
        "zero3 ←",
        "2,000,000 rows (stated by its card, capped)",
        "an epoch has 2,606,701 records",
    ):
        assert part in text, part
    assert [line.split()[-4:] for line in text.splitlines() if "zero3 ←" in line] == [
        ["16.26", "│", "2.03", "│"]
    ]


def words_of_cost(text: str) -> list[str]:
    """Return the sorted words and figures of the table of costs."""
    table = text[text.index("Received in a step") :]
    return sorted(word for word in table.split() if word.strip("━─┃│"))


@pytest.mark.parametrize("size", ["3B", "7B", "72B"])
def test_no_figure_of_the_cost_is_cut_in_a_narrow_terminal(size: str) -> None:
    path = f"backbone.path=Qwen/Qwen2.5-VL-{size}-Instruct"
    overrides = [path, "optim.records_per_step=4096"]
    recipe = read_recipe(CLONE / "recipes" / "basereward.yaml", overrides)
    narrow = shown(recipe, width=80)
    assert "…" not in narrow
    assert words_of_cost(narrow) == words_of_cost(shown(recipe, width=200))


def test_the_cost_names_the_gpus_that_it_is_of() -> None:
    text = " ".join(shown(read_recipe(CLONE / "recipes" / "qlora.yaml")).split())
    assert "989 TFLOP/s, the dense bf16 rate of an H100 and of an H200" in text
    assert "on a GPU with a quarter of that rate, computation takes four times as long" in text


@pytest.mark.slow
def test_it_needs_neither_torch_nor_a_network(tmp_path: Path) -> None:
    code = (
        "import socket, sys\n"
        "def refuse(*_): raise AssertionError('network')\n"
        "socket.socket.connect = refuse\n"
        "from mmrm.train.recipe.parsing import parse_arguments; from mmrm.train.planning.dry_run import dry_run\n"
        f"dry_run(parse_arguments([{str(CLONE / 'recipes' / 'basereward.yaml')!r}, '--dry-run'], 'rm', ''))\n"
        "assert not {'torch', 'transformers', 'datasets', 'deepspeed'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CLONE, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Bradley-Terry" in done.stdout


def test_only_the_first_rank_speaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launch = parse_arguments([str(write(tmp_path)), "--dry-run"], "rm", "")
    monkeypatch.setenv("RANK", "1")
    dry_run(launch)
    assert not capsys.readouterr().out
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    dry_run(launch)
    assert "20 steps: 1,280 records, 2.00 epochs" in capsys.readouterr().out


def test_the_data_card_that_was_saved_says_how_long_an_epoch_of_own_data_is(tmp_path: Path) -> None:
    own = tmp_path / "own.jsonl"
    own.write_text(
        "".join(f'{{"prompt": "p{row}", "chosen": "c", "rejected": "r"}}\n' for row in range(9))
    )
    changes = [
        f"data={{sources: [{{type: project, path: {own}}}], cache: {tmp_path}, workers: 1}}",
        "optim.records_per_step=2",
    ]
    card = tmp_path / "minimal.card.json"
    Mixture(read_recipe(write(tmp_path), changes).data).card().save(card)
    text = said(tmp_path, *changes)
    assert f"an epoch has 9 records (counted by data/mixture.py --plan: {card})" in text
    assert re.search(r"about \d+ tokens a record, by the data card", text)
    assert "10 steps: 18 records, 2.00 epochs" in text
    recipe = read_recipe(write(tmp_path), [*changes, "backbone.path=Qwen/Qwen2.5-VL-3B-Instruct"])
    costs = " ".join(shown(recipe).split())
    assert re.search(r"records of 0 tokens of images and videos, and \d of text, the means", costs)
    assert "an epoch has an unknown number of records" in said(
        tmp_path, *changes, "data.validation=2"
    )


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], "an epoch has 640 records"),
        (["data.validation=40"], "an epoch has 600 records"),
        (["data.records=99"], "an epoch has 99 records (data.records)"),
        (["data.sources.0.cap=100"], "an epoch has 100 records"),
        (["data.sources.0.repeat=0.5"], "an epoch has 320 records"),
        (["data.stages=[{name: a}, {name: b, repeat: 0.5}]"], "an epoch has 960 records"),
        (["data.sources=[{type: ultrafeedback}]"], "an epoch has 63,967 records"),
        (
            ["data.sources=[{type: ultrafeedback, pairs: all}]"],
            "an epoch has an unknown number of records",
        ),
        ([PUBLIC], "an epoch has 83,132 records"),
        (["data.sources=[{type: trl, hub: a/b}]"], "an epoch has an unknown number of records"),
        (
            ["data.sources=[{type: trl, path: some/folder, hub: trl-lib/rlaif-v}]"],
            "an epoch has an unknown number of records",
        ),
        (["data.stages=[{name: a, modality: text}]"], "an epoch has an unknown number of records"),
    ],
)
def test_the_length_of_an_epoch(tmp_path: Path, overrides: list[str], expected: str) -> None:
    assert expected in said(tmp_path, *overrides)


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [("1", "3 steps: 130 records, 1.00 epochs"), ("1.5", "4 steps: 194 records, 1.49 epochs")],
)
def test_the_last_step_of_an_epoch_takes_what_is_left(
    tmp_path: Path, epochs: str, expected: str
) -> None:
    changes = [
        "data.sources.0.rows=130",
        "optim.records_per_step=64",
        f"optim.epochs={epochs}",
        "optim.max_steps=null",
    ]
    assert expected in said(tmp_path, *changes)


@pytest.mark.parametrize(
    ("both_orders", "expected"),
    [
        ("false", "20 steps: 1,280 records, 2.00 epochs"),
        ("true", "40 steps: 2,560 records, 2.00 epochs, each record in both orders"),
    ],
)
def test_records_in_both_orders_are_counted_twice(
    tmp_path: Path, both_orders: str, expected: str
) -> None:
    changes = [
        f"method={{type: language_model, target: verdict, both_orders: {both_orders}}}",
        "data.sources.0.rows=640",
        "optim.records_per_step=64",
        "optim.epochs=2",
        "optim.max_steps=null",
    ]
    assert expected in said(tmp_path, *changes)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("{type: language_model, target: verdict}", "both orders, 1 vote"),
        (
            "{type: language_model, target: ratings, ratings_from: preference}",
            "each response scored by itself",
        ),
    ],
)
def test_the_protocol_is_that_of_the_judge(tmp_path: Path, method: str, expected: str) -> None:
    benchmarks = "evaluation.benchmarks=[{name: vl_rewardbench, location: embedded}]"
    assert f"protocol: {expected}" in said(tmp_path, f"method={method}", benchmarks)


def test_steps_that_nobody_knows_are_not_invented(tmp_path: Path) -> None:
    unknown = "data.sources=[{type: trl, hub: a/b}]"
    assert "2 epochs; steps known once the data are read" in said(tmp_path, unknown)
    assert "30 steps: 1,920 records\n" in said(
        tmp_path, unknown, "optim.epochs=null", "optim.max_steps=30"
    )


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ["backbone.min_pixels=784", "backbone.max_pixels=785"],
            "images of 784 to 785 pixels: 1 to 1 tokens each",
        ),
        (
            ["backbone.videos.max_frames=16", "backbone.max_pixels=78400"],
            "videos: 2 frames a second, at most 16, as video tokens, at most about 800 tokens each",
        ),
        (
            ["backbone.videos={form: frames, num_frames: 4}", "backbone.max_pixels=78400"],
            "videos: 4 evenly spaced frames, as an image for each frame, at most about 400 tokens",
        ),
        (
            ["backbone.path=OpenGVLab/InternVL3-8B-hf"],
            "videos: none, because InternVL has no tokens of videos here; "
            "backbone.videos.form=frames shows them as images of frames",
        ),
        (
            ["backbone={path: OpenGVLab/InternVL3-8B-hf, videos: {form: frames, num_frames: 4}}"],
            "videos: 4 evenly spaced frames, as an image for each frame, at most about 5,120 tokens",
        ),
        (["backbone.path=someone/unknown"], "as video tokens, an unknown number of tokens each"),
        (["method.zero_coefficient=0.01"], "Bradley-Terry + 0.01 x (chosen + rejected)^2"),
        (
            ["method.margin=true", "method.length_normalisation=true"],
            "Bradley-Terry + margin + length normalisation",
        ),
        (["method={type: critic, critique: own}"], "critiques: own"),
        (["head={layers: 1}"], "read at end_of_turn; it computes one score"),
        (["method={type: stable_reinforce}"], "advantages by batch with filter at 3, KL 0"),
        (
            ["method={type: language_model, target: lessons}"],
            "lessons of 12 questions about an image",
        ),
        (["method={type: language_model, target: judgement}"], "cross-entropy on judgements"),
        (["optim.lora={rank: 4}"], "LoRA of rank 4"),
        (["backbone.freeze=[projector]"], "frozen: projector"),
        (["optim.head_learning_rate=1e-3"], "learning rate 0.0001, head 0.001"),
        (["deepspeed=zero3_offload"], "optimizer states and weights in host memory"),
        (
            ["evaluation.benchmarks=[{name: vl_rewardbench, location: embedded, limit: 10}]"],
            "(embedded, limited to 10)",
        ),
        (["output.push_to_hub=me/model"], "the best one goes to me/model"),
    ],
)
def test_what_a_setting_does_is_said(tmp_path: Path, overrides: list[str], expected: str) -> None:
    assert expected in said(tmp_path, *overrides)


def test_memory_is_not_guessed(tmp_path: Path) -> None:
    assert "Memory is not estimated" in shown(
        read_recipe(write(tmp_path), ["backbone.path=someone/unknown"])
    )
    text = shown(
        read_recipe(write(tmp_path), ["backbone.path=Qwen/Qwen2.5-VL-3B-Instruct"]), world_size=16
    )
    heading = next(line for line in text.splitlines() if "64 ranks" in line)
    assert [word for word in heading.split() if word.isdecimal()] == ["1", "2", "8", "16", "64"]


@pytest.mark.parametrize(
    ("stage", "summed"), [("zero0", True), ("zero1", True), ("zero2", False), ("none", False)]
)
def test_a_sum_in_bf16_is_announced(tmp_path: Path, stage: str, summed: bool) -> None:
    changes = [f"deepspeed={stage}", "backbone.dtype=bfloat16"]
    assert ("are summed in bf16" in said(tmp_path, *changes)) == summed
    assert "are summed in bf16" not in said(tmp_path, *changes, "backbone.dtype=float32")


@pytest.mark.parametrize(
    ("changes", "writes"),
    [
        (["method={type: naive}"], ""),
        (["method={type: critic}"], "evaluations"),
        (["method={type: critic, critique: own}", "evaluation.benchmarks=[]"], "own critiques"),
        (["method={type: stable_reinforce}"], "rollouts, evaluations"),
        (["method={type: stable_reinforce, engine: vllm_server}"], "evaluations"),
        (["method={type: language_model, target: judgement}"], "evaluations"),
    ],
)
def test_the_price_of_writing_under_zero3_is_said(
    tmp_path: Path, changes: list[str], writes: str
) -> None:
    """7B in bf16: 8.29 B parameters with the LM head, 7.62 B of them in the language model, which alone writes."""
    path, judged = (
        write(tmp_path),
        "evaluation.benchmarks=[{name: vl_rewardbench, location: embedded}]",
    )
    seven = [
        "backbone.path=Qwen/Qwen2.5-VL-7B-Instruct",
        "backbone.dtype=bfloat16",
        judged,
        *changes,
    ]
    text = " ".join(shown(read_recipe(path, [*seven, "deepspeed=zero3"]), world_size=2).split())
    assert "Writing" not in shown(read_recipe(path, [*seven, "deepspeed=zero2"]), world_size=2)
    assert ("Writing" in text) == bool(writes)
    if writes:
        assert f"Writing ({writes}): all weights, 15." in text
        whole = float(text.partition("all weights, ")[2].split()[0])
        assert float(text.partition("every rank then has ")[2].split()[0]) == pytest.approx(
            whole / 0.7, abs=0.02
        )
        language_model = 7_615_616_512 * 2 / 2**30  # the language model of Qwen2.5-7B
        moved = ", ".join(f"{language_model * (n - 1) / n:.2f} on {n} ranks" for n in (2, 8, 64))
        assert f"each rank receives GiB a step: {moved}." in text

"""Whole runs of a critic on two ranks: its own critiques, both benchmarks in the loop, ZeRO, resume, adapters."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import deepspeed
import pytest
import torch

from mmrm.eval.judges.critic.judge import CriticJudge
from mmrm.models.distributed import rank
from mmrm.models.portable import language_model
from mmrm.train.supervised import whole_weights
from tests.models import tiny
from tests.train.ranks import run_ranks
from tests.train.worker import recipe_run

pytestmark = pytest.mark.slow


RECIPE = """\
backbone: {{path: {base}, dtype: float32, min_pixels: 784, max_pixels: 3136}}
head: {{activation: tanh}}
data: {{sources: [{{type: shapes, level: demo, split: train, rows: 24}}]}}
method:
  type: critic
  critique: mixture
  own_share: 0.5
  refresh_every_steps: 2
  critique_request: "judge the response."
  critique_max_tokens: 5
optim: {{learning_rate: 1.0e-3, records_per_step: 4, max_steps: 6, token_budget: 400, activation_checkpointing: false}}
evaluation: {{benchmarks: [{{name: vl_rewardbench, location: embedded, limit: 7}}], best_metric: vl_rewardbench/accuracy}}
output: {{folder: {folder}/run, save_every_steps: 3, log_every_steps: 1, keep_checkpoints: 3}}
workers: 1
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a backbone whose critiques end at very different lengths (the end token is made likely)."""
    model, folder = tiny.language_model(seed=7), tmp_path_factory.mktemp("base")
    with torch.no_grad():
        model.lm_head.weight[tiny.tokenizer().convert_tokens_to_ids("<|im_end|>")] *= 3.0
    model.save_pretrained(folder)
    tiny.encoder().save_pretrained(folder)
    return folder


def chunked_run(arguments: Sequence[str]) -> None:
    """Train with vocabulary logits of three labels at a time, so that even these short critiques need several chunks."""
    language_model.CHUNK = 3
    recipe_run(arguments)


def train(
    base: Path,
    folder: Path,
    *changes: str,
    run: Callable[[Sequence[str]], None] = recipe_run,
    seconds: float = 400,
) -> list[dict[str, Any]]:
    """Train on two ranks and return the log."""
    folder.mkdir(exist_ok=True)
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE.format(base=base, folder=folder), encoding="utf-8")
    run_ranks(folder / "logs", run, [str(recipe), *changes], seconds=seconds)
    last = max((folder / "run").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    log: list[dict[str, Any]] = json.loads((last / "trainer_state.json").read_text())["log_history"]
    return log


def curve(log: list[dict[str, Any]]) -> list[float]:
    return [line["loss"] for line in log if "loss" in line]


def critiques(folder: Path) -> list[str]:
    """Return the critiques of an evaluation."""
    lines = (
        (folder / "eval" / "vl_rewardbench" / "predictions.jsonl")
        .read_text(encoding="utf-8")
        .splitlines()
    )
    return [critique for line in lines for critique in json.loads(line)["critiques"]]


def test_zero_stages_learn_alike_evaluate_in_the_loop_and_resume_inside_a_window(
    base: Path, tmp_path: Path
) -> None:
    runs = {"zero2": recipe_run, "zero3": chunked_run}
    whole = {
        stage: train(base, tmp_path / stage, f"deepspeed={stage}", run=run)
        for stage, run in runs.items()
    }
    assert len(curve(whole["zero2"])) == 6
    assert curve(whole["zero3"]) == pytest.approx(curve(whole["zero2"]), abs=1e-5)
    for stage, log in whole.items():
        evaluated = [line for line in log if "eval_vl_rewardbench/accuracy" in line]
        assert [line["step"] for line in evaluated] == [0, 3, 6]
        assert all(line["eval_judging/seconds_per_judgement"] > 0 for line in evaluated)
        figures = {name for line in log for name in line}
        assert {
            "loss_critique",
            "loss_score",
            "perplexity",
            "accuracy_true_critique",
            "accuracy_own_critique",
        } <= figures
        written = critiques(tmp_path / stage / "run" / "start")
        assert len(written) == 14
        assert (
            len({len(tiny.tokenizer()(text)["input_ids"]) for text in written}) > 1
        )  # ranks end at different times

    folder = tmp_path / "zero3" / "run"
    windows = {path.name: path.stat().st_mtime_ns for path in (folder / "critiques").iterdir()}
    assert set(windows) == {"steps-0-2.json", "steps-2-4.json", "steps-4-6.json"}
    shutil.rmtree(folder / "checkpoint-6")
    resumed = train(base, tmp_path / "zero3", "deepspeed=zero3", "output.resume=auto")
    assert curve(resumed) == pytest.approx(curve(whole["zero3"]), abs=1e-6)
    found = {path.name: path.stat().st_mtime_ns for path in (folder / "critiques").iterdir()}
    assert found["steps-2-4.json"] == windows["steps-2-4.json"]
    assert found["steps-4-6.json"] > windows["steps-4-6.json"]


def test_adapters_train_write_and_save_the_head(base: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    changes = (
        "optim.lora={rank: 4, alpha: 8}",
        "optim.max_steps=2",
        "output.save_every_steps=2",
        "method.critique=own",
        "method.own_share=null",
    )
    log = train(base, tmp_path, "deepspeed=zero3", *changes)
    assert all("accuracy_own_critique" in line for line in log if "loss" in line)
    saved = load_file(tmp_path / "run" / "checkpoint-2" / "adapter_model.safetensors")
    heads = sorted(name.removeprefix("base_model.model.") for name in saved if "lora_" not in name)
    assert heads == ["head.0.bias", "head.0.weight", "head.3.weight"]


def counted_run(arguments: Sequence[str], folder: str, fits: bool) -> None:
    """Train with all gathers of parameters counted inside and outside of writing, into a file."""
    counts, inside = {"writing": 0, "else": 0, "plain_linear": 0}, [0]
    gather, judge = (
        deepspeed.runtime.zero.partition_parameters._dist_allgather_fn,
        whole_weights.fits_everywhere,
    )

    def counted(*arguments: Any, **keywords: Any) -> Any:
        counts["writing" if inside[0] else "else"] += 1
        return gather(*arguments, **keywords)

    critic: Any = CriticJudge
    written = critic._run_with_own_critiques

    def own(self: CriticJudge, *arguments: Any) -> Any:
        inside[0] += 1
        counts["plain_linear"] = torch.nn.functional.linear is torch.ops.aten.linear
        found = written(self, *arguments)
        inside[0] -= 1
        return found

    deepspeed.runtime.zero.partition_parameters._dist_allgather_fn = counted
    critic._run_with_own_critiques = own
    whole_weights.fits_everywhere = lambda size, device: fits and judge(size, device)
    recipe_run(arguments)
    if rank() == 0:
        (Path(folder) / "gathers.json").write_text(json.dumps(counts))


def test_weights_are_gathered_once_where_they_fit(base: Path, tmp_path: Path) -> None:
    """The end token is as likely as in the other runs, but the limit differs: the gathers must not."""
    gathers: dict[tuple[bool, int], int] = {}
    texts = {}
    for fits, limit in ((True, 3), (True, 9), (False, 9)):
        folder = tmp_path / f"{fits}-{limit}"
        folder.mkdir()
        (folder / "recipe.yaml").write_text(
            RECIPE.format(base=base, folder=folder), encoding="utf-8"
        )
        changes = [
            "deepspeed=zero3",
            f"method.critique_max_tokens={limit}",
            "optim.max_steps=3",
            "method.warmup_steps=0",
        ]
        run_ranks(
            folder / "logs", counted_run, [str(folder / "recipe.yaml"), *changes], str(folder), fits
        )
        found = json.loads((folder / "gathers.json").read_text())
        assert found["else"] > 0
        assert found["plain_linear"] == fits
        gathers[fits, limit] = found["writing"]
        texts[fits, limit] = critiques(folder / "run" / "checkpoint-3")
    assert gathers[True, 3] == gathers[True, 9] == 0
    assert gathers[False, 9] > 9
    assert texts[True, 9] == texts[False, 9]

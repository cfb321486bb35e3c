"""The command that measures which source hurts: real runs of a tiny model from end to end, also after an interruption."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mmrm.train import which_source
from tests.models import tiny

SCRIPT = Path(which_source.__file__)
RECIPE = """\
backbone: {path: FOLDER/backbone, dtype: float32}
head: {width: 8}
data:
  sources:
    - {type: shapes, name: good, level: demo, rows: 40}
    - {type: shapes, name: flipped, level: demo, rows: 40, seed: 1, flipped: 1.0}
  validation: 8
  cache: FOLDER/cache
method: {type: naive}
optim:
  learning_rate: 1.0e-3
  records_per_step: 4
  epochs: 1
  token_budget: 4096
  activation_checkpointing: false
deepspeed: none
evaluation:
  benchmarks: [{name: vl_rewardbench, location: embedded, limit: 6}]
output: {folder: FOLDER/out, save_every_steps: 1}
workers: 0
"""
VARIANTS = ("whole", "without-good", "twice-good", "without-flipped", "twice-flipped")


@pytest.mark.slow
def test_the_command_continues_after_an_interruption_and_comes_to_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.checkpoint(tmp_path / "backbone")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.replace("FOLDER", str(tmp_path)))
    command = [str(recipe), "output.save_every_steps=1", "--steps", "3", "--influence", "3"]
    which_source.main([*command, "--dry-run"])
    assert not (tmp_path / "out").exists()
    assert "without-flipped" in capsys.readouterr().out

    out = tmp_path / "out" / "which_source"
    process = subprocess.Popen([sys.executable, str(SCRIPT), *command], stdout=subprocess.DEVNULL)
    while not list(out.glob("whole/0/checkpoint-*/complete")):
        assert process.poll() is None
        time.sleep(0.02)
    process.terminate()
    assert process.wait() == 128 + signal.SIGTERM
    assert not (out / "twice-flipped").exists()

    which_source.main(command)
    figures = json.loads((out / "which_source.json").read_text())
    assert figures["missing"] == []
    assert {source["source"] for source in figures["sources"]} == {"good", "flipped"}
    for source in figures["sources"]:
        assert source["left_out"].keys() == source["twice"].keys() == {"vl_rewardbench", "held_out"}
        assert figures["influence"][source["source"]]["all"]["low"] is not None
    assert "rank correlation" in capsys.readouterr().out
    assert (out / "which_source.png").is_file()
    for variant in VARIANTS:
        assert (out / variant / "0" / "checkpoint-3" / "complete").is_file()

    # Nothing is trained or computed again.
    logs = [out / variant / "0" / "log.txt" for variant in VARIANTS]
    files = [*logs, out / "influence" / "0.json"]
    contents = [file.read_bytes() for file in files]
    which_source.main(command)
    assert [file.read_bytes() for file in files] == contents
    assert json.loads((out / "which_source.json").read_text()) == figures

    with pytest.raises(SystemExit) as end:
        which_source.main([*command, "optim.learning_rate=1.0e-4"])
    assert "holds a run with another recipe" in str(end.value.code) + capsys.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.sources=[{type: shapes, level: demo, rows: 40}]"], "draws from one source, shapes"),
        (["data.validation=0", "--influence", "3"], "data.validation is 0"),
    ],
)
def test_what_cannot_be_measured_ends_the_command_before_any_run(
    tmp_path: Path, overrides: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        RECIPE.replace("FOLDER/backbone", "embedded").replace("FOLDER", str(tmp_path))
    )
    with pytest.raises(SystemExit) as end:
        which_source.main([str(recipe), *overrides, "--steps", "2"])
    assert message in str(end.value.code) + capsys.readouterr().err
    assert not (tmp_path / "out").exists()

"""Optimizer states for another number of ranks: how many ranks there were, and what prevents a conversion."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mmrm.data.display.console import plain_console
from mmrm.data.errors import UserError
from mmrm.train.checkpoints.universal import LATEST_UNIVERSAL, convert_states, ranks_of_states

CONSOLE = plain_console()


def checkpoint_of(folder: Path, ranks: int, prefix: str = "") -> Path:
    """Write the names of the files that DeepSpeed writes on so many ranks."""
    checkpoint = folder / "checkpoint-4"
    states = checkpoint / "global_step4"
    states.mkdir(parents=True)
    (checkpoint / "latest").write_text("global_step4\n")
    (states / "mp_rank_00_model_states.pt").write_bytes(b"1234")
    for rank in range(ranks):
        (states / f"{prefix}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").write_bytes(b"12")
    return checkpoint


@pytest.mark.parametrize("prefix", ["", "bf16_"])
@pytest.mark.parametrize("ranks", [1, 2, 11])
def test_the_files_say_on_how_many_ranks_they_were_saved(
    tmp_path: Path, ranks: int, prefix: str
) -> None:
    assert ranks_of_states(checkpoint_of(tmp_path, ranks, prefix)) == ranks


def test_a_checkpoint_without_states_by_rank_has_no_number(tmp_path: Path) -> None:
    assert ranks_of_states(tmp_path) is None
    assert ranks_of_states(checkpoint_of(tmp_path, 0)) is None


def test_a_conversion_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = checkpoint_of(tmp_path, 2)
    commands = []

    def convert(command: list[str], **_: Any) -> Any:
        commands.append(command)
        output = Path(command[command.index("--output_folder") + 1])
        output.mkdir()
        (output / "states.pt").write_text("converted")
        output.with_name(LATEST_UNIVERSAL).write_text(output.name)
        return SimpleNamespace(returncode=0)

    # What killed runs have left, before and after their states were complete.
    for name in ("converting-old", "global_step4_universal"):
        (checkpoint / name).mkdir()
        (checkpoint / name / "states.pt").write_text("half")
    monkeypatch.setattr(subprocess, "run", convert)
    convert_states(checkpoint, 3, CONSOLE)
    convert_states(checkpoint, 3, CONSOLE)
    assert len(commands) == 1
    assert (checkpoint / LATEST_UNIVERSAL).read_text() == "global_step4_universal"
    assert (checkpoint / "global_step4_universal" / "states.pt").read_text() == "converted"
    assert list(checkpoint.glob("converting-*")) == []


def test_a_full_disk_and_a_failure_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = checkpoint_of(tmp_path, 2)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=3))
    with pytest.raises(UserError, match=r"2 ranks could not be converted for 1: .* status 3"):
        convert_states(checkpoint, 1, CONSOLE)
    usage = SimpleNamespace(free=7)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(UserError, match=r"2 ranks take 8 bytes, .* 7 are free\. Make room, or"):
        convert_states(checkpoint, 1, CONSOLE)

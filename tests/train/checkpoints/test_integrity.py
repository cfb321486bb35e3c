"""Sizes and digests of a checkpoint: every change of a file is found and named, by one rank and by several."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrm.data.storage.files import content_digest
from mmrm.data.storage.manifest import COMPLETE
from mmrm.eval.cli import rank_device
from mmrm.models.distributed import barrier, rank
from mmrm.train.checkpoints import integrity
from mmrm.train.checkpoints.integrity import damage, mark_complete
from tests.train.ranks import run_ranks

SHARD = "global_step3/bf16_zero_pp_rank_{}_mp_rank_00_optim_states.pt"
NAMES = (
    "model.safetensors",
    "trainer_state.json",
    SHARD.format(0),
    SHARD.format(1),
    "rng_state_1.pth",
    "latest",
)


def save(folder: Path) -> Path:
    checkpoint = folder / "checkpoint-3"
    for number, name in enumerate((*NAMES, "README.md", "eval/vl_rewardbench.json")):
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_bytes(bytes(range(50 + number)))
    return checkpoint


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[17] ^= 1
    path.write_bytes(content)


def replace_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (lambda path: os.truncate(path, 10), "has 10 bytes"),
    "emptied": (lambda path: path.write_bytes(b""), "has 0 bytes"),
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b"x"), "were written"),
    "flipped": (flip, "has other contents"),
    "gone": (lambda path: path.unlink(), "No such file"),
    "a folder": (replace_by_a_folder, "bytes|Is a directory"),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_a_file_is_named(tmp_path: Path, name: str, change: str) -> None:
    checkpoint = save(tmp_path)
    mark_complete(checkpoint)
    assert damage(checkpoint) == []
    make, said = CHANGES[change]
    make(checkpoint / name)
    (line,) = damage(checkpoint)
    assert line.startswith(Path(name).name)
    assert any(part in line for part in said.split("|"))


def test_figures_and_the_card_may_change_and_an_older_mark_is_taken(tmp_path: Path) -> None:
    checkpoint = save(tmp_path)
    mark_complete(checkpoint)
    for name in ("README.md", "eval/vl_rewardbench.json"):
        (checkpoint / name).write_text("again")
    (checkpoint / "notes.txt").touch()
    assert damage(checkpoint) == []
    (checkpoint / COMPLETE).write_bytes(b"")
    flip(checkpoint / "model.safetensors")
    assert damage(checkpoint) == []


@settings(deadline=None)
@given(
    st.binary(min_size=1, max_size=40)
    | st.recursive(st.none() | st.integers(), st.lists).map(lambda x: json.dumps(x).encode())
)
def test_a_mark_that_cannot_be_read_is_damage(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    checkpoint = save(tmp_path_factory.mktemp("run"))
    (checkpoint / COMPLETE).write_bytes(content)
    (line,) = damage(checkpoint)
    assert line.startswith("complete cannot be read")


def test_another_steps_mark_is_damage(tmp_path: Path) -> None:
    checkpoint = save(tmp_path)
    mark_complete(checkpoint)
    later = shutil.copytree(checkpoint, tmp_path / "checkpoint-6")
    assert damage(later) == ["complete was written for checkpoint-3"]
    assert damage(shutil.copytree(checkpoint, tmp_path / "kept")) == []


def on_ranks(folder: str) -> None:
    """Mark and compare on all ranks, and note which files this one read."""
    checkpoint, read = Path(folder) / "checkpoint-3", list[str]()

    def noted(path: Path) -> str:
        read.append(str(path.relative_to(checkpoint)))
        return content_digest(path)

    module: Any = integrity
    module.content_digest = noted
    with rank_device():
        mark_complete(checkpoint)
        assert damage(checkpoint) == []
        (Path(folder) / f"read-{rank()}.json").write_text(json.dumps(read))
        barrier()
        if rank() == 1:
            flip(checkpoint / SHARD.format(1))
        barrier()
        assert damage(checkpoint) == [
            f"{Path(SHARD.format(1)).name} has other contents than were written"
        ]


@pytest.mark.slow
def test_each_rank_reads_its_own_files_and_all_hear_of_the_damage(tmp_path: Path) -> None:
    save(tmp_path)
    run_ranks(tmp_path / "logs", on_ranks, str(tmp_path))
    read = [json.loads((tmp_path / f"read-{n}.json").read_text()) for n in range(2)]
    assert sorted(read[0] + read[1]) == sorted([*NAMES, *NAMES])
    assert SHARD.format(0) in read[0]
    assert {SHARD.format(1), "rng_state_1.pth"} <= set(read[1])

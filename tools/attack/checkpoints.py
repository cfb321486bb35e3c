"""Damaged checkpoints: a resume names the damaged file, or takes the previous whole checkpoint and ends like the whole run."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

from tools.attack.outcomes import Tally
from tools.attack.runs import Runs, kinds

NEWEST, PREVIOUS = ("checkpoint-4", "global_step4"), ("checkpoint-2", "global_step2")
SWAPPED = "that of the previous checkpoint"


def older(path: Path) -> Path:
    """Return the same file of the previous checkpoint; `path` itself where it lies in none."""
    return Path(str(path).replace(NEWEST[0], PREVIOUS[0]).replace(NEWEST[1], PREVIOUS[1]))


def flip(path: Path, other: Path) -> None:
    """Change eight bytes of the second half: of a weight's values, not of the header."""
    content = bytearray(path.read_bytes())
    for place in range(len(content) * 6 // 10, len(content) * 6 // 10 + 8):
        content[place % len(content)] ^= 0x55
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path, Path], object]] = {
    "cut in half": lambda path, other: path.write_bytes(
        path.read_bytes()[: path.stat().st_size // 2]
    ),
    "cut by a byte": lambda path, other: path.write_bytes(path.read_bytes()[:-1]),
    "empty": lambda path, other: path.write_bytes(b""),
    "zeros": lambda path, other: path.write_bytes(bytes(path.stat().st_size)),
    "flipped bits": flip,
    "gone": lambda path, other: path.unlink(),
    SWAPPED: lambda path, other: shutil.copyfile(other, path),
    "a directory": lambda path, other: (
        path.rename(path.with_name("moved")).with_name(path.name).mkdir()
    ),
}


def cases(run: Path, count: int, seed: int) -> list[tuple[str, str]]:
    """Return `count` pairs of a file, relative to the run folder, and a damage: each file once before one comes twice."""
    folder = run / NEWEST[0]
    files = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("complete", "README.md")
    ]
    files = [path for path in files if path.stat().st_size] + [
        run / "recipe.yaml",
        run / "provenance.json",
    ]
    generator = random.Random(f"{seed}/checkpoints")
    files, damages = (
        generator.sample(files, len(files)),
        generator.sample(list(DAMAGES), len(DAMAGES)),
    )
    turns = range(len(damages))
    rounds = [
        (path, damages[(place + turn) % len(damages)])
        for turn in turns
        for place, path in enumerate(files)
    ]
    heavy = (
        ".safetensors",
        ".pt",
        ".pth",
        "latest",
        "trainer_state.json",
        ".yaml",
        "provenance.json",
    )
    rounds = [
        (path, damage)
        for path, damage in rounds
        if damage != SWAPPED or (older(path).is_file() and older(path) != path)
    ]
    rounds.sort(
        key=lambda case: not str(case[0]).endswith(heavy)
    )  # what a resume reads comes first
    return [(str(path.relative_to(run)), damage) for path, damage in rounds[:count]]


def attack(tally: Tally, folder: Path, count: int, seed: int, only: str | None = None) -> None:
    """Attack `count` checkpoints of runs without DeepSpeed and under ZeRO-2 and ZeRO-3, or the one of the name `only`."""
    for stage, ranks, share in kinds(count):
        if not share or (only is not None and not only.startswith(f"{stage} ")):
            continue
        runs = Runs(folder / stage, stage, ranks)
        for number, (name, damage) in enumerate(cases(runs.whole, share, seed)):
            case = f"{stage} {name} {damage}"
            if only in (None, case):
                try_damage(tally, runs, runs.folder / f"case-{number}", name, damage)


def try_damage(tally: Tally, runs: Runs, run: Path, name: str, damage: str) -> None:
    """Resume a copy of the whole run, in the folder `run`, with this damage to its newest checkpoint but one."""
    shutil.copytree(runs.whole, run, symlinks=True)
    shutil.rmtree(run / "checkpoint-6")
    DAMAGES[damage](run / name, older(run / name))
    case, file = f"{runs.stage} {name} {damage}", Path(name).name
    ended = runs.run(run, "--resume")
    if not ended.in_time:
        tally.add("hang", case, "the resume does not end")
    elif ended.traceback:
        tally.add(
            "traceback", case, f"{file}: {ended.traceback.partition(':')[0]}", ended.traceback
        )
    elif any(ended.statuses):
        named = file in ended.printed
        tally.add(
            "refused" if named else "silent",
            case,
            f"{file} is not named",
            ended.printed[-200:].replace("\n", " "),
        )
    elif wrong := runs.unlike(run):
        tally.add("silent", case, f"{file}: goes on with {wrong}")
    else:
        tally.add("worked", case)
    shutil.rmtree(run)

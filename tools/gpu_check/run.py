"""Check in ten minutes whether a machine with a GPU computes, fits and is as fast as this project says; README's first figures.

    make gpu-check
    python tools/gpu_check/run.py --only "peak memory" "throughput" --output /tmp/gpu_check

Prints a Markdown table with PASS, FAIL or SKIPPED and the figures, and writes it with gpu_check.json and everything that was
printed (log.txt) into the output folder. Exit status 1 if a line failed. Nothing is downloaded. On a GPU each line has a process
of its own, so that what one breaks or keeps is not the next one's. Without a GPU it checks what a CPU can, in one process.

The command continues: lines that have passed on the same machine with the same code and packages are not measured again, if
the output folder has them. So a GPU that is lent for minutes at a time gives the whole table in the end. --restart forgets them.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TextIO

CLONE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CLONE))  # the clone, installed or not

from tools.gpu_check.inside import MARK, too_late
from tools.gpu_check.lines import Check, Line

HERE = "tools.gpu_check"
PARADIGMS = ("naive", "critic", "judge by SFT", "judge by StableReinforce")
CHECKS = (
    Check("machine", f"{HERE}.machine:machine", 5),
    Check("attention, fp32", f"{HERE}.agreement:attention_fp32", 20),
    Check("attention, bf16: varlen", f"{HERE}.agreement:attention_bf16", 20, gib=2),
    Check("scores, fp32 and bf16", f"{HERE}.agreement:scores", 60),
    Check("throughput", f"{HERE}.memory_and_speed:throughput", 120),
    Check("checkpointing modes", f"{HERE}.memory_and_speed:checkpointing_modes", 240, gib=26),
    Check("a whole training", f"{HERE}.steps:whole_training", 180, ("200", "80"), gib=2),
    Check("rollouts by vLLM", f"{HERE}.steps:vllm_rollouts", 120, gib=8),
    *(Check(f"a step: {name}", f"{HERE}.steps:small", 40, (name,)) for name in PARADIGMS),
    Check("a step: naive, ZeRO-2", f"{HERE}.steps:small", 40, ("naive", "zero2"), gib=2),
    Check("a step: critic, ZeRO-3", f"{HERE}.steps:small", 40, ("critic", "zero3"), gib=2),
    Check("memory plan", f"{HERE}.memory_and_speed:plan", 40),
    Check("peak memory", f"{HERE}.memory_and_speed:peak_memory", 60, gib=26),
    Check("tests that need a GPU", f"{HERE}.steps:gpu_tests", 100, gib=2),
    *(
        Check(f"a step at 3B, LoRA: {name}", f"{HERE}.steps:large", 60, (name,), gib=20)
        for name in PARADIGMS
    ),
    Check("LoRA at 7B within 24 GB", f"{HERE}.steps:adapters", 150, ("7b", "none", "22"), gib=24),
    Check("QLoRA at 7B within 24 GB", f"{HERE}.steps:adapters", 150, ("7b", "nf4", "22"), gib=24),
    Check("trees", f"{HERE}.memory_and_speed:trees", 200, gib=26),
)
"""The lines, in the order in which a short lease should have them."""
SURROUNDINGS = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled", "HF_HUB_DISABLE_TELEMETRY": "1"}
WORDS = 300
"""Characters of an error that are shown."""
ERROR = re.compile(r"(?:\[rank\d+\]: |E +)?((?:[\w.]*(?:Error|Exception)|error)\b.*)")


def main(argv: Sequence[str], checks: Sequence[Check] = CHECKS) -> int:
    """Make all checks, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="LINE",
        default=[],
        help="these lines alone, named as in the table",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=9.5,
        help="what does not fit into them is left out (default: 9.5)",
    )
    parser.add_argument(
        "--restart", action="store_true", help="make the lines that have passed before, too"
    )
    parser.add_argument("--output", type=Path, default=CLONE / ".cache" / "gpu_check")
    options = parser.parse_args(argv)
    names = [check.name for check in checks]
    if unknown := set(options.only) - set(names):
        parser.error(
            f"no line is called {', '.join(sorted(unknown))}; lines are: {'; '.join(names)}"
        )
    todo = [
        check for check in checks if not options.only or check.name in ("machine", *options.only)
    ]
    earlier: list[Line] = []
    if not options.restart:
        earlier = read_lines(options.output)
    deadline, lines = time.time() + 60 * options.minutes, list[Line]()
    options.output.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as scratch,
        (options.output / "log.txt").open("w+", encoding="utf-8") as log,
    ):
        os.environ.update(SURROUNDINGS, GPU_CHECK_SCRATCH=scratch)
        while todo:
            no_gpu = bool(lines) and not lines[0].values.get("gpus")
            if reason := too_late(todo[0], deadline):
                found = [Line(todo[0].name, "SKIPPED", reason)]
            else:
                found = run_process(todo if no_gpu else todo[:1], deadline, log)
            is_first = not lines
            todo = todo[len(found) :]
            lines += found
            for line in found:
                print(f"{line.result:<8}{line.check}: {line.said}", flush=True)
            if is_first:
                kept = passed_here(earlier, lines[0], [*options.only, lines[0].check])
                todo = [check for check in todo if check.name not in kept]
                for line in kept.values():
                    print(f"{line.result:<8}{line.check}: {line.said} (measured before)")
                lines += kept.values()
            lines.sort(key=lambda line: names.index(line.check))
            write(options.output, lines)
    print("\n" + markdown(lines))
    print(f"written: {options.output}")
    return int(any(line.result == "FAIL" for line in lines))


def read_lines(folder: Path) -> list[Line]:
    """Return the lines that an earlier start wrote into `folder`; an empty list if there are none."""
    file = folder / "gpu_check.json"
    if not file.exists():
        return []
    content = json.loads(file.read_text(encoding="utf-8"))
    return [Line(**line) for line in content["lines"]]


def passed_here(earlier: Sequence[Line], machine: Line, left_out: Sequence[str]) -> dict[str, Line]:
    """Return the lines of an earlier start that need not be made again, by their names.

    They are those that passed on the same machine, which has the same code and packages.

    Args:
        earlier: The lines of the earlier start; the first one is that of its machine.
        machine: The line of this machine.
        left_out: Names of lines that are made again.
    """
    if not earlier or earlier[0] != replace(machine, seconds=earlier[0].seconds):
        return {}
    return {
        line.check: line for line in earlier if line.result == "PASS" and line.check not in left_out
    }


def run_process(checks: Sequence[Check], deadline: float, log: TextIO) -> list[Line]:
    """Make checks in a process of their own; return a line for each, up to the first that ended the process.

    What is still running at `deadline` is ended with all that it started.
    """
    begin, start = log.tell(), time.time()
    given = json.dumps({"deadline": deadline, "checks": [asdict(check) for check in checks]})
    command = [sys.executable, "-m", "tools.gpu_check.inside", given]
    process = subprocess.Popen(command, cwd=CLONE, stdout=log, stderr=log, start_new_session=True)
    try:
        status = process.wait(max(deadline - start, 0) + 1)
        end = f"ended by signal {-status}" if status < 0 else f"ended with status {status}"
    except subprocess.TimeoutExpired:
        end = "cut off at the end of the budget"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    log.seek(begin)
    printed = log.read().splitlines()
    marks = [number for number, line in enumerate(printed) if line.startswith(MARK)]
    lines = [Line(**json.loads(printed[number].removeprefix(MARK))) for number in marks]
    if len(lines) < len(checks):
        seconds, words = (
            time.time() - start - sum(line.seconds for line in lines),
            printed[marks[-1] + 1 if marks else 0 :],
        )
        lines.append(Line(checks[len(lines)].name, "FAIL", f"{last_words(words)} ({end})", seconds))
    return lines


def last_words(printed: Sequence[str]) -> str:
    """Return the last error that was printed, or the last line."""
    words = [line.strip() for line in printed if line.strip()] or ["nothing was printed"]
    errors = [match[1] for line in words if (match := ERROR.fullmatch(line))]
    return (errors or words)[-1][:WORDS]


def write(folder: Path, lines: Sequence[Line]) -> None:
    """Write what is known so far: a lease may end at any moment."""
    content = {"date": time.strftime("%Y-%m-%d"), "lines": [asdict(line) for line in lines]}
    (folder / "gpu_check.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (folder / "gpu_check.md").write_text(markdown(lines), encoding="utf-8")


def markdown(lines: Sequence[Line]) -> str:
    """Return the table."""
    rows = [
        f"| {one.check} | {one.result} | {one.said.replace('|', '/')} | {one.seconds:.0f} |"
        for one in lines
    ]
    return (
        "\n".join([f"| {time.strftime('%Y-%m-%d')} | | | s |", "|---|---|---|---|", *rows]) + "\n"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

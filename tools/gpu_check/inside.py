"""Make some checks in this process, and print a line of JSON for each; started by `run.py`.

An exception ends the process, and `run.py` tells it by its last words: so do a crash of the driver and a lack of memory.
"""

import json
import sys
import time
from dataclasses import asdict
from importlib import import_module

from tools.gpu_check.lines import Check, Found, Line, SkippedError

MARK = "GPU-CHECK "
"""Before each line of JSON: trainings print to the same place."""


def make(check: Check, deadline: float) -> Line:
    """Return what a check finds, which must be done at `deadline` (seconds since the epoch)."""
    start = time.time()
    try:
        if reason := too_late(check, deadline):
            raise SkippedError(reason)
        if check.gib is not None:
            need_gpu(check.gib)
        module, _, function = check.call.partition(":")
        found: Found = getattr(import_module(module), function)(*check.arguments)
    except SkippedError as reason:
        return Line(check.name, "SKIPPED", str(reason))
    return Line(
        check.name, "PASS" if found.right else "FAIL", found.said, time.time() - start, found.values
    )


def too_late(check: Check, deadline: float) -> str:
    """Return why a check is not begun any more, or nothing."""
    left = max(deadline - time.time(), 0)
    return (
        ""
        if left >= check.seconds
        else f"takes up to {check.seconds:.0f} s, and {left:.0f} s of the budget are left"
    )


def need_gpu(gib: float) -> None:
    """Raise SkippedError where no GPU has so much free memory."""
    import torch

    if not torch.cuda.is_available():
        raise SkippedError("no CUDA device")
    free = torch.cuda.mem_get_info()[0] / 2**30
    if free < gib:
        raise SkippedError(f"needs {gib:.0f} GiB of the GPU's memory, and {free:.1f} are free")


def main() -> None:
    """Make what the command line says."""
    given = json.loads(sys.argv[1])
    for check in given["checks"]:
        print(MARK + json.dumps(asdict(make(Check(**check), given["deadline"]))), flush=True)


if __name__ == "__main__":
    main()

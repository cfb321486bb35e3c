"""Run the tests of exactness with several choices of the kernels that torch computes with.

    python -m tools.numerics          # under every setting; `make numerics`
    python -m tools.numerics --one    # under one setting, chosen by the commit; `.ci/run`

torch chooses its kernels by the processor. Each setting below lets it choose as on another
processor, so that a test whose bound depends on the processor fails here and not on somebody
else's machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

SETTINGS: list[dict[str, str]] = [
    {"MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    {"ATEN_CPU_CAPABILITY": "default"},
    {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    {"MKL_CBWR": "COMPATIBLE"},
]
"""Environment variables of MKL, ATen and oneDNN. The first one has no effect on AMD processors. The
last one makes MKL use the same kernels on all processors."""


def main() -> None:
    """Run the tests under all settings, or under one; exit with 1 if any of them failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--one", action="store_true", help="one setting, chosen by the commit")
    only_one = parser.parse_args().one
    settings = [setting_of_commit()] if only_one else [{}, *SETTINGS]
    failed = [description(setting) for setting in settings if not passes(setting)]
    if failed:
        sys.exit(f"The tests of exactness failed with: {', '.join(failed)}.")


def setting_of_commit() -> dict[str, str]:
    """Return the setting whose turn it is: every commit has one, also in a shallow clone."""
    command = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return SETTINGS[int(commit, 16) % len(SETTINGS)]


def passes(setting: dict[str, str]) -> bool:
    """Run the tests under a setting, and return True if they passed."""
    print(f"=== tests of exactness with {description(setting)}", flush=True)
    command = [sys.executable, "-m", "pytest", "-m", "numerics", "-n", "auto", "--dist", "loadfile"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **setting}
    return subprocess.run(command, env=environment, check=False).returncode == 0


def description(setting: dict[str, str]) -> str:
    """Return a setting as one writes it in front of a command."""
    assignments = [f"{name}={value}" for name, value in setting.items()]
    return " ".join(assignments) or "the plain environment"


if __name__ == "__main__":
    main()

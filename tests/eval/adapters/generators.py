"""The reward clients of UniRL and verl-omni, and the programs that run them in their own process.

`make generators` downloads the files into `.cache/generators/`. They are not part of this project.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

CLONE = Path(__file__).resolve().parents[3]
FOLDER = CLONE / ".cache" / "generators"
"""The folder of `make generators`."""
DIGESTS = {
    "unirl/reward_service/client.py": "e900955507aa259b",
    "unirl/unirl/config/require.py": "a437f943172d7c4c",
    "unirl/unirl/distributed/tensor/batch.py": "613dcfaa9bb3a63e",
    "unirl/unirl/reward/base.py": "0d75bbe262eadf46",
    "unirl/unirl/reward/remote.py": "1908b88c4175b7c8",
    "unirl/unirl/types/primitives.py": "94c262258ec020c7",
    "unirl/unirl/types/reward.py": "67e4c911c7be81e5",
    "unirl/unirl/utils/media.py": "35ba509dfb5eacae",
    "verl_omni/verl/experimental/reward_loop/reward_manager/base.py": "ebe8873b3a3c891c",
    "verl_omni/verl/utils/import_utils.py": "afb325b517e85415",
    "verl_omni/verl_omni/reward_loop/reward_manager/multi.py": "765c685e4b40403c",
    "verl_omni/verl_omni/reward_loop/reward_manager/visual.py": "521783da7042b879",
    "verl_omni/verl_omni/utils/reward_score/__init__.py": "ee52008a54e4cc3d",
    "verl_omni/verl_omni/utils/reward_score/http_scorer_client.py": "5fdb9ca2d93ed663",
}
"""The first 16 hexadecimal digits of the SHA-256 of each file below FOLDER."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The outcome of a program that ran a client: rewards, or the error that ended it."""

    rewards: list[float]
    """Empty if the program failed."""
    error: str
    """The end of the program's standard error, with its traceback; empty if it succeeded."""


def skip_unless_fetched() -> None:
    """Skip a test if the clients are not there; fail if one of them is another version."""
    for name, digest in DIGESTS.items():
        path = FOLDER / name
        if not path.exists():
            pytest.skip(f"{path} does not exist: run `make generators`, which downloads it")
        found = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        assert found == digest, f"{path} is another version: delete it and run `make generators`"


def run_probe(
    framework: str, client: str, folder: Path, rows: list[dict[str, Any]], url: str, **settings: Any
) -> ProbeResult:
    """Run a client of a framework in its own process, without this project on its path.

    Args:
        framework: "unirl" or "verl_omni".
        client: The name of the client, a key of `CLIENTS` in `{framework}_probe.py`.
        folder: An empty folder for copies of the program and the adapter.
        rows: A mapping for each image: its "prompt", the path of the "image", and, for an edit,
            the path of the "source".
        url: The address of the server.
        settings: Further settings of the client.
    """
    shutil.copy(CLONE / "eval" / "adapters" / f"{framework}_reward.py", folder)
    shutil.copy(Path(__file__).parent / f"{framework}_probe.py", folder)
    request = {"client": client, "rows": rows, "url": url, "settings": settings}
    environment = {name: value for name, value in os.environ.items() if "PROXY" not in name.upper()}
    environment["PYTHONPATH"] = os.pathsep.join([str(FOLDER / framework), str(FOLDER / "packages")])
    environment["REWARD_URL"] = url
    environment["REWARD_TIMEOUT"] = str(settings.get("timeout", 60))
    done = subprocess.run(
        [sys.executable, f"{framework}_probe.py", json.dumps(request)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode != 0:
        return ProbeResult([], done.stderr[-5000:])
    return ProbeResult(json.loads(done.stdout.strip().splitlines()[-1]), "")

"""Where it runs: nothing of the project is imported, so that this line stands where others fail for a missing package."""

import hashlib
import platform
import re
import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from tools.gpu_check.lines import Found

GIB = 2**30
CLONE = Path(__file__).resolve().parents[2]


def device() -> torch.device:
    """Return the first GPU, or the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def machine() -> Found:
    """Say what the figures are of, and which packages that the project needs are not there."""
    project = tomllib.loads((CLONE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = {
        name: installed(name)
        for name in (re.split(r"[<>=]", one)[0] for one in project["dependencies"])
    }
    absent = ", ".join(name for name, found in versions.items() if found is None)
    gpus, named = (
        torch.cuda.device_count(),
        f"no CUDA device, {torch.get_num_threads()} CPU threads",
    )
    if gpus:
        found = torch.cuda.get_device_properties(0)
        named = f"{gpus} x {found.name}, {found.total_memory / GIB:.1f} GiB"
    known = ", ".join(
        f"{name} {versions[name]}" for name in ("torch", "transformers", "trl", "deepspeed")
    )
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=CLONE,
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    said = f"{named}; {known}, Python {platform.python_version()}; commit {commit.strip() or 'unknown'}, code {code_digest()}"
    return Found(True, said + (f"; not installed: {absent}" if absent else ""), {"gpus": gpus})


def code_digest() -> str:
    """Return eight characters that change with any Python file of this clone, committed or not."""
    digest = hashlib.sha256()
    for folder in ("data", "models", "eval", "train", "tools", "tests"):
        for path in sorted((CLONE / folder).rglob("*.py")):
            digest.update(str(path.relative_to(CLONE)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


def installed(package: str) -> str | None:
    """Return the version of a package, None if it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None

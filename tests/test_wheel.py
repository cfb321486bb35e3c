"""The wheel is a real installation: it trains, evaluates, scores, serves and reports without a clone.

It is installed into an environment of its own, which borrows only the libraries of this one, and used
from a project with its own `data/`, `models.py` and `eval.py`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

import mmrm
from tests.test_structure import CLONE

pytestmark = pytest.mark.slow

LIBRARIES = sysconfig.get_path("purelib")
RECORD = {"prompt": "Which colour is the square?", "responses": ["Red.", "Blue.", "A cat."]}
SHORT_RUN = (
    "deepspeed=none",
    "optim.epochs=null",
    "optim.max_steps=3",
    "optim.records_per_step=4",
    "data.sources.0.rows=40",
    "evaluation.benchmarks=[]",
    "evaluation.best_metric=null",
    "output.folder=runs/first",
)


@dataclass(frozen=True)
class Installation:
    """A project folder, and an environment in which the wheel is installed."""

    wheel: Path
    environment: Path
    project: Path
    home: Path

    @property
    def command(self) -> str:
        """The path of the command `mmrm`."""
        return str(self.environment / "bin" / "mmrm")

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of a user who has activated the environment."""
        kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
        return {
            **kept,
            "PATH": f"{self.environment / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "OMP_NUM_THREADS": "1",
            "WANDB_MODE": "disabled",
        }

    def run(self, *command: str, status: int = 0) -> str:
        """Run a command in the project, require its exit status, and return what it printed."""
        done = subprocess.run(
            command, cwd=self.project, env=self.variables, capture_output=True, text=True
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def package_files(self) -> set[str]:
        """Return the files of the installed package, except compiled Python."""
        (package,) = self.environment.glob("lib/python*/site-packages/mmrm")
        files = (path for path in package.rglob("*") if path.is_file())
        return {str(path) for path in files if "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """Build the wheel, install it, and write a project whose own modules must not be imported."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    # A copy, because setuptools leaves a folder `build` in the tree that it builds.
    source = folder / "source"
    source.mkdir()
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=CLONE,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.decode().rstrip("\0").split("\0"):
        if not (CLONE / name).exists():
            continue  # removed, and not committed yet
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CLONE / name, source / name, follow_symlinks=False)
    build = [*pip, "wheel", str(source), "--no-deps", "--no-build-isolation", "--wheel-dir", "."]
    subprocess.run(build, cwd=folder, check=True)
    (wheel,) = folder.glob("*.whl")

    environment = folder / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    (site_packages,) = environment.glob("lib/python*/site-packages")
    # A line with a path makes the libraries importable, but not this clone's editable installation,
    # whose finder would need the .pth files in that folder.
    (site_packages / "libraries.pth").write_text(f"{LIBRARIES}\n")
    python = environment / "bin" / "python"
    subprocess.run([*pip, "--python", str(python), "install", "--no-deps", str(wheel)], check=True)

    project = folder / "project"
    (project / "data").mkdir(parents=True)
    for name in ("data/__init__.py", "models.py", "eval.py", "train.py"):
        (project / name).write_text(f"raise ImportError('the project of the user: {name}')\n")
    (folder / "home").mkdir()
    return Installation(wheel, environment, project, folder / "home")


def test_the_wheel_holds_mmrm_alone(installed: Installation) -> None:
    names = zipfile.ZipFile(installed.wheel).namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {
        "mmrm",
        "multimodal_reward_models",
    }
    needed = [
        path
        for floor in ("data", "models", "eval", "train", "recipes")
        for path in (CLONE / floor).rglob("*")
        if path.suffix in (".py", ".html", ".css", ".js", ".json", ".yaml", ".safetensors", ".txt")
    ]
    assert len(needed) > 300
    missing = {f"mmrm/{path.relative_to(CLONE)}" for path in needed} - set(names)
    assert missing == set()


def test_the_version_is_that_of_the_metadata(installed: Installation) -> None:
    assert installed.run(installed.command, "--version") == f"mmrm {mmrm.__version__}\n"
    code = "import importlib.metadata as m; print(m.version('multimodal-reward-models'))"
    python = str(installed.environment / "bin" / "python")
    assert installed.run(python, "-c", code) == f"{mmrm.__version__}\n"


def test_it_trains_scores_serves_and_reports_beside_other_modules(installed: Installation) -> None:
    files_before = installed.package_files()
    recipe = "recipes/shapes/naive.yaml"
    printed = installed.run(installed.command, "rm", recipe, *SHORT_RUN)
    assert "step      3" in printed, printed

    (installed.project / "samples.jsonl").write_text(json.dumps(RECORD) + "\n")
    checkpoint = "runs/first/checkpoint-3"
    installed.run(installed.command, "score", checkpoint, "samples.jsonl", "scored.jsonl")
    scored = json.loads((installed.project / "scored.jsonl").read_text())
    assert len(scored["scores"]) == len(RECORD["responses"])

    assert served_scores(installed, checkpoint) == pytest.approx(scored["scores"], abs=1e-5)

    installed.run(installed.command, "report", "runs/first")
    assert (installed.project / "runs/first/report.html").is_file()

    provenance = json.loads((installed.project / "runs/first/provenance.json").read_text())
    assert provenance[0]["commit"]["commit"] is None
    assert provenance[0]["version"] == mmrm.__version__
    assert installed.package_files() == files_before, "a command wrote into the installed package"
    assert (installed.home / ".cache/mmrm").is_dir()


def free_port() -> int:
    """Return a TCP port that is free at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def served_scores(installed: Installation, checkpoint: str) -> list[float]:
    """Return the scores of RECORD by a server of a checkpoint, which is ended afterwards."""
    port = free_port()
    server = subprocess.Popen(
        [installed.command, "serve", checkpoint, "--port", str(port)],
        cwd=installed.project,
        env=installed.variables,
    )
    group = {"messages": RECORD["prompt"], "responses": RECORD["responses"], "images": []}
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            assert server.poll() is None
            try:
                if httpx.get(f"{address}/ready").status_code == 200:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.5)
        answer = httpx.post(f"{address}/v1/rewards", json={"groups": [group]}, timeout=60)
    finally:
        server.terminate()
        server.wait(60)
    scores: list[float] = answer.raise_for_status().json()["groups"][0]["scores"]
    return scores


def test_launchers_start_it_on_several_ranks(installed: Installation) -> None:
    python = str(installed.environment / "bin" / "python")
    # Both launchers propose port 29500 unless told otherwise, and another test may have it.
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    recipe = "recipes/shapes/naive.yaml"
    by_torchrun = [*SHORT_RUN[:-1], "output.folder=runs/torchrun"]
    printed = installed.run(*torchrun, "-m", "mmrm", "rm", recipe, *by_torchrun)
    assert "step      3" in printed, printed

    launcher = [python, "-m", "deepspeed.launcher.runner", "--master_port", str(free_port())]
    deepspeed = [*launcher, "--num_gpus", "2", "--module", "mmrm"]
    by_deepspeed = [*SHORT_RUN[1:-1], "deepspeed=zero2", "output.folder=runs/deepspeed"]
    printed = installed.run(*deepspeed, "rm", recipe, *by_deepspeed)
    assert "step      3" in printed, printed


def test_a_list_of_runs_starts_its_runs(installed: Installation) -> None:
    variants = "variants: {layers-2: {}, layers-1: {head.layers: 1}}"
    (installed.project / "list.yaml").write_text(
        f"extends: recipes/shapes/naive.yaml\n{variants}\n"
    )
    benchmarks = "evaluation.benchmarks=[{name: vl_rewardbench, location: embedded, limit: 4}]"
    options = [*SHORT_RUN[:5], benchmarks, "evaluation.at_start=false", "output.folder=runs/list"]
    printed = installed.run(installed.command, "ablate", "list.yaml", *options)
    assert "layers-1" in printed
    assert (installed.project / "runs/list/ablation.md").is_file()


def test_help_names_the_commands_as_they_are_started(installed: Installation) -> None:
    printed = installed.run(installed.command, "--help")
    assert "mmrm rm recipes/shapes/naive.yaml" in printed
    for name in ("rm", "eval", "score", "serve", "report", "merge", "data"):
        printed = installed.run(installed.command, name, "--help")
        assert printed.startswith(f"usage: mmrm {name} "), printed
        assert f"\nmmrm {name} " in printed or f"\ndeepspeed --module mmrm {name} " in printed
        assert not re.search(r"\b(python|deepspeed) \w+/\w+\.py", printed), printed


def test_an_unknown_command_is_named(installed: Installation) -> None:
    assert "mmrm has no command evla" in installed.run(installed.command, "evla", status=2)

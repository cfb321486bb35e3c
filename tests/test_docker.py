"""The files for GPU nodes, as far as a machine without Docker and SLURM can run them."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mmrm.data.storage.files import read_json
from mmrm.train.checkpoints.rotation import whole_checkpoints
from tests.train import worker

CLONE = Path(__file__).resolve().parents[1]
DOCKER = CLONE / "docker"
SRUN = """\
#!/bin/bash
while [[ $1 == --* ]]; do shift; done
pids=()
for node in 0 1; do
    SLURM_PROCID=$node SLURMD_NODENAME=$([ $node = 0 ] && echo localhost || echo 127.0.0.1) "$@" &
    pids+=($!)
done
status=0
for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
exit $status
"""
"""Starts the command on two nodes, both of which are this machine."""
SCONTROL = """\
#!/bin/bash
[ "$1 $2" = "show hostnames" ] && printf 'localhost\\n127.0.0.1\\n' || echo "$@" >> "$CALLS"
"""


def program(name: str) -> str:
    """Return the path of a program that the extra `dev` installs beside Python, on x86-64."""
    found = shutil.which(
        name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    if found is None:
        pytest.skip(f"{name} is not installed: pip install -e .[dev] has it for x86-64")
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("linter", "file"), [("shellcheck", "slurm.sbatch"), ("hadolint", "Dockerfile")]
)
def test_the_linters_find_nothing(linter: str, file: str) -> None:
    found = subprocess.run([program(linter), str(DOCKER / file)], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "")


INSTRUCTION = re.compile(r"^(FROM|COPY|RUN|USER|ENV)\s((?:.*\\\n)*.*)", re.MULTILINE)
DOCKERFILE = INSTRUCTION.findall((DOCKER / "Dockerfile").read_text(encoding="utf-8"))


def test_dependencies_are_installed_before_anything_is_copied_that_a_commit_changes() -> None:
    install = next(place for place, (_, text) in enumerate(DOCKERFILE) if "make install" in text)
    copied = [text for name, text in DOCKERFILE[:install] if name == "COPY"]
    # mmrm/ holds links alone, and an editable installation maps it.
    assert copied == ["pyproject.toml constraints.txt Makefile ./", "mmrm mmrm"]
    assert [text for name, text in DOCKERFILE if name == "USER"] == ["1000:1000"]


@pytest.mark.slow
@pytest.mark.parametrize("file", ["train.yaml", "serve.yaml", "compose.yaml"])
def test_what_compose_makes_of_a_file(file: str, tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "UID_GID": "1234:100", "HF_HOME": "/hub"}
    command = [program("docker-compose"), "-f", str(DOCKER / file), "config", "--format", "json"]
    found = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (found.returncode, found.stderr) == (0, "")
    services = json.loads(found.stdout)["services"]
    ours = [one for one in services.values() if one["image"] == "multimodal-reward-models"]
    assert len(ours) == {"train.yaml": 1, "serve.yaml": 2, "compose.yaml": 0}[file]
    settings = dict(
        pair.split("=", 1)
        for name, text in DOCKERFILE
        if name == "ENV"
        for pair in text.replace("\\\n", "").split()
    )
    for service in ours:
        mounts = {one["source"]: one["target"] for one in service["volumes"]}
        assert mounts["/hub"] == settings["HF_HOME"]
        assert service["user"] == "1234:100"
        assert service["ipc"] == "host"


@pytest.fixture
def job(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a job on two nodes with a process each."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (programs / name).write_text(text, encoding="utf-8")
        (programs / name).chmod(0o755)
    clone = tmp_path / "clone"
    clone.mkdir()
    (clone / "train").symlink_to(CLONE / "train")
    (clone / ".venv").symlink_to(Path(sys.executable).parents[1])
    return {
        **{
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLURM", "RANK", "WORLD_SIZE"))
        },
        "PATH": f"{programs}:{os.environ['PATH']}",
        "CALLS": str(tmp_path / "calls"),
        "SLURM_SUBMIT_DIR": str(clone),
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NODELIST": "nodes",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_GPUS_ON_NODE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }


def submit(job: dict[str, str], log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start the batch script as SLURM does."""
    command = ["bash", str(DOCKER / "slurm.sbatch"), *arguments]
    with log.open("wb") as output:
        return subprocess.Popen(
            command, env=job, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )


@pytest.mark.slow
def test_a_job_saves_before_its_end_is_queued_again_and_goes_on(
    job: dict[str, str], tmp_path: Path
) -> None:
    recipe, log, run = (
        worker.prepare(tmp_path / "world"),
        tmp_path / "log",
        tmp_path / "world" / "run",
    )
    short = [
        "evaluation.benchmarks=[]",
        "evaluation.best_metric=null",
        "output.save_every_steps=1000",
        "optim.max_steps=60",
    ]
    command = ["train/rm.py", str(recipe), *short]
    other = subprocess.Popen(
        [sys.executable, "-c", "input()", "-u train/rm.py"], stdin=subprocess.PIPE
    )  # of another job
    first = submit(job, log, *command)
    try:
        deadline = time.monotonic() + 200
        while "step      1 " not in (words := log.read_text()):
            assert time.monotonic() < deadline, words
            assert first.poll() is None, words
            time.sleep(0.05)
        first.send_signal(signal.SIGUSR1)  # SLURM sends it to this shell alone
        assert first.wait(120) == 0, log.read_text()
    finally:
        end(first)
    words = log.read_text()
    saved = int(re.findall(r"SIGUSR1: checkpoint-(\d+) of 60 steps is complete", words)[0])
    assert [path.name for path in whole_checkpoints(run)] == [f"checkpoint-{saved}"]
    assert Path(job["CALLS"]).read_text() == f"requeue {job['SLURM_JOB_ID']}\n"
    assert other.poll() is None
    other.communicate(b"\n")

    again = submit({**job, "SLURM_RESTART_COUNT": "1"}, log, *command)
    try:
        assert again.wait(200) == 0, log.read_text()
    finally:
        end(again)
    assert "restart 1" in log.read_text()
    assert f"step {saved + 1:>6}  " in log.read_text()
    assert "step      1 " not in log.read_text()
    assert whole_checkpoints(run)[-1].name == "checkpoint-60"
    assert [launch["hardware"]["world_size"] for launch in read_json(run / "provenance.json")] == [
        2,
        2,
    ]
    assert Path(job["CALLS"]).read_text().count("requeue") == 1


def end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a job."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_wrong_recipe_ends_a_job_before_any_node_starts(
    job: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "bin" / "srun").write_text("#!/bin/bash\necho started\n")
    recipe = worker.RECIPE.format(folder=tmp_path)
    (tmp_path / "recipe.yaml").write_text(recipe.replace("learning_rate", "learning_rat"))
    process = submit(job, tmp_path / "log", "train/rm.py", str(tmp_path / "recipe.yaml"))
    assert process.wait(60) == 2
    words = (tmp_path / "log").read_text()
    assert "optim.learning_rate" in words
    assert "started" not in words

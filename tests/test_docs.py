"""README, AGENTS.md and docs agree with the code.

Python blocks run, commands are parsed or run, links lead somewhere, quoted messages are in the
source, and coefficients follow from the tables of the log.
"""

import ast
import json
import math
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from ruamel.yaml import YAML

from mmrm.data.storage.files import write_json_lines
from mmrm.train.recipe.parsing import read_recipe
from tests.eval import run_folders
from tests.models import tiny

CLONE = Path(__file__).resolve().parents[1]
README = CLONE / "README.md"
PAGES = [
    README,
    CLONE / "AGENTS.md",
    *sorted((CLONE / "docs").rglob("*.md")),
    *sorted(CLONE.glob("[a-z]*/README.md")),
    CLONE / "models/families/README.md",
]
SCRIPT = re.compile(r"(?:train|eval|data|models|tests|tools)/[\w/]+\.py")
LAUNCHERS = ("python", "deepspeed", "torchrun", "accelerate", "srun", "sbatch")


def blocks(page: Path, language: str) -> list[str]:
    """Return the blocks of a language in a page."""
    return re.findall(
        rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )


def commands() -> Iterator[tuple[str, str]]:
    """Yield each shell command with the page that holds it."""
    for page in PAGES:
        for block in blocks(page, "sh"):
            for line in re.sub(r"\\\n\s*", " ", block).splitlines():
                if line.strip() and not line.startswith(("#", "trap ")):
                    yield page.name if page.parent == CLONE else str(page.relative_to(CLONE)), line


@cache
def options(script: str) -> set[str]:
    """Return the options that a script's help names."""
    shown = subprocess.run(
        [sys.executable, str(CLONE / script), "--help"],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=CLONE,
    )
    return set(re.findall(r"--?[a-zA-Z][\w-]*", shown.stdout))


@pytest.mark.slow
@pytest.mark.parametrize(("page", "line"), list(commands()))
def test_a_command_names_what_is_there(page: str, line: str, tmp_path: Path) -> None:
    """Scripts, their options and the recipes they are given exist; what trains a recipe of the tree says its plan."""
    words = shlex.split(line, comments=True)
    scripts = [number for number, word in enumerate(words) if SCRIPT.fullmatch(word)]
    is_module = words[1:2] == ["-m"]
    if is_module or not scripts:
        assert words[0] in (
            "make",
            "curl",
            "docker",
            "git",
            "mmrm",
            "pip",
            "hf",
            "pkill",
            "vllm",
            "mkdir",
            "wandb",
            ".ci/run",
            "cd",
            "source",
        ) or (words[0].partition("=")[0] in ("UID_GID", "HF_HUB_OFFLINE") or " -m " in line), (
            f"{page}: {line}"
        )
        for target in words[1:] if words[0] == "make" else ():
            assert re.search(rf"^{target}:", (CLONE / "Makefile").read_text(), re.MULTILINE), (
                f"{page}: {line}"
            )
        return
    script, given = words[scripts[0]], words[scripts[0] + 1 :]
    assert (CLONE / script).is_file(), f"{page}: {line}"
    unknown = {word.partition("=")[0] for word in given if word.startswith("--")} - options(script)
    assert not unknown, f"{page}: {line}"
    for word in given:
        if word.startswith(("recipes/", "docker/", "tests/", "tools/")):
            assert (CLONE / word).exists(), f"{page}: {line}"
    trains = (
        script in ("train/rm.py", "train/sft.py", "train/rl.py")
        and given
        and given[0].startswith("recipes/")
    )
    if trains:
        kept = [
            word
            for before, word in pairwise([script, *given])
            if not word.startswith("--") and before != "--gpus"
        ]
        command = [
            sys.executable,
            str(CLONE / script),
            *kept,
            "--dry-run",
            f"output.folder={tmp_path}/run",
        ]
        done = subprocess.run(command, cwd=CLONE, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr + done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CLONE)))
def test_a_recipe_that_is_shown_is_one(page: Path, tmp_path: Path) -> None:
    for number, text in enumerate(blocks(page, "yaml")):
        shown = YAML(typ="safe").load(text)
        if not isinstance(shown, dict) or "extends" not in shown:
            continue
        base = shown["extends"].removeprefix("../")
        path = CLONE / base if base.startswith("recipes/") else CLONE / "recipes" / base
        file = tmp_path / f"{number}.yaml"
        file.write_text(
            text.replace(f"extends: {shown['extends']}", f"extends: {path}"), encoding="utf-8"
        )
        if "variants" not in shown:
            read_recipe(file)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CLONE)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page.name}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {
                re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
                for heading in headings
            }
            assert anchor in slugs, f"{page.name}: {target}"


def templates() -> str:
    """Return all texts of the source on one line, with … for what is filled in."""
    found = []
    for folder in ("data", "models", "eval", "train"):
        for file in (CLONE / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    found.append(
                        "".join(
                            str(one.value) if isinstance(one, ast.Constant) else "…"
                            for one in node.values
                        )
                    )
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return " ".join(" ".join(found).split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CLONE)))
def test_no_section_is_empty(page: Path) -> None:
    """A heading is followed by text or by a heading below it; a merge may leave one without its text."""
    text_alone = re.sub(
        r"^ *```.*?^ *```", "block", page.read_text(), flags=re.DOTALL | re.MULTILINE
    )
    lines = [line for line in text_alone.splitlines() if line.strip()]
    empty: list[str] = []
    for line, next_line in pairwise([*lines, "# the end"]):
        level = len(line) - len(line.lstrip("#"))
        next_level = len(next_line) - len(next_line.lstrip("#"))
        if level and 0 < next_level <= level:
            empty.append(line)
    assert empty == []
    assert "```" not in text_alone, "a block of code has no end"


def test_quoted_messages_are_those_of_the_source() -> None:
    known = templates()
    for block in blocks(CLONE / "docs" / "troubleshooting.md", "text"):
        for part in block.split("…"):
            words = " ".join(part.split()).strip(" ,.:=()`'")
            assert len(words) < 12 or words in known, words


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what the README names: the demo's checkpoint, an image, samples."""
    root = tmp_path_factory.mktemp("readme")
    run_folders.run_folder(
        root / "runs" / "shapes" / "naive", (1,), run_folders.recipe(root / "base", [])
    )
    (root / "runs" / "shapes" / "naive" / "best").symlink_to("checkpoint-1")
    tiny.picture(60, 80).save(root / "photo.png")
    (root / "docs").mkdir()
    shutil.copy(CLONE / "docs" / "scene.png", root / "docs")
    sample = {
        "prompt": "Which shapes are there?",
        "images": ["photo.png"],
        "responses": ["A red circle.", "A cat.", "No"],
    }
    write_json_lines(
        root / "samples.jsonl", [sample, {"prompt": "What is 2 + 2?", "responses": ["4", "5"]}]
    )
    return root


def test_the_python_lines_run(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world)
    names: dict[str, Any] = {}
    ours, stock = blocks(README, "python")
    exec(ours, names)
    scores = names["scores"]
    assert names["ranking"].values == pytest.approx(scores[:2], abs=1e-5)
    assert names["better"] == int(scores[1] > scores[0])
    exec(stock, names)
    assert names["scores"] == pytest.approx(scores[:2], abs=1e-5)


def test_the_python_lines_of_the_page_on_use_run(
    world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(world)
    [best_of_n] = blocks(CLONE / "docs" / "use.md", "python")
    exec(best_of_n, {})
    samples = [json.loads(line) for line in (world / "samples.jsonl").read_text().splitlines()]
    printed = capsys.readouterr().out.splitlines()
    for line, sample in zip(printed, samples, strict=True):
        response = line.rpartition(" ")[0]
        assert response in sample["responses"]


@pytest.mark.slow
def test_the_commands_run(world: Path) -> None:
    pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
    lines = blocks(CLONE / "docs" / "use.md", "sh")[0]
    commands = [shlex.split(line, comments=True) for line in lines.splitlines()]
    scoring, *selecting, serving, curl = commands
    for command in (scoring, *selecting):
        command[:2] = [sys.executable, str(CLONE / command[1])]
        if "--min-margin" in command:
            command[-1] = "0"  # an untrained model's margins are small
        subprocess.run(command, cwd=world, check=True, capture_output=True, timeout=120)
    scored = [json.loads(line) for line in (world / "scored.jsonl").read_text().splitlines()]
    best = [json.loads(line) for line in (world / "best.jsonl").read_text().splitlines()]
    assert [one["response"] for one in best] == [
        row["responses"][row["order"][0]] for row in scored
    ]
    assert len((world / "pairs.jsonl").read_text().splitlines()) == 2
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, str(CLONE / serving[1]), *serving[2:], "--port", str(port)], cwd=world
    )
    try:
        assert curl[0] == "curl"
        address = f"http://{curl[1]}".replace("localhost:8000", f"127.0.0.1:{port}")
        with httpx.Client(timeout=60) as client:
            answer = httpx.Response(503)
            while answer.status_code == 503:  # it loads
                assert server.poll() is None
                time.sleep(0.1)
                with suppress(httpx.ConnectError):
                    answer = client.post(address, content=curl[3])
            assert len(answer.json()["groups"][0]["scores"]) == 2
    finally:
        server.terminate()
        assert server.wait(60) == 0


SIGNED = re.compile(r"[+−]?\d+\.\d+")
POLICY_PAGE = CLONE / "docs/policy.md"
POLICY_LOG = CLONE / "docs/log/policy.md"
PREDICTORS = "Which figures go with what a reward model gains"
GAIN_COLUMNS = {"best-of-8": 3, "greedy": 4, "sampled": 5}
"""The column of the log's tables by a word in the names of the page's columns."""
FIRST_STUDY = "Figures of 24 reward models"
STUDIES = {
    "demo level": "Figures of 26 reward models",
    "medium level": "Figures of 14 reward models",
}
"""The headings of the log's tables by the names of the columns of the page's table."""


def section(page: Path, heading: str) -> str:
    """Return the text of a page from a heading to the next one of the same level."""
    _, found, after = page.read_text(encoding="utf-8").partition(f"\n## {heading}\n")
    assert found, f"{page.name} has no heading {heading!r}"
    return after.partition("\n## ")[0]


def table_rows(text: str, first_cell: str) -> dict[str, list[str]]:
    """Return the rows of all tables of a text whose first cell matches, as their other cells."""
    rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and re.fullmatch(first_cell, cells[0]):
            rows[cells[0]] = cells[1:]
    return rows


def measured_reward_models() -> dict[str, list[str]]:
    """Return the log's rows of reward models that score (Naive-RM and critic), by name."""
    models = table_rows(section(POLICY_LOG, FIRST_STUDY), r"(naive|critic)-\d+(-\w+)?")
    assert len(models) == 9
    return models


def signed_numbers(cell: str) -> list[float]:
    """Return the decimal numbers of a cell, without those in brackets."""
    without_intervals = re.sub(r"\[[^]]*\]", "", cell)
    return [float(number.replace("−", "-")) for number in SIGNED.findall(without_intervals)]


def with_fishers_interval(x: list[float], y: list[float]) -> str:
    """Return Pearson's coefficient with its 95 % interval by Fisher's z, as the pages print it."""
    coefficient = float(np.corrcoef(x, y)[0, 1])
    half_width = 1.959964 / math.sqrt(len(x) - 3)
    low = math.tanh(math.atanh(coefficient) - half_width)
    high = math.tanh(math.atanh(coefficient) + half_width)
    return f"{coefficient:+.2f} [{low:+.2f}, {high:+.2f}]".replace("-", "−")


@pytest.mark.parametrize("without", [None, "naive-200-grey"])
def test_coefficients_of_the_first_study_follow_from_its_table(
    without: str | None,
) -> None:
    """The best-of-8 gain is compared with both seeds' mean accuracy, an RL gain with seed 0's."""
    models = measured_reward_models()
    models.pop(without or "", None)
    paid = [cells for cells in models.values() if cells[4] != "–"]
    printed = []
    for column in (1, 2):
        means = [float(np.mean(signed_numbers(cells[column])[:2])) for cells in models.values()]
        gains = [float(np.mean(signed_numbers(cells[3]))) for cells in models.values()]
        row = [with_fishers_interval(means, gains)]
        accuracies = [signed_numbers(cells[column])[0] for cells in paid]
        for gain_column in (4, 5):
            rl_gains = [signed_numbers(cells[gain_column])[0] for cells in paid]
            row.append(with_fishers_interval(accuracies, rl_gains))
        printed.append(row)

    names = ["vl_rewardbench accuracy", "multimodal_rewardbench accuracy"]
    if without is not None:
        names = [f"the same without {without}"] * 2
    for name, row in zip(names, printed, strict=True):
        assert f"| {name} | {' | '.join(row)} |" in section(POLICY_LOG, FIRST_STUDY)


def interval_in(cell: str) -> tuple[float, float, float]:
    """Return a coefficient and the ends of its interval, such as "+0.86 [+0.41, +0.97]"."""
    mean, low, high = (float(number.replace("−", "-")) for number in SIGNED.findall(cell))
    return mean, low, high


@pytest.mark.parametrize("level", STUDIES)
def test_coefficients_of_the_policy_page_agree_with_the_tables_of_the_log(level: str) -> None:
    """They are over halves of the questions, and near the coefficient over all questions."""
    # A table of the kinds of judges follows the table of the levels.
    levels = section(POLICY_PAGE, PREDICTORS).partition("| goes with the")[0]
    [columns] = table_rows(levels, "goes with").values()
    rows = table_rows(levels, r"\w+ accuracy")
    models = table_rows(section(POLICY_LOG, STUDIES[level]), r"(naive|critic|points)-\d+(-[\w-]+)?")
    # AUC is left out: over all questions it shares the answers, and their chance, with the gain.
    figures = {"vl_rewardbench accuracy": 1, "multimodal_rewardbench accuracy": 2}
    checked = 0
    for place, column in enumerate(columns):
        if not column.startswith(level):
            continue
        gain_column = next(index for name, index in GAIN_COLUMNS.items() if name in column)
        for figure, figure_column in figures.items():
            accuracies: list[float] = []
            gains: list[float] = []
            for cells in models.values():
                if cells[gain_column] != "–":
                    # An RL gain belongs to the reward model of the first seed.
                    num_seeds = 2 if gain_column == 3 else 1
                    of_seeds = signed_numbers(cells[figure_column])[:num_seeds]
                    accuracies.append(float(np.mean(of_seeds)))
                    gains.append(float(np.mean(signed_numbers(cells[gain_column])[:num_seeds])))
            mean, low, high = interval_in(rows[figure][place])
            over_all = float(np.corrcoef(accuracies, gains)[0, 1])
            assert low <= mean <= high
            assert low <= over_all <= high, (figure, column, over_all)
            if level == "demo level":  # elsewhere the gains of both halves hardly agree
                assert abs(mean - over_all) < 0.15, (figure, column, over_all)
            checked += 1
    assert checked


def test_calibration_coefficients_of_the_log_follow_from_its_table() -> None:
    models = measured_reward_models()
    # Paragraphs are wrapped, so a coefficient and its interval may be on two lines.
    text = " ".join(POLICY_LOG.read_text(encoding="utf-8").split())
    gains = [float(np.mean(signed_numbers(cells[3]))) for cells in models.values()]
    for column in (1, 2):
        errors = [float(np.mean(signed_numbers(cells[column])[2:])) for cells in models.values()]
        assert with_fishers_interval(errors, gains) in text

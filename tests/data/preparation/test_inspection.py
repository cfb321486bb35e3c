"""`python data/mixture.py FILE`: what it says of a file, and that the recipe it prints can be run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mmrm.data.errors import UserError
from mmrm.data.preparation.inspection import inspect
from mmrm.data.preparation.mixing import Mixture
from mmrm.data.preparation.recipe_section import read_data_section
from mmrm.train.recipe.parsing import read_recipe
from tests.data.mixtures import row
from tests.data.sources.fixtures import BLUE, RED, write_images, write_jsonl

ROOT = Path(__file__).resolve().parents[3]


def mine(folder: Path) -> Path:
    write_images(folder / "pictures", red=RED, blue=BLUE)

    def asked(place: int) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"Which\x1b[2J colour, {place % 30}?"}]

    said = {
        name: [{"role": "assistant", "content": f"{name} one"}] for name in ("chosen", "rejected")
    }
    rows = [
        {"images": ["red.png", "blue.png"], "prompt": asked(place), "margin": 0.5, "id": place}
        | said
        for place in range(40)
    ]
    rows[1] |= {"rejected": said["chosen"]}
    rows[3] |= {"images": ["gone.png"]}
    rows[4] |= {"images": ["lost.png"]}
    return write_jsonl(folder / "my data.jsonl", rows)


def test_it_says_what_a_file_is_and_prints_a_recipe_that_runs(tmp_path: Path) -> None:
    path = mine(tmp_path)
    text = "\n".join(inspect(path, str(tmp_path / "pictures"), tmp_path / "cache", 1))
    about, recipe = text.split(
        "A recipe to start from; save it as my-data.yaml, then: deepspeed train/rm.py my-data.yaml --dry-run\n"
    )
    assert about.startswith(
        f"{path}: 40 rows in the format `trl` (docs/data_formats.md)\ncolumns that are not read: id\n"
    )
    assert (
        "\ntrl:0\n  user:     [image of 60 x 40 pixels] [image of 32 x 90 pixels] Which\ufffd[2J colour, 0?\n"
        "  chosen:   chosen one\n  rejected: rejected one\n  margin:   0.5\n\ntrl:2\n"
    ) in about
    assert about.count("  chosen:") == 3
    assert (
        "37 of 40 records would be trained on; dropped: bad_image 2, identical 1\nbad: trl:3: the file 'gone.png' is"
        in about
    )
    assert "`images: FOLDER`" in about
    assert "… and 1 more record with the same fault" in about
    saved = tmp_path / "my-data.yaml"
    saved.write_text(recipe)
    section = read_data_section(saved).model_copy(update={"cache": str(tmp_path / "cache")})
    mixture = Mixture(section)
    assert len(mixture.validation) == 3  # of 30 different prompts
    assert len(mixture) >= 37 - 2 * 3
    read = read_recipe(saved)
    assert read.output.folder == "runs/my-data"
    assert read.optim.records_per_step * 20 <= 37 < read.optim.records_per_step * 40
    assert (read.evaluation.best_metric, read.output.save_every_steps) == (
        "held_out/accuracy",
        37 // 4,
    )


def test_without_its_images_it_says_how_to_name_them_and_prints_no_recipe(tmp_path: Path) -> None:
    text = "\n".join(inspect(mine(tmp_path), None, tmp_path / "cache", 1))
    assert "0 of 40 records would be trained on; dropped: bad_image 40" in text
    assert f"Looked in: {tmp_path}." in text
    assert "extends:" not in text


def test_what_is_no_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such file or folder"):
        list(inspect(tmp_path / "none.jsonl", None, tmp_path / "cache", 1))
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(UserError, match=r"(?s)in no known format.*- project: there are no rows"):
        list(inspect(tmp_path / "empty.jsonl", None, tmp_path / "cache", 1))


@pytest.mark.slow
def test_the_command_takes_a_file(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [row(str(place)) for place in range(4)])
    command = [sys.executable, str(ROOT / "data" / "mixture.py"), "a.jsonl"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert f"    - {{type: project, path: {path}}}\n" in done.stdout
    (tmp_path / "a.jsonl").write_text('{"question": 1}\n')
    failed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert "in no known format" in failed.stderr
    assert "Traceback" not in failed.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.yaml", "--images", "pictures"], "--images is for a data file"),
        (["a.jsonl", "--save", "card.json"], "--save is for the data card of a recipe"),
    ],
)
def test_an_option_that_the_command_would_ignore_is_refused(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    command = [sys.executable, str(ROOT / "data" / "mixture.py"), *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert message in done.stderr

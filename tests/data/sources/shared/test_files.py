"""Where files come from: a local copy or the hub, and what is said when neither has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from data.errors import UserError
from tests.data.sources.fixtures import image_struct, open_source, write_parquet

ROW = {"image": image_struct(), "question": "?", "chosen": "a", "rejected": "b"}


def test_the_hub_gives_files_and_their_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "snapshots" / "0123456789abcdef"
    write_parquet(snapshot / "RLAIF-V-Dataset_000.parquet", [ROW])
    asked: dict[str, Any] = {}

    def download(repo: str, **settings: Any) -> str:
        asked.update(settings, repo=repo)
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    source = open_source(tmp_path / "cache", type="rlaif_v", revision="main")
    assert (len(source), source.revision) == (1, "0123456789abcdef")
    assert asked == {
        "repo": "openbmb/RLAIF-V-Dataset",
        "repo_type": "dataset",
        "revision": "main",
        "allow_patterns": ["*.parquet"],
    }
    other = open_source(tmp_path / "cache", type="rlaif_v", hub="me/copy", name="mine")
    assert (asked["repo"], asked["revision"], other.name) == ("me/copy", None, "mine")
    with pytest.raises(UserError, match="no column 'prompt'"):
        open_source(tmp_path / "cache", type="vlfeedback")
    assert asked["revision"] == "refs/convert/parquet"


def test_a_numbered_set_is_read_whole_or_refused(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for number in range(3):
        write_parquet(copy / "data" / f"train-{number:05}-of-00003-a{number}.parquet", [ROW])
    settings = {"type": "rlaif_v", "path": str(copy)}
    assert len(open_source(tmp_path / "cache", **settings)) == 3
    write_parquet(copy / "data" / "train-00000-of-00001.parquet", [ROW])
    with pytest.raises(UserError, match="00000-of-00001, 00000-of-00003, 00001-of-00003, 00002-of-00003; required is"):
        open_source(tmp_path / "cache", **settings)
    (copy / "data" / "train-00000-of-00001.parquet").unlink()
    (copy / "data" / "train-00002-of-00003-a2.parquet").unlink()
    with pytest.raises(UserError, match=r"'rlaif_v': of .*train-….parquet there are the parts 00000-of-00003, 00001-of-00003;"):
        open_source(tmp_path / "cache", **settings)
    part = copy / "data" / "train-00001-of-00003-a1.parquet"
    assert len(open_source(tmp_path / "cache", type="rlaif_v", path=str(part))) == 1


def test_no_network_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(repo: str, **settings: Any) -> str:
        raise LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(UserError, match=r"openbmb/RLAIF-V-Dataset cannot be fetched .*no connection.*give `path`"):
        open_source(tmp_path / "cache", type="rlaif_v")


def test_an_impossible_name_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a name cannot be fetched"):
        open_source(tmp_path / "cache", type="rlaif_v", hub="not a name")


def test_a_copy_in_folders_is_searched_by_the_path_inside(tmp_path: Path) -> None:
    write_parquet(tmp_path / "copy" / "deep" / "data" / "train-0.parquet", [ROW])
    assert len(open_source(tmp_path / "cache", type="rlaif_v", path=str(tmp_path / "copy"))) == 1
    with pytest.raises(UserError, match=r"no file like \*dpo_pairs\.jsonl \(1 other files\)"):
        open_source(tmp_path / "cache", type="mm_rlhf", path=str(tmp_path / "copy"))

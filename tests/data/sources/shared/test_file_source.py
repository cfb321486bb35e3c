"""Where files come from: a local copy or the hub, and what is said when neither has them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from mmrm.data.errors import RecordError, UserError
from mmrm.data.preference import Preference
from mmrm.data.sources.project import ProjectConfig
from mmrm.data.sources.shared.file_source import MAX_MESSAGE_LENGTH, SourceRow
from mmrm.data.sources.shared.source import Source
from tests.data.sources.fixtures import image_struct, open_source, write_jsonl, write_parquet
from tests.growth import LENGTHS, superlinear

JUDGE = "[Question]: q\n[Response 1]: a\n[Response 2]: b"
ROW = {"image": image_struct(), "question": "?", "chosen": "a", "rejected": "b"}


def test_the_hub_gives_files_and_their_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.slow
def test_a_numbered_set_is_read_whole_or_refused(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for number in range(3):
        write_parquet(copy / "data" / f"train-{number:05}-of-00003-a{number}.parquet", [ROW])
    settings = {"type": "rlaif_v", "path": str(copy)}
    assert len(open_source(tmp_path / "cache", **settings)) == 3
    write_parquet(copy / "data" / "train-00000-of-00001.parquet", [ROW])
    with pytest.raises(
        UserError,
        match=r"00000-of-00001, 00000-of-00003, 00001-of-00003, 00002-of-00003.*each of 3.*Fetch",
    ):
        open_source(tmp_path / "cache", **settings)
    (copy / "data" / "train-00000-of-00001.parquet").unlink()
    (copy / "data" / "train-00002-of-00003-a2.parquet").unlink()
    with pytest.raises(
        UserError,
        match=r"'rlaif_v': of .*train-….parquet there are the parts 00000-of-00003, 00001-of-00003,",
    ):
        open_source(tmp_path / "cache", **settings)
    part = copy / "data" / "train-00001-of-00003-a1.parquet"
    assert len(open_source(tmp_path / "cache", type="rlaif_v", path=str(part))) == 1


def test_no_network_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(repo: str, **settings: Any) -> str:
        raise LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(
        UserError, match=r"openbmb/RLAIF-V-Dataset cannot be fetched .*no connection.*set `path`"
    ):
        open_source(tmp_path / "cache", type="rlaif_v")


def test_an_impossible_name_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a name cannot be fetched"):
        open_source(tmp_path / "cache", type="rlaif_v", hub="not a name")


def test_a_copy_in_folders_is_searched_by_the_path_inside(tmp_path: Path) -> None:
    write_parquet(tmp_path / "copy" / "deep" / "data" / "train-0.parquet", [ROW])
    assert len(open_source(tmp_path / "cache", type="rlaif_v", path=str(tmp_path / "copy"))) == 1
    with pytest.raises(UserError, match=r"no file like \*dpo_pairs\.jsonl \(1 other files\)"):
        open_source(tmp_path / "cache", type="mm_rlhf", path=str(tmp_path / "copy"))


def test_a_truth_value_is_no_number(tmp_path: Path) -> None:
    rows = [
        {"prompt": "?", "chosen": "a", "rejected": "b", "margin": margin} for margin in (True, 2)
    ]
    source = open_source(
        tmp_path / "cache", type="project", path=str(write_jsonl(tmp_path / "a.jsonl", rows))
    )
    with pytest.raises(
        RecordError, match="project:0: 'margin' is bool True; required is int or float"
    ):
        source.record(0)
    assert source.record(1).margin == 2


@pytest.mark.parametrize("rating", [True, "nan", "inf", "9" * 400, [5]])
def test_a_rating_is_a_finite_number(rating: Any, tmp_path: Path) -> None:
    row = {
        "instruction": "?",
        "completions": [
            {"response": one, "annotations": {"help": {"Rating": rating}}} for one in "ab"
        ],
    }
    source = open_source(
        tmp_path / "cache", type="ultrafeedback", path=str(write_jsonl(tmp_path / "a.jsonl", [row]))
    )
    with pytest.raises(RecordError, match=r"ultrafeedback:0: 'Rating' is .*required is a number"):
        source.record(0)


@pytest.mark.parametrize(
    "error", [TypeError("odd"), KeyError("odd"), RecursionError("odd"), AttributeError("odd")]
)
def test_a_value_that_no_adapter_thought_of_costs_its_record(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def convert(self: ProjectConfig, row: SourceRow) -> Preference:
        raise error

    monkeypatch.setattr(ProjectConfig, "convert", convert)
    source = open_source(
        tmp_path / "cache", type="project", path=str(write_jsonl(tmp_path / "a.jsonl", [{}]))
    )
    with pytest.raises(
        RecordError,
        match=rf"^project:0: the row cannot be read as project \({type(error).__name__}: .*odd",
    ):
        source.record(0)


def test_a_message_is_not_as_long_as_its_record(tmp_path: Path) -> None:
    row = {"domain": "d", "winner": "x" * 100_000, "history": "?", "labels": 1, "x" * 100_000: 1}
    source = open_source(
        tmp_path / "cache", type="shp", path=str(write_jsonl(tmp_path / "train.json", [row]))
    )
    with pytest.raises(RecordError, match=r"^shp:0: ") as caught:
        source.record(0)
    assert len(str(caught.value)) <= MAX_MESSAGE_LENGTH


def time_to_refuse(source: Source, texts: Sequence[str], reason: str) -> str | None:
    """Return a message on the time to refuse a row if it grows faster than its text, else None.

    Args:
        source: a source whose row `index` contains `texts[index]`.
        texts: one text for each of `LENGTHS`.
        reason: a regular expression that the refusal has to match.
    """

    def refuse(text: str) -> None:
        with pytest.raises(RecordError, match=reason):
            source.record(texts.index(text))

    return superlinear(refuse, lambda length: texts[LENGTHS.index(length)])


@pytest.mark.parametrize("mark", ["[Response 1]:", "#", "# ", "<think>", "[Question]:"])
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_a_judges_prompt_is_read_once_whatever_it_repeats(
    role: str, mark: str, tmp_path: Path
) -> None:
    """Quadratic in the text, 300,000 of the shortest mark would take a quarter of an hour."""
    texts = ["[Question]: q " + mark * (length // len(mark)) for length in LENGTHS]
    rows = []
    for text in texts:
        turns = {"user": JUDGE, "assistant": "Response 1 is better."} | {role: text}
        message = [{"role": name, "content": content} for name, content in turns.items()]
        rows.append({"message": json.dumps(message), "image": ""})
    source = open_source(
        tmp_path / "cache", type="r1_reward", path=str(write_jsonl(tmp_path / "train.jsonl", rows))
    )
    slow = time_to_refuse(source, texts, "^r1_reward:")
    assert slow is None, slow


ASSISTANTS = "<|The Start of Assistant A's Answer|>"


@pytest.mark.parametrize(
    ("prefix", "repeated"),
    [
        ("Question: [q]\n", "Response 1: [a]\n"),
        ("", "Question: [q]\n"),
        ("", "<|User Prompt|>"),
        ("<|User Prompt|>" + ASSISTANTS, "<|The End of Assistant A's Answer|>"),
        ("[Question][Assistant 1]", "[End of Assistant 1]"),
    ],
)
def test_a_critics_prompt_is_read_once_whatever_it_repeats(
    prefix: str, repeated: str, tmp_path: Path
) -> None:
    texts = [prefix + repeated * (length // len(repeated) + 1) for length in LENGTHS]
    rows = []
    for text in texts:
        turns = [{"from": "human", "value": text}, {"from": "gpt", "value": "[[A>B]]"}]
        rows.append({"conversations": turns, "image": image_struct()})
    write_parquet(tmp_path / "a-pairwise.parquet", rows)
    source = open_source(
        tmp_path / "cache", type="llava_critic", path=str(tmp_path / "a-pairwise.parquet")
    )
    slow = time_to_refuse(source, texts, "none of the three templates")
    assert slow is None, slow


def test_a_message_about_a_file_whose_name_is_no_text_can_be_printed(tmp_path: Path) -> None:
    path = tmp_path / "a\udcff.jsonl"
    path.write_text("{")
    with pytest.raises(
        RecordError, match=r"^project:0: a\\udcff\.jsonl, row 0 .*no valid JSON"
    ) as caught:
        open_source(tmp_path / "cache", type="project", path=str(path)).record(0)
    str(caught.value).encode()

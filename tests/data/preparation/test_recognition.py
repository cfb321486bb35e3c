"""Which format a file is in; and docs/data_formats.md against the adapters that it documents."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from mmrm.data.errors import ImageError, UserError
from mmrm.data.preference import EncodedImage, validate
from mmrm.data.preparation.recognition import FILE_SOURCES, FORMATS, files_config, recognise
from mmrm.data.sources.registry import SOURCES
from mmrm.data.sources.shared.file_source import SourceRow
from mmrm.data.storage.row_files import joined_rows
from tests.data.mixtures import mixture, row
from tests.data.sources.fixtures import RED, image_struct, write_images, write_jsonl, write_parquet

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "data_formats.md").read_text(
    encoding="utf-8"
)
SECTIONS = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))


def samples(kind: str) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for block in re.findall(r"```json\n(.*?)```", SECTIONS[kind], re.DOTALL)
        for line in block.splitlines()
    ]


class Anywhere:
    """Images of any name."""

    def find(self, name: str, record: str) -> EncodedImage:
        """Return a path that nobody opens."""
        return Path(name)


def test_the_page_documents_every_type_and_no_other() -> None:
    assert sorted(SECTIONS) == sorted(SOURCES)


@pytest.mark.parametrize("kind", FILE_SOURCES)
def test_every_row_on_the_page_is_read_by_its_adapter(kind: str) -> None:
    needed = {"images": "."} if kind == "povid" else {}
    config = files_config(type=kind, path="a.jsonl", **needed)
    found: Sequence[Mapping[str, Any]] = samples(kind)
    if config.ROWS_TOGETHER > 1:
        found = [joined_rows(found)]
    for place, columns in enumerate(found):
        record = validate(config.convert(SourceRow(f"{kind}:{place}", columns, Anywhere())))
        shown = (record.chosen.content, record.rejected.content)
        assert shown in {
            (("A cat.",), ("A dog.",)),
            (("Hello.",), ("No.",)),
            (("Black.",), ("White.",)),
            (("2",), ("3",)),
            ((Path("a.jpg"),), (Path("b.jpg"),)),
        }
        assert columns.keys() >= set(config.COLUMNS)
    default = FILE_SOURCES[kind].model_fields["hub"].default
    assert (default or kind) in SECTIONS[kind] + kind
    assert (
        kind in FORMATS
        or config.licence_of_files().replace("not stated", "licence not stated") in SECTIONS[kind]
    )
    assert (" images" in SECTIONS[kind].lower()) or "Images:" in SECTIONS[kind]


@pytest.mark.parametrize("kind", [kind for kind in FILE_SOURCES if kind != "mmpr"])
def test_a_file_of_each_type_is_recognised_or_read_alike(kind: str, tmp_path: Path) -> None:
    for sample in samples(kind):
        found = recognise(
            str(write_jsonl(tmp_path / f"{kind}.jsonl", [sample] * 3)), tmp_path / "cache"
        )
        if found.type != kind:  # a general format, or a sibling, that makes the same record
            record = files_config(**found.settings).convert(SourceRow("a:0", sample, Anywhere()))
            mine = files_config(**found.settings | {"type": kind}).convert(
                SourceRow("a:0", sample, Anywhere())
            )
            assert (record.prompt, record.chosen, record.rejected) == (
                mine.prompt,
                mine.chosen,
                mine.rejected,
            )
            assert kind not in FORMATS


def test_columns_that_nobody_reads_are_named(tmp_path: Path) -> None:
    rows = [row(str(number), score=1, idea=None) for number in range(5)]
    found = recognise(str(write_jsonl(tmp_path / "a.jsonl", rows)), tmp_path / "cache")
    assert (found.type, list(found.unread)) == ("trl", ["score"])
    own = [row(str(number), category="x") for number in range(40)]
    own[7] = row("7", catgory="x")
    assert (
        recognise(str(write_jsonl(tmp_path / "b.jsonl", own)), tmp_path / "cache").type == "project"
    )


def test_a_folder_whose_files_are_called_otherwise_is_read_too(tmp_path: Path) -> None:
    said = {"images": [image_struct(RED)], **row("?"), "id": 3}
    write_parquet(tmp_path / "set" / "pairs.parquet", [said] * 4)
    found = recognise(str(tmp_path / "set"), tmp_path / "cache")
    assert found.line == f'{{type: trl, path: {tmp_path / "set"}, split: ""}}'


def test_no_known_format_says_what_keeps_it_from_each(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"question": "?", "answer": "!"}] * 3)
    with pytest.raises(UserError) as caught:
        recognise(str(path), tmp_path / "cache")
    for kind in FORMATS:
        assert f"\n- {kind}: " in str(caught.value)
    assert "there is no 'chosen'. The columns are 'answer', 'question'" in str(caught.value)


def test_a_misspelt_column_is_guessed_and_the_nearest_format_is_first(tmp_path: Path) -> None:
    sample = samples("sharegpt")[0]
    sample["reject"] = sample.pop("rejected")
    path = write_jsonl(tmp_path / "a.jsonl", [sample] * 3)
    with pytest.raises(UserError) as caught:
        recognise(str(path), tmp_path / "cache")
    message = str(caught.value)
    assert (
        "the nearest first:\n- sharegpt: there is no 'rejected'. Did you mean 'reject'?" in message
    )
    # The file is no flat table, so the advice about `columns` would not help.
    assert "under other names" not in message


def test_a_misspelt_optional_column_is_guessed_too(tmp_path: Path) -> None:
    sample = samples("sharegpt")[0]
    sample["image"] = sample.pop("images")
    path = write_jsonl(tmp_path / "a.jsonl", [sample] * 3)
    with pytest.raises(UserError, match=r"There is no column 'images'\. Did you mean 'image'\?"):
        recognise(str(path), tmp_path / "cache")


def test_a_misspelt_column_of_a_parquet_file_is_guessed(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", [{"prompt": "?", "choosen": "1", "rejected": "2"}])
    with pytest.raises(UserError, match=r"no column 'chosen'\. Did you mean 'choosen'\?"):
        recognise(str(path), tmp_path / "cache")


@pytest.mark.parametrize(("suffix", "separator"), [(".csv", ","), (".tsv", "\t")])
def test_the_printed_command_converts_a_table_of_text(
    suffix: str, separator: str, tmp_path: Path
) -> None:
    table = tmp_path / f"my pairs{suffix}"
    table.write_text(
        separator.join(["prompt", "chosen", "rejected"]) + "\n" + separator.join(["?", "yes", "no"])
    )
    with pytest.raises(UserError, match=f"is a {suffix} file") as caught:
        recognise(str(table), tmp_path / "cache")
    command = str(caught.value).splitlines()[-1].removeprefix("python ")
    subprocess.run([sys.executable, *shlex.split(command)], check=True)
    fit = recognise(str(table.with_suffix(".jsonl")), tmp_path / "cache")
    assert fit.type == "project"


def test_a_folder_with_several_kinds_of_files_is_refused_for_that_reason(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "set" / "a.jsonl", [row("?")])
    write_parquet(tmp_path / "set" / "b.parquet", [row("?")])
    with pytest.raises(UserError, match=r"files of kind \.jsonl, \.parquet; required is one kind"):
        recognise(str(tmp_path / "set"), tmp_path / "cache")


def test_a_file_that_two_formats_read_differently_is_not_guessed(tmp_path: Path) -> None:
    both = {**samples("trl")[1], **samples("ms_swift")[1]}
    both["chosen"] = [*both["chosen"][:1], {"role": "assistant", "content": "Else."}]
    path = write_jsonl(tmp_path / "a.jsonl", [both] * 2)
    lines = "\n".join(f"- {{type: {kind}, path: {path}}}" for kind in ("ms_swift", "trl"))
    with pytest.raises(UserError, match=rf"(?s)fits several formats.*\n{re.escape(lines)}"):
        recognise(str(path), tmp_path / "cache")
    path = write_jsonl(
        tmp_path / "b.jsonl", [both | {"margin": 1.0, "images": ["a.png"], "image": "a.png"}] * 2
    )
    with pytest.raises(UserError, match="fits several"):
        recognise(str(path), tmp_path / "cache")


def conversation(question: str, answer: str) -> list[dict[str, str]]:
    """Return a conversation of one question and one answer, as TRL's files hold it."""
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


CONVERSATIONS = {
    "chosen": conversation("What is this?", "A cat."),
    "rejected": conversation("What is this?", "A dog."),
}
MARKED_CONVERSATIONS = {
    "chosen": conversation("<image>What is this?", "A cat."),
    "rejected": conversation("<image>What is this?", "A dog."),
}
RATINGS = {"chosen_rating": 5.0, "rejected_rating": 2.0}


@pytest.mark.parametrize("images", [{"images": ["1.png"]}, {"image": "1.png"}])
@pytest.mark.parametrize("conversations", [CONVERSATIONS, MARKED_CONVERSATIONS])
@pytest.mark.parametrize("further", [{}, RATINGS, {"source": "x"}, RATINGS | {"source": "x"}])
def test_a_format_that_ignores_images_loses_to_one_that_reads_them(
    images: dict[str, Any],
    conversations: dict[str, Any],
    further: dict[str, Any],
    tmp_path: Path,
) -> None:
    with_images = images | conversations | further
    text_only = CONVERSATIONS | further | dict.fromkeys(images, None)
    # With many rows of text only, `olmo_preference` reads more columns of the file than `trl`.
    for rows in ([with_images] * 4, [with_images] * 4 + [text_only] * 6):
        path = write_jsonl(tmp_path / f"{len(rows)}.jsonl", rows)
        found = recognise(str(path), tmp_path / "cache")
        assert found.type == "trl"
        assert list(found.unread) == sorted(further)


def test_a_format_that_ignores_the_margin_loses_to_one_that_reads_it(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [CONVERSATIONS | RATINGS | {"margin": 1.0}] * 4)
    assert recognise(str(path), tmp_path / "cache").type == "trl"


def test_columns_without_a_value_do_not_decide_the_format(tmp_path: Path) -> None:
    row: dict[str, Any] = CONVERSATIONS | RATINGS | {"images": [], "image": None}
    path = write_jsonl(tmp_path / "a.jsonl", [row] * 4)
    assert recognise(str(path), tmp_path / "cache").type == "olmo_preference"


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_wrong_type_in_a_recipe_is_answered_with_the_line_to_write(
    suffix: str, tmp_path: Path
) -> None:
    write_images(tmp_path, a=RED)
    rows = [sample | {"images": ["a.png"]} for sample in samples("ms_swift")[:1]] * 20
    path = tmp_path / f"mine.{suffix}"
    (write_jsonl if suffix == "jsonl" else write_parquet)(path, rows)
    line = re.escape(f"- {{type: ms_swift, path: {path}}}")
    with pytest.raises(
        UserError, match=rf"is in the format `ms_swift`, not `trl`\. Write in a recipe: {line}\n"
    ):
        mixture(tmp_path, [{"type": "trl", "path": str(path)}])
    with pytest.raises(UserError) as caught:
        mixture(
            tmp_path, [{"type": "ms_swift", "path": str(path), "images": str(tmp_path / "cache")}]
        )
    assert "is not there" in str(caught.value)
    assert "is in the format" not in str(caught.value)


def test_an_image_that_is_null_is_called_null(tmp_path: Path) -> None:
    config = files_config(type="project", path="a.jsonl")
    columns = {"images": [None], **row("?")}
    with pytest.raises(ImageError, match="an image is null; required is a path"):
        config.convert(SourceRow("a:0", columns, Anywhere()))

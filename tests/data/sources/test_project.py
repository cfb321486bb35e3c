"""The format of this project, in all its file types, and what it refuses."""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from mmrm.data.errors import ImageError, RecordError, UserError
from mmrm.data.images import decode
from mmrm.data.sources.project import project_row
from tests.data.sources.fixtures import (
    BLUE,
    RED,
    asked,
    image_struct,
    open_source,
    record,
    write_images,
    write_jsonl,
    write_parquet,
)

FULL: dict[str, Any] = {
    "images": ["red.png"],
    "prompt": "Which colour?",
    "chosen": "Red.",
    "rejected": "Blue.",
    "margin": 2,
    "chosen_critique": "Right.",
    "rejected_critique": "Wrong.",
    "rationale": "Response 1 is right.",
    "difficulty": 2,
    "source": "house",
    "category": "attribute",
}


def test_every_key_arrives(tmp_path: Path) -> None:
    write_images(tmp_path, red=RED)
    found = record(
        open_source(
            tmp_path / "c", type="project", path=str(write_jsonl(tmp_path / "a.jsonl", [FULL]))
        )
    )
    assert found.identity == "project:0"
    assert asked(found) == [None, "Which colour?"]
    assert (found.chosen.text, found.rejected.text, found.margin) == ("Red.", "Blue.", 2.0)
    assert (found.chosen_critique, found.rejected_critique, found.rationale) == (
        "Right.",
        "Wrong.",
        "Response 1 is right.",
    )
    assert (found.source, found.category) == ("house", "attribute")
    assert found.images == (tmp_path / "red.png",)
    assert found.difficulty == 2
    written = project_row(found, found.rationale)
    assert {name: written[name] for name in FULL if name not in ("images", "prompt")} == {
        name: value for name, value in FULL.items() if name not in ("images", "prompt")
    }


def test_images_come_as_paths_uris_and_structs(tmp_path: Path) -> None:
    write_images(tmp_path / "pictures", red=RED)
    uri = "data:image/png;base64," + base64.b64encode(BLUE).decode()
    row = FULL | {"images": ["red.png", uri, {"bytes": None, "path": "red.png"}]}
    path = write_jsonl(tmp_path / "a.jsonl", [row])
    found = record(
        open_source(
            tmp_path / "c", type="project", path=str(path), images=str(tmp_path / "pictures")
        )
    )
    assert found.images == (
        tmp_path / "pictures" / "red.png",
        BLUE,
        tmp_path / "pictures" / "red.png",
    )
    assert asked(found) == [None, None, None, "Which colour?"]


def test_turns_keep_their_image_places(tmp_path: Path) -> None:
    turns = [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "First"}, {"type": "image", "text": None}],
        },
        {"role": "assistant", "content": "Seen."},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Second?"}]},
    ]
    rows = [FULL | {"images": [image_struct(RED), image_struct(BLUE)], "prompt": turns}]
    rows[0]["images"] = [
        "data:image/png;base64," + base64.b64encode(data).decode() for data in (RED, BLUE)
    ]
    found = record(
        open_source(
            tmp_path / "c", type="project", path=str(write_jsonl(tmp_path / "a.jsonl", rows))
        )
    )
    assert [message["role"] for message in found.prompt] == ["system", "user", "assistant", "user"]
    assert found.prompt[1]["content"] == [{"type": "text", "text": "First"}, {"type": "image"}]
    assert asked(found) == [None, "Second?"]


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet", "arrow-file", "arrow-stream"])
def test_all_file_types_give_the_same_records(kind: str, tmp_path: Path) -> None:
    rows = [
        {"images": [], "prompt": f"Question {number}", "chosen": f"yes {number}", "rejected": "no"}
        for number in range(150)
    ]
    path = tmp_path / f"a.{kind.partition('-')[0]}"
    if kind == "jsonl":
        write_jsonl(path, rows)
    elif kind == "json":
        path.write_text(json.dumps(rows))
    elif kind == "parquet":
        schema = pa.schema(
            {
                "images": pa.list_(pa.string()),
                "prompt": pa.string(),
                "chosen": pa.string(),
                "rejected": pa.string(),
            }
        )
        write_parquet(path, rows, schema, group=40)
    else:
        table = pa.table(
            {key: [row[key] for row in rows] for key in ("prompt", "chosen", "rejected")}
        )
        with pa.OSFile(str(path), "wb") as sink:
            new = pa.ipc.new_file if kind == "arrow-file" else pa.ipc.new_stream
            with new(sink, table.schema) as writer:
                writer.write_table(table, max_chunksize=32)
    source = open_source(tmp_path / "c", type="project", path=str(path))
    assert len(source) == 150
    assert [record(source, index).chosen.text for index in (0, 39, 40, 64, 149)] == [
        "yes 0",
        "yes 39",
        "yes 40",
        "yes 64",
        "yes 149",
    ]
    again = pickle.loads(pickle.dumps(source))
    assert again.record(77).chosen.text == "yes 77"
    assert again.fingerprint() == source.fingerprint()


def test_images_inside_parquet_decode(tmp_path: Path) -> None:
    write_parquet(
        tmp_path / "a.parquet",
        [{"images": [image_struct(RED)], "prompt": "?", "chosen": "a", "rejected": "b"}],
    )
    (data,) = record(open_source(tmp_path / "c", type="project", path=str(tmp_path))).images
    assert decode(data, "r").getpixel((0, 0)) == (255, 0, 0)


def test_a_folder_of_files_is_one_source(tmp_path: Path) -> None:
    for part in range(3):
        write_jsonl(
            tmp_path / "d" / f"part-{part}.jsonl",
            [{"prompt": f"{part}.{row}", "chosen": "a", "rejected": "b"} for row in range(4)],
        )
    source = open_source(tmp_path / "c", type="project", path=str(tmp_path / "d"))
    assert [asked(record(source, index)) for index in range(12)] == [
        [f"{part}.{row}"] for part in range(3) for row in range(4)
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "?", "chosen": "a"}, "there is no 'rejected'"),
        ({"prompt": "?", "chosen": "a", "rejected": 3}, "'rejected' is int 3; required is str"),
        (
            {"prompt": 5, "chosen": "a", "rejected": "b"},
            "'prompt' is int 5; required is str or list",
        ),
        ({"prompt": "?", "chosen": "a", "rejected": "b", "margn": 1}, "unknown key 'margn'"),
        (
            {"prompt": "?", "chosen": "a", "rejected": "b", "margin": "2"},
            "'margin' is str '2'; required is int or float",
        ),
        (
            {"prompt": "?", "chosen": "a", "rejected": "b", "margin": 10**400},
            "'margin' is int 10+….*number of at most",
        ),
        (
            {"prompt": [{"role": "bot", "content": "?"}], "chosen": "a", "rejected": "b"},
            "role 'bot'",
        ),
        (
            {
                "prompt": [{"role": "user", "content": [{"type": "video"}]}],
                "chosen": "a",
                "rejected": "b",
            },
            "1 video parts for 0 videos",
        ),
        (
            {"prompt": ["?"], "chosen": "a", "rejected": "b"},
            "an entry is a str; required is an object with 'role'",
        ),
        (
            {"prompt": [{"role": "user", "content": ["text"]}], "chosen": "a", "rejected": "b"},
            "a part of a turn is of type 'str'",
        ),
        (
            {
                "prompt": [{"role": "user", "content": [{"type": "image"}]}],
                "chosen": "a",
                "rejected": "b",
            },
            "1 image parts for 0 images",
        ),
        (["?"], "a JSON list; required is an object"),
        ({"prompt": "?", "chosen": "a", "rejected": "b", "difficulty": 1.5}, "'difficulty' is 1.5"),
        ({"prompt": "?", "chosen": "a", "rejected": "b", "difficulty": 0}, "difficulty is 0; requ"),
    ],
)
def test_a_wrong_row_names_itself(row: Any, message: str, tmp_path: Path) -> None:
    source = open_source(
        tmp_path / "c",
        type="project",
        path=str(write_jsonl(tmp_path / "a.jsonl", [FULL | {"images": []}, row])),
    )
    with pytest.raises(RecordError, match=rf"(project:1|a\.jsonl, row 1).*{message}"):
        record(source, 1)


@pytest.mark.parametrize("image", ["../out.png", "gone.png", {"bytes": None, "path": None}, "", 7])
def test_a_wrong_image_names_its_row(image: Any, tmp_path: Path) -> None:
    write_images(tmp_path, out=RED)
    source = open_source(
        tmp_path / "c",
        type="project",
        path=str(write_jsonl(tmp_path / "d" / "a.jsonl", [FULL | {"images": [image]}])),
    )
    with pytest.raises(ImageError, match="project:0"):
        record(source)


def test_broken_json_names_file_and_row(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [FULL, FULL])
    path.write_text(path.read_text()[:-30])
    with pytest.raises(RecordError, match=r"a\.jsonl, row 1 .*no valid JSON"):
        open_source(tmp_path / "c", type="project", path=str(path)).record(1)


def test_missing_places_stop(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neither a file nor a folder"):
        open_source(tmp_path / "c", type="project", path=str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no file like"):
        open_source(tmp_path / "c", type="project", path=str(tmp_path / "empty"))
    (tmp_path / "a.csv").write_text("prompt,chosen,rejected\n")
    with pytest.raises(UserError, match=r"files of kind \.csv"):
        open_source(tmp_path / "c", type="project", path=str(tmp_path / "a.csv"))
    with pytest.raises(ValueError, match="Give `path`"):
        open_source(tmp_path / "c", type="project")

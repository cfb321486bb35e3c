"""The public sets with images: each from a fixture in its own schema and file types to one documented record."""

from __future__ import annotations

import base64
import json
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest

from mmrm.data.errors import ImageError, RecordError, UserError
from mmrm.data.images import decode
from tests.data.sources.fixtures import (
    BLUE,
    RED,
    asked,
    image_struct,
    left_out,
    record,
    source_of,
    write_images,
    write_jsonl,
    write_parquet,
)

# RLAIF-V and RLHF-V

RLAIF_ROW = {
    "ds_name": "RLAIF-V",
    "image": image_struct(RED),
    "question": "What is in the picture?",
    "chosen": "A red square.",
    "rejected": "A red square and a cat.",
    "origin_dataset": "COCO",
    "origin_split": '{"model": "llava"}',
    "idx": "0",
    "image_path": "coco/000000000001.jpg",
}


def test_rlaif_v(tmp_path: Path) -> None:
    write_parquet(tmp_path / "set" / "RLAIF-V-Dataset_000.parquet", [RLAIF_ROW])
    source = source_of(tmp_path, "rlaif_v")
    found = record(source)
    assert (asked(found), found.chosen.text, found.rejected.text) == (
        [None, "What is in the picture?"],
        "A red square.",
        "A red square and a cat.",
    )
    assert (found.images, found.category, found.identity) == ((RED,), "COCO", "rlaif_v:0")
    assert (source.licence, source.revision) == ("CC-BY-NC-4.0", "local")


def test_rlaif_v_without_its_bytes_is_a_bad_image(tmp_path: Path) -> None:
    write_parquet(
        tmp_path / "set" / "a.parquet", [RLAIF_ROW | {"image": image_struct(None)}, RLAIF_ROW]
    )
    with pytest.raises(ImageError, match=r"rlaif_v:0.*with its bytes"):
        source_of(tmp_path, "rlaif_v").record(0)


def test_a_renamed_column_stops_at_once(tmp_path: Path) -> None:
    row = {("prompt" if key == "question" else key): value for key, value in RLAIF_ROW.items()}
    write_parquet(tmp_path / "set" / "a.parquet", [row])
    with pytest.raises(
        UserError, match=r"a\.parquet: there is no column 'question'\. Found are .*'prompt'"
    ):
        source_of(tmp_path, "rlaif_v")


def test_rlhf_v(tmp_path: Path) -> None:
    pair = {"question": "Where?", "chosen": "Outside.", "rejected": "Inside."}
    rows = [
        {
            "ds_name": "RLHF-V",
            "image": image_struct(),
            "text": json.dumps(pair),
            "origin_dataset": "VQAv2",
        },
        {
            "ds_name": "RLHF-V",
            "image": image_struct(),
            "text": "Where? Outside.",
            "origin_dataset": "VQAv2",
        },
        {
            "ds_name": "RLHF-V",
            "image": image_struct(),
            "text": json.dumps([pair]),
            "origin_dataset": "VQAv2",
        },
    ]
    write_parquet(tmp_path / "set" / "RLHF-V-Dataset.parquet", rows)
    source = source_of(tmp_path, "rlhf_v")
    assert (asked(record(source)), record(source).chosen.text) == ([None, "Where?"], "Outside.")
    for row, message in ((1, "cannot be read as JSON"), (2, "JSON list")):
        with pytest.raises(RecordError, match=f"rlhf_v:{row}: .*{message}"):
            source.record(row)


# VLFeedback

ASPECTS = ("Helpfulness", "Ethical Considerations", "Visual Faithfulness")


def completion(text: str, *ratings: str) -> dict[str, Any]:
    rated = {
        aspect: {"Rating": rating, "Rationale": "…"}
        for aspect, rating in zip(ASPECTS, ratings, strict=True)
    }
    return {"annotations": rated, "model": "m", "response": text}


FOUR = [
    completion("a", "5", "5", "5"),
    completion("b", "3", "5", "4"),
    completion("c", "4", "4", "4"),
    completion("d", "1", "5", "N/A"),
]


def as_columns(structs: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return a list of structs as `datasets` stores a Sequence of structs: a struct of lists."""
    return {key: [struct[key] for struct in structs] for key in structs[0]}


@pytest.mark.parametrize("stored", ["list", "columns"])
def test_vlfeedback(stored: str, tmp_path: Path) -> None:
    completions = FOUR if stored == "list" else as_columns(FOUR)
    row = {
        "id": "LLaVAMed-1",
        "prompt": "Describe.",
        "models": list("wxyz"),
        "completions": completions,
        "image": image_struct(),
    }
    write_parquet(tmp_path / "set" / "train-00000-of-00001.parquet", [row])
    source = source_of(tmp_path, "vlfeedback")
    assert len(source) == 6
    found = record(source)
    assert (found.chosen.text, found.rejected.text, found.margin, found.images) == (
        "a",
        "b",
        1.0,
        (RED,),
    )
    assert asked(found) == [None, "Describe."]
    assert left_out(source, 2) == "tie"  # b and c both have the mean 4
    assert [left_out(source, pair) for pair in (3, 4, 5)] == [
        "no_pair"
    ] * 3  # d has no rating on one aspect
    wide = source_of(tmp_path, "vlfeedback", minimum_gap=1.5)
    assert left_out(wide, 0) == "small_gap"
    hardest = source_of(tmp_path, "vlfeedback", pairs="hardest")
    assert len(hardest) == 1
    assert record(hardest).chosen.text == "a"
    assert hardest.fingerprint() != source.fingerprint()


def test_vlfeedback_as_json_lines(tmp_path: Path) -> None:
    write_images(tmp_path / "set" / "merged_images", one=RED)
    rows = [
        {
            "id": "1",
            "prompt": "?",
            "models": [],
            "completions": FOUR,
            "img_path": "merged_images/one.png",
        }
    ]
    rows.append(rows[0] | {"completions": [completion("a", "five", "5", "5"), *FOUR[1:]]})
    rows.append(rows[0] | {"completions": [FOUR[0] | {"annotations": {"Helpfulness": "5"}}]})
    write_jsonl(tmp_path / "set" / "vlfeedback_80k.jsonl", rows)
    source = source_of(tmp_path, "vlfeedback")
    assert record(source).images == (tmp_path / "set" / "merged_images" / "one.png",)
    with pytest.raises(
        RecordError, match=r"vlfeedback:1\.0: 'Rating' is 'five'.*required is a number"
    ):
        source.record(6)
    with pytest.raises(
        RecordError,
        match=r"vlfeedback:2\.5: an entry is a str; required is an object with 'Rating'",
    ):
        source.record(17)


# MM-RLHF


def test_mm_rlhf(tmp_path: Path) -> None:
    write_images(tmp_path / "set" / "long", one=RED)
    (write_images(tmp_path / "set") / "video").symlink_to(
        tmp_path / "elsewhere"
    )  # the owner's link
    write_images(tmp_path / "elsewhere" / "clip", **{f"f{number:02}": RED for number in range(20)})
    write_images(tmp_path / "outside", one=RED)
    pair = {
        "prompt": "<image>\nWhat?",
        "chosen": "A square.",
        "rejected": "A cat.",
        "ls_factor": 1.0,
    }
    rows = [
        pair | {"image": "long/one.png", "chosen_reason": "Right.", "rejected_reason": ""},
        pair | {"image": "long/one.png", "is_tie": True},
        pair | {"video": "video/clip.mp4", "prompt": "<video>\nWhat happens?", "is_tie": False},
        pair | {"video": "video/gone.mp4"},
        pair | {"video": "../outside"},
    ]
    write_jsonl(tmp_path / "set" / "dpo_pairs.jsonl", rows)
    source = source_of(tmp_path, "mm_rlhf", frames=4)
    found = record(source)
    assert (asked(found), found.chosen.text, found.chosen_critique, found.rejected_critique) == (
        [None, "What?"],
        "A square.",
        "Right.",
        None,
    )
    assert left_out(source, 1) == "tie"
    video = record(source, 2)
    assert asked(video) == [None] * 4 + ["What happens?"]
    assert [path.stem for path in video.images if isinstance(path, Path)] == [
        "f02",
        "f07",
        "f12",
        "f17",
    ]
    for row, message in (
        (3, "has no folder of frames"),
        (4, "outside of the declared image folder"),
    ):
        with pytest.raises(ImageError, match=f"mm_rlhf:{row}.*{message}"):
            source.record(row)
    assert left_out(source_of(tmp_path, "mm_rlhf", videos="leave_out"), 2) == "not_asked_for"


def test_images_of_any_set_may_lie_in_an_archive(tmp_path: Path) -> None:
    pair = {"prompt": "What?", "chosen": "A square.", "rejected": "A cat."}
    write_jsonl(
        tmp_path / "set" / "dpo_pairs.jsonl",
        [pair | {"image": "long/one.png"}, pair | {"video": "clip.mp4"}],
    )
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        archive.writestr("long/one.png", RED)
    source = source_of(tmp_path, "mm_rlhf", images=str(tmp_path / "images.zip"))
    assert record(source).images == (RED,)
    with pytest.raises(ImageError, match=r"mm_rlhf:1: the video 'clip.mp4' needs a folder.*Unpack"):
        source.record(1)
    with pytest.raises(UserError, match=r"images in .*nowhere: required is a folder"):
        source_of(tmp_path, "mm_rlhf", images=str(tmp_path / "nowhere"))


# R1-Reward

JUDGE = "You are a highly skilled evaluator …\n###### [Question]:\n{}\n###### [Response 1]:\n{}\n###### [Response 2]:\n{}\n"


def r1_row(answer: str, **changes: Any) -> dict[str, Any]:
    content = [
        {"type": "text", "text": JUDGE.format("What colour?", "Red.", "Blue.")},
        {"type": "image"},
    ]
    row = {
        "question": "What colour?",
        "message": json.dumps([{"role": "user", "content": content}]),
        "answer": [answer],
    }
    return row | {"image": base64.b64encode(RED).decode()} | changes


def test_r1_reward(tmp_path: Path) -> None:
    rows = [
        r1_row("<answer>1</answer>"),
        r1_row("<answer>2</answer>"),
        r1_row("<answer>both</answer>"),
        r1_row("<answer>1</answer>", image="@"),
    ]
    write_parquet(tmp_path / "set" / "data" / "train-00000-of-00001.parquet", rows)
    source = source_of(tmp_path, "r1_reward")
    first, second = record(source, 0), record(source, 1)
    assert (first.chosen.text, first.rejected.text, asked(first), first.images) == (
        "Red.",
        "Blue.",
        [None, "What colour?"],
        (RED,),
    )
    assert (second.chosen.text, second.rejected.text) == ("Blue.", "Red.")
    with pytest.raises(RecordError, match="r1_reward:2: 'answer' is"):
        source.record(2)
    with pytest.raises(ImageError, match="r1_reward:3: 'image' is not base64"):
        source.record(3)


def test_r1_reward_for_sft_carries_the_reasoning(tmp_path: Path) -> None:
    thought = "<think>Response 1 says red. Response 2 says blue. Response 2 is better.</think><answer>2</answer>"
    chat = [
        {"role": "user", "content": JUDGE.format("What colour?", "Red.", "Blue.")},
        {"role": "assistant", "content": thought},
    ]
    write_images(tmp_path / "set", one=RED)
    write_jsonl(
        tmp_path / "set" / "sft.jsonl",
        [{"message": json.dumps(chat), "image": "one.png"}, {"message": "[", "image": "one.png"}],
    )
    source = source_of(tmp_path, "r1_reward", images=str(tmp_path / "set"))
    found = record(source)
    assert (found.chosen.text, found.rejected.text) == ("Blue.", "Red.")
    assert found.rationale == "Response 1 says blue. Response 2 says red. Response 1 is better."
    with pytest.raises(RecordError, match="r1_reward:1: 'message' cannot be read as JSON"):
        source.record(1)


# MMPR


def mmpr_files(folder: Path, unpacked: bool) -> None:
    meta = {
        "ai2d_cot": {
            "root": "MMPR-v1.2/images/ai2d",
            "annotation": "MMPR-v1.2/annotations/ai2d_cot.jsonl",
            "length": 3,
        },
        "text": {
            "root": "MMPR-v1.2/images",
            "annotation": "MMPR-v1.2/annotations/text.jsonl",
            "length": 1,
        },
    }
    pair = {"chosen": "A.", "rejected": "B."}
    ai2d: list[dict[str, Any]] = [
        pair | {"image": "one.png", "question": "Which?"},
        pair | {"image": ["one.png", "two.png"], "question": "Compare <image>\nwith <image>\n."},
        pair | {"image": "gone.png", "question": "Which?"},
        pair | {"image": "one.png", "question": "<image> and <image>?"},
        pair | {"image": [7], "question": "Which?"},
    ]
    files: dict[str, list[Any]] = {
        "ai2d_cot.jsonl": ai2d,
        "text.jsonl": [pair | {"question": "1 + 1?"}],
    }
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text(json.dumps(meta))
    if unpacked:
        for name, rows in files.items():
            write_jsonl(folder / "annotations" / name, rows)
        write_images(folder / "images" / "ai2d", one=RED, two=BLUE)
        return
    with zipfile.ZipFile(folder / "annotations.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, rows in files.items():
            archive.writestr(f"annotations/{name}", "".join(json.dumps(row) + "\n" for row in rows))
    whole = folder / "whole"
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("MMPR-v1.2/images/ai2d/one.png", RED, zipfile.ZIP_STORED)
        archive.writestr("MMPR-v1.2/images/ai2d/two.png", BLUE)
    data = whole.read_bytes()
    for part, suffix in enumerate(("aa", "ab", "ac")):
        third = len(data) // 3 + 1
        (folder / f"images.zip_{suffix}").write_bytes(data[part * third : (part + 1) * third])
    whole.unlink()


@pytest.mark.parametrize("unpacked", [False, True])
def test_mmpr(unpacked: bool, tmp_path: Path) -> None:
    mmpr_files(tmp_path / "set", unpacked)
    source = source_of(tmp_path, "mmpr")
    assert len(source) == 6
    one, two = record(source, 0), record(source, 1)
    assert (asked(one), one.category, one.identity) == (
        [None, "Which?"],
        "ai2d_cot",
        "mmpr:ai2d_cot:0",
    )
    assert [decode(image, "r").getpixel((0, 0)) for image in two.images] == [
        (255, 0, 0),
        (0, 0, 255),
    ]
    assert asked(two) == ["Compare ", None, "with ", None, "."]
    with pytest.raises(ImageError, match=r"mmpr:ai2d_cot:2: the file .*gone\.png"):
        source.record(2)
    with pytest.raises(RecordError, match=r"mmpr:ai2d_cot:3: .*2 times for 1 images"):
        source.record(3)
    with pytest.raises(ImageError, match=r"mmpr:ai2d_cot:4: an image is a int"):
        source.record(4)
    assert (record(source, 5).images, asked(record(source, 5))) == ((), ["1 + 1?"])
    assert len(source_of(tmp_path, "mmpr", subsets=["text"])) == 1
    with pytest.raises(UserError, match="`subsets` names wrong"):
        source_of(tmp_path, "mmpr", subsets=["wrong"])


@pytest.mark.parametrize("second", ["annotations/text.jsonl", "more/text.jsonl"])
def test_mmpr_with_an_annotation_file_twice_is_refused(tmp_path: Path, second: str) -> None:
    mmpr_files(tmp_path / "set", unpacked=False)
    with (
        zipfile.ZipFile(tmp_path / "set" / "annotations.zip", "a") as archive,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", UserWarning)
        archive.writestr(second, json.dumps({"question": "other"}) + "\n")
    with pytest.raises(UserError, match=r"annotations\.zip holds more than one file text\.jsonl"):
        source_of(tmp_path, "mmpr")
    assert len(source_of(tmp_path, "mmpr", subsets=["ai2d_cot"])) == 5


def test_mmpr_with_an_annotation_file_in_two_folders_is_refused(tmp_path: Path) -> None:
    mmpr_files(tmp_path / "set", unpacked=True)
    write_jsonl(tmp_path / "set" / "more_annotations" / "text.jsonl", [])
    with pytest.raises(UserError, match=r"text\.jsonl have the same name"):
        source_of(tmp_path, "mmpr")
    assert len(source_of(tmp_path, "mmpr", subsets=["ai2d_cot"])) == 5


def test_mmpr_takes_its_images_from_elsewhere(tmp_path: Path) -> None:
    mmpr_files(tmp_path / "set", unpacked=True)
    (tmp_path / "set" / "images").rename(tmp_path / "moved")
    source = source_of(tmp_path, "mmpr", images=str(tmp_path / "moved"))
    assert record(source).images == (tmp_path / "moved" / "ai2d" / "one.png",)


def test_mmpr_with_a_part_missing_says_so(tmp_path: Path) -> None:
    mmpr_files(tmp_path / "set", unpacked=False)
    (tmp_path / "set" / "images.zip_ac").unlink()
    with pytest.raises(UserError, match="Check that all its parts are there"):
        source_of(tmp_path, "mmpr")


def test_mmpr_takes_no_image_of_the_same_name_elsewhere(tmp_path: Path) -> None:
    """Folders may be missing from a subset's root, not from the name that a row gives."""
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "meta.json").write_text(
        json.dumps({"a": {"root": ".", "annotation": "a.jsonl"}})
    )
    row = {"question": "?", "chosen": "a", "rejected": "b"}
    write_jsonl(
        tmp_path / "set" / "annotations" / "a.jsonl",
        [row | {"image": name} for name in ("gone/one.png", "one.png")],
    )
    write_images(tmp_path / "set", one=RED)
    source = source_of(tmp_path, "mmpr", images=str(tmp_path / "set"))
    with pytest.raises(ImageError, match=r"mmpr:a:0: the file .*gone/one\.png"):
        source.record(0)
    assert len(record(source, 1).images) == 1

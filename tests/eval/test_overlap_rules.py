"""What is no overlap although something is equal: common texts, blank pictures, pictures that only look alike to a hash."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageOps

from mmrm.data.preparation.mixing import Mixture
from mmrm.eval.contamination.index import fingerprint_image
from mmrm.eval.contamination.overlap_report import MIN_COMMON_CONTEXTS
from tests.eval.overlap_world import config, details, encoded, find, item, photo, project


def test_common_texts_are_reported_and_stay(tmp_path: Path) -> None:
    question = "Describe this image in detail."
    rows = [
        {"prompt": question, "image": encoded(photo(50 + number))}
        for number in range(MIN_COMMON_CONTEXTS - 1)
    ]
    common = project(tmp_path, "common", [*rows, {"chosen": "Yes.", "rejected": "No."}])
    benchmark = [
        item(1, question=question),
        *(item(2 + number, responses=("no", "yes")) for number in range(MIN_COMMON_CONTEXTS - 1)),
    ]
    found = find(tmp_path, [common], benchmark)
    assert found.sources["common"]["only_common_texts"] == MIN_COMMON_CONTEXTS
    assert found.sources["common"]["left_out"] == 0
    assert {line["kind"]: line["benchmark_row_count"] for line in details(tmp_path)} == {
        "question": 1,
        "pair": MIN_COMMON_CONTEXTS - 1,
    }
    assert all(line["common"] and not line["left_out"] for line in details(tmp_path))
    assert not [
        line
        for line in (tmp_path / "overlap.txt").read_text().splitlines()
        if not line.startswith("#")
    ]

    rare = project(tmp_path, "rare", rows[1:])
    assert find(tmp_path, [rare], benchmark).sources["rare"]["left_out"] == MIN_COMMON_CONTEXTS - 2


def test_pictures_that_a_perceptual_hash_confuses_make_a_question_common(tmp_path: Path) -> None:
    for kind in ("alike", "blank"):
        files = (
            [encoded(photo(50), "BMP")] * MIN_COMMON_CONTEXTS
            if kind == "alike"
            else [encoded(Image.new("RGB", (9, 9)), "BMP")] * MIN_COMMON_CONTEXTS
        )
        files = [file[:-1] + bytes([number]) for number, file in enumerate(files)]
        assert (
            len(
                {
                    found and found.hash
                    for found in (fingerprint_image(file, "test") for file in files)
                }
            )
            == 1
        )
        rows = project(
            tmp_path, kind, [{"prompt": "How many are there?", "image": file} for file in files]
        )
        found = find(tmp_path, [rows], [item(1, question="How many are there?")])
        assert (found.sources[kind]["only_common_texts"], found.sources[kind]["left_out"]) == (
            MIN_COMMON_CONTEXTS,
            0,
        )


def test_only_the_record_of_the_benchmarks_own_picture_is_left_out(tmp_path: Path) -> None:
    files = [encoded(photo(number), "BMP") for number in range(50, 58)]
    assert len(set(map(len, files))) == 1
    same = {"prompt": "Which is it?", "chosen": "This one.", "rejected": "That one."}
    rows = [project(tmp_path, "bmp", [same | {"image": file} for file in files])]
    find(tmp_path, rows, [item(1, image=files[3])])
    after = Mixture(config(tmp_path, rows, filters={"leave_out": str(tmp_path / "overlap.txt")}))
    assert [record.identity for record in after.records] == [
        f"bmp:{number}" for number in range(8) if number != 3
    ]


def test_records_with_a_benchmarks_picture_make_no_question_common(tmp_path: Path) -> None:
    cuts = [(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 0, 3), (0, 1, 0), (0, 2, 1), (0, 3, 0)]
    files = [
        encoded(photo(1).crop((0, left, 160 - right, 120 - low)), "JPEG", quality=60)
        for left, right, low in cuts
    ]
    hashes = {
        found.hash
        for found in (fingerprint_image(file, "test") for file in files)
        if found is not None
    }
    assert len(hashes) >= MIN_COMMON_CONTEXTS
    same = project(
        tmp_path,
        "same",
        [*({"prompt": "How many?", "image": file} for file in files), {"prompt": "how many"}],
    )
    found = find(tmp_path, [same], [item(1, question="How many?")])
    counts = {
        "records": len(files) + 1,
        "image_near": len(files),
        "question": len(files) + 1,
        "left_out": len(files) + 1,
    }
    assert +found.sources["same"] == counts


def test_every_user_turn_is_a_question_and_no_other_turn(tmp_path: Path) -> None:
    asked = "Which of the two is the older one?"
    turns = [("user", asked), ("assistant", "Neither is."), ("user", "Why?")]
    other = [("system", asked), ("user", "Why?"), ("assistant", asked), ("user", "How?")]
    rows = [
        {"prompt": [{"role": role, "content": text} for role, text in one]}
        for one in (turns, other)
    ]
    find(tmp_path, [project(tmp_path, "turns", rows)], [item(1, question=asked)])
    assert [line["record"] for line in details(tmp_path)] == ["turns:0"]


def test_blank_pictures_identify_nothing(tmp_path: Path) -> None:
    blank = encoded(Image.new("RGB", (64, 48), "grey"))
    rows = project(
        tmp_path,
        "blank",
        [{"image": blank}, {"image": encoded(Image.new("RGB", (30, 30), "white"))}],
    )
    assert find(tmp_path, [rows], [item(1, image=blank)]).sources["blank"]["left_out"] == 0
    assert "# 1 blank images" in (tmp_path / "overlap.txt").read_text()


def test_pictures_that_differ_in_colour_or_are_mirrored_are_others(tmp_path: Path) -> None:
    red, green, blue = photo(1).split()
    others = [
        Image.merge("RGB", (blue, green, red)),
        ImageOps.mirror(photo(1)),
        ImageOps.invert(photo(1)),
    ]
    rows = project(tmp_path, "others", [{"image": encoded(one)} for one in others])
    assert find(tmp_path, [rows], [item(1)]).sources["others"]["left_out"] == 0

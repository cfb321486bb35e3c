"""Image preference sets in ShareGPT forms, and the sets made of judgements; each in exactly its public schema."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from mmrm.data.errors import ImageError, RecordError, UserError
from tests.data.sources.fixtures import (
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

# ShareGPT forms: MMIF, LLaMA-Factory, ms-swift, POVID


def test_mmif_and_sharegpt(tmp_path: Path) -> None:
    write_images(tmp_path / "set" / "images", one=RED)
    row: dict[str, Any] = {
        "images": ["images/one.png"],
        "conversations": [{"from": "human", "value": "<image>\nUse three words."}],
        "chosen": {"from": "gpt", "value": "A red square."},
        "rejected": {"from": "gpt", "value": "It is red."},
    }
    turns = [
        *row["conversations"],
        {"from": "gpt", "value": "Yes."},
        {"from": "human", "value": "Again?"},
    ]
    alpaca = {
        "instruction": "Add.",
        "input": "1 + 1",
        "chosen": "2",
        "rejected": "3",
        "system": "Be brief.",
    }
    (tmp_path / "set" / "mmif.json").write_text(
        json.dumps(
            [
                row,
                row | {"conversations": turns},
                alpaca,
                row | {"chosen": {"from": "human", "value": "x"}},
                row | {"images": []},
            ]
        )
    )
    for kind in ("mmif", "sharegpt"):
        source = source_of(tmp_path, kind)
        found = record(source)
        assert (asked(found), found.chosen.text, found.rejected.text) == (
            [None, "Use three words."],
            "A red square.",
            "It is red.",
        )
        assert [message["role"] for message in record(source, 1).prompt] == [
            "user",
            "assistant",
            "user",
        ]
        assert asked(record(source, 2)) == ["Add.\n1 + 1"]
        assert record(source, 2).prompt[0]["role"] == "system"
        for index, message in ((3, "a turn of the user"), (4, "1 times for 0 images")):
            with pytest.raises(RecordError, match=f"{kind}:{index}: .*{message}"):
                source.record(index)


def test_ms_swift(tmp_path: Path) -> None:
    write_images(tmp_path / "set", one=RED)
    user = {"role": "user", "content": "<image>What is this?"}
    said = [{"role": "assistant", "content": text} for text in ("A square.", "A cat.")]
    rows: list[dict[str, Any]] = [
        {
            "messages": [user, said[0]],
            "rejected_response": "A cat.",
            "images": ["one.png"],
            "margin": 0.5,
        },
        {
            "messages": [user, said[0]],
            "rejected_messages": [user, said[1]],
            "images": [{"path": "one.png", "bytes": None}],
        },
        {"messages": [user, said[0]], "images": ["one.png"]},
    ]
    write_jsonl(tmp_path / "set" / "a.jsonl", rows)
    source = source_of(tmp_path, "ms_swift")
    for index, margin in ((0, 0.5), (1, None)):
        found = record(source, index)
        assert (asked(found), found.chosen.text, found.rejected.text, found.margin) == (
            [None, "What is this?"],
            "A square.",
            "A cat.",
            margin,
        )
    with pytest.raises(RecordError, match="ms_swift:2: there is no 'rejected_response'"):
        source.record(2)


def test_povid(tmp_path: Path) -> None:
    write_images(tmp_path / "coco", one=RED)
    human = {"from": "human", "value": "<image>\nDescribe."}
    row = {
        "id": "1",
        "image": "one.png",
        "conversations": [human, {"from": "gpt", "value": "A square."}],
        "rejected_conversations": [human, {"from": "gpt", "value": "A square and a cup."}],
    }
    other = row | {
        "rejected_conversations": [human | {"value": "Other?"}, {"from": "gpt", "value": "x"}]
    }
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "POVID_preference_data_for_VLLMs_version_1.json").write_text(
        json.dumps([row, other])
    )
    source = source_of(tmp_path, "povid", images=str(tmp_path / "coco"))
    found = record(source)
    assert (asked(found), found.chosen.text, found.rejected.text) == (
        [None, "Describe."],
        "A square.",
        "A square and a cup.",
    )
    with pytest.raises(
        RecordError,
        match="povid:1: 'conversations' and 'rejected_conversations' must be the same up to their last turn",
    ):
        source.record(1)


# OmniAlign-V-DPO, LLaVA-Critic, WildVision-Battle


def test_omnialign_v_dpo(tmp_path: Path) -> None:
    write_images(tmp_path / "x" / "images" / "chart", one=RED)
    row = {
        "prompt": "<image>\nRead it.",
        "chosen": "10",
        "rejected": "11",
        "image": "images/chart/one.png",
    }
    write_jsonl(tmp_path / "set" / "chart.jsonl", [row, row | {"image": "images/chart/two.png"}])
    write_jsonl(tmp_path / "set" / "poster.jsonl", [row])
    with tarfile.open(tmp_path / "set" / "images.tar", "w") as archive:
        archive.add(tmp_path / "x" / "images", "images")
    source = source_of(tmp_path, "omnialign_v_dpo")
    assert len(source) == 3
    assert (asked(record(source)), record(source).images) == ([None, "Read it."], (RED,))
    with pytest.raises(
        ImageError,
        match=r"omnialign_v_dpo:1: the file 'images/chart/two\.png' is not in .*images\.tar",
    ):
        source.record(1)
    assert len(source_of(tmp_path, "omnialign_v_dpo", topics=["poster"])) == 1
    with pytest.raises(UserError, match=r"names diagram.*holds no file"):
        source_of(tmp_path, "omnialign_v_dpo", topics=["poster", "diagram"])


def critic_row(prompt: str, judgement: str) -> dict[str, Any]:
    turns = [{"from": "human", "value": "<image>\n" + prompt}, {"from": "gpt", "value": judgement}]
    return {
        "id": "vlfeedback_1",
        "source": "vlfeedback",
        "conversations": turns,
        "image": image_struct(),
    }


BRACKETS = (
    "Judge these.\nQuestion: [What [colour]?]\n{0}: [Red [really].]\n{1}: [Blue.]\nASSISTANT:\n"
)
ARENA = (
    "<|User Prompt|>\nWhat colour?\n\n<|The Start of Assistant A's Answer|>\nRed.\n<|The End of Assistant A's Answer|>\n\n"
    "<|The Start of Assistant B's Answer|>\nBlue.\n<|The End of Assistant B's Answer|>"
)
BENCH = (
    "[Question]\nWhat colour?\n\n[Assistant 1]\nRed.\n\n[End of Assistant 1]\n\n"
    "[Assistant 2]\nBlue.\n\n[End of Assistant 2]\n\n[System]"
)


@pytest.mark.parametrize(
    ("prompt", "judgement", "chosen"),
    [
        (
            BRACKETS.format("The first response", "The second response"),
            "So. The better response: [first]",
            "Red [really].",
        ),
        (
            BRACKETS.format("Response 1", "Response 2"),
            "Response 2 is better. The better response: [2]",
            "Blue.",
        ),
        (BRACKETS.format("Response A", "Response B"), "The better response: [B]", "Blue."),
        (BRACKETS.format("Response A", "Response B"), "Both responses are equally good.", None),
        (ARENA, "My verdict: [[A>>B]]", "Red."),
        (ARENA, "At first [[A>B]], finally: [[B>A]]", "Blue."),
        (ARENA, "[[A=B]]", None),
        (BENCH, "9 7\nThe first is right.", "Red."),
        (BENCH, "6.5 8\nThe second.", "Blue."),
        (BENCH, "8 8\nEqual.", None),
    ],
)
def test_llava_critic(prompt: str, judgement: str, chosen: str | None, tmp_path: Path) -> None:
    write_parquet(
        tmp_path / "set" / "pairwise" / "train-00000-of-00001.parquet",
        [critic_row(prompt, judgement)],
    )
    write_parquet(
        tmp_path / "set" / "pointwise" / "train-00000-of-00001.parquet", [critic_row("x", "y")]
    )
    source = source_of(tmp_path, "llava_critic")
    assert len(source) == 1
    if chosen is None:
        assert left_out(source, 0) == "tie"
        return
    found = record(source)
    assert found.chosen.text == chosen
    assert {found.chosen.text, found.rejected.text} in (
        {"Red [really].", "Blue."},
        {"Red.", "Blue."},
    )
    assert asked(found)[1] in ("What [colour]?", "What colour?")
    assert (found.rationale is None) == ("Response 1" not in prompt)
    assert found.rationale in (None, "Response 1 is better. The better response: [1]")


def test_llava_critic_refuses_what_it_cannot_read(tmp_path: Path) -> None:
    rows = [
        critic_row("Which?", "[[A>B]]"),
        critic_row(ARENA, "I cannot say."),
        critic_row(BENCH, "Both fine."),
    ]
    write_parquet(tmp_path / "set" / "pairwise" / "train-00000-of-00001.parquet", rows)
    source = source_of(tmp_path, "llava_critic")
    for index, message in (
        (0, "none of the three templates"),
        (1, "no verdict"),
        (2, "no verdict"),
    ):
        with pytest.raises(RecordError, match=f"llava_critic:{index}: .*{message}"):
            source.record(index)


def test_wildvision_battle(tmp_path: Path) -> None:
    def talk(*texts: str) -> list[dict[str, str]]:
        return [
            {"role": ("user", "assistant")[number % 2], "content": text}
            for number, text in enumerate(texts)
        ]

    base = {
        "question_id": "q",
        "model_a": "x",
        "model_b": "y",
        "language": "English",
        "image": image_struct(),
        "turn": 1,
        "anony": True,
    }
    one, two = (
        {"conversation_a": talk("What?", "A square.")},
        {"conversation_b": talk("What?", "A cat.")},
    )
    long = {
        "conversation_a": talk("What?", "A square.", "Sure?", "Yes."),
        "conversation_b": talk("What?", "A cat.", "Sure?", "No."),
    }
    rows = [
        base | one | two | {"winner": "model_a"},
        base | one | two | {"winner": "model_b"},
        base | one | two | {"winner": "tie"},
        base | one | two | {"winner": "bothbad_vote"},
        base | long | {"winner": "model_a"},
        base | one | two | {"winner": "left"},
    ]
    write_parquet(tmp_path / "set" / "data" / "test-00000-of-00001.parquet", rows)
    source = source_of(tmp_path, "wildvision_battle")
    assert (asked(record(source)), record(source).chosen.text, record(source).category) == (
        [None, "What?"],
        "A square.",
        "English",
    )
    assert record(source, 1).chosen.text == "A cat."
    assert [left_out(source, row) for row in (2, 3, 4)] == ["tie", "tie", "no_pair"]
    with pytest.raises(RecordError, match="wildvision_battle:5: 'winner' is 'left'"):
        source.record(5)

"""Valid rows of every source that reads files, each in exactly its public schema, and how such rows are written."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from mmrm.data.preparation.recognition import FILE_SOURCES
from tests.data.sources.fixtures import BLUE, RED, image_struct, write_jsonl, write_parquet
from tests.data.sources.test_image_sets import FOUR, JUDGE, RLAIF_ROW
from tests.data.sources.test_judged_sets import ARENA, critic_row
from tests.data.sources.test_project import FULL
from tests.data.sources.test_text_sets import completion, talk
from tools.attack.pictures import pictures


@dataclass(frozen=True)
class Sample:
    """Rows of one source: `file` is where they lie in the source's folder."""

    file: str
    rows: tuple[dict[str, Any], ...]
    settings: dict[str, Any] = field(default_factory=dict)
    nested: str = ""
    """A column that holds JSON as text; in `rows` it is what that text says."""


def _turns(*roles_and_contents: Any) -> list[dict[str, Any]]:
    return [
        {"role": role, "content": content}
        for role, content in zip(roles_and_contents[::2], roles_and_contents[1::2], strict=True)
    ]


_TALKED = {
    "chosen": talk("Hi", "Hello", "More", "Yes"),
    "rejected": talk("Hi", "Hello", "More", "No"),
    "source": "magpie",
}
_IMAGE, _TEXT = {"type": "image"}, {"type": "text", "text": "What is it?"}
_LONG = _turns(
    "system", "Be brief.", "user", [_IMAGE, _TEXT], "assistant", "A square.", "user", [_TEXT]
)
_SHAREGPT = {
    "images": ["one.png"],
    "conversations": [
        {"from": "human", "value": "<image>\nUse three words."},
        {"from": "gpt", "value": "Yes."},
        {"from": "human", "value": "Do."},
    ],
    "chosen": {"from": "gpt", "value": "A red square."},
    "rejected": {"from": "gpt", "value": "It is red."},
}
_ALPACA = {
    "instruction": "Add.",
    "input": "1 + 1",
    "chosen": "2",
    "rejected": "3",
    "system": "Be brief.",
}
_USER = {"role": "user", "content": "<image>What is this?"}
_SAID = [{"role": "assistant", "content": text} for text in ("A square.", "A cat.")]
_HUMAN = {"from": "human", "value": "<image>\nDescribe."}
_THOUGHT = "<think>Response 1 says red. Response 2 is better.</think><answer>2</answer>"
_BATTLE = {
    "question_id": "q",
    "language": "English",
    "image": image_struct(),
    "turn": 1,
    "winner": "model_a",
}
_PAIR = {"chosen": "A square.", "rejected": "A cat."}

SAMPLES: dict[str, Sample] = {
    "helpsteer2": Sample(
        "train.jsonl",
        (
            {
                "prompt": "Write.",
                "response": "one",
                "helpfulness": 3,
                "correctness": 3,
                "coherence": 4,
                "complexity": 1,
                "verbosity": 2,
            },
            {
                "prompt": "Write.",
                "response": "two",
                "helpfulness": 1,
                "correctness": 0,
                "coherence": 4,
                "complexity": 1,
                "verbosity": 1,
            },
        ),
    ),
    "helpsteer3": Sample(
        "preference/train.jsonl",
        (
            {
                "domain": "code",
                "context": talk("Write."),
                "response1": "one",
                "response2": "two",
                "overall_preference": -2,
            },
        ),
    ),
    "llava_critic": Sample(
        "pairwise/train-00000-of-00001.parquet", (critic_row(ARENA, "My verdict: [[A>>B]]"),)
    ),
    "mm_rlhf": Sample(
        "dpo_pairs.jsonl",
        (
            _PAIR
            | {
                "image": "one.png",
                "prompt": "<image>\nWhat?",
                "chosen_reason": "Right.",
                "rejected_reason": "Wrong.",
            },
            _PAIR | {"video": "clip.mp4", "prompt": "<video>\nWhat?", "is_tie": False},
        ),
    ),
    "mmif": Sample("mmif.json", (_SHAREGPT,)),
    "mmpr": Sample(
        "annotations/some.jsonl",
        (
            _PAIR | {"image": "one.png", "question": "Which?"},
            _PAIR | {"image": ["one.png", "two.png"], "question": "Compare."},
        ),
    ),
    "ms_swift": Sample(
        "a.jsonl",
        (
            {
                "messages": [_USER, _SAID[0]],
                "rejected_response": "A cat.",
                "images": ["one.png"],
                "margin": 0.5,
            },
            {
                "messages": [_USER, _SAID[0]],
                "rejected_messages": [_USER, _SAID[1]],
                "images": [{"path": "one.png"}],
            },
        ),
    ),
    "olmo_preference": Sample(
        "train-00000-of-00001.parquet", (_TALKED | {"chosen_rating": 4.5, "rejected_rating": 2.0},)
    ),
    "edit_reward": Sample(
        "edits_train.json",
        (
            {
                "prompt": "Make it red.",
                "choice_dist": None,
                "confidence": None,
                "path_src": "one.png",
                "path1": "one.png",
                "path2": "two.png",
                "model1": "ovis_u1",
                "model2": "flux_kontext_seed2025",
                "model1_dim1_score": 4,
                "model1_dim2_score": 3,
                "model1_overall_score": 7,
                "model2_dim1_score": 3,
                "model2_dim2_score": 3,
                "model2_overall_score": 6,
                "tie_case": False,
            },
        ),
        {"images": "{folder}"},
    ),
    "hpdv3": Sample(
        "hpdv3_train.json",
        (
            {
                "prompt": "A red square.",
                "choice_dist": [9, 1],
                "confidence": 0.97,
                "path1": "one.png",
                "path2": "two.png",
                "model1": "flux",
                "model2": "sd3",
            },
        ),
        {"images": "{folder}"},
    ),
    "omnialign_v_dpo": Sample(
        "chart.jsonl", (_PAIR | {"prompt": "<image>\nRead it.", "image": "one.png"},)
    ),
    "povid": Sample(
        "povid.json",
        (
            {
                "id": "1",
                "image": "one.png",
                "conversations": [_HUMAN, {"from": "gpt", "value": "A square."}],
                "rejected_conversations": [_HUMAN, {"from": "gpt", "value": "A cup."}],
            },
        ),
        {"images": "{folder}"},
    ),
    "project": Sample(
        "a.jsonl",
        (
            FULL | {"images": ["one.png"]},
            FULL | {"images": ["one.png"], "prompt": _LONG},
            FULL
            | {"images": ["one.png", {"bytes": None, "path": "two.png"}], "prompt": "Compare."},
            {
                "prompt": "Which?",
                "responses": ["White.", "Black.", "Grey."],
                "ranks": [1, 0, 1],
                "ratings": {"correct": [0, 5, None], "style": [1, 2, 3]},
            },
        ),
    ),
    "r1_reward": Sample(
        "train.jsonl",
        (
            {
                "message": _turns(
                    "user",
                    [{"type": "text", "text": JUDGE.format("What colour?", "Red.", "Blue.")}],
                ),
                "answer": ["<answer>1</answer>"],
                "image": base64.b64encode(RED).decode(),
            },
            {
                "message": _turns(
                    "user", JUDGE.format("Q?", "Red.", "Blue."), "assistant", _THOUGHT
                ),
                "image": "",
            },
        ),
        nested="message",
    ),
    "rlaif_v": Sample("a.parquet", (RLAIF_ROW,)),
    "rlhf_v": Sample(
        "a.parquet",
        (
            {
                "image": image_struct(),
                "text": {"question": "Where?", "chosen": "Out.", "rejected": "In."},
                "origin_dataset": "V",
            },
        ),
        nested="text",
    ),
    "sharegpt": Sample("a.json", (_SHAREGPT, _ALPACA)),
    "shp": Sample(
        "train.json",
        (
            {
                "domain": "d",
                "history": "Why?",
                "human_ref_A": "one",
                "human_ref_B": "two",
                "labels": 1,
                "score_A": 40,
                "score_B": 10,
                "score_ratio": 4.0,
            },
        ),
    ),
    "skywork_preference": Sample("a.jsonl", (_TALKED,)),
    "trl": Sample(
        "train.jsonl",
        (
            {
                "images": ["one.png"],
                "prompt": _LONG,
                "chosen": _SAID[:1],
                "rejected": _SAID[1:],
                "margin": 1.5,
            },
            {
                "chosen": [*_LONG[:1], _LONG[3], *_SAID[:1]],
                "rejected": [*_LONG[:1], _LONG[3], *_SAID[1:]],
            },
            {"prompt": "The sky is", "chosen": " blue.", "rejected": " green."},
        ),
    ),
    "tulu_preference": Sample("train-00000-of-00001.parquet", (_TALKED,)),
    "ultrafeedback": Sample(
        "a.jsonl",
        (
            {
                "source": "evol",
                "instruction": "Why?",
                "completions": [completion("a", *"5555"), completion("b", *"4444")],
            },
        ),
        {"pairs": "hardest"},
    ),
    "ultrafeedback_binarized": Sample(
        "train_prefs-00000-of-00001.parquet",
        (
            {
                "prompt": "Hi",
                "chosen": talk("Hi", "Yes"),
                "rejected": talk("Hi", "No"),
                "score_chosen": 8.0,
                "score_rejected": 6.5,
            },
        ),
    ),
    "vlfeedback": Sample(
        "a.jsonl",
        ({"id": "1", "prompt": "Describe.", "completions": FOUR[:2], "img_path": "one.png"},),
        {"pairs": "hardest"},
    ),
    "wildvision_battle": Sample(
        "test-00000-of-00001.parquet",
        (
            _BATTLE
            | {
                "conversation_a": talk("What?", "A square."),
                "conversation_b": talk("What?", "A cat."),
            },
        ),
    ),
}
"""By type; `shapes` reads no file, its settings are attacked with the recipes."""
ROW_BY_ROW = [kind for kind in sorted(SAMPLES) if FILE_SOURCES[kind].ROWS_TOGETHER == 1]
"""The types of which each row is a record. The rows of the others cannot be attacked one by one."""


def as_text(sample: Sample, row: Any) -> Any:
    """Return a row as the file holds it, its nested column as text."""
    if (
        not sample.nested
        or not isinstance(row, dict)
        or not isinstance(row.get(sample.nested), dict | list)
    ):
        return row
    return row | {sample.nested: json.dumps(row[sample.nested])}


def surroundings(folder: Path, kind: str) -> None:
    """Write what the rows of a source refer to: images, good and bad ones, links that lead nowhere, a pipe, frames, metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in (
        ("one.png", RED),
        ("two.png", BLUE),
        ("clip/f0.png", RED),
        ("clip/f1.png", RED),
        ("locked.png", RED),
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    (folder / "locked.png").chmod(0)
    (folder / "loop.png").symlink_to("loop.png")
    os.mkfifo(folder / "pipe.png")
    for name, data in pictures().items():
        (folder / f"{name}.png").write_bytes(data)
    if kind == "mmpr":
        (folder / "meta.json").write_text(
            json.dumps({"some": {"root": ".", "annotation": "annotations/some.jsonl"}})
        )


def written(folder: Path, sample: Sample, rows: Sequence[Any]) -> Iterator[tuple[list[int], Path]]:
    """Write rows into as few files as hold them, one after the other; yield the numbers of the rows in each and its path.

    A parquet file has one schema: rows of another one get a file of their own, and rows that Arrow refuses get none.
    """
    path = folder / sample.file
    if path.suffix != ".parquet":
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".json" and sample.file != "train.json":
            path.write_text(json.dumps([as_text(sample, row) for row in rows]))
        else:
            write_jsonl(path, [as_text(sample, row) for row in rows])
        yield list(range(len(rows))), path
        return
    groups: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        try:
            schema = str(pa.Table.from_pylist([as_text(sample, row)]).schema)
        except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError):
            continue
        groups.setdefault(schema, []).append(number)
    for numbers in groups.values():
        try:
            write_parquet(path, [as_text(sample, rows[number]) for number in numbers])
        except (pa.ArrowException, ValueError):  # a struct without fields cannot be stored
            continue
        yield numbers, path

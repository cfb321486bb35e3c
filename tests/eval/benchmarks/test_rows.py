"""What all benchmarks make of a row that no judge can be shown: it is counted, with its reason, and costs the others nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from mmrm.data.errors import UserError
from mmrm.data.preference import CONTROL_TOKENS
from mmrm.eval.benchmarks.registry import BENCHMARKS, BenchmarkConfig, load
from mmrm.eval.benchmarks.rows import read_json_lines, read_rows
from mmrm.eval.judges.packed_inference import Packed
from mmrm.eval.judges.scalar.judge import ScalarJudge
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.suite.suite import evaluate
from mmrm.models.backbone import load_scalar
from mmrm.models.config import BackboneConfig
from mmrm.models.heads.score_head import ScoreHeadConfig
from mmrm.models.portable.head_columns import columns_of
from tests.eval.doubles import scores_under
from tests.eval.make import png
from tests.models import tiny

Texts = dict[str, str]
"""Prompt, chosen and rejected."""
FILES: dict[str, tuple[str, Callable[[int, Texts], dict[str, Any]]]] = {
    "vl_rewardbench": (
        "data.jsonl",
        lambda number, texts: {
            "id": f"mmmu-{number}",
            "query": texts["prompt"],
            "response": [texts["chosen"], texts["rejected"]],
            "human_ranking": [0, 1],
            "image": "a.png",
            "query_source": "MMMU",
        },
    ),
    "multimodal_rewardbench": (
        "all_data.json",
        lambda number, texts: {
            "ID": f"MMBench_{number}",
            "Category": "vqa",
            "Image": "a.png",
            "Text": texts["prompt"],
            "Output1": texts["chosen"],
            "Output2": texts["rejected"],
            "Better": "Output1",
        },
    ),
    "mm_rlhf_rewardbench": (
        "mm_reward_bench.jsonl",
        lambda number, texts: {"id": f"a{number}", "image": "mcq/a.png", **texts},
    ),
    "mm_rlhf_rankings": (
        "mm_reward_bench.jsonl",
        lambda number, texts: {"id": f"a{number}", "image": "mcq/a.png", **texts},
    ),
    "reward_bench_2": (
        "test.jsonl",
        lambda number, texts: {
            "id": str(number),
            "subset": "Math",
            "prompt": texts["prompt"],
            "chosen": [texts["chosen"]],
            "rejected": [texts["rejected"]],
        },
    ),
    "preference_folder": ("records.jsonl", lambda number, texts: {"images": ["a.png"], **texts}),
}


IMAGES_AS_RESPONSES = {"mmrb2", "genai_bench", "edit_reward_bench", "videogen_rewardbench"}
"""Benchmarks whose responses are not texts. Their own tests have their unavailable rows."""


def written(folder: Path, name: str, rows: list[Texts]) -> BenchmarkConfig:
    folder.mkdir(exist_ok=True)
    for place in (folder, folder / "mcq"):
        place.mkdir(exist_ok=True)
        (place / "a.png").write_bytes(png())
    file, made = FILES[name]
    found = [made(number, texts) for number, texts in enumerate(rows)]
    text = (
        json.dumps(found)
        if file.endswith(".json")
        else "".join(json.dumps(row) + "\n" for row in found)
    )
    (folder / file).write_text(text)
    return BenchmarkConfig(name=name, location=str(folder))


def rows(count: int) -> list[Texts]:
    return [
        {"prompt": f"which {number}?", "chosen": f"black {number}", "rejected": "no"}
        for number in range(count)
    ]


@pytest.mark.parametrize("field", ["prompt", "chosen", "rejected"])
@pytest.mark.parametrize("name", sorted(set(BENCHMARKS) - IMAGES_AS_RESPONSES))
def test_a_row_with_a_control_token_is_unavailable_and_the_others_keep_their_figures(
    name: str, field: str, tmp_path: Path
) -> None:
    torn = [
        {**row, field: f"{row[field]} {token}"}
        for row, token in zip(rows(99), CONTROL_TOKENS, strict=False)
    ]
    plain, mixed = (
        load(written(tmp_path / part, name, found))
        for part, found in (("a", rows(4)), ("b", rows(4) + torn))
    )
    assert len(mixed.origin.unavailable) == len(CONTROL_TOKENS)
    said = {
        "prompt": "the prompt",
        "chosen": "the chosen response",
        "rejected": "the rejected response",
    }[field]
    for token, reason in zip(CONTROL_TOKENS, mixed.origin.unavailable, strict=True):
        assert f"{said} holds {token!r}" in reason
    assert any(
        note.startswith(f"{len(CONTROL_TOKENS)} of {4 + len(torn)} rows are unavailable")
        for note in mixed.origin.notes
    )
    model = load_scalar(
        BackboneConfig(path=str(tiny.checkpoint(tmp_path / "base")), dtype="float32"),
        ScoreHeadConfig(),
    ).eval()
    tiny.stir(model.head, 0.5)
    judge = ScalarJudge(
        model=model,
        packed=Packed(tiny.encoder(), model.device, 4096),
        read="end_of_turn",
        columns=columns_of({}),
    )
    found = [
        evaluate(
            one.examples,
            scores_under(judge, one.examples),
            BENCHMARKS[name],
            ProtocolConfig(),
            one.origin,
        )
        for one in (plain, mixed)
    ]
    assert found[0].micro == found[1].micro
    assert found[0].micro.n == 4
    assert found[1].unavailable == mixed.origin.unavailable


def test_a_benchmark_of_such_rows_alone_is_refused(tmp_path: Path) -> None:
    torn = [{**row, "prompt": "<|im_start|>"} for row in rows(2)]
    with pytest.raises(
        UserError, match=r"none of its 2 rows can be shown to a judge:\n.*<\|im_start\|>"
    ):
        load(written(tmp_path, "vl_rewardbench", torn))


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    names = ["id", "text", "text"]
    table = pa.Table.from_arrays([pa.array([1]), pa.array(["one"]), pa.array(["two"])], names=names)
    pq.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(UserError, match=r"rows\.parquet: the column 'text' occurs twice"):
        read_rows([tmp_path / "rows.parquet"])


def test_a_field_that_is_there_twice_in_a_struct_is_refused(tmp_path: Path) -> None:
    fields = [pa.array(["one"]), pa.array(["two"])]
    struct = pa.StructArray.from_arrays(fields, names=["path", "path"])
    pq.write_table(pa.table({"image": struct}), tmp_path / "rows.parquet")
    with pytest.raises(UserError, match=r"rows\.parquet: the rows cannot be read"):
        read_rows([tmp_path / "rows.parquet"])


@pytest.mark.parametrize("line", ['{"id": 1, "id": 2}', '{"a": [{"rewards": 1, "rewards": 2}]}'])
def test_a_key_that_is_there_twice_is_refused_by_its_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "rows.jsonl").write_text('{"id": 0}\n' + line + "\n")
    with pytest.raises(
        UserError, match=r"rows\.jsonl:2: not JSON: the key '(id|rewards)' is there"
    ):
        read_json_lines(tmp_path / "rows.jsonl")

"""The table of benchmarks, and what its rows have in common."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from mmrm.data.preference import num_image_parts
from mmrm.eval.benchmarks.benchmark import PublishedEdition, row_count_notes
from mmrm.eval.benchmarks.registry import BENCHMARKS, BenchmarkConfig, load
from mmrm.eval.candidates import Example
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.results.official_scores import rules_for_format
from mmrm.eval.suite.baselines import baseline_scores
from mmrm.eval.suite.suite import evaluate
from tests.eval.benchmarks.test_edit_reward_bench import two_edits as edit_row
from tests.eval.benchmarks.test_genai_bench import generation_row
from tests.eval.benchmarks.test_mm_rlhf_rewardbench import row as rlhf_row
from tests.eval.benchmarks.test_mmrb2 import hub_row as mmrb2_row
from tests.eval.benchmarks.test_multimodal_rewardbench import row as multimodal_row
from tests.eval.benchmarks.test_reward_bench_2 import row as reward_bench_row
from tests.eval.benchmarks.test_vl_rewardbench import hub_row as vl_row
from tests.eval.benchmarks.test_vl_rewardbench import write_parquet
from tests.eval.make import example, png

ROOT = Path(__file__).resolve().parents[3]


def test_every_row_bears_its_name_and_its_rules_read_a_format_that_it_writes() -> None:
    for name, benchmark in BENCHMARKS.items():
        assert benchmark.name == name
        assert {rule.reads for rule in benchmark.rules.values()} <= set(benchmark.files)
        assert set(benchmark.formats) <= set(benchmark.files)
        assert all(
            form.rules in rules_for_format(read, benchmark)
            for read, form in benchmark.files.items()
            if form.rules
        )
        assert all(
            not edition.groups or sum(edition.groups.values()) == edition.rows
            for edition in benchmark.known
        )


@pytest.mark.parametrize(
    "name",
    [
        *("vl_rewardbench", "multimodal_rewardbench", "mm_rlhf_rewardbench"),
        *("mm_rlhf_rankings", "reward_bench_2"),
    ],
)
@pytest.mark.parametrize("place", ["embedded", "embedded-medium"])
def test_the_embedded_editions_load_and_score(name: str, place: str) -> None:
    found = load(BenchmarkConfig(name=name, location=place, limit=30))
    assert len(found.examples) == 30
    assert len({example.key for example in found.examples}) == 30
    assert all(num_image_parts(example.prompt) == len(example.images) for example in found.examples)
    verdicts = baseline_scores("random", found.examples)
    result = evaluate(found.examples, verdicts, BENCHMARKS[name], ProtocolConfig(), found.origin)
    assert result.micro == result.baselines["random"].micro
    assert result.origin == place
    assert (
        load(BenchmarkConfig(name=name, location=result.origin, limit=30)).examples
        == found.examples
    )


BYTES = {"bytes": png(), "path": "short/a.png"}
PARTS: dict[str, tuple[str, Callable[[int], dict[str, Any]]]] = {
    "vl_rewardbench": ("data/test", lambda number: vl_row(f"RLAIF-V-{number}", [0, 1], BYTES)),
    "multimodal_rewardbench": (
        "test",
        lambda number: multimodal_row("vqa", f"MMBench_{number}", BYTES),
    ),
    "mm_rlhf_rewardbench": ("data/train", lambda number: rlhf_row(f"{number}", image=BYTES)),
    "mm_rlhf_rankings": ("data/train", lambda number: rlhf_row(f"{number}", image=BYTES)),
    "reward_bench_2": ("data/test", lambda number: reward_bench_row(str(number))),
    "mmrb2": ("edit/test", mmrb2_row),
    "genai_bench": ("test_v1", generation_row),
    "edit_reward_bench": ("2pair/train", edit_row),
    "preference_folder": (
        "rows",
        lambda number: {"prompt": f"{number}", "chosen": "a", "rejected": "b", "images": [BYTES]},
    ),
}
"""Name of a benchmark to the beginning of its parquet files' names, and its rows."""
ONE_FILE = {"videogen_rewardbench"}
"""Benchmarks whose rows are in one file."""


def test_every_benchmark_has_parts_or_one_file() -> None:
    assert BENCHMARKS.keys() == PARTS.keys() | ONE_FILE


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTS)
def test_all_parts_of_a_local_copy_are_read_or_none(name: str, tmp_path: Path) -> None:
    start, row = PARTS[name]
    parts = [tmp_path / f"{start}-{number:05}-of-00003.parquet" for number in range(3)]
    for number, part in enumerate(parts):
        write_parquet([row(2 * number), row(2 * number + 1)], part)
    found = load(BenchmarkConfig(name=name, location=str(tmp_path)))
    assert len({example.key for example in found.examples}) == len(found.examples) == 6
    num_images = 0 if name in ("reward_bench_2", "genai_bench") else 1
    assert {len(example.images) for example in found.examples} == {num_images}
    assert (
        load(BenchmarkConfig(name=name, location=found.origin.location)).examples == found.examples
    )
    result = evaluate(
        found.examples,
        baseline_scores("first", found.examples),
        BENCHMARKS[name],
        ProtocolConfig(),
        found.origin,
    )
    assert result.micro.n == 6
    parts[2].unlink()
    for location in (parts[1], tmp_path):
        with pytest.raises(
            ValueError, match=r"there are the parts .*00001-of-00003.*each of 3 must be there once"
        ):
            load(BenchmarkConfig(name=name, location=str(location)))


def test_an_unknown_benchmark_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValidationError, match=r"Did you mean vl_rewardbench\?"):
        BenchmarkConfig(name="vl_reward_bench")
    with pytest.raises(ValidationError):
        BenchmarkConfig(name="vl_rewardbench", limit=0)


def test_settings_that_a_place_does_not_have_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"`revision` is 'main'.*Remove"):
        BenchmarkConfig(name="vl_rewardbench", location="/data", revision="main")
    with pytest.raises(ValidationError, match=r"`image_root` is '/data'.*Remove"):
        BenchmarkConfig(name="vl_rewardbench", location="embedded", image_root="/data")


def rows(groups: str) -> list[Example]:
    return [example(str(number), group=group, id=number) for number, group in enumerate(groups)]


def test_counts_are_compared_with_the_nearest_edition() -> None:
    editions = [PublishedEdition("old", 5, {"a": 3, "b": 2}), PublishedEdition("new", 10)]
    assert row_count_notes(rows("aaabb"), editions) == []
    assert row_count_notes(rows("aabbc"), editions) == [
        "Group a: 2 rows; old has 3.",
        "Group c: 1 rows; old has 0.",
    ]
    assert row_count_notes(rows("a" * 9), editions) == ["9 rows; new has 10."]
    assert row_count_notes(rows("aa"), [PublishedEdition("small", 2, items=1)]) == [
        "2 items; small has 1."
    ]


@pytest.mark.slow
def test_a_recipe_is_checked_without_heavy_imports() -> None:
    code = (
        "import sys; from mmrm.eval.benchmarks.registry import BenchmarkConfig; BenchmarkConfig(name='vl_rewardbench');"
        "import mmrm.eval.results.predictions; heavy = ('torch', 'transformers', 'datasets', 'pyarrow');"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"

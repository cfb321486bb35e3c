"""Videos among the examples of a report, as strips of frames."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmrm.data.errors import UserError
from mmrm.data.film_strip import film_strip
from mmrm.eval.benchmarks.registry import BenchmarkConfig, load
from mmrm.eval.reporting import examples as report_examples
from mmrm.eval.reporting.examples import ShownRows, shown_rows
from mmrm.eval.reporting.page import page
from mmrm.eval.reporting.run_content import Outcome, read_run
from mmrm.eval.results.result import Result
from tests.data.sources.fixtures import write_jsonl
from tests.data.test_frames import video
from tests.eval.made_run import OWN, judge, scores

pytest.importorskip("av")
PAIRS = [
    {"prompt": "See <video>", "videos": ["a.mp4"], "chosen": "It brightens.", "rejected": "No."},
    {"prompt": "Film a light.", "chosen_videos": ["a.mp4"], "rejected_videos": ["b.mp4"]}
    | {"chosen": [{"type": "video"}], "rejected": [{"type": "video"}]},
]


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    """Judge two pairs with videos, and return the folder of the result."""
    for name, num_frames in (("a", 20), ("b", 5)):
        video(tmp_path / "pairs" / f"{name}.mp4", num_frames)
    write_jsonl(tmp_path / "pairs" / "pairs.jsonl", PAIRS)
    config = BenchmarkConfig(name=OWN, location=str(tmp_path / "pairs"))
    judge(load(config), tmp_path / "eval", OWN, lambda example: scores(example, 1.0))
    return tmp_path / "eval"


def shown(judged: Path) -> ShownRows:
    """Return the rows of the result as a report shows them."""
    result = Result.model_validate_json((judged / f"{OWN}.json").read_text(encoding="utf-8"))
    [predictions] = judged.rglob("predictions.jsonl")
    config = BenchmarkConfig(name=OWN, location=result.origin)
    return shown_rows(Outcome(result, predictions), [config])


def test_videos_of_prompts_and_responses_are_shown_as_strips(judged: Path) -> None:
    rows = shown(judged)
    names = {uri: name for name, uri in rows.images.items()}
    assert len(names) == 2  # a.mp4 is shown twice, and is on the page once
    assert all(row["missing"] == [] for row in rows.rows)
    with_prompt, with_responses = sorted(rows.rows, key=lambda row: -len(row["videos"]))
    assert [len(with_prompt["videos"]), with_prompt["response_videos"]] == [1, [[], []]]
    assert with_responses["videos"] == []
    [[first], [second]] = with_responses["response_videos"]
    assert {first, second} == set(names.values())
    assert with_prompt["videos"][0] in {first, second}


def test_a_video_that_cannot_be_shown_is_named(
    judged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_pyav(*arguments: object) -> str:
        raise UserError("PyAV is not installed.")

    monkeypatch.setattr(report_examples, film_strip.__name__, without_pyav)
    messages = sorted(message for row in shown(judged).rows for message in row["missing"])
    assert messages == [
        "Video 1 cannot be shown: PyAV is not installed.",
        "Video of response 1: 1 cannot be shown: PyAV is not installed.",
        "Video of response 2: 1 cannot be shown: PyAV is not installed.",
    ]


def test_the_page_of_judged_videos_has_their_strips(judged: Path) -> None:
    html = page(read_run(judged.parent))
    assert html.count("data:image/webp;base64,") == 2

"""Records behind an endpoint: several requests at one time, in order, and none asked for twice after an error."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mmrm.data.errors import EndpointError
from mmrm.data.prompts import write_judgement
from mmrm.eval.annotation.annotator import Annotator, annotate
from mmrm.eval.annotation.endpoint_annotator import (
    RECORDS_PER_REQUEST,
    EndpointAnnotator,
    open_endpoint_annotator,
)
from mmrm.eval.annotation.pair_annotator import AnnotatorOptions
from mmrm.eval.judges.endpoint.client import Answer as Reply
from mmrm.eval.judges.endpoint.config import EndpointConfig
from tests.eval.annotation.test_annotator import Model, records
from tests.eval.endpoint_server import serve


class MeetingModel:
    """Answers a request only once `num_meeting` requests are in progress at the same time."""

    def __init__(self, num_meeting: int) -> None:
        self.barrier = threading.Barrier(num_meeting)

    def __call__(self, body: Mapping[str, Any]) -> Reply:
        """Answer a request after the others of its group have arrived."""
        self.barrier.wait(timeout=60)
        return Reply(write_judgement("Response 1 is better.", 1), False, 0, 0)


def test_requests_are_in_progress_at_one_time(tmp_path: Path) -> None:
    model = EndpointAnnotator(MeetingModel(3), "m", concurrency=3)
    annotator = Annotator(model, (0.0,), agree=True)
    # Six records in both orders are twelve requests, four groups of three.
    path = tmp_path / "out.jsonl"
    assert annotate(records(), range(6), annotator, path, "keep", records_together=6) == 6
    assert model.records_together == 3 * RECORDS_PER_REQUEST


@pytest.mark.parametrize("agree", [False, True])
def test_the_records_are_those_of_one_request_after_the_other(tmp_path: Path, agree: bool) -> None:
    pairs = records(12)
    texts = []
    for concurrency in (1, 4):
        model = EndpointAnnotator(Model(pairs, needed=2), "m", concurrency=concurrency)
        annotator = Annotator(model, agree=agree)
        path = tmp_path / f"{concurrency}.jsonl"
        annotate(pairs, range(12), annotator, path, "drop", {}, model.records_together)
        journal = path.with_suffix(".journal.jsonl")
        texts.append(path.read_text() + journal.read_text())
    assert texts[0] == texts[1]


def test_after_an_error_no_reply_is_asked_for_again(tmp_path: Path) -> None:
    pairs = records(12)
    path = tmp_path / "out.jsonl"
    with serve() as server:
        config = EndpointConfig(
            type="endpoint",
            url=server.url,
            model="m",
            concurrency=2,
            retries=0,
            cache=str(tmp_path / "cache"),
        )
        options = AnnotatorOptions(max_tokens=64, template=None)
        model = open_endpoint_annotator(tmp_path / "judge.yaml", config, options)
        annotator = Annotator(model, (0.0,))
        server.text = write_judgement("Response 1 is better.", 1)
        server.failures += [200] * 5 + [401]
        with pytest.raises(EndpointError, match="HTTP 401"):
            annotate(pairs, range(12), annotator, path, "keep", {}, model.records_together)
        annotate(pairs, range(12), annotator, path, "keep", {}, model.records_together)
        assert server.at_once["most"] <= 2
        # Of the twelve requests only the failed one is sent again.
        assert len(server.requests) == 12 + 1
    assert len(path.read_text().splitlines()) == 12

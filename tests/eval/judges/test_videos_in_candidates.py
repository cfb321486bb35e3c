"""Videos that callers give to a judge: in the turns, in a list, in responses and in TRL's columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from mmrm.data.encoded_video import Video
from mmrm.data.errors import RecordError
from mmrm.eval.candidates import Candidates, Scores
from mmrm.eval.judges.loading import LoadedJudge
from mmrm.eval.judges.messages import candidates_of

FIRST = {"type": "video", "video": b"first"}
SECOND = {"type": "video", "video": b"second"}
QUESTION = {"type": "text", "text": "What happens?"}


@dataclass
class WatchingJudge:
    """Keeps what it is asked, and scores a response by the number of videos it is shown with."""

    asked: list[Candidates] = field(default_factory=list)

    def score_batch(self, batch: Sequence[Candidates], *_: Any) -> list[Scores]:
        """Return the number of videos of the prompt and of each response."""
        self.asked += batch
        results = []
        for candidates in batch:
            counts = [len(candidates.videos) + len(one.videos) for one in candidates.responses]
            results.append(Scores(tuple(map(float, counts))))
        return results


def judge() -> tuple[LoadedJudge, WatchingJudge]:
    """Return a loaded judge, and the object that keeps what it is asked."""
    watching = WatchingJudge()
    return LoadedJudge(watching), watching  # type: ignore[arg-type]


def test_a_judge_gets_the_videos_of_turns_lists_and_responses() -> None:
    loaded, watching = judge()
    turn = {"role": "user", "content": [FIRST, QUESTION]}
    assert loaded.score([turn], ["a", [SECOND, QUESTION]]) == [1, 2]
    assert loaded.score("What happens?", ["a"], videos=[b"first", b"second"]) == [2]
    assert loaded.compare("What?", "a", [FIRST], videos=[b"first"]).order == [1, 0]
    candidates = watching.asked[0]
    assert candidates.videos == (Video(b"first"),)
    assert candidates.responses[1].content == (Video(b"second"), "What happens?")
    assert candidates.all_videos == (Video(b"first"), Video(b"second"))


def test_the_key_depends_on_every_video() -> None:
    def key(content: bytes, of_response: bytes) -> str:
        response = [{"type": "video", "video": of_response}]
        return candidates_of("What?", [response], videos=[content]).key

    keys = {key(b"a", b"b"), key(b"a", b"c"), key(b"d", b"b")}
    assert len(keys) == 3
    assert key(b"a", b"b") in keys
    # Keys of conversations without videos are those of earlier releases.
    assert candidates_of("x", ["a"]).key.startswith("b74e3864861e5a0a")
    assert candidates_of("x", ["a"], [b"an image"]).key.startswith("6998bfb8f7cbefcf")


def test_a_video_that_is_none_is_refused_with_the_name() -> None:
    with pytest.raises(RecordError, match="row 3: a video is a int"):
        candidates_of("What?", ["a"], identity="row 3", videos=[3])


@pytest.mark.parametrize(
    "columns",
    [
        {"videos": [[b"first"], [b"first"], None]},
        {"video": [b"first", b"first", b"second"], "other": [1, 2, 3]},
    ],
)
def test_the_videos_of_a_batch_of_trl_are_judged(columns: dict[str, Any]) -> None:
    loaded, watching = judge()
    prompts = [[{"role": "user", "content": "What happens?"}]] * 3
    completions = [
        "A cat runs.",
        [{"role": "assistant", "content": [SECOND]}],
        "Nothing.",
    ]
    scores = loaded.reward(prompts, completions, **columns)
    of_last_row = float("video" in columns)
    assert scores == [1, 2, of_last_row]
    assert len(watching.asked) == 2  # the first two rows have the same prompt


def test_a_prompt_with_its_videos_does_not_get_them_again() -> None:
    loaded, _ = judge()
    prompt = [{"role": "user", "content": [FIRST, QUESTION]}]
    assert loaded.reward([prompt], ["a"], videos=[[b"first"]]) == [1]

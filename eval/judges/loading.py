"""Loading of a judge from a checkpoint folder or from the YAML file of a judge.

judge = load_judge("runs/mine/best")
content = [{"type": "image", "image": "cat.png"}, {"type": "text", "text": "What is this?"}]
scores = judge.score([{"role": "user", "content": content}], ["A cat.", "A dog."])
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mmrm.data.config.registry import load
from mmrm.data.errors import RecordError
from mmrm.data.preference import Response
from mmrm.data.sources.shared.conversation import response_text, turn_of_response
from mmrm.eval.candidates import Candidates, Scores
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.judge import Judge
from mmrm.eval.judges.messages import candidates_of
from mmrm.eval.judges.registry import judge_config
from mmrm.models.distributed import alone
from mmrm.models.portable.conversations import Response as WrittenResponse


@dataclass(frozen=True, slots=True)
class LoadedJudge:
    """A loaded judge, for users' own prompts and for TRL's trainers.

    The prompt, `messages`, is a text or a list of turns in transformers' or OpenAI's form. Its
    images may be inside the turns, or are given as `images`: PIL images, bytes, paths or data URIs.
    The same holds for its videos, which are bytes, paths or data URIs. A response is a text, or a
    list of parts that holds its images and videos, such as
    [{"type": "image", "image": "drawn.png"}]. `mmrm.models.portable.conversations` describes all
    forms.
    """

    judge: Judge

    def score(
        self,
        messages: Any,
        responses: Sequence[WrittenResponse],
        images: Iterable[Any] = (),
        videos: Iterable[Any] = (),
    ) -> list[float]:
        """Return the score of each response to the prompt `messages`; higher is better."""
        return list(self.rank(messages, responses, images, videos).values)

    def rank(
        self,
        messages: Any,
        responses: Sequence[WrittenResponse],
        images: Iterable[Any] = (),
        videos: Iterable[Any] = (),
    ) -> Scores:
        """Return the scores, the order and the margin of the responses to the prompt `messages`.

        If the judge writes, the result also has its texts. In a distributed run, each rank judges
        its own responses without waiting for the others.

        Raises: RecordError if the messages, responses, images or videos cannot be judged.
        """
        candidates = candidates_of(messages, responses, images, videos=videos)
        with alone():
            return self.judge.score_batch([candidates])[0]

    def compare(
        self,
        messages: Any,
        a: WrittenResponse,
        b: WrittenResponse,
        images: Iterable[Any] = (),
        videos: Iterable[Any] = (),
    ) -> Scores:
        """Return the scores of the responses `a` and `b` to the prompt `messages`.

        In the result, `order[0]` is the index of the better response, 0 for `a` and 1 for `b`. A
        `margin` of 0 is a tie.
        """
        return self.rank(messages, [a, b], images, videos)

    def reward(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float]:
        """Return the score of each completion of a TRL batch; TRL's `reward_funcs` accepts this.

        Completions of the same prompt are judged together. In a distributed run, each rank judges
        its own batch without waiting for the others.

        Args:
            prompts: A text, or a list of turns, for each completion.
            completions: Texts, or lists of turns of which the last turn is scored. Its content may
                hold images and videos, as the answers of an image generator do.
            columns: Other columns of the batch; `images` or `image`, and `videos` or `video`, may
                be among them.
        """
        prompts_by_key: dict[str, Candidates] = {}
        rows_by_key: dict[str, list[int]] = {}
        responses: list[Response] = []
        for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            images = () if _holds(prompt, "image") else _media_of_row(columns, row, "image")
            videos = () if _holds(prompt, "video") else _media_of_row(columns, row, "video")
            # The responses are the same in all rows, so that equal prompts have equal keys.
            converted_prompt = candidates_of(prompt, ["-"], images, f"row {row}", videos)
            prompts_by_key.setdefault(converted_prompt.key, converted_prompt)
            rows_by_key.setdefault(converted_prompt.key, []).append(row)
            responses.append(_response_of(completion, f"row {row}"))
        batch: list[Candidates] = []
        for key, converted_prompt in prompts_by_key.items():
            responses_of_prompt = tuple(responses[row] for row in rows_by_key[key])
            batch.append(replace(converted_prompt, responses=responses_of_prompt))
        with alone():
            scores_of_batch = self.judge.score_batch(batch)
        score_by_row: dict[int, float] = {}
        for rows, scores in zip(rows_by_key.values(), scores_of_batch, strict=True):
            score_by_row.update(zip(rows, scores.values, strict=True))
        return [score_by_row[row] for row in range(len(prompts))]


def _media_of_row(columns: Mapping[str, Any], row: int, kind: str) -> Sequence[Any]:
    """Return the images or videos of a row from the columns of a TRL batch; empty without any.

    TRL names the column `images` if a row may have several, and `image` if it has one.

    Args:
        columns: The columns of the batch.
        row: The number of the row.
        kind: "image" or "video".
    """
    if f"{kind}s" in columns:
        return columns[f"{kind}s"][row] or ()
    if kind in columns:
        return (columns[kind][row],)
    return ()


def _holds(prompt: Any, kind: str) -> bool:
    """Return True if the turns of a TRL prompt contain images, or contain videos.

    The columns of the batch then contain the same ones, which must not be added again.

    Args:
        prompt: A text or a list of turns.
        kind: "image" or "video".
    """
    if isinstance(prompt, str):
        return False
    for turn in prompt:
        content = turn["content"]
        if isinstance(content, str):
            continue
        if any(part.get(kind) is not None for part in content):
            return True
    return False


def _response_of(completion: Any, identity: str) -> Response:
    """Return the response of a TRL completion: the completion itself, or its last turn.

    Args:
        completion: A text, or a list of turns. The last turn may hold images and videos.
        identity: The name of the completion in messages about it.

    Raises: RecordError, which names the completion, if it is no text and no list of turns, its last
        turn is not the assistant's, or a part holds no image or video.
    """
    if not isinstance(completion, (str, list)):
        raise RecordError(
            f"{identity}: the completion is a {type(completion).__name__}; required is a text or a "
            "list of turns whose last one is the assistant's, as TRL gives it. Correct the batch."
        )
    try:
        if isinstance(completion, str):
            return Response.of_text(response_text(completion))
        last_turn = completion[-1:]
        parts = turn_of_response(last_turn)
        if all(part["type"] == "text" for part in parts):
            return Response.of_text(response_text(last_turn))
    except RecordError as error:
        raise RecordError(f"{identity}: {error}") from error
    # The prompt is not used: only the parts of the response are read.
    return candidates_of("-", [parts], identity=identity).responses[0]


def load_judge(path: str | Path, runtime: Runtime | None = None) -> LoadedJudge:
    """Return the judge at `path`: a checkpoint folder of any kind, or the YAML file of a judge.

    Without a `runtime`, the judge runs on the first GPU if there is one, else on the CPU.

    Raises: CheckpointError if there is no complete judge at `path`.
    """
    config = judge_config(Path(path))
    if runtime is None:
        runtime = Runtime(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    load_kind = load(config.implementation)  # the function that loads judges of this `type`
    judge: Judge = load_kind(Path(path), runtime, config)
    return LoadedJudge(judge)

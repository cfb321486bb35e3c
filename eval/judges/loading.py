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
from mmrm.data.sources.shared.conversation import response_text
from mmrm.eval.candidates import Candidates, Scores
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.judge import Judge
from mmrm.eval.judges.messages import candidates_of
from mmrm.eval.judges.registry import judge_config
from mmrm.models.distributed import alone


@dataclass(frozen=True, slots=True)
class LoadedJudge:
    """A loaded judge, for users' own prompts and for TRL's trainers.

    `messages` are a text or turns in transformers' or OpenAI's form, images as PIL images, bytes,
    paths or data URIs; see `mmrm.models.portable.conversations`.
    """

    judge: Judge

    def score(
        self, messages: Any, responses: Sequence[str], images: Iterable[Any] = ()
    ) -> list[float]:
        """Return the score of each response; higher is better."""
        return list(self.rank(messages, responses, images).values)

    def rank(self, messages: Any, responses: Sequence[str], images: Iterable[Any] = ()) -> Scores:
        """Return scores, order and margin of the responses, and the texts that the judge wrote.

        In a distributed run each rank asks for itself.

        Raises: RecordError if the messages, responses or images cannot be judged.
        """
        with alone():
            return self.judge.score_batch([candidates_of(messages, responses, images)])[0]

    def compare(self, messages: Any, a: str, b: str, images: Iterable[Any] = ()) -> Scores:
        """Return the scores of two responses: `order[0]` is 0 for `a`; a `margin` of 0 is a tie."""
        return self.rank(messages, [a, b], images)

    def reward(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float]:
        """Return the scores of a TRL batch; TRL's `reward_funcs` accepts this method.

        In a distributed run each rank asks for itself.

        Args:
            prompts: A text, or a list of turns, for each completion.
            completions: Texts, or lists of turns of which the last turn is scored.
            columns: Other columns of the batch; `images` or `image` may be among them.
        """
        questions_by_key: dict[str, Candidates] = {}
        rows_by_key: dict[str, list[int]] = {}
        texts: list[str] = []
        for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            images = () if _holds_images(prompt) else _images_of_row(columns, row)
            question = candidates_of(prompt, ["-"], images, f"row {row}")
            questions_by_key.setdefault(question.key, question)
            rows_by_key.setdefault(question.key, []).append(row)
            texts.append(_text_of(completion))
        batch: list[Candidates] = []
        for key, question in questions_by_key.items():
            responses = tuple(texts[row] for row in rows_by_key[key])
            batch.append(replace(question, responses=responses))
        with alone():
            scores_of_batch = self.judge.score_batch(batch)
        score_by_row: dict[int, float] = {}
        for rows, scores in zip(rows_by_key.values(), scores_of_batch, strict=True):
            score_by_row.update(zip(rows, scores.values, strict=True))
        return [score_by_row[row] for row in range(len(prompts))]


def _images_of_row(columns: Mapping[str, Any], row: int) -> Sequence[Any]:
    """Return the images that a batch of TRL's has for a row, in one of two columns."""
    if "images" in columns:
        return columns["images"][row] or ()
    if "image" in columns:
        return (columns["image"][row],)
    return ()


def _holds_images(prompt: Any) -> bool:
    """Return True if a prompt of TRL's holds its images; a column of the batch then has them too."""
    if isinstance(prompt, str):
        return False
    for turn in prompt:
        content = turn["content"]
        if isinstance(content, str):
            continue
        if any(part.get("image") is not None for part in content):
            return True
    return False


def _text_of(completion: Any) -> str:
    """Return the text of a completion, which is the last of its turns."""
    return response_text(completion if isinstance(completion, str) else completion[-1:])


def load_judge(path: str | Path, runtime: Runtime | None = None) -> LoadedJudge:
    """Return the judge at `path`: a checkpoint folder of any kind, or the YAML file of a judge.

    Without `runtime` it runs on the first GPU, or else on the CPU.

    Raises: CheckpointError if there is no complete judge at `path`.
    """
    config = judge_config(Path(path))
    if runtime is None:
        runtime = Runtime(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    judge: Judge = load(config.implementation)(Path(path), runtime, config)
    return LoadedJudge(judge)

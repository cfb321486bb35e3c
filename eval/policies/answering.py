"""A policy on questions with known answers: one greedy answer and N sampled ones to each, verified and scored by a judge.

Of these come accuracy, greedy and sampled, best-of-N by the judge, pass@N and the majority's answer, and the KL divergence from
another policy. A sampled answer is drawn by the seed, the question and its number alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter

from mmrm.data.arrays import Floats, Ints
from mmrm.data.images import decode
from mmrm.data.markers import MARKERS, stray_marker
from mmrm.data.preference import Preference
from mmrm.data.storage.content import question_key, record_key
from mmrm.data.storage.files import content_digest, write_json, write_json_lines
from mmrm.eval.candidates import Candidates
from mmrm.eval.journal import SILENT, Journal
from mmrm.eval.judges.judge import Judge
from mmrm.eval.judges.messages import candidates_of
from mmrm.eval.judges.packed_inference import Packed, run_packed
from mmrm.eval.policies.best_of import best_of, majority, pass_at
from mmrm.eval.results.intervals import cluster_codes, share_interval
from mmrm.eval.verifiers import final_answer, states
from mmrm.models.config import SamplingConfig
from mmrm.models.distributed import rank
from mmrm.models.encoder import Encoder
from mmrm.models.generation import WritingCost, generate
from mmrm.models.packed_generation import to_write
from mmrm.models.packing.groups import Continuation, Group, PackedBatch


@dataclass(frozen=True, slots=True)
class Answers:
    """What a policy answered to a question; the greedy answer comes first, the sampled ones follow."""

    ids: tuple[tuple[int, ...], ...]
    """Their tokens, the end of the turn included where the policy wrote it."""
    texts: tuple[str, ...]
    right: tuple[bool, ...]
    cut_off: tuple[bool, ...]
    """Those that the limit ended, or that hold a control token: they are wrong."""
    scores: tuple[float, ...] = ()
    """The judge's; empty without one."""

    @property
    def said(self) -> list[tuple[str, bool]]:
        """What each sampled answer says, for a vote; whether it is right is part of it, as one that was cut off never is."""
        said = (" ".join(final_answer(text).casefold().split()) for text in self.texts[1:])
        return list(zip(said, self.right[1:], strict=True))

    def figures(self) -> dict[str, float]:
        """Return what the question adds to each accuracy; no `best` without scores."""
        right, number = self.right[1:], len(self.right) - 1
        found = {
            "greedy": float(self.right[0]),
            "sampled": sum(right) / number,
            "pass": pass_at(right, number),
            "majority": majority(self.said, right, number),
        }
        return found | ({"best": best_of(self.scores[1:], right, number)} if self.scores else {})


@dataclass(frozen=True, slots=True)
class QuestionEncoder:
    """A question as a group that is answered `count` times; runs in loader workers."""

    encoder: Encoder
    count: int

    def __call__(self, record: Preference) -> Group:
        """Encode the question; raises RecordError for what cannot be shown."""
        return to_write(self.prompt(record), self.count)

    def prompt(self, record: Preference) -> Group:
        """Return the whole prompt, without continuation."""
        self.encoder.refuse_control_tokens(record)
        images = [decode(image, record.identity) for image in record.images]
        group = self.encoder.encode(images, [self.encoder.render(record.prompt)], None)
        return replace(
            group, prompt_ids=group.prompt_ids + group.continuations[0].ids, continuations=()
        )


def readable(encoder: Encoder, ids: Sequence[int], *, ended: bool) -> tuple[str, bool]:
    """Return a policy's tokens as the text that a judge may read, and whether it is whole: it `ended`, without control tokens.

    Control tokens would be read as tokens again, so they are taken out, also where their letters
    were spelt. The same is done with markers such as `<image>`, which a judge refuses in a
    response: one answer must not end a run.
    """
    text = shown = encoder.tokenizer.decode(ids)
    while stray_marker(shown) or any(token in shown for token in encoder.control_tokens):
        shown = MARKERS.sub("", shown)
        for token in encoder.control_tokens:
            shown = shown.replace(token, "")
    return shown, ended and shown == text


@dataclass(frozen=True, slots=True)
class Answerer:
    """A policy that answers questions; all ranks must call together."""

    model: Any
    """The language model itself, unwrapped and in eval mode."""
    packed: Packed
    sampling: SamplingConfig
    samples: int
    seed: int = 0

    def answer(self, questions: Sequence[Preference], journal: Journal = SILENT) -> list[Answers]:
        """Return the answers to every question, without scores."""
        greedy = self._written(
            questions,
            self.sampling.model_copy(update={"temperature": 0.0}),
            1,
            journal.of("greedy"),
        )
        sampled = self._written(questions, self.sampling, self.samples, journal.of("sampled"))
        return [self._read(*parts) for parts in zip(questions, greedy, sampled, strict=True)]

    def _read(self, question: Preference, greedy: Written, sampled: Written) -> Answers:
        written, encoder = (*greedy, *sampled), self.packed.encoder
        if question.truth is None:
            raise ValueError(f"{question.identity}: a question without a known answer")
        read = [readable(encoder, ids, ended=not truncated) for ids, truncated in written]
        right = tuple(whole and states(text, question.truth) for text, whole in read)
        ids = tuple(ids if truncated else (*ids, encoder.end_of_turn) for ids, truncated in written)
        return Answers(
            ids, tuple(text for text, _ in read), right, tuple(not whole for _, whole in read)
        )

    def _written(
        self,
        questions: Sequence[Preference],
        sampling: SamplingConfig,
        count: int,
        journal: Journal,
    ) -> list[Written]:
        encoder = self.packed.encoder

        def run(batch: PackedBatch, asked: Sequence[Preference]) -> list[Written]:
            seeds = [
                f"{self.seed}/{one.identity}/{number}" for one in asked for number in range(count)
            ]
            forbidden = [encoder.vision.image]
            found = generate(
                self.model,
                batch,
                end=encoder.end_of_turn,
                forbidden=forbidden,
                sampling=sampling,
                seeds=seeds,
            )
            rest = iter([(one.ids, one.truncated) for one in found])
            return [tuple(next(rest) for _ in range(count)) for _ in asked]

        cost = WritingCost.of(self.model.config, sampling)
        # The identity belongs to the key, as sampled answers are drawn by it.
        keys = [f"{record_key(one)}/{one.identity}" for one in questions]
        with journal.judging(keys, Written, len(questions)) as judging:
            return run_packed(
                self.packed, questions, QuestionEncoder(encoder, count), run, cost, judging
            )

    @torch.no_grad()
    def log_probabilities(
        self, questions: Sequence[Preference], answers: Sequence[Answers]
    ) -> list[tuple[float, ...]]:
        """Return the log-probability of each sampled answer, the sum over its tokens, at the temperature of the sampling."""
        temperature = self.sampling.temperature

        def run(batch: PackedBatch, asked: Sequence[Asked]) -> list[tuple[float, ...]]:
            tokens = self.model(**batch.label_inputs(), temperature=temperature)
            lengths = [len(ids) for _, own in asked for ids in own]
            sums = iter(
                [float(part.double().sum()) for part in tokens[: sum(lengths)].split(lengths)]
            )
            return [tuple(next(sums) for _ in own) for _, own in asked]

        items = [
            (question, found.ids[1:]) for question, found in zip(questions, answers, strict=True)
        ]
        return run_packed(
            self.packed, items, partial(answered, QuestionEncoder(self.packed.encoder, 1)), run
        )


Written = tuple[tuple[tuple[int, ...], bool], ...]
"""Tokens without the end of the turn, and whether the limit ended them, of each answer to a question."""
Asked = tuple[Preference, tuple[tuple[int, ...], ...]]
"""A question and the tokens of answers to it."""


def answered(encode: QuestionEncoder, item: Asked) -> Group:
    """Return a question with its answers as a group whose log-probabilities are asked for."""
    question, answers = item
    own = (Continuation(ids, loss_tokens=tuple(range(len(ids)))) for ids in answers)
    return replace(encode.prompt(question), continuations=tuple(own))


def scored(
    questions: Sequence[Preference],
    answers: Sequence[Answers],
    judge: Judge,
    journal: Journal = SILENT,
) -> list[Answers]:
    """Return the answers with a judge's scores; all ranks must call together."""
    batch = [
        candidates(question, answers_to_it.texts)
        for question, answers_to_it in zip(questions, answers, strict=True)
    ]
    scores_of_batch = judge.score_batch(batch, journal)
    return [
        replace(answers_to_it, scores=scores.values)
        for answers_to_it, scores in zip(answers, scores_of_batch, strict=True)
    ]


def candidates(question: Preference, texts: Sequence[str]) -> Candidates:
    """Return answers to a question as a judge takes them."""
    return replace(
        candidates_of(list(question.prompt), texts, question.images, question.identity),
        prompt=question.prompt,
    )


def credits_of(answers: Sequence[Answers]) -> dict[str, Floats]:
    """Return every figure's credits, (questions,)."""
    rows = [one.figures() for one in answers]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def items_of_questions(questions: Sequence[Preference]) -> Ints:
    """Return the number of each question's item, shape (questions,): questions about one image are of one item."""
    return cluster_codes(
        [[content_digest(image) for image in question.images] for question in questions]
    )


def summary(answers: Sequence[Answers], items: Ints | None = None) -> dict[str, Any]:
    """Return the figures as they are stored: n, N, and each with its 95 % interval over questions.

    The interval speaks of this policy, not of other trainings by its recipe.

    Args:
        answers: The answers to each question.
        items: The number of each question's item, from `items_of_questions`; None if every question is independent.
    """
    intervals = {
        name: share_interval(credits, items).plain for name, credits in credits_of(answers).items()
    }
    written = [ids for one in answers for ids in one.ids[1:]]
    more: dict[str, Any] = {"tokens": float(np.mean(list(map(len, written))))}
    more["cut_off"] = float(np.mean([cut for one in answers for cut in one.cut_off[1:]]))
    if answers[0].scores:
        more["score"] = float(np.mean([one.scores[1:] for one in answers]))
        more["greedy_score"] = float(np.mean([one.scores[0] for one in answers]))
    return {"questions": len(answers), "samples": len(answers[0].right) - 1, **intervals, **more}


def stored_answers(file: Path, questions: Sequence[Preference], samples: int) -> list[Answers]:
    """Return the answers to these questions that `write_answers` wrote.

    Answers are found by identity and content of their question. Returns an empty list if the answers
    to one of the questions are missing, or fewer samples of them were drawn.
    """
    if not file.is_file():
        return []
    with file.open(encoding="utf-8") as lines:
        rows_by_question = {(row["id"], row.get("key")): row for row in map(json.loads, lines)}
    adapter, names = TypeAdapter(Answers), [field.name for field in fields(Answers)]
    found = []
    for question in questions:
        row = rows_by_question.get((question.identity, question_key(question)))
        if row is None or len(row["right"]) != samples + 1:
            return []
        found.append(adapter.validate_python({name: row[name] for name in names}))
    return found


def write_answers(
    folder: Path, name: str, questions: Sequence[Preference], answers: Sequence[Answers]
) -> None:
    """Write `NAME.json`, the figures, and `NAME.jsonl`, a line a question with what it adds to each, on the first rank."""
    if rank():
        return
    items = items_of_questions(questions)
    first_row_by_item = {int(item): row for row, item in reversed(list(enumerate(items)))}
    rows = [
        {
            "id": question.identity,
            "key": question_key(question),
            "category": question.category,
            "item": questions[first_row_by_item[int(item)]].identity,
            **asdict(found),
            "credits": found.figures(),
        }
        for question, found, item in zip(questions, answers, items, strict=True)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    write_json_lines(folder / f"{name}.jsonl", rows)
    write_json(folder / f"{name}.json", summary(answers, items))

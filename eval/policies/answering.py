"""Let a policy answer questions with known answers: one greedy answer and N sampled answers to each.

The answers are verified and scored by a judge. They give the accuracy of greedy and sampled answers, best
of N by the judge, pass@N, the majority's answer, and the KL divergence from another policy. A sampled
answer depends only on the policy, the seed, the question and the number of the answer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import islice
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
    """A policy's answers to one question; the greedy answer comes first, the sampled answers follow."""

    ids: tuple[tuple[int, ...], ...]
    """The tokens of each answer, with the end of the turn if the policy wrote it."""
    texts: tuple[str, ...]
    right: tuple[bool, ...]
    cut_off: tuple[bool, ...]
    """Whether each answer was ended by the limit or holds a control token. Such an answer is wrong."""
    scores: tuple[float, ...] = ()
    """The judge's score of each answer; empty if no judge scored them."""

    @property
    def said(self) -> list[tuple[str, bool]]:
        """The final answer of each sampled text and its verdict, for a vote of the majority.

        The verdict is included because an answer that was cut off is never right, even if its text
        equals a right answer.
        """
        answers = [" ".join(final_answer(text).casefold().split()) for text in self.texts[1:]]
        return list(zip(answers, self.right[1:], strict=True))

    def figures(self) -> dict[str, float]:
        """Return the question's contribution to each accuracy. `best` is missing without scores."""
        right = self.right[1:]
        num_samples = len(right)
        figures = {
            "greedy": float(self.right[0]),
            "sampled": sum(right) / num_samples,
            "pass": pass_at(right, num_samples),
            "majority": majority(self.said, right, num_samples),
        }
        if self.scores:
            figures["best"] = best_of(self.scores[1:], right, num_samples)
        return figures


@dataclass(frozen=True, slots=True)
class QuestionEncoder:
    """Encodes a question as a group that is answered `count` times. It runs in loader workers."""

    encoder: Encoder
    count: int

    def __call__(self, record: Preference) -> Group:
        """Return the encoded question; raise RecordError if it cannot be encoded."""
        return to_write(self.prompt(record), self.count)

    def prompt(self, record: Preference) -> Group:
        """Return the prompt as a group without continuations."""
        self.encoder.refuse_control_tokens(record)
        images = [decode(image, record.identity) for image in record.images]
        group = self.encoder.encode(images, [self.encoder.render(record.prompt)], None)
        return replace(
            group, prompt_ids=group.prompt_ids + group.continuations[0].ids, continuations=()
        )


def readable_text(encoder: Encoder, ids: Sequence[int], *, ended: bool) -> tuple[str, bool]:
    """Return the text of a policy's tokens for a judge, and whether the answer is complete.

    An answer is complete if the policy ended it (`ended`) and it holds no control token.

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
        greedy_sampling = self.sampling.model_copy(update={"temperature": 0.0})
        greedy = self._generate(questions, greedy_sampling, 1, journal.of("greedy"))
        sampled = self._generate(questions, self.sampling, self.samples, journal.of("sampled"))
        answers: list[Answers] = []
        for question, greedy_text, sampled_texts in zip(questions, greedy, sampled, strict=True):
            answers.append(self._answers(question, (*greedy_text, *sampled_texts)))
        return answers

    def _answers(self, question: Preference, generated: GeneratedTexts) -> Answers:
        """Return texts as answers to a question; raises ValueError if its answer is not known."""
        if question.truth is None:
            raise ValueError(f"{question.identity}: a question without a known answer")
        encoder = self.packed.encoder
        ids_with_end: list[tuple[int, ...]] = []
        texts: list[str] = []
        right: list[bool] = []
        cut_off: list[bool] = []
        for ids, truncated in generated:
            text, is_whole = readable_text(encoder, ids, ended=not truncated)
            ids_with_end.append(ids if truncated else (*ids, encoder.end_of_turn))
            texts.append(text)
            right.append(is_whole and states(text, question.truth))
            cut_off.append(not is_whole)
        return Answers(tuple(ids_with_end), tuple(texts), tuple(right), tuple(cut_off))

    def _generate(
        self,
        questions: Sequence[Preference],
        sampling: SamplingConfig,
        num_texts: int,
        journal: Journal,
    ) -> list[GeneratedTexts]:
        """Return `num_texts` texts to each question."""
        encoder = self.packed.encoder

        def run(batch: PackedBatch, row: Sequence[Preference]) -> list[GeneratedTexts]:
            seeds = [
                f"{self.seed}/{question.identity}/{number}"
                for question in row
                for number in range(num_texts)
            ]
            generations = generate(
                self.model,
                batch,
                end=encoder.end_of_turn,
                forbidden=[encoder.vision.image],
                sampling=sampling,
                seeds=seeds,
            )
            texts = iter([(generation.ids, generation.truncated) for generation in generations])
            return [tuple(islice(texts, num_texts)) for _ in row]

        cost = WritingCost.of(self.model.config, sampling)
        # The identity belongs to the key, as sampled answers are drawn by it.
        keys = [f"{record_key(question)}/{question.identity}" for question in questions]
        encode = QuestionEncoder(encoder, num_texts)
        with journal.judging(keys, GeneratedTexts, len(questions)) as judging:
            return run_packed(self.packed, questions, encode, run, cost, judging)

    @torch.no_grad()
    def log_probabilities(
        self, questions: Sequence[Preference], answers: Sequence[Answers]
    ) -> list[tuple[float, ...]]:
        """Return the log-probability of each sampled answer, the sum over its tokens, at the temperature of the sampling."""
        temperature = self.sampling.temperature

        def run(batch: PackedBatch, row: Sequence[SampledQuestion]) -> list[tuple[float, ...]]:
            log_probabilities = self.model(**batch.label_inputs(), temperature=temperature)
            lengths = [len(ids) for _, answers in row for ids in answers]
            by_answer = log_probabilities[: sum(lengths)].split(lengths)
            sums = iter([float(tokens.double().sum()) for tokens in by_answer])
            return [tuple(islice(sums, len(answers))) for _, answers in row]

        items = [
            (question, answers_to_it.ids[1:])
            for question, answers_to_it in zip(questions, answers, strict=True)
        ]
        encode = partial(encode_answers, QuestionEncoder(self.packed.encoder, 1))
        return run_packed(self.packed, items, encode, run)


GeneratedTexts = tuple[tuple[tuple[int, ...], bool], ...]
"""Tokens without the end of the turn, and whether the limit ended them, of each answer to a question."""
SampledQuestion = tuple[Preference, tuple[tuple[int, ...], ...]]
"""A question and the tokens of answers to it."""


def encode_answers(encode: QuestionEncoder, item: SampledQuestion) -> Group:
    """Return a question with its answers as a group whose log-probabilities are computed."""
    question, answers = item
    continuations = [Continuation(ids, loss_tokens=tuple(range(len(ids)))) for ids in answers]
    return replace(encode.prompt(question), continuations=tuple(continuations))


def with_scores(
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
    """Return for every figure an array with the contribution of each question, shape (questions,)."""
    figures_by_question = [answers_to_it.figures() for answers_to_it in answers]
    credits: dict[str, Floats] = {}
    for name in figures_by_question[0]:
        values = [figures[name] for figures in figures_by_question]
        credits[name] = np.array(values)
    return credits


def items_of_questions(questions: Sequence[Preference]) -> Ints:
    """Return the number of each question's item, shape (questions,): questions about one image are of one item."""
    digests = [list(map(content_digest, question.images)) for question in questions]
    return cluster_codes(digests)


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
    adapter = TypeAdapter(Answers)
    names = [field.name for field in fields(Answers)]
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

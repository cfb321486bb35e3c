"""Let a policy answer questions with known answers: one greedy and N sampled answers to each.

A policy is the language model that reinforcement learning trains. Its answers are verified, and
scored by a judge. They give the accuracy of greedy and sampled answers, the accuracy of the best of
N by the judge, pass@N, the accuracy of the majority's answer, and the KL divergence from another
policy. A sampled answer depends only on the policy, the seed, the question and the answer's index.
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
from mmrm.data.markers import MARKERS, stray_marker
from mmrm.data.preference import Preference, without_videos
from mmrm.data.storage.content import question_key, record_key, shown_key
from mmrm.data.storage.files import content_digest, write_json, write_json_lines
from mmrm.eval.candidates import Candidates
from mmrm.eval.journal import SILENT, Journal
from mmrm.eval.judges.judge import Judge
from mmrm.eval.judges.messages import candidates_of
from mmrm.eval.judges.packed_inference import Packed, run_packed
from mmrm.eval.policies.best_of import best_of, majority, pass_at
from mmrm.eval.results.intervals import cluster_codes, share_interval
from mmrm.eval.verifiers import final_answer, is_right_answer
from mmrm.models.config import SamplingConfig
from mmrm.models.distributed import rank
from mmrm.models.encoder import Conversation, Encoder
from mmrm.models.generation import WritingCost, generate
from mmrm.models.packed_generation import repeated, with_texts
from mmrm.models.packing.packed_batch import PackedBatch
from mmrm.models.packing.segments import SegmentTree


@dataclass(frozen=True, slots=True)
class Answers:
    """A policy's answers to one question.

    In every field the greedy answer comes first, and the N sampled answers follow.
    """

    ids: tuple[tuple[int, ...], ...]
    """The tokens of each answer, with the end of the turn if the policy wrote it."""
    texts: tuple[str, ...]
    right: tuple[bool, ...]
    """True for each answer that states the known answer and is complete."""
    cut_off: tuple[bool, ...]
    """True for each answer that the limit of tokens ended, or that holds a control token. Such an
    answer is wrong."""
    scores: tuple[float, ...] = ()
    """The judge's score of each answer; empty if no judge scored them."""

    @property
    def majority_votes(self) -> list[tuple[str, bool]]:
        """The final answer of each sampled text and its verdict, to find the most frequent answer.

        The verdict is included because an answer that was cut off is never right, even if its text
        equals a right answer.
        """
        sampled_texts = self.texts[1:]
        answers = [" ".join(final_answer(text).casefold().split()) for text in sampled_texts]
        return list(zip(answers, self.right[1:], strict=True))

    def figures(self) -> dict[str, float]:
        """Return the value of each figure for this question, a number from 0 to 1.

        The mean over questions is the figure itself: the accuracy of the `greedy` answer, of a
        `sampled` one, and of the `best` by the judge, the share of questions with any right answer
        (`pass`), and the accuracy of the `majority`. `best` is missing if the answers have no
        scores.
        """
        greedy_is_right = self.right[0]
        right = self.right[1:]
        num_samples = len(right)
        figures = {
            "greedy": float(greedy_is_right),
            "sampled": sum(right) / num_samples,
            "pass": pass_at(right, num_samples),
            "majority": majority(self.majority_votes, right, num_samples),
        }
        if self.scores:
            sampled_scores = self.scores[1:]
            figures["best"] = best_of(sampled_scores, right, num_samples)
        return figures


@dataclass(frozen=True, slots=True)
class QuestionEncoder:
    """Encodes a question for a policy that generates `count` answers to it.

    It runs in loader workers.
    """

    encoder: Encoder
    count: int

    def __call__(self, record: Preference) -> SegmentTree:
        """Return the question as a tree with an output for each of the `count` answers.

        Raises: RecordError if the question cannot be encoded.
        """
        return repeated(self.prompt(record), self.count)

    def prompt(self, record: Preference) -> SegmentTree:
        """Return the prompt of a question, a tree with one output."""
        self.encoder.refuse_control_tokens(record)
        conversation = Conversation(record.prompt, record.images, videos=record.videos)
        return self.encoder.encode_conversations([conversation], None, record.identity)


def readable_text(encoder: Encoder, ids: Sequence[int], *, ended: bool) -> tuple[str, bool]:
    """Return the text of a policy's answer for a judge, and True if the answer is complete.

    An answer is complete if the policy ended it and its text holds no control token and no marker.
    Control tokens are removed from the text, because a judge's tokenizer would read them as tokens
    again. Markers such as `<image>` are removed too: a judge refuses a response with a marker, and
    one such answer must not end a run.

    Args:
        encoder: The encoder of the policy's backbone.
        ids: The tokens of the answer.
        ended: True if the policy ended the answer, and not the limit of tokens.
    """
    text = encoder.tokenizer.decode(ids)
    cleaned = text
    # Removing one token or marker can join the letters around it to another one, so repeat.
    while stray_marker(cleaned) or any(token in cleaned for token in encoder.control_tokens):
        cleaned = MARKERS.sub("", cleaned)
        for token in encoder.control_tokens:
            cleaned = cleaned.replace(token, "")
    is_complete = ended and cleaned == text
    return cleaned, is_complete


@dataclass(frozen=True, slots=True)
class Answerer:
    """A policy that answers questions. All ranks must call its methods together."""

    model: Any
    """The language model itself, unwrapped and in eval mode."""
    packed: Packed
    sampling: SamplingConfig
    samples: int
    """Sampled answers to each question, besides the greedy one."""
    seed: int = 0

    def answer(self, questions: Sequence[Preference], journal: Journal = SILENT) -> list[Answers]:
        """Return the answers to every question, without scores.

        The journal shows the progress and keeps the generated answers.
        """
        greedy_sampling = self.sampling.model_copy(update={"temperature": 0.0})
        greedy = self._generate(questions, greedy_sampling, 1, journal.of("greedy"))
        sampled = self._generate(questions, self.sampling, self.samples, journal.of("sampled"))
        answers: list[Answers] = []
        for question, greedy_text, sampled_texts in zip(questions, greedy, sampled, strict=True):
            answers.append(self._answers(question, (*greedy_text, *sampled_texts)))
        return answers

    def _answers(self, question: Preference, generated: GeneratedTexts) -> Answers:
        """Return the verified answers to a question from the texts that were generated for it.

        Raises ValueError if the question's right answer is not known.
        """
        if question.truth is None:
            raise ValueError(f"{question.identity}: a question without a known answer")
        encoder = self.packed.encoder
        ids_with_end: list[tuple[int, ...]] = []
        texts: list[str] = []
        right: list[bool] = []
        cut_off: list[bool] = []
        for ids, truncated in generated:
            text, is_complete = readable_text(encoder, ids, ended=not truncated)
            ids_with_end.append(ids if truncated else (*ids, encoder.end_of_turn))
            texts.append(text)
            right.append(is_complete and is_right_answer(text, question.truth))
            cut_off.append(not is_complete)
        return Answers(tuple(ids_with_end), tuple(texts), tuple(right), tuple(cut_off))

    def _generate(
        self,
        questions: Sequence[Preference],
        sampling: SamplingConfig,
        num_texts: int,
        journal: Journal,
    ) -> list[GeneratedTexts]:
        """Generate `num_texts` texts after each question, and return them question by question."""
        encoder = self.packed.encoder

        def generate_row(
            batch: PackedBatch, row_questions: Sequence[Preference]
        ) -> list[GeneratedTexts]:
            seeds = [
                f"{self.seed}/{question.identity}/{number}"
                for question in row_questions
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
            return [tuple(islice(texts, num_texts)) for _ in row_questions]

        row_cost = WritingCost.of(self.model.config, sampling)
        # The identity is a part of the key because the seeds of the sampled texts depend on it.
        keys = [f"{record_key(question)}/{question.identity}" for question in questions]
        encode = QuestionEncoder(encoder, num_texts)
        with journal.judging(keys, GeneratedTexts, len(questions)) as judging:
            return run_packed(self.packed, questions, encode, generate_row, row_cost, judging)

    @torch.no_grad()
    def log_probabilities(
        self, questions: Sequence[Preference], answers: Sequence[Answers]
    ) -> list[tuple[float, ...]]:
        """Return the log-probability of each sampled answer, question by question.

        It is the sum over the answer's tokens, at the temperature of the sampling.
        """
        temperature = self.sampling.temperature

        def sums_of_row(
            batch: PackedBatch, row_questions: Sequence[SampledQuestion]
        ) -> list[tuple[float, ...]]:
            token_log_probabilities = self.model(**batch.label_inputs(), temperature=temperature)
            lengths = [len(ids) for _, sampled_ids in row_questions for ids in sampled_ids]
            # The filler row of a rank without work has tokens that belong to no answer.
            of_answers = token_log_probabilities[: sum(lengths)].split(lengths)
            sums = iter([float(of_answer.double().sum()) for of_answer in of_answers])
            return [tuple(islice(sums, len(sampled_ids))) for _, sampled_ids in row_questions]

        items: list[SampledQuestion] = []
        for question, question_answers in zip(questions, answers, strict=True):
            sampled_ids = question_answers.ids[1:]
            items.append((question, sampled_ids))
        encode = partial(encode_answers, QuestionEncoder(self.packed.encoder, 1))
        return run_packed(self.packed, items, encode, sums_of_row)


GeneratedTexts = tuple[tuple[tuple[int, ...], bool], ...]
"""The texts generated for a question: for each its tokens without the end of the turn, and True if
the limit of tokens ended it."""
SampledQuestion = tuple[Preference, tuple[tuple[int, ...], ...]]
"""A question and the tokens of each sampled answer to it."""


def encode_answers(encoder: QuestionEncoder, item: SampledQuestion) -> SegmentTree:
    """Return a question with its sampled answers as a tree.

    Every token of an answer is a loss token, so that the model returns its log-probability.
    """
    question, answers = item
    return with_texts(encoder.prompt(question), answers)


def with_scores(
    questions: Sequence[Preference],
    answers: Sequence[Answers],
    judge: Judge,
    journal: Journal = SILENT,
) -> list[Answers]:
    """Return copies of the answers that contain the judge's scores; all ranks must call together.

    Args:
        questions: The questions.
        answers: The answers to each question.
        judge: The judge that scores them.
        journal: Shows the progress of judging and keeps the scores.
    """
    batch = [
        candidates(question, question_answers.texts)
        for question, question_answers in zip(questions, answers, strict=True)
    ]
    scores_of_batch = judge.score_batch(batch, journal)
    return [
        replace(question_answers, scores=scores.values)
        for question_answers, scores in zip(answers, scores_of_batch, strict=True)
    ]


def candidates(question: Preference, texts: Sequence[str]) -> Candidates:
    """Return answers to a question as candidates, the input of a judge."""
    prompt = without_videos(question.prompt)
    converted = candidates_of(list(prompt), texts, question.images, question.identity)
    key = converted.key
    if question.videos:
        key = shown_key((), question.videos, (), key)
    # The conversion rewrites the prompt's parts. The judge gets the prompt that the policy got.
    return replace(converted, key=key, prompt=question.prompt, videos=question.videos)


def credits_of(answers: Sequence[Answers]) -> dict[str, Floats]:
    """Return the values of each figure by question, arrays of shape (questions,), by its name.

    These values are called credits. The mean of the credits of a figure is the figure.
    """
    figures_by_question = [question_answers.figures() for question_answers in answers]
    credits: dict[str, Floats] = {}
    for name in figures_by_question[0]:
        values = [figures[name] for figures in figures_by_question]
        credits[name] = np.array(values)
    return credits


def items_of_questions(questions: Sequence[Preference]) -> Ints:
    """Return the code of each question's item, shape (questions,).

    An item is a set of questions about the same image or video; they have equal codes. Intervals count
    items and not questions, because the answers to questions about one image depend on each other.
    """
    digests: list[list[str]] = []
    for question in questions:
        files = [*question.images, *(video.content for video in question.videos)]
        digests.append([content_digest(file) for file in files])
    return cluster_codes(digests)


def summary(answers: Sequence[Answers], items: Ints | None = None) -> dict[str, Any]:
    """Return the figures of a policy's answers as they are stored in JSON.

    They are the numbers of questions and of samples, each accuracy with its 95 % interval over
    questions, and means over the sampled answers. The intervals are valid for this policy, not for
    other trainings by its recipe.

    Args:
        answers: The answers to each question.
        items: The code of each question's item, a set of questions about one image, from
            `items_of_questions`; None if every question is independent.
    """
    num_samples = len(answers[0].right) - 1  # without the greedy answer
    figures: dict[str, Any] = {"questions": len(answers), "samples": num_samples}
    for name, credits in credits_of(answers).items():
        figures[name] = share_interval(credits, items).plain
    lengths: list[int] = []
    are_cut_off: list[bool] = []
    for question_answers in answers:
        # The first answer is the greedy one, which these means leave out.
        lengths += [len(ids) for ids in question_answers.ids[1:]]
        are_cut_off += question_answers.cut_off[1:]
    figures["tokens"] = float(np.mean(lengths))
    figures["cut_off"] = float(np.mean(are_cut_off))
    if answers[0].scores:
        sampled_scores = [question_answers.scores[1:] for question_answers in answers]
        greedy_scores = [question_answers.scores[0] for question_answers in answers]
        figures["score"] = float(np.mean(sampled_scores))
        figures["greedy_score"] = float(np.mean(greedy_scores))
    return figures


def stored_answers(file: Path, questions: Sequence[Preference], samples: int) -> list[Answers]:
    """Return the answers to these questions from a file that `write_answers` wrote.

    The answers to a question are found by its identity and content. Returns an empty list if there
    is no such file, if it lacks the answers to one of the questions, or if it holds another number
    of samples.
    """
    if not file.is_file():
        return []
    rows_by_question: dict[tuple[Any, Any], dict[str, Any]] = {}
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            rows_by_question[row["id"], row.get("key")] = row
    adapter = TypeAdapter(Answers)
    names = [field.name for field in fields(Answers)]
    answers: list[Answers] = []
    for question in questions:
        stored = rows_by_question.get((question.identity, question_key(question)))
        if stored is None or len(stored["right"]) != samples + 1:  # the greedy answer is one more
            return []
        answers.append(adapter.validate_python({name: stored[name] for name in names}))
    return answers


def write_answers(
    folder: Path, name: str, questions: Sequence[Preference], answers: Sequence[Answers]
) -> None:
    """Write a policy's figures to `NAME.json` and its answers to `NAME.jsonl`.

    `NAME.jsonl` has a line for each question: its answers, and its credits, the value of each
    figure for this question. Only the first rank writes.

    Args:
        folder: The folder of the files, which is made if it does not exist.
        name: The name of the files without an ending.
        questions: The questions.
        answers: The answers to each question.
    """
    is_first_rank = rank() == 0
    if not is_first_rank:
        return
    items = items_of_questions(questions)
    name_by_item: dict[int, str] = {}
    for question, item in zip(questions, items, strict=True):
        name_by_item.setdefault(int(item), question.identity)  # named for its first question
    rows: list[dict[str, Any]] = []
    for question, question_answers, item in zip(questions, answers, items, strict=True):
        row = {
            "id": question.identity,
            "key": question_key(question),
            "category": question.category,
            "item": name_by_item[int(item)],
            **asdict(question_answers),
            "credits": question_answers.figures(),
        }
        rows.append(row)
    folder.mkdir(parents=True, exist_ok=True)
    write_json_lines(folder / f"{name}.jsonl", rows)
    write_json(folder / f"{name}.json", summary(answers, items))

"""Find the questions that a model was trained on, so that no figure on unseen questions has them.

Two questions are equal if their texts are, regardless of case and white space, and the contents of
their images (`prompt_key`). Identities are not compared: they are labels, which two sources share
and one source can give to other questions.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ValidationError

from mmrm.data.config.layers import option_value
from mmrm.data.config.validation import format_validation_error, read_section
from mmrm.data.encoded_video import Video
from mmrm.data.errors import UserError
from mmrm.data.preference import UNANSWERED, Preference, texts
from mmrm.data.preparation.mixing import Mixture, MixtureConfig
from mmrm.data.preparation.row_index import REASONS, prompt_key
from mmrm.data.preparation.scan import scan
from mmrm.data.sources.shared.source import SourceConfig
from mmrm.eval.results.run_folder import PROVENANCE, RECIPE
from mmrm.models.portable.conversations import read_conversation

Keys = npt.NDArray[np.uint64]
"""Keys of prompts, as `prompt_key` returns them, of shape (prompts,)."""
MOST_REPEATED = 0.25
"""The share of repeated questions from which on a measurement is refused. Fewer repeated questions
are left out. A generated source with its usual share of questions without an image repeats one in
seven by chance. A file that repeats a quarter was not separated from the training data, and its
remaining questions are a selection."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question, with the properties by which it is compared with training data."""

    key: int
    """The key of its content, as `prompt_key` returns it."""
    rule: str | None
    """The rule by which its answers are verified; None if the question declares none."""
    text: str
    """Its texts, for messages."""

    @classmethod
    def of_record(cls, record: Preference) -> Question:
        """Return the question of a preference record or of a record without responses.

        Raises:
            ImageError: If an image cannot be read.
        """
        rule = None if record.truth is None else record.truth.rule
        return cls(prompt_key(record), rule, " ".join(texts(record.prompt)))

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Question:
        """Return the question in a row of a file that eval/sample.py or a later command wrote.

        Rows of earlier versions have no column `key`. Their key is computed from the prompt and the
        images in the row, which are the files of the source unless they had to be converted.
        """
        prompt = row["prompt"]
        text = prompt if isinstance(prompt, str) else " ".join(texts(prompt))
        key = int(row["key"], 16) if "key" in row else _key_of_content(row)
        return cls(key, rule=row.get("verifier"), text=text)


@dataclass
class TrainingPrompts:
    """The prompts that some models were trained on, to which questions are compared."""

    keys_by_source: dict[str, Keys] = field(default_factory=dict)
    """Distinct keys, by the name of the source in messages."""
    notes: dict[str, None] = field(default_factory=dict)
    """Models and sources that could not be compared, each with its reason, as an ordered set."""
    _seen: set[str] = field(default_factory=set)
    """Digests of the `data` sections that were added."""

    def add(self, source: str, keys: Sequence[int] | Keys) -> None:
        """Add prompts by their keys, which `prompt_key` computes.

        `source` is a name for messages: of a source, or of a round of on-policy pairs.
        """
        earlier_keys = self.keys_by_source.get(source, np.empty(0, np.uint64))
        self.keys_by_source[source] = np.union1d(earlier_keys, np.asarray(keys, np.uint64))

    def add_recipe(self, data: MixtureConfig, name: str, *, fetch: bool) -> None:
        """Add the prompts of all sources of a recipe, also of records that its filters leave out.

        A source that was never read before is read once, as training does.

        Args:
            data: The `data` section of the recipe.
            name: The name of the recipe in messages.
            fetch: Fetch sources that are on the hub, and raise an error if a source cannot be
                opened. Otherwise such
                sources are not compared, and `notes` gets the reason.
        """
        if data.digest in self._seen:
            return
        self._seen.add(data.digest)
        for source in data.sources:
            label = f"{name}, source {source.label}"
            if source.is_on_hub and not fetch:
                self.note(f"{label}: it is on the hub and was not fetched for this")
                continue
            try:
                self.add(label, _prompt_keys(source, data))
            except (UserError, OSError) as error:
                if fetch:
                    raise
                self.note(f"{label}: {error}")

    def add_model(self, path: str) -> None:
        """Add the prompts that a checkpoint and the models before it were trained on.

        The data are those of the recipe in the checkpoint's run folder. The recipe's backbone is
        the model that the training started from, and its data are added in the same way. A model
        without a recipe becomes a note. For the embedded backbone (`path` is "embedded") nothing is
        added, because its scenes are in a split of their own.
        """
        added_recipes: set[Path] = set()
        while path != "embedded":
            recipe = _recipe_of(Path(path).expanduser())
            if recipe is None:
                self.note(f"{path}: there is no recipe that names its training data")
                return
            if recipe in added_recipes:
                return  # two runs name one another as their start
            added_recipes.add(recipe)
            path = self.add_run(recipe)

    def add_run(self, recipe: Path) -> str:
        """Add the prompts of a run's recipe file, and return the path of the model it started from.

        A recipe that cannot be read becomes a note, and the result is then "embedded".
        """
        try:
            section = read_section(recipe, _RecipePart)
        except (UserError, OSError) as error:
            self.note(f"{recipe}: it cannot be read ({error})")
            return "embedded"
        if section.data is None:
            self.note(f"{recipe}: it names no data")
        else:
            self.add_recipe(section.data, str(recipe.parent), fetch=False)
        return section.backbone.path

    def note(self, reason: str) -> None:
        """Add a note that a model or a source could not be compared, with the reason."""
        self.notes[reason] = None

    def repeated(self, questions: Sequence[Question]) -> dict[int, str]:
        """Return the indices of the questions that were trained on, each with a source's name."""
        keys = np.array([question.key for question in questions], np.uint64)
        source_by_index: dict[int, str] = {}
        for source, trained_keys in self.keys_by_source.items():
            for index in np.flatnonzero(np.isin(keys, trained_keys)).tolist():
                source_by_index.setdefault(index, source)
        return source_by_index

    def questions_to_leave_out(
        self, questions: Sequence[Question], name: str, remedy: str
    ) -> dict[int, str]:
        """Return the questions that were trained on, which a figure on unseen questions leaves out.

        Args:
            questions: The questions of the measurement.
            name: The name of the measurement, with which the error's message begins.
            remedy: The sentence with which the error's message ends.

        Returns:
            The indices of the questions that were trained on, each with the name of a source.

        Raises:
            UserError: If the share of such questions is MOST_REPEATED or more.
        """
        repeated = self.repeated(questions)
        if not repeated or len(repeated) < MOST_REPEATED * len(questions):
            return repeated
        index, source = next(iter(repeated.items()))
        raise UserError(
            f"{name}: {len(repeated):,} of {len(questions):,} questions have been trained on, with "
            f"the same texts and images. The first, {questions[index].text!r:.80}, is one of "
            f"{source}. A figure for questions that were not trained on must not contain them. "
            f"Less than {MOST_REPEATED:.0%} would be left out and counted, and as many as here "
            f"mean that the questions are not separate from the training data. {remedy}"
        )


def read_questions(file: Path) -> list[Question]:
    """Return the questions of a JSON-lines file that eval/sample.py or a later command wrote."""
    return [Question.of_row(row) for row in rows_of(file)]


def questions_of_source(source: str, option: str) -> list[Question]:
    """Return all questions of a source that is described on a command line.

    Args:
        source: The source in YAML, as in `data.sources` of a recipe.
        option: The name of the command line's option, for messages.

    Raises:
        UserError: If the text describes no source, or if the source cannot be read.
    """
    try:
        section = {"sources": [option_value(option, source)]}
        mixture = Mixture(MixtureConfig.model_validate(section))
    except ValidationError as error:
        raise UserError(f"{option}: {format_validation_error(error)}") from error
    return [Question.of_record(mixture[index]) for index in range(len(mixture))]


def rows_of(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file of JSON lines, each as a dictionary."""
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _key_of_content(row: Mapping[str, Any]) -> int:
    """Return the key of a row's question, which is a digest of its prompt, images and videos."""
    turns, images, videos = read_conversation(
        row["prompt"], row.get("images") or [], row.get("videos") or []
    )
    prompt: Any = tuple(turns)
    encoded = tuple(image for image in images if isinstance(image, bytes | Path))
    identity = str(row.get("id", ""))
    record = Preference(identity, prompt, UNANSWERED, encoded, videos=tuple(map(Video, videos)))
    return prompt_key(record)


class _Backbone(BaseModel):
    """The key of a recipe's section `backbone` that is read: the model that a run starts from."""

    path: str = "embedded"


class _RecipePart(BaseModel):
    """The sections that are read from the recipe of a model."""

    data: MixtureConfig | None = None
    backbone: _Backbone = _Backbone()


def _recipe_of(model: Path) -> Path | None:
    """Return the recipe file of the run that a checkpoint belongs to, or None if there is none.

    `model` is a run folder, a checkpoint in it, or a link to one of them.
    """
    for folder in (model.resolve(), model.resolve().parent):
        if (folder / RECIPE).is_file() and (folder / PROVENANCE).is_file():
            return folder / RECIPE
    return None


def _prompt_keys(source: SourceConfig, data: MixtureConfig) -> Keys:
    """Return the keys of the prompts of a source, without those of rows that cannot be used.

    `data` is the recipe's `data` section, which decides where and how the source is read.
    """
    opened_source = source.open(data.cache_folder)
    num_workers = data.workers or os.cpu_count() or 1
    rows = scan(opened_source, data.bad_records, data.cache_folder, num_workers).rows
    is_usable = rows["reason"] == REASONS.index("kept")
    keys: Keys = rows["prompt_key"][is_usable]
    return keys

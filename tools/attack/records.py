"""Mutated rows of every source, through preparation, browsing and the training read: used as written, or counted as lost."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import count, groupby
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from mmrm.data.browse import page, suspicious
from mmrm.data.errors import RecordError, UserError
from mmrm.data.images import decode, image_size
from mmrm.data.preference import Message, Preference, num_image_parts, text, texts, validate
from mmrm.data.preparation.mixing import Mixture, MixtureConfig
from mmrm.data.sources.shared.file_source import FilesConfig, SourceRow
from mmrm.data.storage.archives import Folder
from mmrm.models.config import BackboneConfig
from mmrm.models.encoder import Encoder
from mmrm.train.supervised.steps import ResponseEncoder, TrainingExample
from tests.models import tiny
from tools.attack.outcomes import Attempt, Tally, cause, kind_of
from tools.attack.pictures import pictures
from tools.attack.samples import ROW_BY_ROW, SAMPLES, Sample, as_text, surroundings, written
from tools.attack.values import SPECIAL, VALUES, Place, at, dotted, places, put

SECONDS = 5.0
"""What one record may take in one of its ways; a sound one takes some milliseconds."""
LARGEST = 1000
"""Images of a record that no sound record has: there must be a limit below them."""


@dataclass(frozen=True)
class Case:
    """A row with one or two places mutated; `flag` is the first place where a truth value stands for a number."""

    name: str
    row: Any
    flag: Place = ()


def encoder() -> ResponseEncoder:
    """Return what training reads records with; its tokenizer knows a special token that no template writes."""
    tokenizer = deepcopy(tiny.tokenizer())
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL[1:])})
    config = BackboneConfig(path="tiny", dtype="float32", max_pixels=784 * 4)
    return ResponseEncoder(
        Encoder(tokenizer, tiny.image_processor(max_pixels=784 * 4), config, tiny.config()),
        "end_of_turn",
    )


def cases(kind: str, count: int, seed: int) -> list[Case]:
    """Return `count` mutated rows of a source: one value at one place each, and, where these run out, two at a time."""
    generator = random.Random(f"{seed}/{kind}")
    single = [
        case
        for number, row in enumerate(SAMPLES[kind].rows)
        for case in _singly(f"{kind}/{number}", row)
    ]
    generator.shuffle(single)
    found = single[:count]
    while len(found) < count:
        first = generator.choice(single)
        found.append(generator.choice([*_singly(first.name, first.row)]))
    return found


def _singly(name: str, row: dict[str, Any]) -> Iterator[Case]:
    for place in places(row):
        value = at(row, place)
        given = VALUES
        if isinstance(value, str) and value.endswith(".png"):
            given = VALUES | {f"picture {label}": f"{label}.png" for label in pictures()}
        elif isinstance(value, bytes):
            given = VALUES | {f"picture {label}": data for label, data in pictures().items()}
        elif isinstance(value, str) and len(value) < 1000:
            given = VALUES | {
                f"{label} behind": value + str(VALUES[label])
                for label in ("lone surrogate", "NUL", "markers")
            }
            given |= {f"{token} before": token + value for token in SPECIAL}
        number = isinstance(value, int | float) and not isinstance(value, bool)
        for label, new in given.items():
            if label != "5,000 images" or isinstance(value, list):
                yield Case(
                    f"{name} {dotted(place)} = {label}",
                    put(row, place, new),
                    place if number and new is True else (),
                )
    for place in [(), *(place for place in places(row) if isinstance(at(row, place), dict))]:
        yield Case(f"{name} {dotted(place)} + unknown key", put(row, (*place, "unknwon"), 1))


class Attack:
    """The cases of one source on their way; a file that fails is divided until the row is found."""

    def __init__(self, tally: Tally, kind: str, folder: Path, encode: ResponseEncoder) -> None:
        self.tally, self.kind, self.folder, self.encode = tally, kind, folder, encode
        self.sample: Sample = SAMPLES[kind]
        settings = {
            key: str(value).format(folder=folder / "set")
            for key, value in self.sample.settings.items()
        }
        self.section = {"type": kind, "path": str(folder / "set"), **settings}
        surroundings(folder / "set", kind)

    def run(self, found: Sequence[Case]) -> None:
        """Attack with all cases."""
        for numbers, path in written(
            self.folder / "set", self.sample, [case.row for case in found]
        ):
            here = [found[number] for number in numbers]
            with Attempt(SECONDS + 0.05 * len(here)) as attempt:
                mixture = self._prepared(here)
            if (error := attempt.error) is not None:
                path.unlink()
                if len(here) == 1 or (isinstance(error, UserError) and path.suffix == ".parquet"):
                    self._failed(here, error)
                else:
                    self.run(here[: len(here) // 2])
                    self.run(here[len(here) // 2 :])
                continue
            self._trained(here, mixture)
            path.unlink()

    def _prepared(self, found: Sequence[Case]) -> Mixture:
        """Return the mixture after all that is done with it before training; raises what that raises."""
        other = {
            "type": "shapes",
            "level": "demo",
            "rows": 1,
        }  # without it, nothing but bad rows is refused as a whole
        settings = {
            "cache": str(self.folder / "cache"),
            "workers": 1,
            "bad_records": {"limit": 1.0},
        }
        mixture = Mixture(
            MixtureConfig.model_validate({"sources": [self.section, other], **settings})
        )
        list(suspicious(mixture.splits[:1]))
        page(mixture, len(found) + 1, "attack").encode()
        part = mixture.splits[0]
        assert len(part.source) == len(found), (
            f"{len(found)} rows were written and {len(part.source)} read"
        )
        assert len(part.rows) + sum(part.left_out.values()) == len(found), (
            "some rows are in no count"
        )
        return mixture

    def _failed(self, found: Sequence[Case], error: BaseException) -> None:
        kind = "uncounted" if isinstance(error, AssertionError) else kind_of(error)
        if isinstance(error, RecordError):  # one record has ended the reading
            kind = "traceback"
        for case in found:
            self.tally.add(kind, case.name, cause(error), str(error))

    def _trained(self, found: Sequence[Case], mixture: Mixture) -> None:
        """Read what was kept as training does, and compare it with what was written; the rest was counted."""
        kept = {int(row): index for index, row in enumerate(mixture.splits[0].rows)}
        for row, case in enumerate(found):
            if row not in kept:
                self.tally.add("counted", case.name)
                continue
            used: list[str] = []

            def use(record: Preference, used: list[str] = used) -> TrainingExample:
                used.append(record.identity)
                return self.encode(record)

            with Attempt(SECONDS) as attempt:
                record = mixture[kept[row]]
                wrong = self._wrong(case, record)
                mixture.load(kept[row], use)
                wrong = wrong or (self._misread(record) if len(used) == 1 else "")
            if isinstance(attempt.error, UserError):  # no record of this file can be used
                self.tally.add("counted", case.name)
            elif attempt.error is not None:
                self._failed([case], attempt.error)
            else:
                self.tally.add(
                    "silent" if wrong else "worked" if len(used) == 1 else "counted",
                    case.name,
                    wrong,
                )

    def _converted(self, row: Any) -> Preference | None:
        """Return the record of a row that was never in a file; None if it is none."""
        plain = as_text(self.sample, row)
        if self.sample.file.endswith(".parquet"):
            plain = pa.Table.from_pylist([plain]).to_pylist()[0]
        source = MixtureConfig.model_validate({"sources": [self.section]}).sources[0]
        assert isinstance(source, FilesConfig)
        try:
            return validate(source.convert(SourceRow("", plain, Folder(self.folder / "set"))))
        except RecordError:
            return None

    def _wrong(self, case: Case, record: Preference) -> str:
        """Return why a record must not be used, or not like this; empty if it is right."""
        expected = self._converted(case.row)
        if expected is None or replace(expected, identity="", source="", category="") != replace(
            record, identity="", source="", category=""
        ):
            return "not the record that was written"
        if case.flag and self._converted(put(case.row, case.flag, 3)) != expected:
            return "a truth value is used as a number"
        leaves = list(_leaves(case.row))
        for response in (record.chosen, record.rejected):
            if not any(response.text in leaf for leaf in leaves):
                return "a response that nobody wrote"
            if not response.images and not any(map(_visible, response.text)):
                return "a response of invisible characters"
        for message in record.prompt:
            if not num_image_parts([message]) and not any(map(_visible, "".join(texts([message])))):
                return "a turn of invisible characters"
            if message["role"] == "assistant" and num_image_parts([message]):
                return "an image in a turn of the assistant passes the preparation"
        if len(record.all_images) > LARGEST:
            return "no limit of the images of a record"
        for image in record.all_images:
            if decode(image, "").size[::-1] != image_size(image, ""):
                return "an image of another size than its header says"
        return ""

    def _misread(self, record: Preference) -> str:
        """Return what differs between the tokens that the model sees and the record's texts; empty if nothing does."""
        encoder = self.encode.encoder
        special = set(encoder.tokenizer.all_special_ids)
        tree = self.encode(record).tree
        blank = [_blanked(message) for message in record.prompt]
        for conversation, response in zip(
            tree.conversations(), (record.chosen, record.rejected), strict=True
        ):
            whole = "".join(span.text for span in encoder.render((*record.prompt, response.turn)))
            ids = [
                next(same) for _, same in groupby(conversation.ids, key=_pads(encoder.vision.image))
            ]
            if _same(encoder.tokenizer.decode(ids, clean_up_tokenization_spaces=False)) != _same(
                whole
            ):
                return "tokens that are not those of the text"
            blank_answer = _blanked(response.turn) if response.images else text("assistant", "x")
            plain = "".join(span.text for span in encoder.render((*blank, blank_answer)))
            if sum(one in special for one in ids) != sum(
                one in special for one in encoder.tokenizer(plain)["input_ids"]
            ):
                return "a forged control token"
        return ""


def _pads(image: int) -> Callable[[int], object]:
    """Return a key under which image tokens in a row are one group and every other token is one by itself."""
    numbers = count()
    return lambda one: image if one == image else (one, next(numbers))


def _same(content: str) -> str:
    """Return a text in the form that Qwen's tokenizer brings it to."""
    return unicodedata.normalize("NFC", content)


def _blanked(message: Message) -> Message:
    """Return a message with a harmless text in the place of each of its own."""
    return {
        **message,
        "content": [
            {"type": "text", "text": "x"} if part["type"] == "text" else part
            for part in message["content"]
        ],
    }


def _visible(character: str) -> bool:
    """Say whether a character leaves ink: no control, format, separator, mark or unassigned one, no blank."""
    return (
        unicodedata.category(character)[0] not in "CZM"
        and character not in "\u115f\u1160\u3164\uffa0\u2800"
    )


def _leaves(value: Any) -> Iterator[str]:
    """Yield all texts in a row."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        below = [
            leaf
            for child in (value.values() if isinstance(value, dict) else value)
            for leaf in _leaves(child)
        ]
        yield from below
        yield "".join(leaf for leaf in below if leaf != "text")  # parts that the template joins


def attack(
    tally: Tally,
    folder: Path,
    count: int,
    seed: int,
    only: str | None = None,
    kinds: Sequence[str] = (),
) -> None:
    """Attack all sources with `count` cases in all, or with the one case of the name `only`."""
    kinds = kinds or ROW_BY_ROW
    encode = encoder()
    for kind in kinds:
        found = cases(kind, -(-count // len(kinds)), seed)
        if only is not None:
            found = [case for case in found if case.name == only]
        if found:
            Attack(tally, kind, folder / kind, encode).run(found)
